// act(NhwcConv(x) + r) -> NhwcConv(x, residual = r, activation = act), if intermediate values have no other readers. Results are equal,
// except for one rounding if a hard swish is scaled and shifted. The operator's attributes and operands determine what it can absorb:
// `activation` with alpha and beta (any activation), `relu`, and the operand `residual`.
#include <cmath>
#include <optional>

#include "graph/rewriter.h"
#include "graph/scalar_function.h"
#include "passes/list.h"
#include "passes/matching.h"
#include "passes/trace.h"

namespace treadle::passes {
namespace {

struct Activation {
  std::string_view name;
  float alpha = 0, beta = 0;
};

/// Returns the number in a float32 constant of one element; `otherwise` if the operand is absent; nullopt for anything else.
std::optional<float> scalar(const Graph& graph, const Node& node, size_t input, float otherwise) {
  if (!node.has_input(input)) return otherwise;
  const Tensor* tensor = graph.constant_tensor(node.inputs[input]);
  if (!tensor || tensor->dtype() != DType::float32 || tensor->num_elements() != 1) return std::nullopt;
  return tensor->data<float>()[0];
}

/// If the node computes an activation of its one operand that a convolution can apply, returns this activation.
std::optional<Activation> activation_of(const Graph& graph, const Node& node) {
  const ScalarFunction* function = function_of(node);
  if (!function || function->alias.empty()) return std::nullopt;
  const auto parameters = parameters_of(graph, node, *function);
  if (!parameters) return std::nullopt;
  return Activation{function->alias, parameters->a, parameters->b};
}

class ConvFusion {
 public:
  explicit ConvFusion(Rewriter& rewriter) : rewriter_(rewriter), g_(rewriter.graph()) {}

  void run() {
    for (NodeId id : g_.order()) {
      if (!g_.is_alive(id) || !is_fusible(g_.node(id))) continue;
      while (rewriter_.change(id, [&] { return take_next(id); })) {
      }
    }
  }

 private:
  static bool is_fusible(const Node& node) { return node.domain == "treadle" && (takes_any(node) || takes_relu_only(node)); }
  static bool takes_any(const Node& node) {
    return has_internal_attribute(node, "activation") && has_internal_attribute(node, "alpha") && has_internal_attribute(node, "beta");
  }
  static bool takes_relu_only(const Node& node) { return has_internal_attribute(node, "relu"); }

  bool take_next(NodeId id) {
    const Node& conv = g_.node(id);
    const ValueId y = conv.outputs[0];
    if (g_.is_output(y)) return declined(conv, "its result is an output of the model");
    const std::optional<size_t> weights = input_named(conv, "W"), residual = input_named(conv, "residual");
    if (weights && !is_stored(g_, conv.inputs[*weights])) return declined(conv, "its weights are computed");
    const std::vector<Use> uses = g_.value(y).uses;
    const std::string_view activation_name = conv.attributes.get_string("activation", "none");
    if (activation_name == "hard_swish" || activation_name == "scaled_hard_swish") return uses.size() == 1 && take_scale(id, uses[0]);
    if (activation_name != "none" || conv.attributes.get_int("relu") != 0)
      return declined(conv, "it ends in an activation already, and takes nothing behind one");
    if (uses.size() == 2)
      return !takes_relu_only(conv) && (take_gate(id, uses) || declined(conv, "two nodes read its result, and they are no gate"));
    if (uses.size() != 1) return declined(conv, "several nodes read its result");
    const Node& next = g_.node(uses[0].node);
    if (residual && next.is("Add") && !conv.has_input(*residual)) return take_sum(id, *residual, next, uses[0].input);
    if (uses[0].input != 0) return declined(conv, "the node behind it reads its result as another operand than the first");
    const std::optional<Activation> activation = activation_of(g_, next);
    if (!activation || (takes_relu_only(conv) && activation->name != "relu"))
      return declined(conv, "it cannot end in the node behind it,", &next);
    return take_activation(id, next, *activation);
  }

