// Fuses a Conv, MatMul or Gemm with the chain of pointwise operators that alone reads its result, into a ChainedConv etc. For devices,
// which then compute the chain before they store the product. Keeps the order of operands in sums. Applies only if the chain's result has
// the product's type and shape, and the device supports the node. Steps of the chain may add a bias or residual, apply an activation, or
// multiply by a factor per channel.
#include "graph/op_def.h"
#include "graph/rewriter.h"
#include "ops/treadle/chained_products.h"
#include "ops/typed_step.h"
#include "passes/list.h"
#include "passes/matching.h"
#include "passes/trace.h"

namespace treadle::passes {
namespace {

/// The steps of a chain, and their inputs.
struct Chain {
  std::vector<ValueId> inputs;
  std::vector<ElementwiseStep> steps;
};

std::optional<Chain> chain_of(const Graph& graph, const Node& node) {
  Chain chain;
  if (node.is("FusedElementwise", "treadle")) {
    chain.inputs = node.inputs;
    for (const std::string& text : node.attributes.get_strings("steps")) chain.steps.push_back(ElementwiseStep::parse(text));
    return chain;
  }
  std::optional<PointwiseStep> step = ops::typed_step(graph, node);
  if (!step) return std::nullopt;
  for (const ValueId operand : step->operands) {
    if (operand == kNoValue) return std::nullopt;
    const auto known = std::find(chain.inputs.begin(), chain.inputs.end(), operand);
    step->step.operands.push_back(static_cast<size_t>(known - chain.inputs.begin()));
    if (known == chain.inputs.end()) chain.inputs.push_back(operand);
  }
  chain.steps.push_back(std::move(step->step));
  return chain;
}

/// Returns the chain with its input number `first` moved to the front.
Chain starting_with(Chain chain, size_t first) {
  for (ElementwiseStep& step : chain.steps)
    for (size_t& operand : step.operands) operand = operand == first ? 0 : operand < first ? operand + 1 : operand;
  std::rotate(chain.inputs.begin(), chain.inputs.begin() + static_cast<ptrdiff_t>(first),
              chain.inputs.begin() + static_cast<ptrdiff_t>(first) + 1);
  return chain;
}

NodeSpec chained(const Node& product, const OpDef& form, const Chain& chain, const std::string& name) {
  NodeSpec spec{.op_type = std::string(form.name),
                .inputs = product.inputs,
                .attributes = product.attributes,
                .domain = std::string(form.domain),
                .name = name};
  if (chain.inputs.size() > 1) {
    spec.inputs.resize(ops::first_chain_input(form), kNoValue);
    spec.inputs.insert(spec.inputs.end(), chain.inputs.begin() + 1, chain.inputs.end());
  }
  std::vector<std::string> steps;
  for (const ElementwiseStep& step : chain.steps) steps.push_back(step.to_string());
  spec.attributes.set("steps", steps);
  return spec;
}

class EpilogueFuser {
 public:
  EpilogueFuser(Rewriter& rewriter, const DeviceForms& device) : rewriter_(rewriter), graph_(rewriter.graph()), device_(device) {}

  void run() {
    for (const NodeId id : graph_.order())
      if (graph_.is_alive(id) && graph_.node(id).outputs.size() == 1) fuse_before(id);
  }

 private:
  void fuse_before(NodeId id) {
    const Node& node = graph_.node(id);
    const bool may_follow = std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) { return product_of(input, node); });
    std::optional<Chain> chain = may_follow ? chain_of(graph_, node) : std::nullopt;
    for (size_t i = 0; chain && i < chain->inputs.size(); ++i) {
      const Node* product = product_of(chain->inputs[i], node);
      if (!product) continue;
      NodeSpec spec = chained(*product, *ops::chained_form(*product->op), starting_with(*chain, i), node.name);
      if (!device_.takes(graph_, as_node(spec, node))) {
        declined(*product, "the device does not compute it with what stands behind it:", &node);
        continue;
      }
      const NodeId nodes[] = {product->id, id};
      rewriter_.change(nodes, [&] { return replace(nodes, std::move(spec)); });
      return;
    }
  }
  /// If `reader` alone reads the value, and the node that computes it has a form with a chain, returns this node; otherwise null.
  const Node* product_of(ValueId value, const Node& reader) const {
    const Node* product = producer_of(graph_, value);
    const OpDef* form = product && product->op ? ops::chained_form(*product->op) : nullptr;
    return form && device_.has(form->name) && is_used_once(graph_, value) && graph_.same_type_and_shape(value, reader.outputs[0]) ? product
                                                                                                                                  : nullptr;
  }
  bool replace(std::span<const NodeId> product_and_chain, NodeSpec spec) {
    const ValueId old = graph_.node(product_and_chain[1]).outputs[0];
    const ValueId result = rewriter_.add(std::move(spec), product_and_chain[1]);
    graph_.value(result).type = graph_.type(old);
    rewriter_.replace(old, result);
    graph_.remove_node(product_and_chain[1]);
    graph_.remove_node(product_and_chain[0]);
    return true;
  }

  Rewriter& rewriter_;
  Graph& graph_;
  const DeviceForms& device_;
};

}  // namespace

Pass fuse_epilogue() {
  return graph_pass(
      "fuse-epilogue", kExtended, {.not_before_autodiff = true, .only_in_memory = true, .only_float32 = true, .only_on_devices = true},
      "on devices that compute it: a product or convolution and the pointwise chain behind it -> one node",
      [](Graph& graph, PassContext& context, int64_t limit) -> int64_t {
        return Rewriter(graph, limit).for_each_graph([&](Rewriter& inside) { EpilogueFuser(inside, *context.options.device).run(); });
      });
}

}  // namespace treadle::passes
