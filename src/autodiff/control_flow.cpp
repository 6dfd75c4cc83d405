#include "autodiff/control_flow.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "autodiff/gradient.h"
#include "graph/dead_nodes.h"
#include "graph/gradient.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/gradients.h"
#include "treadle/error.h"

namespace treadle::autodiff {
namespace {

bool is_sequence(const Type& type) { return type.kind == Type::Kind::sequence; }
bool is_random(const Node& node) { return node.op && !node.op->deterministic; }

void refuse_random(const Graph& body) {
  for (NodeId id : body.order()) {
    const Node& node = body.node(id);
    if (is_random(node))
      throw Error(ErrorCode::not_implemented,
                  describe(node) + ": random numbers in a body within a body have no gradient, which computes the bodies again");
    for (const Body& inner : node.bodies) refuse_random(*inner.graph);
  }
}

/// Adds a value of the body to its outputs.
/// @return its index among the outputs
size_t add_body_output(Graph& body, ValueId value) {
  const NodeId copy = body.add_node({.op_type = "Identity", .inputs = {value}});
  infer_node(body, copy);
  body.outputs.push_back(body.node(copy).outputs[0]);
  body.output_names.push_back(body.value(body.outputs.back()).name);
  if (!body.declared_outputs.empty()) body.declared_outputs.emplace_back();
  return body.outputs.size() - 1;
}

/// Adds an empty tensor with the type's rank. One branch of an If outputs it in place of a value that only the other branch computes.
ValueId add_empty(Graph& body, const Type& type) {
  Tensor zero(type.dtype, {1});
  std::memset(zero.raw(), 0, zero.size_bytes());
  const std::vector<int64_t> extents(type.has_rank() ? static_cast<size_t>(type.rank()) : 1, 0);
  const ValueId shape = body.add_constant("extents", Tensor::vector<int64_t>(extents));
  const NodeId empty = body.add_node({.op_type = "ConstantOfShape", .inputs = {shape}, .attributes = {{"value", zero}}});
  infer_node(body, empty);
  return body.node(empty).outputs[0];
}

/// A copy of a body (the graph inside a control-flow node) to which the body's backward pass is added.
class BackwardBody {
 public:
  BackwardBody(const Node& node, const Body& source) : attribute_(source.attribute), graph_(source.graph->clone()) {
    for (NodeId id : graph_->order()) {
      for (const Body& inner : graph_->node(id).bodies) refuse_random(*inner.graph);
      if (is_random(graph_->node(id))) draws_.push_back(id);
    }
    for (const auto& [inside, place] : source.captures)
      captures_.emplace_back(inside, node.inputs[static_cast<size_t>(node.num_formal_inputs + place)]);
    forward_outputs_ = graph_->outputs;
    num_formal_ = graph_->inputs.size() - captures_.size();
  }

  Graph& graph() { return *graph_; }
  ValueId output(size_t i) const { return forward_outputs_[i]; }
  size_t num_formal() const { return num_formal_; }
  ValueId formal(size_t i) const { return graph_->inputs[i]; }
  std::vector<ValueId> inside_of(ValueId outer) const {
    std::vector<ValueId> found;
    for (const auto& [inside, from] : captures_)
      if (from == outer) found.push_back(inside);
    return found;
  }
  ValueId capture(ValueId outer, const Type& type) {
    const ValueId inside = graph_->add_input(graph_->unique_name("captured"), type);
    captures_.emplace_back(inside, outer);
    return inside;
  }
  ValueId add_formal(const Type& type) {
    const ValueId made = graph_->add_input(graph_->unique_name("gradient"), type);
    graph_->inputs.pop_back();
    return made;
  }
  /// Sets the body's inputs: these formal inputs in this order, then the captured values.
  void set_formal(std::vector<ValueId> formal) {
    for (const auto& capture : captures_) formal.push_back(capture.first);
    graph_->inputs = std::move(formal);
  }

