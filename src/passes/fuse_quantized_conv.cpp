// Convolutions, and operators between them, whose 8-bit operands are dequantized and whose results are quantized again:
//   Quantize(Relu(Conv(Dequantize(x), Dequantize(w), b)))      -> QLinearConv(x, w, b), if the zero point is the lowest code
//   Quantize(f(Dequantize(x), c)), f pointwise, c numbers      -> ByteTable(x): a table of the 256 values
//   Quantize(f(Dequantize(x), Dequantize(ByteTable(x))))       -> ByteTable(x): such as x * Sigmoid(x), or a Gelu in several nodes
//   Quantize(Concat(a, b ...)), Quantize(MaxPool(a)), Quantize(Reshape(a)), Quantize(Split(a)) ... of such a, b
//                                                              -> Concat(Quantize(a), Quantize(b) ...) ..., as Quantize is monotonic
//
// All but the first are exact. The first has exact sums where floats round, so a result close to a rounding boundary may differ by one. A
// bias must be a multiple of the sums' unit, except for float rounding. Scales and zero points are constants, one per image. Applies only
// if the CPU has fast byte products.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "graph/op_def.h"
#include "kernels/conv/nhwc_bytes.h"
#include "kernels/gemm/gemm_bytes.h"
#include "ops/treadle/fused_elementwise.h"
#include "passes/list.h"
#include "passes/matching.h"
#include "passes/quantization.h"
#include "passes/trace.h"
#include "treadle/error.h"

namespace treadle::passes {
namespace {

/// Returns the value before a Relu that is its only reader; otherwise the value itself.
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

using Codes = std::array<uint8_t, 256>;

/// A value of bytes as a function of another one: value[i] = codes[root[i]].
struct MappedBytes {
  ValueId root = kNoValue;
  Codes codes{};
};
/// Follows tables up to the bytes that they begin with. Nullopt if the value is not bytes.
std::optional<MappedBytes> mapped_bytes(const Graph& graph, ValueId id) {
  const DType dtype = graph.type(id).dtype;
  if (dtype != DType::uint8 && dtype != DType::int8) return std::nullopt;
  MappedBytes mapped{id, {}};
  std::iota(mapped.codes.begin(), mapped.codes.end(), uint8_t{0});
  for (const Node* node = producer_of(graph, id); node && node->is("ByteTable", "treadle"); node = producer_of(graph, mapped.root)) {
    const Tensor* table = graph.constant_tensor(node->inputs[1]);
    if (!table || table->num_elements() != 256 || !table->is_contiguous()) break;
    Codes through;
    for (size_t i = 0; i < through.size(); ++i) through[i] = mapped.codes[table->data<uint8_t>()[i]];
    mapped = {node->inputs[0], through};
  }
  return mapped;
}

/// Pointwise nodes up to a QuantizeLinear that compute a function of one value of bytes and of constant numbers.
class ByteFunction {
 public:
  explicit ByteFunction(const Graph& graph) : graph_(graph) {}

