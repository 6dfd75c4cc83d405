// Fuses normalizations of the last axis that exporters write as several operators:
//   (x - mean(x)) / sqrt(mean((x - mean(x))^2) + e) * scale + bias  -> LayerNormalization
//   x / sqrt(mean(x^2) + e) * scale                                 -> RMSNormalization
// with a division, or a multiplication by the reciprocal; the scale may be absent. Results differ by rounding. float32 only, and only if
// scale and bias are constant vectors as long as the last axis.
#include <fmt/format.h>

#include <cmath>

#include "passes/factors.h"
#include "passes/list.h"
#include "passes/matching.h"
#include "passes/trace.h"

namespace treadle::passes {
namespace {

bool is_mean_of_last_axis(const Graph& graph, const Node* node) {
  if (!node || !node->is("ReduceMean") || node->attributes.get_int("keepdims", 1) == 0 || !node->has_input(1)) return false;
  const Type& x = graph.type(node->inputs[0]);
  auto axes = constant_ints(graph, node->inputs[1]);
  return x.has_rank() && axes && axes->size() == 1 && ((*axes)[0] == -1 || (*axes)[0] == x.rank() - 1);
}

/// The parts of a value of the form x / sqrt(mean(x^2) + epsilon).
struct Normalized {
  ValueId x = kNoValue;
  float epsilon = 0;
};

// Matches `shifted`, the argument of the square root: mean(x^2) + epsilon.
std::optional<Normalized> root_mean_square(const Graph& graph, const Node* shifted) {
  if (!shifted || !shifted->is("Add")) return std::nullopt;
  for (size_t i : {0U, 1U}) {
    auto epsilon = scalar_constant(graph, shifted->inputs[i]);
    const Node* mean = producer_of(graph, shifted->inputs[1 - i]);
    if (!epsilon || !mean || !mean->is("ReduceMean")) continue;
    if (!is_mean_of_last_axis(graph, mean)) {
      declined(*mean, [&] {
        return fmt::format(
            "it takes the mean of {} over axes that are not the last one alone, or drops them; a normalisation keeps its axis",
            found(graph, mean->inputs[0]));
      });
      continue;
    }
    Factors square = factors_of(graph, mean->inputs[0]);
    if (square.constant == 1 && square.values.size() == 2 && square.values[0] == square.values[1])
      return Normalized{square.values[0], static_cast<float>(*epsilon)};
    const Node* product = producer_of(graph, mean->inputs[0]);  // x * x, another form of the square
    if (product && product->is("Mul") && product->inputs[0] == product->inputs[1])
      return Normalized{product->inputs[0], static_cast<float>(*epsilon)};
    if (product && product->is("Pow") && scalar_constant(graph, product->inputs[1]) == 2.0)
      return Normalized{product->inputs[0], static_cast<float>(*epsilon)};
  }
  return std::nullopt;
}
std::optional<Normalized> square_root(const Graph& graph, ValueId id) {
  const Node* root = producer_of(graph, id);
  if (!root) return std::nullopt;
  if (root->is("Sqrt") || (root->is("Pow") && scalar_constant(graph, root->inputs[1]) == 0.5))
    return root_mean_square(graph, producer_of(graph, root->inputs[0]));
  return std::nullopt;
}

// Matches 1 / sqrt(mean(x^2) + epsilon).
std::optional<Normalized> reciprocal_root(const Graph& graph, ValueId id) {
  const Node* node = producer_of(graph, id);
  if (!node) return std::nullopt;
  if (node->is("Reciprocal")) return square_root(graph, node->inputs[0]);
  if (node->is("Div") && scalar_constant(graph, node->inputs[0]) == 1.0) return square_root(graph, node->inputs[1]);
  const bool is_power = node->is("Pow") && scalar_constant(graph, node->inputs[1]) == -0.5;
  return is_power ? root_mean_square(graph, producer_of(graph, node->inputs[0])) : std::nullopt;
}

std::optional<Normalized> normalized(const Graph& graph, const Node* node) {
  if (!node) return std::nullopt;
  if (node->is("Div")) {
    auto found = square_root(graph, node->inputs[1]);
    if (found && found->x == node->inputs[0]) return found;
  } else if (node->is("Mul")) {
    for (size_t i : {0U, 1U}) {
      auto found = reciprocal_root(graph, node->inputs[i]);
      if (found && found->x == node->inputs[1 - i]) return found;
    }
  }
  return std::nullopt;
}

class FuseNormalization final : public Rule {
 public:
  std::string_view name() const override { return "fuse-normalization"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    if (!node.has_output(0)) return std::nullopt;
    if (node.is("Add")) {
      for (size_t i : {0U, 1U}) {
        const Node* product = producer_of(graph, node.inputs[1 - i]);
        if (!product || !product->is("Mul")) continue;
        for (size_t k : {0U, 1U})
          if (auto patch = fused(graph, node, producer_of(graph, product->inputs[k]), product->inputs[1 - k], node.inputs[i])) return patch;
      }
      return std::nullopt;
    }
    if (node.is("Mul")) {
      for (size_t k : {0U, 1U})
        if (auto patch = fused(graph, node, producer_of(graph, node.inputs[k]), node.inputs[1 - k], kNoValue)) return patch;
    }
    return fused(graph, node, &node, kNoValue, kNoValue);
  }