  void want(ValueId y, ValueId grad) { ys_.push_back(y), grads_.push_back(grad); }
  /// Returns the gradients of the values `xs`; a value without a gradient gets zeros.
  std::vector<ValueId> gradients(const std::vector<ValueId>& xs) {
    std::vector<ValueId> found = add_gradients(*graph_, ys_, grads_, xs);
    for (size_t i = 0; i < xs.size(); ++i)
      if (found[i] == kNoValue) found[i] = zeros_like(xs[i]);
    return found;
  }
  ValueId zeros_like(ValueId like) {
    if (is_sequence(graph_->type(like))) return add("SequenceZeros", {like}, {}, "treadle");
    Tensor zero(DType::float64, Shape{});
    *zero.data<double>() = 0;
    const ValueId number = add("Cast", {graph_->add_constant("zero", zero)}, {{"to", static_cast<int64_t>(graph_->type(like).dtype)}});
    return add("Expand", {number, add("Shape", {like})});
  }
  /// Replaces random operators by inputs that hold the numbers drawn in the forward pass, as drawing again would give other numbers.
  /// @param kept  returns an input with the value of output i of a node of the forward body (which has the same node ids)
  template <typename Kept>
  void replay_draws(Kept&& kept) {
    for (NodeId id : draws_) {
      if (!graph_->is_alive(id)) continue;
      const std::vector<ValueId> drawn = graph_->node(id).outputs;
      for (size_t i = 0; i < drawn.size(); ++i)
        if (drawn[i] != kNoValue && (!graph_->value(drawn[i]).uses.empty() || graph_->is_output(drawn[i])))
          graph_->replace_uses(drawn[i], kept(id, i, graph_->type(drawn[i])));
    }
  }
  ValueId sum(ValueId a, ValueId b) {
    const bool sequences = is_sequence(graph_->type(a));
    return add(sequences ? "SequenceAdd" : "Add", {a, b}, {}, sequences ? "treadle" : "");
  }
  ValueId add(std::string_view op_type, std::vector<ValueId> inputs, Attributes attributes = {}, std::string_view domain = "") {
    const NodeId id = graph_->add_node(
        {.op_type = std::string(op_type), .inputs = std::move(inputs), .attributes = std::move(attributes), .domain = std::string(domain)});
    infer_node(*graph_, id);
    return graph_->node(id).outputs[0];
  }
  void set_outputs(const std::vector<ValueId>& outputs) {
    graph_->outputs.clear();
    graph_->output_names.clear();
    graph_->declared_outputs.clear();
    for (ValueId output : outputs) {
      // Each output gets its own value, as the same value may occur twice in the outputs or be an input.
      graph_->outputs.push_back(add("Identity", {output}));
      graph_->output_names.push_back(graph_->value(graph_->outputs.back()).name);
    }
  }
  /// Moves this body into a node of the enclosing graph.
  void attach(Graph& outer, NodeId id) {
    Body body{attribute_, std::move(graph_), {}};
    for (const auto& [inside, from] : captures_) {
      const Node& node = outer.node(id);
      const auto begin = node.inputs.begin() + node.num_formal_inputs;
      const auto found = std::find(begin, node.inputs.end(), from);
      const int place = found != node.inputs.end() ? static_cast<int>(found - begin) : outer.add_capture(id, from);
      body.captures.emplace_back(inside, place);
    }
    outer.node(id).bodies.push_back(std::move(body));
  }

