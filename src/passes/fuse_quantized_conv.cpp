// Convolutions, and operators between them, whose 8-bit operands are dequantized and whose results are quantized again:
//   Quantize(Relu(Conv(Dequantize(x), Dequantize(w), b)))      -> QLinearConv(x, w, b), if the zero point is the lowest code
//   Quantize(f(Dequantize(x))), f a function of one number     -> ByteTable(x): a table of the function's 256 values
//   Quantize(Concat(a, b ...)), Quantize(MaxPool(a)), Quantize(Reshape(a)) ... of such a, b
//                                                              -> Concat(Quantize(a), Quantize(b) ...) ..., as Quantize is monotonic
//
// The last two are exact. In the first, sums are exact where sums of floats are rounded, so a result close to a rounding boundary may
// differ by one. A bias must be a multiple of the unit of the sums (scale of x times scale of w), except for float rounding. Scales and
// zero points are constants, one per image. Applies only if the CPU has fast byte products.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "graph/op_def.h"
#include "kernels/conv/nhwc_bytes.h"
#include "kernels/gemm/gemm_bytes.h"
#include "ops/treadle/fused_elementwise.h"
#include "passes/list.h"
#include "passes/matching.h"
#include "passes/trace.h"

namespace treadle::passes {
namespace {

struct Quantization {
  ValueId scale = kNoValue, zero = kNoValue;
  float step = 0;
  int32_t origin = 0;
  DType dtype = DType::undefined;

  float low() const { return dtype == DType::int8 ? -128.0F : 0.0F; }
  float high() const { return dtype == DType::int8 ? 127.0F : 255.0F; }
};

/// Describes a QuantizeLinear or DequantizeLinear between float32 and 8-bit codes with one constant positive scale; nullopt for other
/// nodes.
std::optional<Quantization> quantization_of(const Graph& graph, const Node* node, std::string_view op_type) {
  if (!node || !node->is(op_type) || !node->has_input(2)) return std::nullopt;
  const Tensor *scale = graph.constant_tensor(node->inputs[1]), *zero = graph.constant_tensor(node->inputs[2]);
  if (!scale || !zero || scale->dtype() != DType::float32 || scale->num_elements() != 1 || zero->num_elements() != 1) return std::nullopt;
  const DType real = graph.type(op_type == "QuantizeLinear" ? node->inputs[0] : node->outputs[0]).dtype;
  if (real != DType::float32 || node->attributes.get_int("precision") > 1 || node->attributes.get_int("block_size") != 0)
    return std::nullopt;
  Quantization q{node->inputs[1], node->inputs[2], scale->data<float>()[0], 0, zero->dtype()};
  if (q.dtype == DType::uint8)
    q.origin = zero->data<uint8_t>()[0];
  else if (q.dtype == DType::int8)
    q.origin = zero->data<int8_t>()[0];
  else
    return std::nullopt;
  if (!(q.step > 0) || !std::isfinite(q.step)) return std::nullopt;
  return q;
}

/// If the value is the result of a Relu that alone reads its input, returns that input; otherwise the value itself.
ValueId before_relu(const Graph& graph, ValueId id, bool& relu) {
  const Node* node = producer_of(graph, id);
  relu = node && node->is("Relu") && is_used_once(graph, node->inputs[0]);
  return relu ? node->inputs[0] : id;
}

/// Returns a function of one number (Relu, Sigmoid etc.) as a step of a chain; nullopt for other nodes.
std::optional<ElementwiseStep> number_function(const Graph& graph, const Node* node) {
  if (!node || !node->op || node->op->functions.empty() || !node->op->step || graph.type(node->outputs[0]).dtype != DType::float32)
    return std::nullopt;
  std::optional<PointwiseStep> found = node->op->step(graph, *node);
  if (!found) return std::nullopt;
  found->step.operands = {0};
  return std::move(found->step);
}

using Numbers = std::array<float, 256>;
/// Applies the function to each of the numbers.
Numbers applied(const ElementwiseStep& function, const Numbers& numbers) {
  const std::string steps[] = {function.to_string()};
  const int64_t count[] = {static_cast<int64_t>(numbers.size())};
  kernels::ChainPlan plan;
  plan.size = count[0];
  plan.inputs[0] = kernels::plan_chain_input(count, count);
  const void* inputs[] = {numbers.data()};
  Numbers result;
  kernels::run_chain(ops::compile_chain(steps, {DType::float32}, DType::float32), plan, inputs, result.data(), nullptr);
  return result;
}

class FuseQuantizedConv final : public Rule {
 public:
  std::string_view name() const override { return "fuse-quantized-conv"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    if (!node.is("QuantizeLinear")) return std::nullopt;
    if (!kernels::has_fast_byte_products()) return no_patch(node, "this machine has no instructions for sums of products of bytes");
    const auto to = quantization_of(graph, &node, "QuantizeLinear");
    if (!to) return no_patch(node, "its scale and zero point are not one constant each, or it does not go from float32 to 8 bits");
    if (auto patch = table(graph, node, *to)) return patch;
    if (auto patch = convolution(graph, node, *to)) return patch;
    return moved_up(graph, node, *to);
  }

