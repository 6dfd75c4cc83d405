// Groups of pointwise operators become one FusedElementwise: one pass over memory instead of one for each. A group grows from its last
// operator towards its inputs, over operators that nothing outside of the group reads and whose results have the shape of the group's.
//
// Each operator computes in a group what it computes alone. float32 and truth values; quantisation by one scale.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "graph/rewriter.h"
#include "ops/treadle/fused_elementwise.h"
#include "passes/matching.h"
#include "passes/trace.h"
#include "passes/whole_graph.h"
#include "treadle/error.h"

namespace treadle::passes {
namespace {

constexpr size_t kMaxOperators = 96;
constexpr size_t kMaxInputs = static_cast<size_t>(kernels::kMaxChainInputs) - 1;  // one is left for a zero point that is not there

/// The node as a step of a chain; nothing if a chain cannot compute it.
std::optional<PointwiseStep> step_of(const Graph& graph, const Node& node) {
  if (!node.op || !node.op->step || node.outputs.size() != 1 || node.inputs.empty() || !node.bodies.empty() || node.inputs[0] == kNoValue)
    return std::nullopt;
  const Type& type = graph.type(node.outputs[0]);
  if (type.has_rank() && type.rank() == 0) return std::nullopt;
  return node.op->step(graph, node);
}
bool is_quantisation(const Node& node) {
  return node.op && (node.op->quantisation == Quantisation::quantizes || node.op->quantisation == Quantisation::dequantizes);
}

class ElementwiseFuser {
 public:
  ElementwiseFuser(Rewriter& rewriter, bool keep_quantisation)
      : rewriter_(rewriter), graph_(rewriter.graph()), keep_quantisation_(keep_quantisation) {}

  void run() {
    std::vector<NodeId> order = graph_.order();
    for (size_t i = 0; i < order.size(); ++i) place_[order[i]] = i;
    for (auto it = order.rbegin(); it != order.rend(); ++it)
      if (graph_.is_alive(*it) && is_candidate(graph_.node(*it))) fuse(*it);
  }

 private:
  bool is_candidate(const Node& node) const {
    if (keep_quantisation_ && is_quantisation(node)) return false;
    return step_of(graph_, node).has_value();
  }
  std::vector<NodeId> group_of(NodeId root) const {
    const ValueId result = graph_.node(root).outputs[0];
    std::vector<NodeId> group{root};
    std::unordered_set<uint32_t> members{static_cast<uint32_t>(root)}, outside;  // outside: inputs of the group
    auto take_inputs = [&](const Node& node) {
      for (ValueId input : node.inputs)
        if (input != kNoValue) outside.insert(static_cast<uint32_t>(input));
    };
    take_inputs(graph_.node(root));
    // An operator that is refused because of another reader is asked for again when that reader joins.
    for (size_t i = 0; i < group.size(); ++i) {
      for (ValueId input : graph_.node(group[i]).inputs) {
        const Node* producer = producer_of(graph_, input);
        if (!producer || members.contains(static_cast<uint32_t>(producer->id)) || group.size() >= kMaxOperators) continue;
        if (!is_candidate(*producer) || graph_.is_output(input) || !has_shape_of(input, result)) continue;
        const std::vector<Use>& uses = graph_.value(input).uses;
        if (!std::all_of(uses.begin(), uses.end(), [&](const Use& use) { return members.contains(static_cast<uint32_t>(use.node)); }))
          continue;
        if (outside.size() + producer->inputs.size() > kMaxInputs) continue;
        members.insert(static_cast<uint32_t>(producer->id));
        group.push_back(producer->id);
        outside.erase(static_cast<uint32_t>(input));
        take_inputs(*producer);
      }
    }
    if (PassTrace::current()) say_who_stays_outside(group, members, outside.size());
    std::sort(group.begin(), group.end(), [&](NodeId a, NodeId b) { return place_.at(a) < place_.at(b); });
    return group;
  }
  void say_who_stays_outside(const std::vector<NodeId>& group, const std::unordered_set<uint32_t>& members, size_t num_inputs) const {
    const Node& root = graph_.node(group.front());
    for (NodeId member : group) {
      for (ValueId input : graph_.node(member).inputs) {
        const Node* producer = producer_of(graph_, input);
        if (!producer || members.contains(static_cast<uint32_t>(producer->id)) || !is_candidate(*producer)) continue;
        if (graph_.is_output(input))
          declined(*producer, "its result is an output of the model; it does not join", &root);
        else if (!has_shape_of(input, root.outputs[0]))
          declined(*producer, [&] {
            return fmt::format("it makes {}, and {} {} behind it {}; a group has one shape", found(graph_, input), root.op_type, root.name,
                               found(graph_, root.outputs[0]));
          });
        else if (group.size() >= kMaxOperators || num_inputs + producer->inputs.size() > kMaxInputs)
          declined(*producer, [&] {
            return fmt::format("the group behind it has {} operators and {} inputs; {} and {} are the most", group.size(), num_inputs,
                               kMaxOperators, kMaxInputs);
          });
        else
          declined(*producer, "other nodes than the group read its result; it does not join", &root);
      }
    }
  }
  bool has_shape_of(ValueId a, ValueId b) const {
    const Type &x = graph_.type(a), &y = graph_.type(b);
    return x.has_rank() && y.has_rank() && *x.shape == *y.shape;
  }

