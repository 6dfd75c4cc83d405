// Helpers that replace an operator by nodes of other operators.
#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "graph/op_def.h"
#include "treadle/error.h"

namespace treadle::ops {

/// Adds nodes to a graph, in front of a given node or at the end.
class NodeWriter {
 public:
  NodeWriter(Graph& graph, NodeId before, std::string name) : graph_(graph), before_(before), name_(std::move(name)) {}

  Graph& graph() const { return graph_; }
  const Type& type(ValueId value) const {
    static const Type unknown;
    return value == kNoValue ? unknown : graph_.type(value);
  }
  /// Returns the rank; -1 if it is unknown.
  int rank(ValueId value) const { return type(value).has_rank() ? type(value).rank() : -1; }
  /// Returns the extent of an axis, or -1 if it is unknown before the run. A negative `axis` counts from the end.
  int64_t extent(ValueId value, int axis) const {
    int axes = rank(value), index = axis < 0 ? axis + axes : axis;
    if (axes < 0 || index < 0 || index >= axes) return -1;
    const Dim& dim = (*type(value).shape)[static_cast<size_t>(index)];
    return dim.is_const() ? dim.value() : -1;
  }

  std::vector<ValueId> op_n(std::string_view op_type, std::vector<ValueId> inputs, int num_outputs, Attributes attributes = {},
                            std::string_view domain = "") {
    while (!inputs.empty() && inputs.back() == kNoValue) inputs.pop_back();
    NodeId made = graph_.add_node({.op_type = std::string(op_type),
                                   .inputs = std::move(inputs),
                                   .attributes = std::move(attributes),
                                   .domain = std::string(domain),
                                   .name = name_ + "/" + std::string(op_type),
                                   .num_outputs = num_outputs},
                                  before_);
    return graph_.node(made).outputs;
  }
  ValueId op(std::string_view op_type, std::vector<ValueId> inputs, Attributes attributes = {}) {
    return op_n(op_type, std::move(inputs), 1, std::move(attributes))[0];
  }
  /// Adds an operator of com.microsoft, which is decomposed later if it has a decomposition.
  ValueId microsoft_op(std::string_view op_type, std::vector<ValueId> inputs, Attributes attributes = {}) {
    return op_n(op_type, std::move(inputs), 1, std::move(attributes), "com.microsoft")[0];
  }
  ValueId constant(Tensor tensor) { return graph_.add_constant(name_ + "/constant", std::move(tensor)); }
  ValueId ints(std::vector<int64_t> values) { return constant(Tensor::vector<int64_t>(values)); }
  /// Returns a scalar constant of the dtype of `like`.
  ValueId scalar(float number, ValueId like) {
    ValueId value = constant(Tensor::scalar(number));
    return type(like).dtype == DType::float32 ? value : op("CastLike", {value, like});
  }
  ValueId cast(ValueId value, DType dtype) { return op("Cast", {value}, {{"to", static_cast<int64_t>(dtype)}}); }
  /// Returns the rank as an int64[1] tensor: a constant if the rank is known, otherwise computed by nodes during the run.
  ValueId rank_of(ValueId value) { return rank(value) >= 0 ? ints({rank(value)}) : op("Shape", {op("Shape", {value})}); }
  /// Appends axes of extent 1. @param count  int64[1], the number of axes
  ValueId with_axes_behind(ValueId value, ValueId count) {
    const ValueId ones = op("ConstantOfShape", {count}, {{"value", Datum(Tensor::vector<int64_t>(std::vector<int64_t>{1}))}});
    const ValueId shape = op("Concat", {op("Shape", {value}), ones}, {{"axis", int64_t{0}}});
    return op("Reshape", {value, shape}, {{"allowzero", int64_t{1}}});
  }
  /// Multiplies by a constant in the dtype of `like`. Returns the value itself if `number` is 1.
  ValueId scaled(ValueId value, float number, ValueId like) { return number == 1 ? value : op("Mul", {value, scalar(number, like)}); }

 private:
  Graph& graph_;
  NodeId before_;
  std::string name_;
};

/// Adds nodes in front of the node to decompose; finish() removes that node.
class Decomposition : public NodeWriter {
 public:
  Decomposition(Graph& graph, NodeId node) : NodeWriter(graph, node, graph.node(node).name), node_(node) {}

  NodeId id() const { return node_; }
  const Node& node() const { return graph().node(node_); }
  const Attributes& attributes() const { return node().attributes; }
  bool has(size_t input) const { return node().has_input(input); }
  /// Returns an input; kNoValue if it is absent.
  ValueId in(size_t input) const { return has(input) ? node().inputs[input] : kNoValue; }
  /// Returns true if a node reads the output, or the graph returns it.
  bool wants(size_t output) const {
    if (!node().has_output(output)) return false;
    ValueId value = node().outputs[output];
    return !graph().value(value).uses.empty() || graph().is_output(value);
  }
  /// Returns copies of the attributes with these names, as far as the node has them.
  Attributes copied(std::initializer_list<std::string_view> names) const {
    Attributes result;
    for (std::string_view name : names)
      if (const Attribute* attribute = attributes().find(name)) result.set(name, *attribute);
    return result;
  }

  /// Replaces output `i` of the node by `value`: readers of the output read `value`, which takes over the output's name.
  void give(size_t i, ValueId value) {
    if (!node().has_output(i)) return;
    ValueId old = node().outputs[i];
    std::string name = graph().value(old).name;
    graph().replace_uses(old, value);
    if (graph().value(value).kind != Value::Kind::computed) return;
    graph().rename_value(old, "replaced");
    graph().rename_value(value, name);
  }
  /// Throws Error(not_implemented) if output `i` is used. `what` names the output in the message.
  void refuse(size_t i, std::string_view what) const {
    if (wants(i)) throw Error(ErrorCode::not_implemented, fmt::format("the output {} ({}) is not implemented", i, what));
  }
  void finish() { graph().remove_node(node_); }

 private:
  NodeId node_;
};

}  // namespace treadle::ops
