#include "autodiff/gradient.h"

#include <fmt/format.h>

#include <algorithm>

#include "graph/gradient.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "treadle/error.h"

namespace treadle::autodiff {
namespace {

class Backward {
 public:
  Backward(Graph& graph, std::span<const ValueId> ys, std::span<const ValueId> grad_ys, std::span<const ValueId> xs)
      : graph_(graph), forward_(graph.order()), partials_(graph.num_values()) {
    mark(ys, xs);
    check_rules();
    for (size_t i = 0; i < ys.size(); ++i) {
      ValueId grad = i < grad_ys.size() && grad_ys[i] != kNoValue ? grad_ys[i] : ones_like(ys[i]);
      partials_[index_of(ys[i])].push_back(grad);
    }
  }

  std::vector<ValueId> run(std::span<const ValueId> xs) {
    for (auto it = forward_.rbegin(); it != forward_.rend(); ++it)
      if (on_path(graph_.node(*it))) differentiate(*it);
    std::vector<ValueId> result;
    for (ValueId x : xs) result.push_back(total(x));
    return result;
  }

 private:
  // Values that depend on an x, and values that a y depends on: gradients flow through both only.
  void mark(std::span<const ValueId> ys, std::span<const ValueId> xs) {
    depends_.assign(graph_.num_values(), false);
    needed_.assign(graph_.num_values(), false);
    for (ValueId x : xs) depends_[index_of(x)] = true;
    for (NodeId id : forward_) {
      const Node& node = graph_.node(id);
      bool any = std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) { return v != kNoValue && depends_[index_of(v)]; });
      for (ValueId output : node.outputs)
        if (output != kNoValue && any && is_float(graph_.type(output).dtype)) depends_[index_of(output)] = true;
    }
    for (ValueId y : ys) needed_[index_of(y)] = true;
    for (auto it = forward_.rbegin(); it != forward_.rend(); ++it) {
      const Node& node = graph_.node(*it);
      bool any = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return v != kNoValue && needed_[index_of(v)]; });
      if (!any) continue;
      for (ValueId input : node.inputs)
        if (input != kNoValue) needed_[index_of(input)] = true;
    }
  }

  bool on_path(const Node& node) const {
    return std::any_of(node.outputs.begin(), node.outputs.end(),
                       [&](ValueId v) { return v != kNoValue && depends_[index_of(v)] && needed_[index_of(v)]; });
  }

  void check_rules() const {
    std::string missing;
    for (NodeId id : forward_)
      if (const Node& node = graph_.node(id); on_path(node) && !node.op->gradient) missing += "\n    " + describe(node);
    if (!missing.empty())
      throw Error(ErrorCode::not_implemented, "these nodes stand between the parameters and the loss and have no gradient rule:" + missing);
  }

  ValueId ones_like(ValueId y) {
    const Type& type = graph_.type(y);
    if (type.is_static() && type.static_shape().num_elements() == 1 && type.dtype == DType::float32) {
      Tensor one(DType::float32, type.static_shape());
      *one.data<float>() = 1;
      return graph_.add_constant("one", one);
    }
    throw Error(ErrorCode::invalid_argument,
                fmt::format("\"{}\" is {}; only a float32 scalar may start a backward pass without a gradient of its own",
                            graph_.value(y).name, to_string(type)));
  }

  // The sum of what flows into a value; the single partial where there is one.
  ValueId total(ValueId value) {
    std::vector<ValueId>& partials = partials_[index_of(value)];
    if (partials.empty()) return kNoValue;
    while (partials.size() > 1) {
      const ValueId last = partials.back();
      partials.pop_back();
      NodeId sum = graph_.add_node({.op_type = "Add", .inputs = {partials.back(), last}, .name = graph_.value(value).name + "_grad/sum"});
      infer_node(graph_, sum);
      partials.back() = graph_.node(sum).outputs[0];
    }
    return partials[0];
  }

  void differentiate(NodeId id) {
    std::vector<ValueId> grads;
    bool any = false;
    for (size_t i = 0; i < graph_.node(id).outputs.size(); ++i) {
      ValueId output = graph_.node(id).outputs[i];
      grads.push_back(output == kNoValue ? kNoValue : total(output));
      any |= grads.back() != kNoValue;
    }
    if (!any) return;
    GradientContext context(graph_, id, grads);
    std::vector<ValueId> flows;
    try {
      flows = graph_.node(id).op->gradient(context);
    } catch (Error& error) {
      throw error.add_context(describe(graph_.node(id)) + ", during differentiation", describe_operands(graph_, graph_.node(id)));
    }
    const Node& node = graph_.node(id);
    for (size_t i = 0; i < flows.size() && i < node.inputs.size(); ++i) {
      ValueId input = node.inputs[i];
      if (flows[i] == kNoValue || input == kNoValue || !depends_[index_of(input)]) continue;
      partials_[index_of(input)].push_back(flows[i]);
    }
  }

  Graph& graph_;
  std::vector<NodeId> forward_;
  std::vector<std::vector<ValueId>> partials_;  // per value of the forward graph
  std::vector<bool> depends_, needed_;
};

}  // namespace

std::vector<ValueId> add_gradients(Graph& graph, std::span<const ValueId> ys, std::span<const ValueId> grad_ys,
                                   std::span<const ValueId> xs) {
  // Rules compute the gradients of all inputs; those that nobody asked for are dead nodes, which the first pass removes.
  return Backward(graph, ys, grad_ys, xs).run(xs);
}

}  // namespace treadle::autodiff