 private:
  /// Returns true if the value was dequantized from bytes, possibly followed by a function of one number.
  static bool is_dequantized(const Graph& graph, ValueId id) {
    const Node* node = producer_of(graph, id);
    if (number_function(graph, node)) node = producer_of(graph, node->inputs[0]);
    return quantization_of(graph, node, "DequantizeLinear").has_value();
  }

  static std::optional<Patch> table(const Graph& graph, const Node& node, const Quantization& to) {
    // Intermediate values may have other readers; their nodes then stay in the graph.
    const Node* inner = producer_of(graph, node.inputs[0]);
    const std::optional<ElementwiseStep> function = number_function(graph, inner);
    if (function) inner = producer_of(graph, inner->inputs[0]);
    const auto from = quantization_of(graph, inner, "DequantizeLinear");
    if (!from || graph.type(inner->inputs[0]).dtype != from->dtype) return std::nullopt;
    std::array<uint8_t, 256> entries;
    bool identity = from->dtype == to.dtype;
    Numbers values;
    for (int i = 0; i < 256; ++i) {
      const int32_t code = from->dtype == DType::int8 ? static_cast<int8_t>(i) : i;
      values[static_cast<size_t>(i)] = static_cast<float>(code - from->origin) * from->step;
    }
    if (function) values = applied(*function, values);
    for (int i = 0; i < 256; ++i) {
      const auto zero = static_cast<float>(to.origin);
      float quotient = values[static_cast<size_t>(i)] / to.step;
      if (std::isnan(quotient)) quotient = to.low() - zero;  // QuantizeLinear maps NaN to the lowest code
      quotient = std::clamp(quotient, to.low() - zero, to.high() - zero);
      entries[static_cast<size_t>(i)] = static_cast<uint8_t>(static_cast<int32_t>(std::nearbyint(quotient) + zero));
      identity = identity && entries[static_cast<size_t>(i)] == i;
    }
    if (identity) return Patch::replacement(node.outputs[0], inner->inputs[0]);
    Patch patch;
    const ValueId constant = patch.constant(node.name + "/table", Tensor::of<uint8_t>(Shape{256}, std::span<const uint8_t>(entries)));
    patch.replace(node.outputs[0], patch.add({.op_type = "ByteTable",
                                              .inputs = {inner->inputs[0], constant},
                                              .attributes = {{"dtype", static_cast<int64_t>(to.dtype)}},
                                              .domain = "treadle",
                                              .name = node.name}));
    return patch;
  }

