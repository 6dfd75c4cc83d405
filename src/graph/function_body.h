// The body of a local function, which is written to a file in place of an operator of the treadle domain. It uses only ONNX's operators.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "graph/scalar_function.h"

namespace treadle {

/// A node of the body, with one output.
struct FunctionNode {
  std::string op_type, domain;
  std::vector<std::string> inputs;
  Attributes attributes;
  std::string output;
};

/// Builds a function body node by node (see OpDef::write_function). Attributes of the replaced node become constants in the body.
class FunctionBody {
 public:
  /// @param inputs, outputs  names of the function's operands; "" if absent
  FunctionBody(const Graph& graph, const Node& node, std::span<const std::string> inputs, std::span<const std::string> outputs)
      : graph_(graph), node_(node), inputs_(inputs), outputs_(outputs) {}

  const Node& node() const { return node_; }
  const Attributes& attributes() const { return node_.attributes; }
  /// Returns the rank of input i. @throws Error(not_implemented) if inference does not know it
  int64_t rank(size_t i);
  /// Returns the shape of input i. @throws Error(not_implemented) if it is not constant
  Shape shape(size_t i);
  size_t num_inputs() const { return inputs_.size(); }
  size_t num_outputs() const { return outputs_.size(); }
  bool has(size_t i) const { return i < inputs_.size() && !inputs_[i].empty(); }
  std::string in(size_t i) const { return has(i) ? inputs_[i] : std::string(); }

  /// Adds a node and returns the name of its output. Trailing absent inputs are dropped.
  std::string op(std::string_view op_type, std::vector<std::string> inputs, Attributes attributes = {}, std::string_view domain = "");
  /// Returns the node's attributes that have one of these names.
  Attributes own(std::initializer_list<std::string_view> names) const;
  std::string constant(const Tensor& value) { return op("Constant", {}, {{"value", Datum(value)}}); }
  std::string number(float value) { return constant(Tensor::scalar(value)); }
  std::string ints(std::vector<int64_t> values) { return constant(Tensor::vector<int64_t>(values)); }
  /// Adds a node that computes f(x; a, b).
  std::string function(const ScalarFunction& function, const std::string& x, float a, float b);
  /// Makes this value output i of the function.
  void give(size_t i, const std::string& value);

  const std::vector<FunctionNode>& nodes() const { return nodes_; }
  /// Properties of operands (ranks, shapes) on which the body depends, as text. It also depends on attributes, and on which operands exist.
  const std::string& asked() const { return asked_; }

 private:
  const Graph& graph_;
  const Node& node_;
  std::span<const std::string> inputs_, outputs_;
  std::vector<FunctionNode> nodes_;
  std::string asked_;
};

/// Returns the oldest opset in which ONNX has the function's operator; 1 for null. @throws Error(not_implemented) if ONNX has none
int function_opset(const ScalarFunction* function);

}  // namespace treadle
