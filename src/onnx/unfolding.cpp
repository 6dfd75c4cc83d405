#include "onnx/unfolding.h"

#include <fmt/format.h>

#include "treadle/error.h"

namespace treadle::onnx {
namespace {

constexpr int64_t kMaxNodes = 250'000;
// Estimated memory of a node and its output value, in the graph and in the program.
constexpr int64_t kNodeBytes = 2048;
constexpr int64_t kLeastBytes = 16 << 20, kBytesPerByte = 128;

// Estimated memory of a value of a body that no node computes.
constexpr int64_t kValueBytes = 256;

int64_t value_bytes(const AttributeDef& attribute) {
  if (!attribute.g) return 0;
  const GraphDef& g = *attribute.g;
  return kValueBytes * static_cast<int64_t>(g.inputs.size() + g.outputs.size() + g.initializers.size() + g.sparse_initializers.size());
}

// Returns the bytes of an attribute's strings and lists, which each call copies (tensors are shared). Bodies' nodes are counted separately.
int64_t copied_bytes(const AttributeDef& attribute) {
  size_t bytes =
      attribute.name.size() + attribute.s.size() + attribute.floats.size() * sizeof(float) + attribute.ints.size() * sizeof(int64_t);
  for (const std::string& text : attribute.strings) bytes += sizeof text + text.size();
  return static_cast<int64_t>(bytes);
}

int64_t copied_bytes(const NodeDef& node) {
  size_t bytes = node.name.size() + node.op_type.size() + node.domain.size() + node.doc_string.size();
  for (const std::string& input : node.inputs) bytes += sizeof(int64_t) + input.size();
  for (const std::string& output : node.outputs) bytes += output.size();
  auto total = static_cast<int64_t>(bytes);
  for (const AttributeDef& attribute : node.attributes) total += copied_bytes(attribute);
  return total;
}

// Returns a lower bound for the bytes that the nodes take in the file: each list element takes at least one byte.
int64_t written_bytes(const std::vector<NodeDef>& nodes) {
  int64_t bytes = 0;
  for (const NodeDef& node : nodes) {
    bytes += copied_bytes(node);
    for (const AttributeDef& attribute : node.attributes) {
      bytes -= static_cast<int64_t>(attribute.ints.size() * (sizeof(int64_t) - 1));
      if (attribute.g) bytes += written_bytes(attribute.g->nodes);
    }
  }
  return bytes;
}

}  // namespace

UnfoldingBudget::UnfoldingBudget(const ModelDef& model) {
  if (model.functions.empty()) return;
  int64_t written = written_bytes(model.graph.nodes);
  for (const FunctionDef& function : model.functions) written += written_bytes(function.nodes);
  limit_bytes_ = kLeastBytes + kBytesPerByte * written;
}

void UnfoldingBudget::charge(const NodeDef& node, size_t name_bytes) {
  ++nodes_;
  // A node stores its name twice: as its name, and in its sources.
  bytes_ += kNodeBytes + static_cast<int64_t>(name_bytes * (2 + node.outputs.size()) + node.name.size()) + copied_bytes(node);
  for (const AttributeDef& attribute : node.attributes) bytes_ += value_bytes(attribute);
  check();
}

void UnfoldingBudget::charge(const AttributeDef& attribute) {
  bytes_ += copied_bytes(attribute) + value_bytes(attribute);
  check();
}

void UnfoldingBudget::check() const {
  if (nodes_ > kMaxNodes || bytes_ > limit_bytes_)
    throw Error(
        ErrorCode::resource_exhausted,
        fmt::format("local functions unfold into {} nodes and more, of {} bytes; those of a file of this size may be {} nodes of {} bytes",
                    nodes_, bytes_, kMaxNodes, limit_bytes_));
}

}  // namespace treadle::onnx