  static std::optional<Patch> convolution(const Graph& graph, const Node& node, const Quantization& to) {
    bool relu = false;
    const ValueId y = before_relu(graph, node.inputs[0], relu);
    const Node* conv = producer_of(graph, y);
    if (!conv || !conv->is("Conv")) return std::nullopt;
    if (!is_used_once(graph, y) || !is_used_once(graph, node.inputs[0])) return no_patch(*conv, "other nodes read its result as floats");
    // No code is below the zero point, so saturation to the lowest code has the effect of Relu.
    if (relu && static_cast<float>(to.origin) != to.low())
      return no_patch(*conv, [&] {
        return fmt::format("a Relu is behind it, and the zero point is {}; {} is needed, the least number", to.origin, to.low());
      });
    const Node *x = producer_of(graph, conv->inputs[0]), *w = producer_of(graph, conv->inputs[1]);
    const auto from = quantization_of(graph, x, "DequantizeLinear");
    if (!from) return no_patch(*conv, "its input is not dequantised from 8 bits by one constant scale");
    if (!w || !w->is("DequantizeLinear") || w->attributes.get_int("block_size") != 0)
      return no_patch(*conv, "its weights are not dequantised by one scale, or one for each filter");
    const Tensor *weights = graph.constant_tensor(w->inputs[0]), *scales = graph.constant_tensor(w->inputs[1]);
    if (!weights || weights->dtype() != DType::int8 || weights->shape().rank() < 3 || !scales || scales->dtype() != DType::float32 ||
        !scales->is_contiguous())
      return no_patch(*conv, [&] {
        return fmt::format("its weights are {} with scales {}; constant int8 with float32 scales are needed", found(graph, w->inputs[0]),
                           found(graph, w->inputs[1]));
      });
    const int64_t filters = weights->shape()[0];
    // Converts only if the layout pass will then convert the QLinearConv too; otherwise floats are faster.
    kernels::ConvParams params;
    params.group = conv->attributes.get_int("group", 1);
    params.M = filters, params.C = weights->shape()[1] * params.group;
    const auto pads = conv->attributes.get_ints("pads");
    if (weights->shape().rank() > 4 || !kernels::has_nhwc_bytes(params) || !graph.type(x->inputs[0]).has_rank() ||
        std::any_of(pads.begin(), pads.end(), [](int64_t pad) { return pad < 0; }))
      return no_patch(*conv, [&] {
        return fmt::format("no kernel for bytes computes weights {} in {} groups: one group, or a channel in each, is needed",
                           to_string(weights->shape()), params.group);
      });
    if (scales->num_elements() != 1 && (scales->shape() != Shape{filters} || w->attributes.get_int("axis", 1) != 0))
      return no_patch(*conv, [&] {
        return fmt::format("its weights have scales {}; one, or one for each of {} filters, is needed", to_string(scales->shape()),
                           filters);
      });
    Patch patch;
    ValueId zero = kNoValue;
    if (w->has_input(2)) {
      const Tensor* zeros = graph.constant_tensor(w->inputs[2]);
      if (!zeros || zeros->dtype() != DType::int8 || zeros->num_elements() != scales->num_elements() || !all_elements_are(*zeros, 0))
        return no_patch(*conv, "its weights have zero points that are not 0");
      zero = w->inputs[2];
    } else {
      zero = patch.constant(node.name + "/w_zero_point", Tensor::of<int8_t>(Shape{}, std::array<int8_t, 1>{0}));
    }
    std::vector<ValueId> inputs{x->inputs[0], from->scale, from->zero, w->inputs[0], w->inputs[1], zero, to.scale, to.zero};
    if (conv->has_input(2)) {
      const auto bias = integer_bias(graph, conv->inputs[2], *scales, from->step, filters);
      if (!bias) return no_patch(*conv, "its bias is no constant whose numbers are multiples of the scales of input and weights");
      inputs.push_back(patch.constant(node.name + "/bias", *bias));
    }
    patch.replace(node.outputs[0],
                  patch.add({.op_type = "QLinearConv", .inputs = std::move(inputs), .attributes = conv->attributes, .name = conv->name}));
    return patch;
  }

