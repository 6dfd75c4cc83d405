// Quantize(ConvTranspose(Dequantize(x), Dequantize(w), b)), whose windows neither overlap nor leave gaps, is a product of bytes: each pixel
// of x, times the weights of all taps, gives a block of pixels, and bytes are moved to their places.
//   -> Transpose, QuantizedMatMul + b, QuantizeLinear, Reshape, Transpose, Reshape, Transpose
// Sums are exact where floats round, so a result close to the middle between two codes may differ by one. Extents of x are known; weights
// are int8 with zero points of 0.
#include <vector>

#include "graph/op_def.h"
#include "kernels/gemm/gemm_bytes.h"
#include "passes/layout_rules.h"
#include "passes/list.h"
#include "passes/matching.h"
#include "passes/quantization.h"
#include "passes/trace.h"

namespace treadle::passes {
namespace {

using Ints = std::vector<int64_t>;

/// The constant as float32 numbers, if it is float32 or dequantized from int32 by one scale, or one for each element. Empty otherwise.
std::vector<float> constant_floats(const Graph& graph, ValueId id) {
  const Node* node = producer_of(graph, id);
  const Tensor *stored = graph.constant_tensor(node ? node->inputs[0] : id), *scales = nullptr;
  if (!stored || !stored->is_contiguous()) return {};
  if (!node)
    return stored->dtype() == DType::float32 ? std::vector<float>(stored->span<float>().begin(), stored->span<float>().end())
                                             : std::vector<float>{};
  if (!node->is("DequantizeLinear") || stored->dtype() != DType::int32) return {};
  const Tensor* zeros = node->has_input(2) ? graph.constant_tensor(node->inputs[2]) : nullptr;
  scales = graph.constant_tensor(node->inputs[1]);
  if (!scales || scales->dtype() != DType::float32 || !scales->is_contiguous() ||
      (node->has_input(2) && (!zeros || !all_elements_are(*zeros, 0))))
    return {};
  const bool shared = scales->num_elements() == 1;
  if (!shared && scales->num_elements() != stored->num_elements()) return {};
  std::vector<float> values;
  for (const int32_t code : stored->span<int32_t>())
    values.push_back(static_cast<float>(code) * scales->span<float>()[shared ? 0 : values.size()]);
  return values;
}

class FuseQuantizedConvTranspose final : public Rule {
 public:
  std::string_view name() const override { return "fuse-quantized-conv-transpose"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    const auto to = quantization_of(graph, &node, "QuantizeLinear");
    const Node* conv = to ? producer_of(graph, node.inputs[0]) : nullptr;
    if (!conv || !conv->is("ConvTranspose") || !kernels::has_fast_byte_products()) return std::nullopt;
    const Node *x = producer_of(graph, conv->inputs[0]), *w = producer_of(graph, conv->inputs[1]);
    const auto from = quantization_of(graph, x, "DequantizeLinear");
    if (!from || graph.type(x->inputs[0]).dtype != from->dtype) return no_patch(*conv, "its input is not dequantized from 8 bits");
    if (!is_used_once(graph, node.inputs[0])) return no_patch(*conv, "other nodes read its result as floats");
    const Tensor *weights = w && w->is("DequantizeLinear") ? graph.constant_tensor(w->inputs[0]) : nullptr,
                 *scales = weights ? graph.constant_tensor(w->inputs[1]) : nullptr;
    if (!scales || !fits(graph, *w, *weights, *scales))
      return no_patch(*conv, "its weights are no int8 by one scale, or one for each filter");
    if (!layout::is_tiled(conv->attributes, weights->shape()))
      return no_patch(*conv, "its windows overlap or leave gaps, or it has groups");
    const Type& image = graph.type(x->inputs[0]);
    if (!image.has_rank() || image.rank() != 4 || !(*image.shape)[2].is_const() || !(*image.shape)[3].is_const())
      return no_patch(*conv, "the extents of its input are not known");
    const std::vector<float> bias = conv->has_input(2) ? constant_floats(graph, conv->inputs[2]) : std::vector<float>{};
    if (conv->has_input(2) && static_cast<int64_t>(bias.size()) != weights->shape()[1]) return no_patch(*conv, "its bias is no constant");
    return product(graph, node, *conv, *to, *from, *weights, *scales, bias);
  }

