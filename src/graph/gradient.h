// Context of an operator's `gradient` rule: the forward node's values, the gradients of its outputs, and functions that add backward nodes.
#pragma once

#include <initializer_list>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace treadle {

/// Gradients are ordinary nodes of the newest opset, appended to the graph. `kNoValue` means "no gradient".
class GradientContext {
 public:
  /// @param wanted  inputs whose gradients are needed; empty: all inputs
  GradientContext(Graph& graph, NodeId node, std::span<const ValueId> grad_outputs, std::vector<bool> wanted = {})
      : graph_(graph), node_(node), grads_(grad_outputs), wanted_(std::move(wanted)) {}

  Graph& graph() const { return graph_; }
  const Node& node() const { return graph_.node(node_); }
  const Attributes& attributes() const { return node().attributes; }
  ValueId input(size_t i) const { return i < node().inputs.size() ? node().inputs[i] : kNoValue; }
  ValueId output(size_t i) const { return i < node().outputs.size() ? node().outputs[i] : kNoValue; }
  /// Returns the gradient of output i; kNoValue if there is none.
  ValueId grad_output(size_t i) const { return i < grads_.size() ? grads_[i] : kNoValue; }
  /// Returns true if the gradient of input i is needed. Nodes for other gradients are removed anyway; rules ask before reporting an error.
  bool wants(size_t i) const { return input(i) != kNoValue && (wanted_.empty() || (i < wanted_.size() && wanted_[i])); }
  const Type& type(ValueId value) const { return graph_.type(value); }

  // Functions that add nodes of the backward pass and infer their types. Operators of the treadle domain compute in float32 or float64, so
  // 16-bit operands are cast to float32 first, and the results are cast back.
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
  /// Returns a scalar constant of the dtype of `like`.
  ValueId scalar(double value, ValueId like);
  /// Sums a gradient over the axes along which `operand` was broadcast, so that the result has the shape of `operand`. If these axes are
  /// unknown, the run determines them.
  ValueId unbroadcast(ValueId grad, ValueId operand);

 private:
  Graph& graph_;
  NodeId node_;
  std::span<const ValueId> grads_;
  std::vector<bool> wanted_;
};

}  // namespace treadle