  /// Returns the bias in units of the sums; nullopt if it is not a multiple of the unit, because rounding it would shift results by a
  /// fraction of a step.
  static std::optional<Tensor> integer_bias(const Graph& graph, ValueId id, const Tensor& scales, float x_step, int64_t filters) {
    const Node* made = producer_of(graph, id);
    const Tensor *stored = graph.constant_tensor(made ? made->inputs[0] : id), *steps = nullptr;
    if (!stored || stored->num_elements() != filters || !stored->is_contiguous()) return std::nullopt;
    if (made) {
      if (!made->is("DequantizeLinear") || stored->dtype() != DType::int32) return std::nullopt;
      steps = graph.constant_tensor(made->inputs[1]);
      if (!steps || steps->dtype() != DType::float32 || (steps->num_elements() != 1 && steps->num_elements() != filters) ||
          !steps->is_contiguous())
        return std::nullopt;
      if (made->has_input(2)) {
        const Tensor* zeros = graph.constant_tensor(made->inputs[2]);
        if (!zeros || !all_elements_are(*zeros, 0)) return std::nullopt;
      }
    } else if (stored->dtype() != DType::float32) {
      return std::nullopt;
    }
    Tensor result(DType::int32, Shape{filters});
    for (int64_t m = 0; m < filters; ++m) {
      const double unit = double{x_step} * double{scales.data<float>()[scales.num_elements() == 1 ? 0 : m]};
      const double value = made ? stored->data<int32_t>()[m] * double{steps->data<float>()[steps->num_elements() == 1 ? 0 : m]}
                                : double{stored->data<float>()[m]};
      const double units = std::nearbyint(value / unit);
      constexpr double kRounding = 4 * double{std::numeric_limits<float>::epsilon()};
      if (!(std::fabs(units) < 1e9) || std::fabs(units * unit - value) > kRounding * std::fabs(value)) return std::nullopt;
      result.data<int32_t>()[m] = static_cast<int32_t>(units);
    }
    return result;
  }

  // Quantize(f(a)) -> f(Quantize(a)), if f only selects elements or maxima of elements.
  static std::optional<Patch> moved_up(const Graph& graph, const Node& node, const Quantization& to) {
    const Node* f = producer_of(graph, node.inputs[0]);
    if (!f || !f->op || f->outputs.size() > 1 || !is_used_once(graph, node.inputs[0])) return std::nullopt;
    if (f->op->quantization != treadle::Quantization::chooses) return std::nullopt;
    const bool joins = f->op->pieces == Pieces::concat;
    const size_t count = joins ? f->inputs.size() : 1;
    for (size_t i = 0; i < count; ++i) {
      const Node* inner = producer_of(graph, f->inputs[i]);
      const bool joined = inner && inner->op && inner->op->pieces == Pieces::concat && is_used_once(graph, f->inputs[i]) &&
                          std::all_of(inner->inputs.begin(), inner->inputs.end(), [&](ValueId id) { return is_dequantized(graph, id); });
      if (!is_dequantized(graph, f->inputs[i]) && !joined) return std::nullopt;
    }
    Patch patch;
    NodeSpec spec{.op_type = f->op_type, .inputs = f->inputs, .attributes = f->attributes, .domain = f->domain, .name = f->name};
    for (size_t i = 0; i < count; ++i)
      spec.inputs[i] = patch.add(
          {.op_type = "QuantizeLinear", .inputs = {f->inputs[i], to.scale, to.zero}, .attributes = node.attributes, .name = node.name});
    patch.replace(node.outputs[0], patch.add(std::move(spec)));
    return patch;
  }
};

}  // namespace

Pass fuse_quantized_conv() {
  return rule_pass<FuseQuantizedConv>(kLayout,
                                      {.frozen_weights = true, .not_before_autodiff = true, .only_in_memory = true, .for_host = true},
                                      "convolutions, pools, joins of dequantised bytes -> the same of bytes, outside of training");
}

}  // namespace treadle::passes