 private:
  static bool is_row(const Graph& graph, ValueId id, int64_t length) {
    const Tensor* row = graph.constant_tensor(id);
    return row && row->dtype() == DType::float32 && row->shape() == Shape{length};
  }
  // Returns true if the only reader is an operator of a wider pattern. That pattern should match instead.
  static bool goes_on(const Graph& graph, ValueId id, std::string_view op_type, int64_t length) {
    if (!is_used_once(graph, id)) return false;
    const Use& use = graph.value(id).uses[0];
    const Node& reader = graph.node(use.node);
    return reader.is(op_type) && is_row(graph, reader.inputs[static_cast<size_t>(1 - use.input)], length);
  }

  static std::optional<Patch> fused(const Graph& graph, const Node& node, const Node* inner, ValueId scale, ValueId bias) {
    const std::optional<Normalized> matched = normalized(graph, inner);
    if (!matched) return std::nullopt;
    ValueId x = matched->x;
    const auto no_row = [&](std::string_view what, ValueId row, int64_t length) {
      return no_patch(node, [&] { return fmt::format("the {} is {}; a constant float32[{}] is needed", what, found(graph, row), length); });
    };
    const Node* centered = producer_of(graph, x);
    const Node* mean = centered && centered->is("Sub") ? producer_of(graph, centered->inputs[1]) : nullptr;
    const bool layer_norm = is_mean_of_last_axis(graph, mean) && mean->inputs[0] == centered->inputs[0];
    if (layer_norm) x = centered->inputs[0];
    const Type& type = graph.type(x);
    if (graph.type(node.outputs[0]).dtype != DType::float32 || !graph.same_type_and_shape(x, node.outputs[0]) || type.rank() < 1 ||
        !type.shape->back().is_const())
      return no_patch(node, [&] {
        return fmt::format("it normalises {} and makes {}; float32 of one shape whose last extent is known is needed", found(graph, x),
                           found(graph, node.outputs[0]));
      });
    const int64_t length = type.shape->back().value();
    if (scale != kNoValue && !is_row(graph, scale, length)) return no_row("factor", scale, length);
    if (bias != kNoValue && !layer_norm) return std::nullopt;
    if (bias != kNoValue && !is_row(graph, bias, length)) return no_row("addend", bias, length);
    if (scale == kNoValue && goes_on(graph, node.outputs[0], "Mul", length)) return std::nullopt;
    if (scale != kNoValue && bias == kNoValue && layer_norm && goes_on(graph, node.outputs[0], "Add", length)) return std::nullopt;
    // This constant is new, so a file that only declares a huge extent must not cause a large allocation.
    constexpr int64_t kMostOnes = 8192;
    if (scale == kNoValue && length > kMostOnes)
      return no_patch(node, [&] { return fmt::format("it has no factor, and {} ones would have to be made", length); });
    Patch patch;
    if (scale == kNoValue) {
      std::vector<float> ones(static_cast<size_t>(length), 1.0F);
      scale = patch.constant(node.name + "/scale", Tensor::of<float>(Shape{length}, std::span<const float>(ones)));
    }
    NodeSpec spec{.op_type = layer_norm ? "LayerNormalization" : "RMSNormalization",
                  .inputs = {x, scale},
                  .attributes = {{"axis", int64_t{-1}}, {"epsilon", matched->epsilon}},
                  .name = node.name};
    if (bias != kNoValue) spec.inputs.push_back(bias);
    patch.replace(node.outputs[0], patch.add(std::move(spec)));
    return patch;
  }
};

}  // namespace

Pass fuse_normalization() {
  return rule_pass<FuseNormalization>(kExtended, kAlways, "LayerNormalization and RMSNormalization written out -> one operator");
}

}  // namespace treadle::passes
