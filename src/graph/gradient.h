// What an operator's `gradient` sees: the forward node's values, the gradients of its outputs, and ways to add backward nodes.
#pragma once

#include <initializer_list>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace treadle {

/// Gradients are ordinary nodes in the newest opset, appended to the graph. `kNoValue` stands for "no gradient".
class GradientContext {
 public:
  /// @param wanted  which inputs' gradients somebody asks for; all if it is empty
  GradientContext(Graph& graph, NodeId node, std::span<const ValueId> grad_outputs, std::vector<bool> wanted = {})
      : graph_(graph), node_(node), grads_(grad_outputs), wanted_(std::move(wanted)) {}

  Graph& graph() const { return graph_; }
  const Node& node() const { return graph_.node(node_); }
  const Attributes& attributes() const { return node().attributes; }
  ValueId input(size_t i) const { return i < node().inputs.size() ? node().inputs[i] : kNoValue; }
  ValueId output(size_t i) const { return i < node().outputs.size() ? node().outputs[i] : kNoValue; }
  /// Gradient of output i; kNoValue if nothing flows back into it.
  ValueId grad_output(size_t i) const { return i < grads_.size() ? grads_[i] : kNoValue; }
  /// Whether somebody asks for the gradient of input i. Nodes that nobody needs are removed anyhow; rules ask before they refuse.
  bool wants(size_t i) const { return input(i) != kNoValue && (wanted_.empty() || (i < wanted_.size() && wanted_[i])); }
  const Type& type(ValueId value) const { return graph_.type(value); }

  // Nodes of the backward pass. Types are inferred at once. Operators of the treadle domain compute float32 and float64: operands of 16
  // bits are cast to float32 before them, and what they make of those is cast back.
  ValueId op(std::string_view op_type, std::vector<ValueId> inputs, Attributes attributes = {}, std::string_view domain = "");
  std::vector<ValueId> op_n(std::string_view op_type, std::vector<ValueId> inputs, int num_outputs, Attributes attributes = {},
                            std::string_view domain = "");
  ValueId add(ValueId a, ValueId b) { return op("Add", {a, b}); }
  ValueId sub(ValueId a, ValueId b) { return op("Sub", {a, b}); }
  ValueId mul(ValueId a, ValueId b) { return op("Mul", {a, b}); }
  ValueId div(ValueId a, ValueId b) { return op("Div", {a, b}); }
  ValueId neg(ValueId a) { return op("Neg", {a}); }
  ValueId reduce_sum(ValueId x, std::vector<int64_t> axes, bool keepdims);
  ValueId transpose(ValueId x, std::vector<int64_t> perm) { return op("Transpose", {x}, {{"perm", std::move(perm)}}); }
  ValueId shape_of(ValueId x) { return op("Shape", {x}); }
  ValueId reshape_like(ValueId x, ValueId like) { return op("Reshape", {x, shape_of(like)}, {{"allowzero", int64_t{1}}}); }
  ValueId constant(Tensor tensor) { return graph_.add_constant("constant", std::move(tensor)); }
  ValueId ints(std::vector<int64_t> values) { return constant(Tensor::vector<int64_t>(values)); }
  /// A scalar of the dtype of `like`.
  ValueId scalar(double value, ValueId like);
  /// Sums a gradient over the axes that broadcasting `operand` added or stretched, so that it has the operand's shape. Which axes those are
  /// may be left to the run.
  ValueId unbroadcast(ValueId grad, ValueId operand);

 private:
  Graph& graph_;
  NodeId node_;
  std::span<const ValueId> grads_;
  std::vector<bool> wanted_;
};

}  // namespace treadle