 private:
  std::string attribute_;
  std::unique_ptr<Graph> graph_;
  std::vector<std::pair<ValueId, ValueId>> captures_;  // (value inside the body, value outside)
  std::vector<ValueId> forward_outputs_, ys_, grads_;
  std::vector<NodeId> draws_;  // random nodes of the forward body
  size_t num_formal_ = 0;
};

/// Returns the operands that bodies capture and whose gradients are wanted, without duplicates.
std::vector<ValueId> wanted_captures(const Node& node, const std::vector<bool>& wanted) {
  std::vector<ValueId> found;
  for (size_t i = static_cast<size_t>(node.num_formal_inputs); i < node.inputs.size(); ++i)
    if (wanted[i] && std::find(found.begin(), found.end(), node.inputs[i]) == found.end()) found.push_back(node.inputs[i]);
  return found;
}

/// Stores the gradients of captured values in `result`, at the positions of the node's operands.
void place_captures(const Node& node, const std::vector<ValueId>& captured, std::span<const ValueId> grads, std::vector<ValueId>& result) {
  for (size_t k = 0; k < captured.size(); ++k) {
    const auto at = std::find(node.inputs.begin() + node.num_formal_inputs, node.inputs.end(), captured[k]);
    result[static_cast<size_t>(at - node.inputs.begin())] = grads[k];
  }
}

/// Returns the gradient of one captured value: the sum of the gradients of those inputs of the body that are copies of it.
ValueId sum_inside(BackwardBody& body, const std::vector<ValueId>& inside, std::span<const ValueId> grads) {
  ValueId sum = grads[0];
  for (size_t i = 1; i < inside.size(); ++i) sum = body.sum(sum, grads[i]);
  return sum;
}

/// Makes output i of a node inside one branch an additional output of the If.
ValueId keep_of_branch(Graph& graph, NodeId id, size_t branch, NodeId inner, size_t i) {
  GradientContext outside(graph, id, {});
  size_t place = 0;
  Type type;
  std::vector<Body>& bodies = graph.node(id).bodies;
  GradientContext inside(*bodies[branch].graph, inner, {});
  const ValueId drawn = ops::require_output(inside, i);
  type = bodies[branch].graph->type(drawn);
  for (size_t k = 0; k < bodies.size(); ++k) {
    Graph& body = *bodies[k].graph;
    place = add_body_output(body, k == branch ? drawn : add_empty(body, type));
  }
  return ops::require_output(outside, place);
}

std::vector<ValueId> differentiate_if(Graph& graph, NodeId id, std::span<const ValueId> grads, const std::vector<bool>& wanted) {
  const std::vector<ValueId> captured = wanted_captures(graph.node(id), wanted);
  std::vector<ValueId> result(graph.node(id).inputs.size(), kNoValue);
  if (captured.empty()) return result;
  const NodeId back = graph.add_node({.op_type = graph.node(id).op_type,
                                      .inputs = {graph.node(id).inputs[0]},
                                      .name = graph.node(id).name + "_grad",
                                      .num_outputs = static_cast<int>(captured.size())});
  for (size_t branch = 0; branch < graph.node(id).bodies.size(); ++branch) {
    BackwardBody body(graph.node(id), graph.node(id).bodies[branch]);
    for (size_t i = 0; i < grads.size(); ++i)
      if (grads[i] != kNoValue) body.want(body.output(i), body.capture(grads[i], graph.type(grads[i])));
    std::vector<ValueId> outputs;
    for (ValueId outer : captured) {
      const std::vector<ValueId> inside = body.inside_of(outer);
      outputs.push_back(inside.empty() ? body.zeros_like(body.capture(outer, graph.type(outer))) : kNoValue);
    }
    std::vector<ValueId> xs;
    for (ValueId outer : captured)
      for (ValueId inside : body.inside_of(outer)) xs.push_back(inside);
    const std::vector<ValueId> found = body.gradients(xs);
    for (size_t k = 0, at = 0; k < captured.size(); ++k) {
      const std::vector<ValueId> inside = body.inside_of(captured[k]);
      if (outputs[k] == kNoValue) outputs[k] = sum_inside(body, inside, std::span(found).subspan(at));
      at += inside.size();
    }
    body.set_outputs(outputs);
    body.replay_draws([&](NodeId inner, size_t i, const Type& type) {
      const ValueId kept = keep_of_branch(graph, id, branch, inner, i);
      return body.capture(kept, type);
    });
    body.attach(graph, back);
  }
  infer_node(graph, back);
  place_captures(graph.node(id), captured, graph.node(back).outputs, result);
  return result;
}

int64_t entry(const std::vector<int64_t>& values, size_t i) { return i < values.size() ? values[i] : 0; }

/// Describes the layout of a Loop's or Scan's operands, and of its body's inputs and outputs.
struct Iteration {
  size_t states = 0, scanned = 0;            // numbers of carried values and of scanned inputs
  size_t first_state = 0, first_output = 0;  // indices of the first state's input and of its output in the body
  // Index of the node's operand for the first initial state; number of body inputs of which the values of all iterations are kept.
  size_t first_operand = 0, num_stacked = 0;
};

class BackwardScan {
 public:
  BackwardScan(Graph& graph, NodeId id, std::span<const ValueId> grads, const std::vector<bool>& wanted)
      : graph_(graph), id_(id), grads_(grads), wanted_(wanted), context_(graph, id, grads) {
    const Node& node = graph.node(id);
    if (node.op->control_flow == ControlFlow::scan) {
      it_.scanned = static_cast<size_t>(node.attributes.get_int("num_scan_inputs"));
      it_.states = static_cast<size_t>(node.num_formal_inputs) - it_.scanned;
      it_.num_stacked = it_.states;
    } else {
      it_ = {
          .states = static_cast<size_t>(std::max(node.num_formal_inputs - 2, 0)), .first_state = 2, .first_output = 1, .first_operand = 2};
      it_.num_stacked = it_.states + 2;
    }
  }

