// Groups of pointwise operators become one FusedElementwise: one pass over memory instead of one for each. A group grows from its last
// operator towards its inputs, over operators that nothing outside of the group reads and whose results have the shape of the group's.
//
// Each operator computes in a group what it computes alone. float32 and truth values; quantisation by one scale.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/fused_elementwise.h"
#include "passes/factors.h"
#include "passes/matching.h"
#include "passes/whole_graph.h"
#include "treadle/error.h"

namespace treadle::passes {
namespace {

constexpr size_t kMaxOperators = 96;
constexpr size_t kMaxInputs = static_cast<size_t>(kernels::kMaxChainInputs) - 1;  // one is left for a zero point that is not there

DType dtype_of_value(const Graph& graph, ValueId id) {
  const Type& type = graph.type(id);
  return type.is_tensor() && type.has_rank() ? type.dtype : DType::undefined;
}
bool is_byte(DType dtype) { return dtype == DType::uint8 || dtype == DType::int8; }

bool has_one_element(const Graph& graph, ValueId id) {
  const Type& type = graph.type(id);
  return type.is_static() && type.static_shape().num_elements() == 1;
}

bool all_inputs_are(const Graph& graph, const Node& node, DType dtype, size_t first = 0) {
  for (size_t i = first; i < node.inputs.size(); ++i)
    if (node.inputs[i] == kNoValue || dtype_of_value(graph, node.inputs[i]) != dtype) return false;
  return true;
}

// Scale and zero point are for all elements: one number each.
bool is_quantisation_by_one_scale(const Graph& graph, const Node& node) {
  if (dtype_of_value(graph, node.inputs[1]) != DType::float32 || !has_one_element(graph, node.inputs[1])) return false;
  return !node.has_input(2) || (has_one_element(graph, node.inputs[2]) && is_byte(dtype_of_value(graph, node.inputs[2])));
}

/// True if a chain can compute the node.
bool is_fusable(const Graph& graph, const Node& node) {
  if (!node.domain.empty() || node.outputs.size() != 1 || node.inputs.empty() || !node.bodies.empty() || node.inputs[0] == kNoValue)
    return false;
  const DType out = dtype_of_value(graph, node.outputs[0]), in = dtype_of_value(graph, node.inputs[0]);
  if (graph.type(node.outputs[0]).has_rank() && graph.type(node.outputs[0]).rank() == 0) return false;
  const std::string& op = node.op_type;
  if (op == "Cast") {
    const bool from = in == DType::float32 || in == DType::boolean || is_byte(in) || in == DType::int32;
    return from && (out == DType::float32 || (out == DType::boolean && in == DType::float32));
  }
  if (op == "Where") return in == DType::boolean && out == DType::float32 && all_inputs_are(graph, node, DType::float32, 1);
  if (op == "QuantizeLinear")
    return in == DType::float32 && is_byte(out) && is_quantisation_by_one_scale(graph, node) && node.attributes.get_int("precision") == 0;
  if (op == "DequantizeLinear") return is_byte(in) && out == DType::float32 && is_quantisation_by_one_scale(graph, node);
  if (op == "Clip") {
    if (in != DType::float32) return false;
    for (size_t i = 1; i < node.inputs.size(); ++i)
      if (node.inputs[i] != kNoValue && !scalar_constant(graph, node.inputs[i])) return false;
    return true;
  }
  // A square. A power of 0.5 is no square root: of -inf and of -0 it is inf and 0.
  if (op == "Pow")
    return in == DType::float32 && out == DType::float32 && scalar_constant(graph, node.inputs[1]) == 2 &&
           graph.same_type_and_shape(node.inputs[0], node.outputs[0]);
  if (op == "And" || op == "Or" || op == "Not") return all_inputs_are(graph, node, DType::boolean);
  if (op == "Max" || op == "Min")
    if (node.inputs.size() != 2) return false;
  if (op == "Gelu" || ops::is_chain_operator(op)) return all_inputs_are(graph, node, DType::float32);
  return false;
}

class ElementwiseFuser {
 public:
  ElementwiseFuser(Graph& graph, int64_t limit, bool keep_quantisation)
      : graph_(graph), limit_(limit), keep_quantisation_(keep_quantisation) {}

  int64_t run() {
    std::vector<NodeId> order = graph_.order();
    for (size_t i = 0; i < order.size(); ++i) place_[order[i]] = i;
    for (auto it = order.rbegin(); it != order.rend() && count_ < limit_; ++it) {
      if (!graph_.is_alive(*it)) continue;
      for (Body& body : graph_.node(*it).bodies) count_ += fuse_elementwise(*body.graph, limit_ - count_, keep_quantisation_);
      if (is_candidate(graph_.node(*it)) && fuse(*it)) ++count_;
    }
    return count_;
  }

