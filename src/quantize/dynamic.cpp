// Dynamic quantization: rewrites MatMul(x, W) as Cast(MatMulInteger(DynamicQuantizeLinear(x), W8)) * (x_scale * W_scale), a pattern that
// runtimes fuse.
#include <algorithm>

#include "quantize/codes.h"
#include "quantize/plan.h"

namespace treadle::quantization {
namespace {

struct DynamicWeights {
  std::string codes, scales, zeros;
  double sqnr_db = 0;
};

DynamicWeights add_dynamic_weights(Plan& plan, const onnx::NodeDef& node) {
  const Tensor matrix = product_weights(plan.editor, node, false);
  ByteWeights weights = byte_weights(matrix, plan.options.per_channel ? 1 : -1, plan.options.reduce_range ? 63 : 127);
  Tensor zeros(DType::int8, weights.scales.shape());
  std::fill_n(zeros.data<int8_t>(), zeros.num_elements(), int8_t{0});
  const std::string& name = node.inputs[1];
  return {plan.editor.add(name + "_quantized", weights.codes), plan.editor.add(name + "_scale", weights.scales),
          plan.editor.add(name + "_zero_point", zeros), weights.sqnr_db};
}

}  // namespace

void quantize_dynamic(Plan& plan) {
  Editor& editor = plan.editor;
  std::map<std::string, DynamicWeights> weights;
  struct Activation {
    std::string codes, scale, zero;
  };
  std::map<std::string, Activation> activations;  // codes of the values that products read, by name; shared by several products
  replace_nodes(plan, [&](const onnx::NodeDef& node, QuantizedNode& entry, std::vector<onnx::NodeDef>& result) {
    auto [w, is_new] = weights.try_emplace(weights_key(node));
    if (is_new) w->second = add_dynamic_weights(plan, node);
    entry.weight_sqnr_db = w->second.sqnr_db;
    auto [at, is_first] = activations.try_emplace(node.inputs[0]);
    Activation& x = at->second;
    if (is_first) {
      const std::string& name = node.inputs[0];
      x = {editor.unique(name + "_quantized"), editor.unique(name + "_scale"), editor.unique(name + "_zero_point")};
      result.push_back(make_node("DynamicQuantizeLinear", {name}, {x.codes, x.scale, x.zero}, editor.unique(name + "_QuantizeLinear")));
    }
    const std::string sums = editor.unique(node.outputs[0] + "_sums"), floats = editor.unique(sums + "_float"),
                      scales = editor.unique(node.outputs[0] + "_scales"), product = product_name(editor, node);
    result.push_back(
        make_node("MatMulInteger", {x.codes, w->second.codes, x.zero, w->second.zeros}, {sums}, editor.unique(entry.name + "_quant")));
    result.push_back(make_node("Cast", {sums}, {floats}, editor.unique(entry.name + "_cast")));
    set_attribute(result.back(), "to", static_cast<int64_t>(DType::float32));
    result.push_back(make_node("Mul", {x.scale, w->second.scales}, {scales}, editor.unique(entry.name + "_scales_mul")));
    result.push_back(make_node("Mul", {floats, scales}, {product}, editor.unique(entry.name + "_output_scale_mul")));
    add_gemm_bias(editor, node, product, result);
  });
  editor.require_opset("", 11);
}

}  // namespace treadle::quantization
