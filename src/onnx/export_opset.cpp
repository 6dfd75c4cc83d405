// Finds the lowest opset in which a node can be written unchanged.
#include <algorithm>

#include "graph/custom_ops.h"
#include "graph/op_def.h"
#include "onnx/export.h"
#include "onnx/opset_history.h"

namespace treadle::onnx {
namespace {

// Values of attributes that were added to ONNX later than the attribute itself.
struct LateValue {
  std::string_view op_type, attribute, value;
  int since;
};
constexpr LateValue kLateValues[] = {
    {"Pad", "mode", "wrap", 19},
    {"Resize", "coordinate_transformation_mode", "half_pixel_symmetric", 19},
    {"ScatterElements", "reduction", "max", 18},
    {"ScatterElements", "reduction", "min", 18},
    {"ScatterND", "reduction", "max", 18},
    {"ScatterND", "reduction", "min", 18},
};

bool has_word(std::string_view words, std::string_view word) {
  for (size_t at = words.find(word); at != std::string_view::npos; at = words.find(word, at + 1)) {
    size_t end = at + word.size();
    if ((at == 0 || words[at - 1] == ' ') && (end == words.size() || words[end] == ' ')) return true;
  }
  return false;
}

bool accepts(uint64_t mask, const Type& type) {
  switch (type.kind) {
    case Type::Kind::unknown: return true;
    case Type::Kind::tensor: return type.dtype == DType::undefined || (mask >> static_cast<unsigned>(type.dtype) & 1U);
    case Type::Kind::sequence: return mask >> 40U & 1U;
    case Type::Kind::optional: return mask >> 41U & 1U;
    case Type::Kind::map: return mask >> 42U & 1U;
    case Type::Kind::sparse_tensor: return mask >> 43U & 1U;
  }
  return false;
}

bool fits(const Graph& graph, std::span<const ValueId> operands, int count, bool variadic, const uint8_t* masks) {
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i] == kNoValue) continue;
    if (static_cast<int>(i) >= count && !variadic) return false;
    size_t port = std::min(i, static_cast<size_t>(count - 1));
    if (!accepts(type_mask(masks[port]), graph.type(operands[i]))) return false;
  }
  return true;
}

bool fits(const Graph& graph, const Node& node, const SchemaVersion& version) {
  std::span<const ValueId> inputs(node.inputs.data(), static_cast<size_t>(node.num_formal_inputs));
  if (!fits(graph, inputs, version.num_inputs, version.variadic_inputs, version.inputs)) return false;
  if (!fits(graph, node.outputs, version.num_outputs, version.variadic_outputs, version.outputs)) return false;
  for (const auto& [name, value] : node.attributes) {
    if (!has_word(version.attributes, name)) return false;
    for (const LateValue& late : kLateValues)
      if (version.since < late.since && node.is(late.op_type) && name == late.attribute && node.attributes.get_string(name) == late.value)
        return false;
  }
  return true;
}

}  // namespace

int lowest_opset(const Graph& graph, const Node& node) {
  const OpDef& op = *node.op;
  if (is_custom_op(op)) return node.version;
  int lowest = op.since.empty() ? 1 : op.since.back();
  // If there is an upgrade step from a version, the operator's meaning changed after that version.
  int changed = 0;
  for (const UpgradeStep& step : op.upgrade) changed = std::max(changed, step.from);
  std::span<const SchemaVersion> history = schema_history();
  auto less = [](const SchemaVersion& version, const std::pair<std::string_view, std::string_view>& key) {
    return std::pair(version.domain, version.name) < key;
  };
  auto first =
      std::lower_bound(history.begin(), history.end(), std::pair<std::string_view, std::string_view>(node.domain, node.op_type), less);
  auto last = first;
  while (last != history.end() && last->domain == node.domain && last->name == node.op_type) ++last;
  while (last != first) {
    --last;
    if (last->since > lowest) continue;  // the schema is newer than this build supports
    if (last->since <= changed || !fits(graph, node, *last)) break;
    lowest = last->since;
  }
  return lowest;
}

}  // namespace treadle::onnx
