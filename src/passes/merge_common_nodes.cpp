// Common subexpression elimination with a hash table of operator, attributes and inputs.
#include <cstring>
#include <functional>
#include <unordered_map>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "graph/rewriter.h"
#include "passes/list.h"
#include "passes/trace.h"

namespace treadle::passes {
namespace {

// Larger constants count as equal only if they share memory, because comparing them would read all weights of the file when loading.
constexpr size_t kMaxComparedBytes = 4096;

size_t mix(size_t seed, size_t value) { return seed ^ (value + 0x9e3779b97f4a7c15ULL + (seed << 6) + (seed >> 2)); }

size_t hash_of(std::string_view text) { return std::hash<std::string_view>()(text); }

size_t hash_of(const Tensor& tensor) {
  size_t hash = static_cast<size_t>(tensor.dtype());
  for (int64_t extent : tensor.shape()) hash = mix(hash, static_cast<size_t>(extent));
  if (tensor.dtype() == DType::string) {
    for (const std::string& text : tensor.span<std::string>()) hash = mix(hash, hash_of(text));
    return hash;
  }
  if (tensor.size_bytes() > kMaxComparedBytes) return mix(hash, std::hash<const void*>()(tensor.raw()));
  return mix(hash, hash_of({reinterpret_cast<const char*>(tensor.raw()), tensor.size_bytes()}));
}

bool same_contents(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  if (a.dtype() != DType::string && a.size_bytes() > kMaxComparedBytes) return a.raw() == b.raw();
  return equal(a, b);
}

size_t hash_of(const Node& node) {
  size_t hash = mix(hash_of(node.op_type), hash_of(node.domain));
  for (ValueId input : node.inputs) hash = mix(hash, index_of(input));
  // Hashes only the names of attributes. equal() compares their contents later.
  for (const auto& item : node.attributes) hash = mix(hash, hash_of(item.first));
  return mix(hash, node.outputs.size());
}

bool same_computation(const Node& a, const Node& b) {
  if (a.op != b.op || a.inputs != b.inputs || a.outputs.size() != b.outputs.size() || !(a.attributes == b.attributes)) return false;
  for (size_t i = 0; i < a.outputs.size(); ++i)
    if (a.outputs[i] == kNoValue && b.outputs[i] != kNoValue) return false;
  return true;
}

// Reports why nodes with equal inputs were not merged.
class NearMisses {
 public:
  explicit NearMisses(const Graph& graph) : graph_(graph), wanted_(PassTrace::current() != nullptr) {}

  void look(const Node& node) {
    if (!wanted_ || node.inputs.empty() || !node.op) return;
    size_t hash = mix(hash_of(node.op_type), hash_of(node.domain));
    for (ValueId input : node.inputs) hash = mix(hash, index_of(input));
    auto [first, last] = seen_.equal_range(hash);
    for (auto other = first; other != last; ++other) {
      const Node& alike = graph_.node(other->second);
      if (alike.op == node.op && alike.inputs == node.inputs) return note(node, alike);
    }
    seen_.emplace(hash, node.id);
  }

 private:
  static void note(const Node& node, const Node& alike) {
    if (!node.op->deterministic)
      declined(node, "it reads the same as", &alike, ", but the operator draws random numbers");
    else if (!node.bodies.empty())
      declined(node, "it reads the same as", &alike, ", but has bodies, which are not compared");
    else if (node.op->barrier)
      declined(node, "it reads the same as", &alike, ", but is a barrier");
    else if (node.attributes == alike.attributes)
      declined(node, "it reads the same as", &alike, ", but has other outputs");
    else
      declined(node, "it reads the same as", &alike, ", but its attributes differ");
  }

  const Graph& graph_;
  const bool wanted_;
  std::unordered_multimap<size_t, NodeId> seen_;
};

bool can_merge(const Node& node) {
  return node.op && node.op->deterministic && node.bodies.empty() && !node.outputs.empty() && !node.op->barrier;
}

void share_constants(Rewriter& rewriter) {
  Graph& graph = rewriter.graph();
  std::unordered_multimap<size_t, ValueId> seen;
  for (size_t i = 0; i < graph.num_values() && !rewriter.is_at_limit(); ++i) {
    ValueId id{static_cast<uint32_t>(i)};
    const Tensor* tensor = graph.stored_tensor(id);
    if (!tensor || !tensor->is_contiguous() || (graph.value(id).uses.empty() && !graph.is_output(id))) continue;
    size_t hash = hash_of(*tensor);
    auto [first, last] = seen.equal_range(hash);
    auto same = std::find_if(first, last, [&](const auto& entry) { return same_contents(*graph.stored_tensor(entry.second), *tensor); });
    if (same == last) {
      seen.emplace(hash, id);
      continue;
    }
    rewriter.change(std::span<const NodeId>(), [&] {
      graph.replace_uses(id, same->second);
      return true;
    });
  }
}

void merge_nodes(Rewriter& rewriter) {
  Graph& graph = rewriter.graph();
  std::unordered_multimap<size_t, NodeId> seen;
  NearMisses near_misses(graph);
  for (NodeId id : graph.order()) {
    if (rewriter.is_at_limit()) break;
    if (!can_merge(graph.node(id))) {
      near_misses.look(graph.node(id));
      continue;
    }
    size_t hash = hash_of(graph.node(id));
    auto [first, last] = seen.equal_range(hash);
    auto same = std::find_if(first, last, [&](const auto& entry) { return same_computation(graph.node(entry.second), graph.node(id)); });
    if (same == last) {
      seen.emplace(hash, id);
      near_misses.look(graph.node(id));
      continue;
    }
    const Node &kept = graph.node(same->second), &merged = graph.node(id);
    rewriter.change(std::span<const NodeId>(), [&] {
      for (size_t i = 0; i < merged.outputs.size(); ++i) {
        if (merged.outputs[i] == kNoValue) continue;
        Value &to = graph.value(kept.outputs[i]), &from = graph.value(merged.outputs[i]);
        to.type = merge(to.type, from.type);
        if (!to.known) to.known = from.known;
        graph.replace_uses(merged.outputs[i], kept.outputs[i]);
      }
      rewriter.stand_for(kept.id, id);
      graph.remove_node(id);
      return true;
    });
  }
}

}  // namespace

Pass merge_constants() {
  return graph_pass("merge-constants", kBasic, kAlways, "small constants of equal contents become one",
                    [](Graph& graph, PassContext&, int64_t limit) { return Rewriter(graph, limit).for_each_graph(share_constants); });
}

Pass merge_common_nodes() {
  return graph_pass("merge-common-nodes", kBasic, kAlways, "nodes that compute the same thing become one",
                    [](Graph& graph, PassContext&, int64_t limit) { return Rewriter(graph, limit).for_each_graph(merge_nodes); });
}

}  // namespace treadle::passes
