#include "autodiff/parts.h"

#include <fmt/format.h>

#include <map>
#include <string>
#include <utility>

#include "autodiff/gradient.h"
#include "graph/function_body.h"
#include "graph/infer.h"
#include "graph/op_def.h"

namespace treadle::autodiff {
namespace {

// What a function writes, as nodes of the graph.
class Parts {
 public:
  Parts(Graph& graph, NodeId node) : graph_(graph), name_(graph.node(node).name + "/parts") {
    const size_t num_inputs = graph.node(node).inputs.size(), num_outputs = graph.node(node).outputs.size();
    std::vector<std::string> names, outputs;
    for (size_t i = 0; i < num_inputs; ++i) {
      const ValueId input = graph.node(node).inputs[i];
      names.push_back(input == kNoValue ? std::string() : fmt::format("input {}", i));
      // Operands may depend on each other; the gradients by each alone are wanted.
      inputs_.push_back(input == kNoValue ? kNoValue : add({.op_type = "Identity", .inputs = {input}, .name = name_}));
      made_[names.back()] = inputs_.back();
    }
    for (size_t i = 0; i < num_outputs; ++i) outputs.push_back(fmt::format("output {}", i));
    FunctionBody body(graph, graph.node(node), names, outputs);
    graph.node(node).op->write_function(body);
    for (const FunctionNode& part : body.nodes()) write(part);
    for (const std::string& output : outputs) {
      const auto found = made_.find(output);
      outputs_.push_back(found == made_.end() ? kNoValue : found->second);
    }
  }
  const std::vector<ValueId>& inputs() const { return inputs_; }
  const std::vector<ValueId>& outputs() const { return outputs_; }

 private:
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
    if (part.op_type == "CastLike") {  // nothing but the dtype counts of what it is cast like
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