  std::vector<ValueId> run() {
    num_outputs_ = graph_.node(id_).bodies[0].graph->outputs.size() - it_.first_output;
    const std::vector<ValueId> stacked = keep_inputs();
    BackwardBody body(graph_.node(id_), graph_.node(id_).bodies[0]);
    const std::vector<ValueId> captured = wanted_captures(graph_.node(id_), wanted_);
    std::vector<ValueId> initial, formal, xs;
    std::vector<size_t> floats, scans;  // states that have gradients, and scanned inputs whose gradients are wanted
    for (size_t j = 0; j < it_.states; ++j) {
      const ValueId inside = body.formal(it_.first_state + j);
      if (!holds_floats(body.graph().type(inside))) continue;
      floats.push_back(j), xs.push_back(inside);
      const ValueId flow = j < grads_.size() ? grads_[j] : kNoValue;
      initial.push_back(flow != kNoValue ? flow : zeros_of_state(j));
      formal.push_back(body.add_formal(body.graph().type(inside)));
      body.want(body.output(it_.first_output + j), formal.back());
    }
    for (ValueId outer : captured) {
      initial.push_back(zeros_like(outer));
      formal.push_back(body.add_formal(graph_.type(outer)));
      for (ValueId inside : body.inside_of(outer)) xs.push_back(inside);
    }
    const std::vector<ValueId> carried = formal;
    std::vector<ValueId> left_out;  // states that are sequences; their values are not kept for each iteration
    for (size_t i = 0; i < it_.num_stacked + it_.scanned; ++i)
      (i < it_.num_stacked && is_sequence(body.graph().type(body.formal(i))) ? left_out : formal).push_back(body.formal(i));
    for (size_t m = 0; m < it_.scanned; ++m)
      if (wanted_[it_.states + m]) scans.push_back(m), xs.push_back(body.formal(it_.states + m));
    std::vector<ValueId> inputs = initial;
    inputs.insert(inputs.end(), stacked.begin(), stacked.end());
    std::vector<int64_t> axes(stacked.size(), 0), directions(stacked.size(), 1);
    add_scanned(body, inputs, formal, axes, directions);
    // Adds the backward pass of one iteration.
    const std::vector<ValueId> found = body.gradients(xs);
    std::vector<ValueId> outputs(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(floats.size()));
    size_t at = floats.size();
    for (size_t k = 0; k < captured.size(); ++k) {
      const std::vector<ValueId> inside = body.inside_of(captured[k]);
      outputs.push_back(body.sum(carried[floats.size() + k], sum_inside(body, inside, std::span(found).subspan(at))));
      at += inside.size();
    }
    outputs.insert(outputs.end(), found.begin() + static_cast<std::ptrdiff_t>(at), found.end());
    body.set_outputs(outputs);
    body.replay_draws([&](NodeId inner, size_t i, const Type& type) {
      Graph& forward = *graph_.node(id_).bodies[0].graph;
      GradientContext inside(forward, inner, {});
      inputs.push_back(keep(ops::require_output(inside, i)));
      axes.push_back(0), directions.push_back(1);
      formal.push_back(body.add_formal(type));
      return formal.back();
    });
    remove_dead_nodes(body.graph());  // removes nodes of the forward pass that only random nodes needed
    for (ValueId sequence : left_out)
      if (!body.graph().value(sequence).uses.empty())
        throw Error(
            ErrorCode::not_implemented,
            fmt::format("the gradient reads the sequence \"{}\" as it is before an iteration, which is not kept; elements that a loop "
                        "appends, and sequences that do not change in it, have gradients",
                        body.graph().value(sequence).name));
    body.set_formal(std::move(formal));
    const std::vector<ValueId> made = add_scan(body, std::move(inputs), axes, directions, scans, outputs.size());

    std::vector<ValueId> result(graph_.node(id_).inputs.size(), kNoValue);
    for (size_t i = 0; i < floats.size(); ++i) result[it_.first_operand + floats[i]] = made[i];
    place_captures(graph_.node(id_), captured, std::span(made).subspan(floats.size()), result);
    for (size_t i = 0; i < scans.size(); ++i) result[it_.states + scans[i]] = made[floats.size() + captured.size() + i];
    return result;
  }

