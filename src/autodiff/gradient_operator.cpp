// The operator ai.onnx.preview.training.Gradient. When a model is read, the operator is replaced by the nodes that compute the gradients,
// as a function is replaced by its body. Its attributes name values of the graph; before this, onnx::bind_named_values has appended these
// values to the node's inputs.
#include "ops/training/gradient_operator.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "autodiff/gradient.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

/// Expresses y as a function of the named values: copies the nodes from them to y, and replaces the named values by the node's operands.
class NamedFunction {
 public:
  NamedFunction(Graph& graph, NodeId gradient) : graph_(graph), gradient_(gradient) {}

  /// Makes copied nodes read x instead of the value `named`.
  /// @return a new value equal to x, so that each operand has its own gradient even if two operands are the same value
  ValueId stand_in(ValueId named, ValueId x) {
    const ValueId own = add({.op_type = "Identity", .inputs = {x}, .name = name() + "/x"})[0];
    copies_[named] = own;
    return own;
  }
  ValueId copy_of(ValueId y) {
    std::vector<NodeId> between;
    for (NodeId id : graph_.order()) {
      if (id == gradient_) break;
      const Node& node = graph_.node(id);
      const bool depends =
          std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) { return copies_.contains(v) || made_.contains(v); });
      if (!depends) continue;
      between.push_back(id);
      for (ValueId output : node.outputs)
        if (output != kNoValue) made_.insert({output, id});
    }
    copy_nodes(y);
    return of(y);
  }

 private:
  const std::string& name() const { return graph_.node(gradient_).name; }
  ValueId of(ValueId value) const {
    const auto found = copies_.find(value);
    return found == copies_.end() ? value : found->second;
  }
  std::vector<ValueId> add(NodeSpec spec) {
    const NodeId id = graph_.add_node(std::move(spec), gradient_);
    infer_node(graph_, id);
    return graph_.node(id).outputs;
  }
  /// Copies the nodes on which y depends, in order. The function is not recursive, because graphs may be deep.
  void copy_nodes(ValueId y) {
    std::vector<ValueId> waiting{y};
    while (!waiting.empty()) {
      const ValueId value = waiting.back();
      const auto made = made_.find(value);
      if (copies_.contains(value) || made == made_.end()) {
        waiting.pop_back();
        continue;
      }
      const Node& node = graph_.node(made->second);
      const size_t before = waiting.size();
      for (ValueId input : node.inputs)
        if (input != kNoValue && made_.contains(input) && !copies_.contains(input)) waiting.push_back(input);
      if (waiting.size() == before) copy(node);
    }
  }
  void copy(const Node& node) {
    NodeSpec spec{.op_type = node.op_type,
                  .attributes = node.attributes,
                  .domain = node.domain,
                  .name = name() + "/" + node.name,
                  .num_outputs = static_cast<int>(node.outputs.size())};
    const auto formal = node.inputs.begin() + node.num_formal_inputs;
    for (auto input = node.inputs.begin(); input != formal; ++input) spec.inputs.push_back(*input == kNoValue ? kNoValue : of(*input));
    const NodeId made = graph_.add_node(std::move(spec), gradient_);
    std::vector<int> places;  // indices of the copied node's captures
    for (auto input = formal; input != node.inputs.end(); ++input) places.push_back(graph_.add_capture(made, of(*input)));
    for (const Body& body : node.bodies) {
      Body& own = graph_.node(made).bodies.emplace_back(Body{body.attribute, body.graph->clone(), {}});
      for (const auto& [inside, place] : body.captures) own.captures.emplace_back(inside, places[static_cast<size_t>(place)]);
    }
    for (size_t i = 0; i < node.outputs.size(); ++i)
      if (node.outputs[i] == kNoValue) {
        ValueId& absent = graph_.node(made).outputs[i];
        graph_.value(absent).producer = kNoNode;
        absent = kNoValue;
      }
    infer_node(graph_, made);
    const std::vector<ValueId> from = node.outputs, to = graph_.node(made).outputs;
    for (size_t i = 0; i < from.size(); ++i)
      if (from[i] != kNoValue && !copies_.contains(from[i])) copies_[from[i]] = to[i];
  }

  Graph& graph_;
  const NodeId gradient_;
  std::map<ValueId, ValueId> copies_;
  std::map<ValueId, NodeId> made_;  // maps each value that depends on a named value to the node that computes it
};

