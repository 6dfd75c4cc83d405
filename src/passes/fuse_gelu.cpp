// Fuses activations that exporters write out as several operators:
//   x * (1 + erf(x / sqrt 2)) / 2                                     -> Gelu(x)
//   x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2             -> Gelu(x), approximate = tanh
//   x * sigmoid(a x)                                                  -> Swish(x), alpha = a
//   x * clip(x + 3, 0, 6) / 6                                         -> HardSwish(x)
// in any order of the factors. Results differ by rounding. float32 only: a model with a 16-bit type rounds after each operator, and a fused
// operator would be more precise than the model.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "passes/factors.h"
#include "passes/list.h"
#include "passes/matching.h"
#include "passes/trace.h"

namespace treadle::passes {
namespace {

// Returns true if `id` is constant * x^power.
bool is_monomial(const Graph& graph, ValueId id, double constant, ValueId x, size_t power) {
  Factors factors = factors_of(graph, id);
  if (!is_near(factors.constant, constant)) return false;
  for (size_t i = 0; i < power; ++i)
    if (!factors.take(x)) return false;
  return factors.values.empty();
}

// Returns true for sqrt(2 / pi) * (x + 0.044715 x^3), also if x is factored out of the sum.
bool is_tanh_argument(const Graph& graph, ValueId id, ValueId x) {
  constexpr double kCubic = 0.044715;
  Factors factors = factors_of(graph, id);
  if (!is_near(factors.constant, std::sqrt(2 / 3.14159265358979323846))) return false;
  if (factors.take(x)) {
    if (factors.values.size() != 1) return false;
    ValueId square = added_to_constant(graph, factors.values[0], 1);
    return square != kNoValue && is_monomial(graph, square, kCubic, x, 2);
  }
  const Node* sum = factors.values.size() == 1 ? producer_of(graph, factors.values[0]) : nullptr;
  if (!sum || !sum->is("Add")) return false;
  for (size_t i : {0U, 1U})
    if (sum->inputs[i] == x && is_monomial(graph, sum->inputs[1 - i], kCubic, x, 3)) return true;
  return false;
}

class FuseGelu final : public Rule {
 public:
  std::string_view name() const override { return "fuse-gelu"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    if (!node.is("Mul") && !node.is("Div")) return std::nullopt;
    if (graph.type(node.outputs[0]).dtype != DType::float32) {
      if (has_bounded_gate(graph, node))
        declined(node, [&] { return fmt::format("it makes {}; activations are fused in float32", found(graph, node.outputs[0])); });
      return std::nullopt;
    }
    const Factors factors = factors_of(graph, node.outputs[0]);
    if (factors.values.size() != 2) return std::nullopt;
    for (size_t i : {0U, 1U}) {
      const ValueId x = factors.values[i], gate = factors.values[1 - i];
      if (!graph.same_type_and_shape(x, node.outputs[0])) continue;
      if (auto patch = match_gate(graph, node, factors.constant, x, gate)) return patch;
    }
    return std::nullopt;
  }

 private:
  // Looks for x * sigmoid(...) written as several nodes, in order to report why it is not fused.
  static bool has_bounded_gate(const Graph& graph, const Node& node) {
    return std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) {
      const Node* gate = producer_of(graph, id);
      if (gate && gate->is("Add"))
        for (ValueId addend : gate->inputs)
          if (const Node* inner = producer_of(graph, addend); inner && (inner->is("Erf") || inner->is("Tanh"))) return true;
      return gate && (gate->is("Sigmoid") || gate->is("Clip"));
    });
  }
  static std::optional<Patch> match_gate(const Graph& graph, const Node& node, double constant, ValueId x, ValueId gate) {
    const Node* bounded = producer_of(graph, gate);
    if (bounded && bounded->is("Sigmoid") && constant == 1) {
      Factors argument = factors_of(graph, bounded->inputs[0]);
      if (!argument.take(x) || !argument.values.empty())
        return no_patch(node, "what it multiplies with is not a number times the argument of", bounded);
      Attributes attributes;
      if (argument.constant != 1) attributes.set("alpha", static_cast<float>(argument.constant));
      return replaced(node, "Swish", x, std::move(attributes));
    }
    if (bounded && bounded->is("Clip") && is_near(constant, 1.0 / 6) && added_to_constant(graph, bounded->inputs[0], 3) == x &&
        bounded->has_input(1) && bounded->has_input(2) && scalar_constant(graph, bounded->inputs[1]) == 0.0 &&
        scalar_constant(graph, bounded->inputs[2]) == 6.0)
      return replaced(node, "HardSwish", x, {});
    if (bounded && bounded->is("Clip") && added_to_constant(graph, bounded->inputs[0], 3) == x)
      return no_patch(node, [&] {
        return fmt::format("a HardSwish is x * clip(x + 3, 0, 6) / 6; the bounds are other ones, or the divisor is {:g}", 1 / constant);
      });
    const ValueId function = added_to_constant(graph, gate, 1);
    const Node* inner = producer_of(graph, function);
    if (!inner || (!inner->is("Erf") && !inner->is("Tanh"))) return std::nullopt;
    if (!is_near(constant, 0.5)) return no_patch(node, [&] { return fmt::format("the factor is {:g}; a Gelu has 0.5", constant); });
    if (inner->is("Erf") && is_monomial(graph, inner->inputs[0], std::sqrt(0.5), x, 1)) return replaced(node, "Gelu", x, {});
    if (inner->is("Tanh") && is_tanh_argument(graph, inner->inputs[0], x))
      return replaced(node, "Gelu", x, {{"approximate", std::string("tanh")}});
    return no_patch(node,
                    inner->is("Erf") ? "what it multiplies with is not sqrt(2) times the argument of"
                                     : "the argument is not sqrt(2 / pi) * (x + 0.044715 x^3) of what it multiplies with, at",
                    inner);
  }
  static Patch replaced(const Node& node, std::string op_type, ValueId x, Attributes attributes) {
    Patch patch;
    patch.replace(node.outputs[0],
                  patch.add({.op_type = std::move(op_type), .inputs = {x}, .attributes = std::move(attributes), .name = node.name}));
    return patch;
  }
};

}  // namespace

Pass fuse_gelu() { return rule_pass<FuseGelu>(kExtended, kAlways, "Gelu and Swish written out -> one operator"); }

}  // namespace treadle::passes
