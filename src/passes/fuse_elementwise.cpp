// Fuses each group of pointwise operators into a FusedElementwise, which reads and writes memory only once. A group grows from its last
// operator towards its inputs. It takes operators whose results only the group reads and have the shape of the group's result. An operator
// with other readers is copied into the group if this reads no more memory, because it depends on one image that a later node needs anyway.
// An example is the result of batch normalization, which the gradient of the following activation reads.
//
// Each operator computes the same as outside a group. The host supports float32, truth values, and quantization by one scale; a device
// tells which chains it supports.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "graph/rewriter.h"
#include "ops/treadle/fused_elementwise.h"
#include "ops/typed_step.h"
#include "passes/list.h"
#include "passes/matching.h"
#include "passes/trace.h"
#include "passes/whole_graph.h"
#include "treadle/error.h"

namespace treadle::passes {
namespace {

constexpr size_t kMaxOperators = 96;
constexpr size_t kMaxInputs = static_cast<size_t>(kernels::kMaxChainInputs) - 1;  // one input stays free for a missing zero point

/// Returns the node as a step of a chain; nullopt if a chain cannot compute the node.
std::optional<PointwiseStep> step_of(const Graph& graph, const Node& node, const DeviceForms* device) {
  if (!node.op || node.outputs.size() != 1 || node.inputs.empty() || !node.bodies.empty() || node.inputs[0] == kNoValue)
    return std::nullopt;
  const Type& type = graph.type(node.outputs[0]);
  if (type.has_rank() && type.rank() == 0) return std::nullopt;
  if (device) return ops::typed_step(graph, node);
  return node.op->step ? node.op->step(graph, node) : std::nullopt;
}
bool is_quantization(const Node& node) {
  return node.op && (node.op->quantization == Quantization::quantizes || node.op->quantization == Quantization::dequantizes);
}

class ElementwiseFuser {
 public:
  ElementwiseFuser(Rewriter& rewriter, bool keep_quantization, const DeviceForms* device)
      : rewriter_(rewriter), graph_(rewriter.graph()), keep_quantization_(keep_quantization), device_(device) {}

  void run() {
    std::vector<NodeId> order = graph_.order();
    for (size_t i = 0; i < order.size(); ++i) place_[order[i]] = i;
    for (auto it = order.rbegin(); it != order.rend(); ++it)
      if (graph_.is_alive(*it) && is_candidate(graph_.node(*it))) fuse(*it);
  }

 private:
  struct Chain {
    std::vector<ValueId> inputs;
    std::vector<std::string> steps;
  };
  bool is_candidate(const Node& node) const {
    if (keep_quantization_ && is_quantization(node)) return false;
    if (!device_) return step_of(graph_, node, nullptr).has_value();
    const auto [known, is_new] = taken_.try_emplace(node.id, false);
    if (is_new) {
      const std::optional<PointwiseStep> step = step_of(graph_, node, device_);
      known->second = step && is_taken_alone(node, *step);
    }
    return known->second;
  }
  /// Returns true if the device can compute a chain that consists only of this step.
  bool is_taken_alone(const Node& node, const PointwiseStep& alone) const {
    const auto& [step, operands] = alone;
    if (std::ranges::find(operands, kNoValue) != operands.end()) return device_->takes(graph_, node);
    Chain chain;
    ElementwiseStep written = step;
    for (ValueId operand : operands) {
      const auto place = std::ranges::find(chain.inputs, operand);
      written.operands.push_back(static_cast<size_t>(place - chain.inputs.begin()));
      if (place == chain.inputs.end()) chain.inputs.push_back(operand);
    }
    chain.steps.push_back(written.to_string());
    return fits(chain, node.id);
  }
  struct Group {
    std::vector<NodeId> nodes;                     // in topological order once the group is complete
    std::unordered_set<uint32_t> members, copies;  // `members`: all nodes of the group; `copies`: those that also stay in the graph
    std::unordered_set<uint32_t> outside;          // values that the group reads from outside