 private:
  bool is_candidate(const Node& node) const {
    if (keep_quantisation_ && (node.op_type == "QuantizeLinear" || node.op_type == "DequantizeLinear")) return false;
    return is_fusable(graph_, node);
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
    std::sort(group.begin(), group.end(), [&](NodeId a, NodeId b) { return place_.at(a) < place_.at(b); });
    return group;
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
      auto [step, operands] = step_of(graph_.node(id));
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
  std::pair<ElementwiseStep, std::vector<ValueId>> step_of(const Node& node) {
    ElementwiseStep step;
    step.op_type = node.op_type;
    std::vector<ValueId> operands = node.inputs;
    if (node.op_type == "Cast") {
      step.op_type = graph_.type(node.outputs[0]).dtype == DType::boolean ? "ToBool" : "ToFloat";
    } else if (node.op_type == "Clip") {
      for (size_t i : {1U, 2U})
        if (node.has_input(i))
          step.attributes.emplace_back(i == 1 ? "min" : "max", static_cast<float>(*scalar_constant(graph_, node.inputs[i])));
      operands.resize(1);
    } else if (node.op_type == "Pow") {
      step.op_type = "Mul";
      operands = {node.inputs[0], node.inputs[0]};
    } else if (node.op_type == "Gelu" && node.attributes.get_string("approximate", "none") == "tanh") {
      step.op_type = "GeluTanh";
    } else if (node.op_type == "QuantizeLinear" || node.op_type == "DequantizeLinear") {
      if (!node.has_input(2)) {
        operands.resize(2);
        operands.push_back(zero());
      }
      if (node.op_type == "QuantizeLinear" && graph_.type(node.outputs[0]).dtype == DType::int8)
        step.attributes = {{"low", -128.0F}, {"high", 127.0F}};
    }
    for (std::string_view name : {"alpha", "beta"})
      if (node.attributes.has(name)) step.attributes.emplace_back(name, node.attributes.get_float(name));
    return {std::move(step), std::move(operands)};
  }
  ValueId zero() {
    if (zero_ == kNoValue) zero_ = graph_.add_constant("zero", Tensor::scalar(0.0F));
    return zero_;
  }

  bool fuse(NodeId root) {
    const std::vector<NodeId> group = group_of(root);
    // A quantisation by itself is one step in vectors, too.
    if (group.size() < 2 && !graph_.node(root).is("QuantizeLinear") && !graph_.node(root).is("DequantizeLinear")) return false;
    const Chain chain = chain_of(group);
    const DType dtype = graph_.type(graph_.node(root).outputs[0]).dtype;
    std::vector<DType> dtypes;
    for (ValueId input : chain.inputs) dtypes.push_back(graph_.type(input).dtype);
    try {
      ops::compile_chain(chain.steps, std::move(dtypes), dtype);
    } catch (const Error&) {
      return false;  // more inputs or waiting values than the interpreter has
    }
    const ValueId old = graph_.node(root).outputs[0];
    NodeSpec spec{.op_type = "FusedElementwise",
                  .inputs = chain.inputs,
                  .attributes = {{"steps", chain.steps}},
                  .domain = "treadle",
                  .name = graph_.node(root).name};
    if (dtype != DType::float32) spec.attributes.set("dtype", static_cast<int64_t>(dtype));
    const NodeId made = graph_.add_node(std::move(spec), root);
    infer_node(graph_, made);
    const ValueId result = graph_.node(made).outputs[0];
    graph_.value(result).type = merge(graph_.type(result), graph_.type(old));
    for (NodeId id : group) {
      const std::vector<std::string>& sources = graph_.node(id).sources;
      graph_.node(made).sources.insert(graph_.node(made).sources.end(), sources.begin(), sources.end());
    }
    place_[made] = place_[root];
    graph_.replace_uses(old, result);
    for (auto it = group.rbegin(); it != group.rend(); ++it) graph_.remove_node(*it);
    const std::string name = graph_.value(old).name;
    graph_.rename_value(old, name + "/replaced");
    graph_.rename_value(result, name);
    return true;
  }

  Graph& graph_;
  int64_t limit_, count_ = 0;
  bool keep_quantisation_;
  std::unordered_map<NodeId, size_t> place_;
  ValueId zero_ = kNoValue;
};

}  // namespace

int64_t fuse_elementwise(Graph& graph, int64_t limit, bool keep_quantisation) {
  return ElementwiseFuser(graph, limit, keep_quantisation).run();
}

}  // namespace treadle::passes
