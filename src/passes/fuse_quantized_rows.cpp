// Quantize(Softmax(Dequantize(x))) -> QuantizedSoftmax(x), and the same with LayerNormalization, along the last axis: one pass over bytes.
// Results are the same, bit for bit. Only if nothing else reads the floats that the function makes; scales and zero points are constants.
#include "graph/op_def.h"
#include "passes/list.h"
#include "passes/matching.h"
#include "passes/quantization.h"
#include "passes/trace.h"

namespace treadle::passes {
namespace {

class FuseQuantizedRows final : public Rule {
 public:
  std::string_view name() const override { return "fuse-quantized-rows"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    const auto to = quantization_of(graph, &node, "QuantizeLinear");
    const Node* rows = to ? producer_of(graph, node.inputs[0]) : nullptr;
    if (!rows || (!rows->is("Softmax") && !rows->is("LayerNormalization"))) return std::nullopt;
    const Node* x = producer_of(graph, rows->inputs[0]);
    const auto from = quantization_of(graph, x, "DequantizeLinear");
    if (!from || graph.type(x->inputs[0]).dtype != from->dtype) return no_patch(*rows, "its input is not dequantized from 8 bits");
    if (!is_used_once(graph, node.inputs[0])) return no_patch(*rows, "other nodes read its result as floats");
    const Type& type = graph.type(rows->inputs[0]);
    const int64_t axis = rows->attributes.get_int("axis", -1);
    if (!type.has_rank() || type.rank() == 0 || (axis != -1 && axis != type.rank() - 1))
      return no_patch(*rows, "it is not along the last axis");
    std::vector<ValueId> inputs{x->inputs[0], from->scale, from->zero, to->scale, to->zero};
    NodeSpec spec{.op_type = "Quantized" + rows->op_type, .domain = "treadle", .name = rows->name};
    if (rows->is("LayerNormalization")) {
      if (!takes(graph, *rows)) return no_patch(*rows, "it gives statistics, or its scale or bias is no row of known length");
      inputs.insert(inputs.end(), rows->inputs.begin() + 1, rows->inputs.end());
      spec.attributes.set("epsilon", rows->attributes.get_float("epsilon", 1e-5F));
    }
    spec.inputs = std::move(inputs);
    Patch patch;
    patch.replace(node.outputs[0], patch.add(std::move(spec)));
    return patch;
  }

 private:
  static bool takes(const Graph& graph, const Node& node) {
    for (size_t i = 1; i < node.outputs.size(); ++i)
      if (node.outputs[i] != kNoValue) return false;
    const Dim& length = graph.type(node.inputs[0]).shape->back();
    for (size_t i = 1; i < node.inputs.size(); ++i) {
      if (!node.has_input(i)) continue;
      const Type& row = graph.type(node.inputs[i]);
      if (row.dtype != DType::float32 || !row.has_rank() || row.rank() != 1 || row.shape->front() != length) return false;
    }
    return true;
  }
};

}  // namespace

Pass fuse_quantized_rows() {
  return rule_pass<FuseQuantizedRows>(kLayout, {.not_before_autodiff = true, .only_in_memory = true, .for_host = true},
                                      "Softmax and LayerNormalization of dequantized bytes, quantized again -> one node");
}

}  // namespace treadle::passes