    bool has(NodeId id) const { return members.contains(static_cast<uint32_t>(id)); }
    bool has_copy(NodeId id) const { return copies.contains(static_cast<uint32_t>(id)); }
    void take(const Node& node) {
      members.insert(static_cast<uint32_t>(node.id));
      nodes.push_back(node.id);
      if (!node.outputs.empty()) outside.erase(static_cast<uint32_t>(node.outputs[0]));
      for (ValueId input : node.inputs)
        if (input != kNoValue) outside.insert(static_cast<uint32_t>(input));
    }
  };
  Group group_of(NodeId root, bool with_copies, size_t max_inputs) const {
    Group group;
    group.take(graph_.node(root));
    grow(group, root, max_inputs, [&](const Node& producer) {
      return std::ranges::all_of(graph_.value(producer.outputs[0]).uses, [&](const Use& use) { return group.has(use.node); });
    });
    const size_t own = group.nodes.size();
    if (with_copies) grow(group, root, max_inputs, [&](const Node& producer) { return costs_no_reading(producer, root); });
    for (size_t i = own; i < group.nodes.size(); ++i) group.copies.insert(static_cast<uint32_t>(group.nodes[i]));
    if (PassTrace::current()) say_who_stays_outside(group);
    std::sort(group.nodes.begin(), group.nodes.end(), [&](NodeId a, NodeId b) { return place_.at(a) < place_.at(b); });
    return group;
  }
  template <typename May>
  void grow(Group& group, NodeId root, size_t max_inputs, const May& may_join) const {
    const ValueId result = graph_.node(root).outputs[0];
    // An operator that has a reader outside of the group is refused. It is tried again when that reader has joined the group.
    for (size_t i = 0; i < group.nodes.size(); ++i) {
      for (ValueId input : graph_.node(group.nodes[i]).inputs) {
        const Node* producer = producer_of(graph_, input);
        if (!producer || group.has(producer->id) || group.nodes.size() >= kMaxOperators) continue;
        if (!is_candidate(*producer) || graph_.is_output(input) || !has_shape_of(input, result) || !may_join(*producer)) continue;
        if (group.outside.size() + producer->inputs.size() > max_inputs) continue;
        group.take(*producer);
      }
    }
  }
  /// Returns true if few operators compute the node from smaller values and one image of its shape that nodes after the root read anyway.
  bool costs_no_reading(const Node& node, NodeId root) const {
    constexpr size_t kMost = 12;
    std::vector<const Node*> makers{&node};
    ValueId image = kNoValue;
    for (size_t i = 0; i < makers.size() && makers.size() <= kMost; ++i) {
      for (ValueId input : makers[i]->inputs) {
        if (input == kNoValue || is_smaller(input, node.outputs[0]) || input == image) continue;
        const Node* producer = producer_of(graph_, input);
        if (image == kNoValue && is_kept(input, root))
          image = input;
        else if (!producer || !is_candidate(*producer) || !has_shape_of(input, node.outputs[0]))
          return false;
        else if (std::ranges::find(makers, producer) == makers.end())
          makers.push_back(producer);
      }
    }
    return makers.size() <= kMost;
  }
  bool is_kept(ValueId image, NodeId root) const {
    return graph_.type(image).dtype == DType::float32 && std::ranges::any_of(graph_.value(image).uses, [&](const Use& use) {
             const auto place = place_.find(use.node);
             return place != place_.end() && place->second > place_.at(root);
           });
  }
  /// Returns true if the value is a vector or a scalar, which has fewer elements than the image `than`.
  bool is_smaller(ValueId id, ValueId than) const {
    const Type& type = graph_.type(id);
    return type.has_rank() && type.rank() <= 1 && graph_.type(than).rank() > 1;
  }
  void say_who_stays_outside(const Group& group) const {
    const Node& root = graph_.node(group.nodes.front());
    for (NodeId member : group.nodes) {
      for (ValueId input : graph_.node(member).inputs) {
        const Node* producer = producer_of(graph_, input);
        if (!producer || group.has(producer->id) || !is_candidate(*producer)) continue;
        if (graph_.is_output(input))
          declined(*producer, "its result is an output of the model; it does not join", &root);
        else if (!has_shape_of(input, root.outputs[0]))
          declined(*producer, [&] {
            return fmt::format("it makes {}, and {} {} behind it {}; a group has one shape", found(graph_, input), root.op_type, root.name,
                               found(graph_, root.outputs[0]));
          });
        else if (group.nodes.size() >= kMaxOperators || group.outside.size() + producer->inputs.size() > kMaxInputs)
          declined(*producer, [&] {
            return fmt::format("the group behind it has {} operators and {} inputs; {} and {} are the most", group.nodes.size(),
                               group.outside.size(), kMaxOperators, kMaxInputs);
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

  // Writes the operators of a group as the steps of a chain. Constants that become attributes of steps are not inputs of the chain.
  Chain chain_of(const std::vector<NodeId>& group) {
    Chain chain;
    std::vector<std::pair<ElementwiseStep, std::vector<ValueId>>> written;
    std::unordered_map<uint32_t, size_t> results;  // index of the step that computes each value of the group
    std::unordered_map<uint32_t, size_t> inputs;
    auto is_inside = [&](ValueId id) { return results.contains(static_cast<uint32_t>(id)); };
    for (NodeId id : group) {
      auto [step, operands] = *step_of(graph_, graph_.node(id), device_);
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

  // Tries smaller groups if a device cannot compute a large one.
  void fuse(NodeId root) {
    for (size_t max_inputs : {kMaxInputs, kMaxInputs / 2, kMaxInputs / 4}) {
      Group group = group_of(root, /*with_copies=*/true, max_inputs);
      if (group.nodes.size() < 2) return;
      Chain chain = chain_of(group.nodes);
      if (!group.copies.empty() && !fits(chain, root)) {
        group = group_of(root, /*with_copies=*/false, max_inputs);
        if (group.nodes.size() < 2) return;
        chain = chain_of(group.nodes);
      }
      if (device_ && !fits(chain, root)) continue;
      rewriter_.change(group.nodes, [&] { return fuse(group, chain, root); });
      return;
    }
  }
  /// Returns true if a kernel can compute the chain. On the host, the kernel needs enough slots for intermediate values.
  bool fits(const Chain& chain, NodeId root) const {
    if (device_) return device_->takes(graph_, as_node(spec_of(chain, root), graph_.node(root)));
    std::vector<DType> dtypes;
    for (ValueId input : chain.inputs) dtypes.push_back(graph_.type(input).dtype);
    try {
      ops::compile_chain(chain.steps, std::move(dtypes), graph_.type(graph_.node(root).outputs[0]).dtype);
    } catch (const Error&) {
      return false;
    }
    return true;
  }
  NodeSpec spec_of(const Chain& chain, NodeId root) const {
    NodeSpec spec{.op_type = "FusedElementwise",
                  .inputs = chain.inputs,
                  .attributes = {{"steps", chain.steps}},
                  .domain = "treadle",
                  .name = graph_.node(root).name};
    const DType dtype = graph_.type(graph_.node(root).outputs[0]).dtype;
    if (dtype != DType::float32) spec.attributes.set("dtype", static_cast<int64_t>(dtype));
    return spec;
  }
  bool fuse(const Group& group, const Chain& chain, NodeId root) {
    if (!fits(chain, root))
      return declined(graph_.node(root), [&] {
        return fmt::format("a group of {} operators and {} inputs needs more values at once than a chain has", group.nodes.size(),
                           chain.inputs.size());
      });
    const ValueId old = graph_.node(root).outputs[0];
    const ValueId result = rewriter_.add(spec_of(chain, root), root);
    graph_.value(result).type = merge(graph_.type(result), graph_.type(old));
    place_[graph_.value(result).producer] = place_[root];
    rewriter_.replace(old, result);
    for (auto it = group.nodes.rbegin(); it != group.nodes.rend(); ++it)
      if (!group.has_copy(*it)) graph_.remove_node(*it);
    return true;
  }

  Rewriter& rewriter_;
  Graph& graph_;
  bool keep_quantization_;
  const DeviceForms* device_;
  mutable std::unordered_map<NodeId, bool> taken_;  // for each node: true if the device can compute it as a step
  std::unordered_map<NodeId, size_t> place_;
  ValueId zero_ = kNoValue;
};

}  // namespace

int64_t fuse_elementwise(Graph& graph, int64_t limit, bool keep_quantization, const DeviceForms* device) {
  return Rewriter(graph, limit).for_each_graph([&](Rewriter& inside) { ElementwiseFuser(inside, keep_quantization, device).run(); });
}

Pass fuse_elementwise() {
  return graph_pass("fuse-elementwise", kExtended, {.not_before_autodiff = true, .makes = "FusedElementwise"},
                    "pointwise operators behind one another -> FusedElementwise", [](Graph& graph, PassContext& context, int64_t limit) {
                      return fuse_elementwise(graph, limit, context.fold_limits.keep_quantization, context.options.device);
                    });
}

}  // namespace treadle::passes