  bool take_activation(NodeId id, const Node& next, const Activation& activation) {
    Node& conv = g_.node(id);
    if (takes_relu_only(conv)) {
      conv.attributes.set("relu", int64_t{1});
    } else {
      conv.attributes.set("activation", std::string(activation.name));
      conv.attributes.set("alpha", activation.alpha);
      conv.attributes.set("beta", activation.beta);
    }
    rewriter_.absorb(id, next.id);
    return true;
  }

  /// Absorbs hard_swish(x) * a + b, where a and b are constant numbers.
  bool take_scale(NodeId id, const Use& use) {
    const Node& next = g_.node(use.node);
    if ((!next.is("Mul") && !next.is("Add")) || !g_.same_type_and_shape(next.outputs[0], next.inputs[static_cast<size_t>(use.input)]))
      return false;
    const size_t other = static_cast<size_t>(1 - use.input);
    const std::optional<float> number = next.inputs[other] == next.inputs[1 - other] ? std::nullopt : scalar(g_, next, other, 0);
    if (!number || !std::isfinite(*number)) return false;
    const Attributes& a = g_.node(id).attributes;
    const bool scaled = a.get_string("activation") == "scaled_hard_swish";
    float alpha = scaled ? a.get_float("alpha") : 1, beta = scaled ? a.get_float("beta") : 0;
    if (next.is("Mul")) {
      alpha *= *number, beta *= *number;
    } else {
      beta += *number;
    }
    return take_activation(id, next, {"scaled_hard_swish", alpha, beta});
  }

  /// Absorbs x * sigmoid(x) and x * hard_sigmoid(x): the two readers are the gate and its product with x.
  bool take_gate(NodeId id, const std::vector<Use>& uses) {
    for (int first : {0, 1}) {
      const Node &gate = g_.node(uses[static_cast<size_t>(first)].node), &product = g_.node(uses[static_cast<size_t>(1 - first)].node);
      if (!product.is("Mul") || gate.outputs.empty() || gate.id == product.id) continue;
      const bool sigmoid = gate.is("Sigmoid"), hard = gate.is("HardSigmoid");
      if ((!sigmoid && !hard) || !is_used_once(g_, gate.outputs[0])) continue;
      if (product.inputs[0] != gate.outputs[0] && product.inputs[1] != gate.outputs[0]) continue;
      if (hard &&
          (std::abs(gate.attributes.get_float("alpha", 0.2F) - 1.0F / 6) > 1e-7F || gate.attributes.get_float("beta", 0.5F) != 0.5F))
        continue;
      const NodeId gate_id = gate.id;
      take_activation(id, product, {sigmoid ? "silu" : "hard_swish", 1.0F});
      rewriter_.stand_for(id, gate_id);
      g_.remove_node(gate_id);
      return true;
    }
    return false;
  }

  bool take_sum(NodeId id, size_t residual, const Node& sum, int input) {
    const ValueId other = sum.inputs[static_cast<size_t>(1 - input)];
    // The convolution adds the residual as the second term. Both orders of the two terms give the same bits.
    if (other == g_.node(id).outputs[0] || !g_.same_type_and_shape(other, g_.node(id).outputs[0]))
      return declined(g_.node(id), "the operand of", &sum, " is not known to have its result's shape");
    const NodeId before = sum.id;
    g_.move_before(id, before);  // needed because `other` may be computed after the convolution
    if (g_.node(id).num_formal_inputs <= static_cast<int>(residual)) g_.resize_inputs(id, residual + 1);
    g_.set_input(id, residual, other);
    rewriter_.absorb(id, before);
    return true;
  }

  Rewriter& rewriter_;
  Graph& g_;
};

}  // namespace

Pass fuse_conv() {
  return graph_pass("fuse-conv", kLayout, kPacked, "NhwcConv + Add + activation -> NhwcConv",
                    [](Graph& graph, PassContext&, int64_t limit) {
                      return Rewriter(graph, limit).for_each_graph([](Rewriter& inside) { ConvFusion(inside).run(); });
                    });
}

}  // namespace treadle::passes