 private:
  static bool fits(const Graph& graph, const Node& dequantize, const Tensor& weights, const Tensor& scales) {
    if (weights.dtype() != DType::int8 || weights.shape().rank() != 4 || scales.dtype() != DType::float32 || !scales.is_contiguous() ||
        dequantize.attributes.get_int("block_size") != 0)
      return false;
    if (scales.num_elements() != 1 && (scales.shape() != Shape{weights.shape()[1]} || dequantize.attributes.get_int("axis", 1) != 1))
      return false;
    const Tensor* zeros = dequantize.has_input(2) ? graph.constant_tensor(dequantize.inputs[2]) : nullptr;
    return !dequantize.has_input(2) || (zeros && all_elements_are(*zeros, 0));
  }
  static Patch product(const Graph& graph, const Node& node, const Node& conv, const Quantization& to, const Quantization& from,
                       const Tensor& given, const Tensor& scales, const std::vector<float>& bias) {
    const Tensor weights = given.contiguous();
    const Shape& shape = weights.shape();
    const int64_t C = shape[0], M = shape[1], height = shape[2], width = shape[3], taps = height * width;
    Tensor columns(DType::int8, Shape{C, taps * M}), column_scales(DType::float32, Shape{taps * M}),
        addends(DType::float32, Shape{taps * M});
    for (int64_t tap = 0; tap < taps; ++tap)
      for (int64_t m = 0; m < M; ++m) {
        for (int64_t c = 0; c < C; ++c) columns.data<int8_t>()[(c * taps + tap) * M + m] = weights.data<int8_t>()[(c * M + m) * taps + tap];
        column_scales.data<float>()[tap * M + m] = scales.data<float>()[scales.num_elements() == 1 ? 0 : m];
        addends.data<float>()[tap * M + m] = bias.empty() ? 0 : bias[static_cast<size_t>(m)];
      }
    Patch patch;
    const ValueId bytes = producer_of(graph, conv.inputs[0])->inputs[0];
    auto moved = [&](ValueId x, Ints perm) {
      return patch.add({.op_type = "Transpose", .inputs = {x}, .attributes = {{"perm", std::move(perm)}}, .name = conv.name});
    };
    auto reshaped = [&](ValueId x, const Ints& to_shape, const char* suffix) {
      const ValueId target = patch.constant(conv.name + suffix, Tensor::vector<int64_t>(to_shape));
      return patch.add({.op_type = "Reshape", .inputs = {x, target}, .name = conv.name});
    };
    const SymbolicShape& image = *graph.type(bytes).shape;
    ValueId y = patch.add({.op_type = "QuantizedMatMul",
                           .inputs = {moved(bytes, {0, 2, 3, 1}), from.scale, from.zero, patch.constant(conv.name + "/columns", columns),
                                      patch.constant(conv.name + "/scales", column_scales)},
                           .domain = "treadle",
                           .name = conv.name});
    if (!bias.empty()) y = patch.add({.op_type = "Add", .inputs = {y, patch.constant(conv.name + "/bias", addends)}, .name = conv.name});
    y = patch.add({.op_type = "QuantizeLinear", .inputs = {y, to.scale, to.zero}, .name = node.name});
    y = moved(reshaped(y, {0, 0, 0, height, width, M}, "/blocks"), {0, 1, 3, 2, 4, 5});
    y = reshaped(y, {0, image[2].value() * height, image[3].value() * width, M}, "/image");
    patch.replace(node.outputs[0], moved(y, {0, 3, 1, 2}));
    return patch;
  }
};

}  // namespace

Pass fuse_quantized_conv_transpose() {
  return rule_pass<FuseQuantizedConvTranspose>(
      kLayout, {.frozen_weights = true, .not_before_autodiff = true, .only_in_memory = true, .for_host = true},
      "ConvTranspose of dequantized bytes, quantized again -> a product of bytes");
}

}  // namespace treadle::passes