/// Adds a tensor of x's shape and dtype in which each element is `number`.
ValueId filled_like(Graph& graph, ValueId x, double number, NodeId before, const std::string& name) {
  auto add = [&](NodeSpec spec) {
    const NodeId id = graph.add_node(std::move(spec), before);
    infer_node(graph, id);
    return graph.node(id).outputs[0];
  };
  const ValueId shape = add({.op_type = "Shape", .inputs = {x}, .name = name + "/shape"});
  const ValueId filled = add({.op_type = "ConstantOfShape",
                              .inputs = {shape},
                              .attributes = {{"value", Tensor::vector<float>(std::vector<float>{static_cast<float>(number)})}},
                              .name = name + "/filled"});
  if (graph.type(x).dtype == DType::float32) return filled;
  return add(
      {.op_type = "Cast", .inputs = {filled}, .attributes = {{"to", static_cast<int64_t>(graph.type(x).dtype)}}, .name = name + "/cast"});
}

/// Gradient rules have appended nodes after `last`. Moves them before the node `before`, since other nodes read that node's outputs.
void move_new_nodes(Graph& graph, NodeId last, NodeId before) {
  for (NodeId id = graph.next(last); id != kNoNode;) {
    const NodeId next = graph.next(id);
    graph.move_before(id, before);
    id = next;
  }
}

void decompose(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const size_t num_xs = node.attributes.get_strings("xs").size(), num_zs = node.attributes.get_strings("zs").size();
  const size_t given = num_xs + num_zs;
  if (num_xs == 0 || node.inputs.size() != 2 * given + 1 || node.outputs.size() > num_xs)
    throw Error(
        ErrorCode::invalid_model,
        fmt::format("xs and zs name {} and {} values: as many inputs, and at most as many outputs as xs, are expected", num_xs, num_zs));
  const std::vector<ValueId> inputs = node.inputs;
  const std::string name = node.name;
  const ValueId y = inputs.back();
  if (!graph.type(y).is_tensor() || !is_float(graph.type(y).dtype))
    throw Error(ErrorCode::invalid_model, fmt::format("y is {}, which has no gradient", to_string(graph.type(y))));
  NamedFunction function(graph, id);
  std::vector<ValueId> xs;
  for (size_t i = 0; i < given; ++i) {
    const ValueId x = function.stand_in(inputs[given + i], inputs[i]);
    if (i < num_xs) xs.push_back(x);
  }
  const ValueId copy = function.copy_of(y);
  const ValueId ones = filled_like(graph, copy, 1, id, name + "/ones");
  NodeId last = id;
  while (graph.next(last) != kNoNode) last = graph.next(last);
  const std::vector<ValueId> gradients = autodiff::add_gradients(graph, std::vector{copy}, std::vector{ones}, xs, id);
  move_new_nodes(graph, last, id);
  for (size_t i = 0; i < graph.node(id).outputs.size(); ++i) {
    const ValueId output = graph.node(id).outputs[i];
    if (output == kNoValue) continue;
    const ValueId gradient = gradients[i] != kNoValue ? gradients[i] : filled_like(graph, xs[i], 0, id, name + "/zeros");
    const NodeId named = graph.add_node({.op_type = "Identity", .inputs = {gradient}, .name = name + "/gradient"}, id);
    infer_node(graph, named);
    graph.replace_uses(output, graph.node(named).outputs[0]);
  }
  graph.remove_node(id);
}

void infer_gradient(InferContext& c) {
  for (int i = 0; i < c.num_outputs(); ++i)
    if (i < c.num_inputs()) c.set_output(i, c.input(i));
}

}  // namespace

OpDef gradient_operator() {
  constexpr TypeSet kAny = kNumeric | kBool;
  return {.name = "Gradient",
          .domain = "ai.onnx.preview.training",
          .since = {1},
          .inputs = {{"Inputs", kAny, "", Presence::variadic}},
          .outputs = {{"Outputs", kFloats, "", Presence::variadic}},
          .attributes = {{"xs", AttributeDef::Required{}}, {"y", AttributeDef::Required{}}, {"zs"}},
          .infer = infer_gradient,
          .decompose = decompose};
}

}  // namespace treadle::ops
