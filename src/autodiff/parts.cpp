#include "autodiff/parts.h"

#include <fmt/format.h>

#include <map>
#include <string>
#include <utility>

#include "autodiff/gradient.h"
#include "graph/function_body.h"
#include "graph/gradient.h"
#include "graph/infer.h"
#include "graph/op_def.h"

namespace treadle::autodiff {
namespace {

// Recomputes the outputs of a node from its operands with operators that have gradient rules.
class Parts {
 public:
  Parts(Graph& graph, NodeId node) : graph_(graph), name_(graph.node(node).name + "/parts") {
    // Copies each operand. One operand may depend on another, but the gradient with respect to each operand alone is wanted.
    const std::vector<ValueId> operands = graph.node(node).inputs;
    for (ValueId input : operands)
      inputs_.push_back(input == kNoValue ? kNoValue : add({.op_type = "Identity", .inputs = {input}, .name = name_}));
    if (graph.node(node).op->differentiated)
      differentiate(node);
    else
      write_function(node);
  }
  const std::vector<ValueId>& inputs() const { return inputs_; }
  const std::vector<ValueId>& outputs() const { return outputs_; }

 private:
  // Computes the outputs as gradients: OpDef::differentiated returns what to differentiate.
  void differentiate(NodeId node) {
    GradientContext context(graph_, node, {});
    std::vector<ValueId> operands = inputs_;
    operands.resize(graph_.node(node).op->inputs.size(), kNoValue);
    const Differentiated of = graph_.node(node).op->differentiated(context, operands);
    std::vector<ValueId> ys, grad_ys, xs;
    for (size_t i = 0; i < of.ys.size(); ++i) {
      const ValueId grad = operands[static_cast<size_t>(of.first_gradient) + i];
      if (grad != kNoValue) ys.push_back(of.ys[i]), grad_ys.push_back(grad);
    }
    for (int x : of.xs)
      if (operands[static_cast<size_t>(x)] != kNoValue) xs.push_back(operands[static_cast<size_t>(x)]);
    const std::vector<ValueId> flows = add_gradients(graph_, ys, grad_ys, xs);
    size_t next = 0;
    for (int x : of.xs) outputs_.push_back(operands[static_cast<size_t>(x)] == kNoValue ? kNoValue : flows[next++]);
  }

  void write_function(NodeId node) {
    std::vector<std::string> names, outputs;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      names.push_back(inputs_[i] == kNoValue ? std::string() : fmt::format("input {}", i));
      made_[names.back()] = inputs_[i];
    }
    for (size_t i = 0; i < graph_.node(node).outputs.size(); ++i) outputs.push_back(fmt::format("output {}", i));
    FunctionBody body(graph_, graph_.node(node), names, outputs);
    graph_.node(node).op->write_function(body);
    for (const FunctionNode& part : body.nodes()) write(part);
    for (const std::string& output : outputs) {
      const auto found = made_.find(output);
      outputs_.push_back(found == made_.end() ? kNoValue : found->second);
    }
  }
  ValueId add(NodeSpec spec) {
    const NodeId id = graph_.add_node(std::move(spec));
    infer_node(graph_, id);
    return graph_.node(id).outputs[0];
  }
  void write(const FunctionNode& part) {
    if (part.op_type == "Constant") {
      made_[part.output] = graph_.add_constant(name_, std::get<Datum>(*part.attributes.find("value")).tensor());
      return;
    }
    std::vector<ValueId> inputs;
    for (const std::string& input : part.inputs) inputs.push_back(input.empty() ? kNoValue : made_.at(input));
    if (part.op_type == "CastLike") {  // only the dtype of the second operand matters
      const auto to = static_cast<int64_t>(graph_.type(inputs[1]).dtype);
      made_[part.output] = add({.op_type = "Cast", .inputs = {inputs[0]}, .attributes = {{"to", to}}, .name = name_ + "/Cast"});
      return;
    }
    made_[part.output] = add({.op_type = part.op_type,
                              .inputs = std::move(inputs),
                              .attributes = part.attributes,
                              .domain = part.domain,
                              .name = fmt::format("{}/{}", name_, part.op_type)});
  }

  Graph& graph_;
  const std::string name_;
  std::map<std::string, ValueId> made_;
  std::vector<ValueId> inputs_, outputs_;
};

}  // namespace

std::vector<ValueId> differentiate_parts(Graph& graph, NodeId node, std::span<const ValueId> grads, const std::vector<bool>& wanted) {
  const Parts parts(graph, node);
  std::vector<ValueId> ys, grad_ys, xs;
  for (size_t i = 0; i < grads.size(); ++i)
    if (grads[i] != kNoValue && parts.outputs()[i] != kNoValue) ys.push_back(parts.outputs()[i]), grad_ys.push_back(grads[i]);
  for (size_t i = 0; i < wanted.size(); ++i)
    if (wanted[i]) xs.push_back(parts.inputs()[i]);
  const std::vector<ValueId> flows = add_gradients(graph, ys, grad_ys, xs);
  std::vector<ValueId> of_operands;
  for (size_t i = 0, next = 0; i < wanted.size(); ++i) of_operands.push_back(wanted[i] ? flows[next++] : kNoValue);
  return of_operands;
}

}  // namespace treadle::autodiff