  /// Returns true if `node`, a QuantizeLinear, is the last node of such a function.
  bool collect(const Node& node) { return visit(node) && root_ != kNoValue; }
  ValueId root() const { return root_; }
  /// Computes the codes of all 256 bytes, as a chain of the same nodes does.
  Codes values(DType result) const {
    std::vector<std::string> steps;
    for (const auto& [step, operands] : steps_) {
      ElementwiseStep written = step;
      for (const ValueId operand : operands) {
        const auto made = std::ranges::find(made_, operand);
        const auto leaf = std::ranges::find(leaves_, operand);
        written.operands.push_back(made != made_.end() ? leaves_.size() + static_cast<size_t>(made - made_.begin())
                                                       : static_cast<size_t>(leaf - leaves_.begin()));
      }
      steps.push_back(written.to_string());
    }
    const int64_t all[] = {256}, one[] = {1};
    const float zero = 0;
    kernels::ChainPlan plan;
    plan.size = all[0];
    std::vector<DType> dtypes;
    std::vector<Codes> codes(leaves_.size());
    const void* inputs[kernels::kMaxChainInputs];
    for (size_t i = 0; i < leaves_.size(); ++i) {
      const Tensor* number = leaves_[i] == kNoValue ? nullptr : graph_.constant_tensor(leaves_[i]);
      const bool is_number = number || leaves_[i] == kNoValue;
      dtypes.push_back(leaves_[i] == kNoValue ? DType::float32 : graph_.type(leaves_[i]).dtype);
      plan.inputs[i] = kernels::plan_chain_input(all, is_number ? one : all);
      if (!is_number) codes[i] = mapped_bytes(graph_, leaves_[i])->codes;
      inputs[i] = number ? number->raw() : is_number ? static_cast<const void*>(&zero) : codes[i].data();
    }
    Codes results;
    kernels::run_chain(ops::compile_chain(steps, std::move(dtypes), result), plan, inputs, results.data(), nullptr);
    return results;
  }

 private:
  static constexpr size_t kMostSteps = 24;

  bool visit(const Node& node) {
    if (!node.op || !node.op->step || node.outputs.size() != 1 || steps_.size() >= kMostSteps) return false;
    std::optional<PointwiseStep> found = node.op->step(graph_, node);
    if (!found) return false;
    for (const ValueId operand : found->operands)
      if (!visit_operand(operand, node)) return false;
    made_.push_back(node.outputs[0]);
    steps_.emplace_back(std::move(found->step), std::move(found->operands));
    return true;
  }
  bool visit_operand(ValueId id, const Node& reader) {
    if (std::ranges::find(leaves_, id) != leaves_.end() || std::ranges::find(made_, id) != made_.end()) return true;
    const Tensor* number = id == kNoValue ? nullptr : graph_.constant_tensor(id);
    if (number || id == kNoValue) return (!number || number->num_elements() == 1) && may_broadcast(id, reader) && add_leaf(id);
    // Operands of different shapes would broadcast.
    if (!has_shape_of(id, reader.outputs[0])) return false;
    if (const std::optional<MappedBytes> mapped = mapped_bytes(graph_, id)) {
      if (root_ != kNoValue && root_ != mapped->root) return false;
      root_ = mapped->root;
      return add_leaf(id);
    }
    const Node* node = producer_of(graph_, id);
    return node && graph_.type(id).dtype == DType::float32 && visit(*node);
  }
  bool add_leaf(ValueId id) {
    leaves_.push_back(id);
    return leaves_.size() <= static_cast<size_t>(kernels::kMaxChainInputs);
  }
  // A number of rank 0 or 1 does not stretch its reader's result.
  bool may_broadcast(ValueId id, const Node& reader) const {
    if (id == kNoValue || reader.is("QuantizeLinear") || reader.is("DequantizeLinear")) return true;
    const Type &number = graph_.type(id), &result = graph_.type(reader.outputs[0]);
    return number.rank() == 0 || (result.has_rank() && number.rank() <= result.rank() && result.rank() > 0);
  }
  bool has_shape_of(ValueId a, ValueId b) const {
    const Type &x = graph_.type(a), &y = graph_.type(b);
    return x.has_rank() == y.has_rank() && (!x.has_rank() || *x.shape == *y.shape);
  }