  struct Chain {
    std::vector<ValueId> inputs;
    std::vector<std::string> steps;
  };
  // The group's operators as steps. Constants that operators have as inputs and steps as attributes are no inputs of the chain.
  Chain chain_of(const std::vector<NodeId>& group) {
    Chain chain;
    std::vector<std::pair<ElementwiseStep, std::vector<ValueId>>> written;
    std::unordered_map<uint32_t, size_t> results;  // of values made in the group
    std::unordered_map<uint32_t, size_t> inputs;
    auto is_inside = [&](ValueId id) { return results.contains(static_cast<uint32_t>(id)); };
    for (NodeId id : group) {
      auto [step, operands] = *step_of(graph_, graph_.node(id));
      for (ValueId& operand : operands)
        if (operand == kNoValue) operand = zero();
      for (ValueId operand : operands) {
        if (is_inside(operand) || !inputs.try_emplace(static_cast<uint32_t>(operand), chain.inputs.size()).second) continue;
        chain.inputs.push_back(operand);
      }
      results.emplace(static_cast<uint32_t>(graph_.node(id).outputs[0]), written.size());
      written.emplace_back(std::move(step), std::move(operands));
    }
    for (auto& [step, operands] : written) {
      for (ValueId operand : operands)
        step.operands.push_back(is_inside(operand) ? chain.inputs.size() + results[static_cast<uint32_t>(operand)]
                                                   : inputs[static_cast<uint32_t>(operand)]);
      chain.steps.push_back(step.to_string());
    }
    return chain;
  }
  ValueId zero() {
    if (zero_ == kNoValue) zero_ = graph_.add_constant("zero", Tensor::scalar(0.0F));
    return zero_;
  }

  void fuse(NodeId root) {
    const std::vector<NodeId> group = group_of(root);
    if (group.size() < 2) return;
    rewriter_.change(group, [&] { return fuse(group, root); });
  }
  bool fuse(const std::vector<NodeId>& group, NodeId root) {
    const Chain chain = chain_of(group);
    const ValueId old = graph_.node(root).outputs[0];
    const DType dtype = graph_.type(old).dtype;
    std::vector<DType> dtypes;
    for (ValueId input : chain.inputs) dtypes.push_back(graph_.type(input).dtype);
    try {
      ops::compile_chain(chain.steps, std::move(dtypes), dtype);
    } catch (const Error&) {
      return declined(graph_.node(root), [&] {
        return fmt::format("a group of {} operators and {} inputs needs more values at once than a chain has", group.size(),
                           chain.inputs.size());
      });
    }
    NodeSpec spec{.op_type = "FusedElementwise",
                  .inputs = chain.inputs,
                  .attributes = {{"steps", chain.steps}},
                  .domain = "treadle",
                  .name = graph_.node(root).name};
    if (dtype != DType::float32) spec.attributes.set("dtype", static_cast<int64_t>(dtype));
    const ValueId result = rewriter_.add(std::move(spec), root);
    graph_.value(result).type = merge(graph_.type(result), graph_.type(old));
    place_[graph_.value(result).producer] = place_[root];
    rewriter_.replace(old, result);
    for (auto it = group.rbegin(); it != group.rend(); ++it) graph_.remove_node(*it);
    return true;
  }

  Rewriter& rewriter_;
  Graph& graph_;
  bool keep_quantisation_;
  std::unordered_map<NodeId, size_t> place_;
  ValueId zero_ = kNoValue;
};

}  // namespace

int64_t fuse_elementwise(Graph& graph, int64_t limit, bool keep_quantisation) {
  return Rewriter(graph, limit).for_each_graph([&](Rewriter& inside) { ElementwiseFuser(inside, keep_quantisation).run(); });
}

}  // namespace treadle::passes