 private:
  /// Adds outputs to the node that hold the values of the body's inputs in all iterations, stacked.
  std::vector<ValueId> keep_inputs() {
    std::vector<ValueId> stacked;
    for (size_t i = 0; i < it_.num_stacked; ++i) {
      const Graph& body = *graph_.node(id_).bodies[0].graph;
      if (!is_sequence(body.type(body.inputs[i]))) stacked.push_back(keep(body.inputs[i]));
    }
    return stacked;
  }
  ValueId zeros_like(ValueId like) {
    return is_sequence(graph_.type(like)) ? context_.op("SequenceZeros", {like}, {}, "treadle") : ops::zeros_like(context_, like);
  }
  /// Returns zeros as the gradient of a final state. For a sequence, which may have grown, they have the shape of the final state; for a
  /// tensor, they have the shape of the initial state.
  ValueId zeros_of_state(size_t j) {
    const ValueId operand = graph_.node(id_).inputs[it_.first_operand + j];
    return zeros_like(is_sequence(graph_.type(operand)) ? ops::require_output(context_, j) : operand);
  }
  /// Adds an output to the node that holds a value of the body in all iterations, stacked.
  ValueId keep(ValueId inside) {
    Node& node = graph_.node(id_);
    const size_t place = add_body_output(*node.bodies[0].graph, inside) - it_.first_output;
    for (const char* name : {"scan_output_axes", "scan_output_directions"}) {
      if (!node.attributes.has(name)) continue;
      std::vector<int64_t> values = node.attributes.get_ints(name);
      values.resize(place - it_.states + 1, 0);
      node.attributes.set(name, std::move(values));
    }
    return ops::require_output(context_, place);
  }

  /// Adds inputs to the backward Scan, read from the last iteration on: the scanned inputs, and the gradients of the scanned outputs.
  void add_scanned(BackwardBody& body, std::vector<ValueId>& inputs, std::vector<ValueId>& formal, std::vector<int64_t>& axes,
                   std::vector<int64_t>& directions) {
    const Attributes& attributes = graph_.node(id_).attributes;
    for (size_t m = 0; m < it_.scanned; ++m) {
      inputs.push_back(graph_.node(id_).inputs[it_.states + m]);
      axes.push_back(entry(attributes.get_ints("scan_input_axes"), m));
      directions.push_back(1 - entry(attributes.get_ints("scan_input_directions"), m));
    }
    for (size_t k = it_.states; k < num_outputs_; ++k) {
      if (k >= grads_.size() || grads_[k] == kNoValue) continue;
      const ValueId y = body.output(it_.first_output + k);
      inputs.push_back(grads_[k]);
      formal.push_back(body.add_formal(body.graph().type(y)));
      body.want(y, formal.back());
      axes.push_back(entry(attributes.get_ints("scan_output_axes"), k - it_.states));
      directions.push_back(1 - entry(attributes.get_ints("scan_output_directions"), k - it_.states));
    }
  }

  std::vector<ValueId> add_scan(BackwardBody& body, std::vector<ValueId> inputs, const std::vector<int64_t>& axes,
                                const std::vector<int64_t>& directions, const std::vector<size_t>& scans, size_t num_outputs) {
    const Attributes& forward = graph_.node(id_).attributes;
    Attributes attributes{
        {"num_scan_inputs", static_cast<int64_t>(axes.size())}, {"scan_input_axes", axes}, {"scan_input_directions", directions}};
    std::vector<int64_t> output_axes, output_directions;
    for (size_t m : scans) {
      output_axes.push_back(entry(forward.get_ints("scan_input_axes"), m));
      output_directions.push_back(1 - entry(forward.get_ints("scan_input_directions"), m));
    }
    if (!scans.empty()) {
      attributes.set("scan_output_axes", std::move(output_axes));
      attributes.set("scan_output_directions", std::move(output_directions));
    }
    const NodeId back = graph_.add_node({.op_type = "Scan",
                                         .inputs = std::move(inputs),
                                         .attributes = std::move(attributes),
                                         .name = graph_.node(id_).name + "_grad",
                                         .num_outputs = static_cast<int>(num_outputs)});
    body.attach(graph_, back);
    infer_node(graph_, back);
    return graph_.node(back).outputs;
  }

  Graph& graph_;
  NodeId id_;
  std::span<const ValueId> grads_;
  const std::vector<bool>& wanted_;
  GradientContext context_;
  Iteration it_;
  size_t num_outputs_ = 0;  // number of the node's outputs before those for kept values were added
};

}  // namespace

std::vector<ValueId> differentiate_bodies(Graph& graph, NodeId id, std::span<const ValueId> grads, const std::vector<bool>& wanted) {
  if (graph.node(id).op->control_flow == ControlFlow::if_) return differentiate_if(graph, id, grads, wanted);
  return BackwardScan(graph, id, grads, wanted).run();
}

}  // namespace treadle::autodiff