  const Graph& graph_;
  ValueId root_ = kNoValue;
  std::vector<ValueId> leaves_, made_;
  std::vector<std::pair<ElementwiseStep, std::vector<ValueId>>> steps_;  // in the order of made_
};

class FuseQuantizedConv final : public Rule {
 public:
  std::string_view name() const override { return "fuse-quantized-conv"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    if (node.is("ByteTable", "treadle")) return merged_table(graph, node);
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
    ByteFunction function(graph);
    if (!function.collect(node)) return std::nullopt;
    Codes entries;
    try {
      entries = function.values(to.dtype);
    } catch (const Error&) {  // too many values at once for a chain
      return std::nullopt;
    }
    Codes identity;
    std::iota(identity.begin(), identity.end(), uint8_t{0});
    if (entries == identity && graph.type(function.root()).dtype == to.dtype) return Patch::replacement(node.outputs[0], function.root());
    Patch patch;
    const ValueId constant = patch.constant(node.name + "/table", Tensor::of<uint8_t>(Shape{256}, std::span<const uint8_t>(entries)));
    patch.replace(node.outputs[0], patch.add({.op_type = "ByteTable",
                                              .inputs = {function.root(), constant},
                                              .attributes = {{"dtype", static_cast<int64_t>(to.dtype)}},
                                              .domain = "treadle",
                                              .name = node.name}));
    return patch;
  }

  // ByteTable(ByteTable(x)) -> ByteTable(x)
  static std::optional<Patch> merged_table(const Graph& graph, const Node& node) {
    const std::optional<MappedBytes> mapped = mapped_bytes(graph, node.outputs[0]);
    if (!mapped || mapped->root == node.outputs[0] || mapped->root == node.inputs[0]) return std::nullopt;
    Patch patch;
    const ValueId table = patch.constant(node.name + "/table", Tensor::of<uint8_t>(Shape{256}, std::span<const uint8_t>(mapped->codes)));
    patch.replace(node.outputs[0], patch.add({.op_type = node.op_type,
                                              .inputs = {mapped->root, table},
                                              .attributes = {{"dtype", static_cast<int64_t>(graph.type(node.outputs[0]).dtype)}},
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
    const int64_t group = conv->attributes.get_int("group", 1);
    const auto pads = conv->attributes.get_ints("pads");
    if (!kernels::has_nhwc_bytes(weights->shape().dims(), group) || !graph.type(x->inputs[0]).has_rank() ||
        std::any_of(pads.begin(), pads.end(), [](int64_t pad) { return pad < 0; }))
      return no_patch(*conv, [&] {
        return fmt::format("no kernel for bytes on this machine computes weights {} in {} groups", to_string(weights->shape()), group);
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
    if (!f || !f->op || f->op->quantization != treadle::Quantization::chooses) return std::nullopt;
    if (f->op->pieces == Pieces::split) return moved_before_split(graph, *f, node, to);
    if (f->outputs.size() > 1 || !is_used_once(graph, node.inputs[0])) return std::nullopt;
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

  // All parts must be read by the same quantisation. Each makes a Split of its own, and equal nodes are merged.
  static std::optional<Patch> moved_before_split(const Graph& graph, const Node& split, const Node& node, const Quantization& to) {
    if (!is_dequantized(graph, split.inputs[0])) return std::nullopt;
    for (const ValueId part : split.outputs) {
      if (part == kNoValue) continue;
      if (graph.is_output(part)) return std::nullopt;
      for (const Use& use : graph.value(part).uses) {
        const auto other = quantization_of(graph, &graph.node(use.node), "QuantizeLinear");
        if (!other || !(*other == to)) return std::nullopt;
      }
    }
    const auto part = std::ranges::find(split.outputs, node.inputs[0]) - split.outputs.begin();
    Patch patch;
    NodeSpec spec{.op_type = split.op_type,
                  .inputs = split.inputs,
                  .attributes = split.attributes,
                  .name = split.name,
                  .num_outputs = static_cast<int>(split.outputs.size())};
    spec.inputs[0] = patch.add(
        {.op_type = "QuantizeLinear", .inputs = {split.inputs[0], to.scale, to.zero}, .attributes = node.attributes, .name = node.name});
    const ValueId first = patch.add(std::move(spec));
    patch.replace(node.outputs[0], static_cast<ValueId>(static_cast<uint32_t>(first) + static_cast<uint32_t>(part)));
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
