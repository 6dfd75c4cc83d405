// Writes operators as others: what the decompositions of com.microsoft's operators share.
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

/// Adds nodes in front of one, or at the end of a graph.
class NodeWriter {
 public:
  NodeWriter(Graph& graph, NodeId before, std::string name) : graph_(graph), before_(before), name_(std::move(name)) {}

  Graph& graph() const { return graph_; }
  const Type& type(ValueId value) const {
    static const Type unknown;
    return value == kNoValue ? unknown : graph_.type(value);
  }
  /// -1 if it is not known.
  int rank(ValueId value) const { return type(value).has_rank() ? type(value).rank() : -1; }
  /// An extent, counted from the end if `axis` is negative; -1 if it is not known before the run.
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
  /// An operator of com.microsoft, which is taken apart in its turn.
  ValueId microsoft_op(std::string_view op_type, std::vector<ValueId> inputs, Attributes attributes = {}) {
    return op_n(op_type, std::move(inputs), 1, std::move(attributes), "com.microsoft")[0];
  }
  ValueId constant(Tensor tensor) { return graph_.add_constant(name_ + "/constant", std::move(tensor)); }
  ValueId ints(std::vector<int64_t> values) { return constant(Tensor::vector<int64_t>(values)); }
  /// A scalar of the dtype of `like`.
  ValueId scalar(float number, ValueId like) {
    ValueId value = constant(Tensor::scalar(number));
    return type(like).dtype == DType::float32 ? value : op("CastLike", {value, like});
  }
  ValueId cast(ValueId value, DType dtype) { return op("Cast", {value}, {{"to", static_cast<int64_t>(dtype)}}); }
  /// The rank as int64[1], which the run tells where the model does not.
  ValueId rank_of(ValueId value) { return rank(value) >= 0 ? ints({rank(value)}) : op("Shape", {op("Shape", {value})}); }
  /// The value with axes of extent 1 behind its own. @param count  int64[1]
  ValueId with_axes_behind(ValueId value, ValueId count) {
    const ValueId ones = op("ConstantOfShape", {count}, {{"value", Datum(Tensor::vector<int64_t>(std::vector<int64_t>{1}))}});
    const ValueId shape = op("Concat", {op("Shape", {value}), ones}, {{"axis", int64_t{0}}});
    return op("Reshape", {value, shape}, {{"allowzero", int64_t{1}}});
  }
  /// `number` times the value; the value itself for 1.
  ValueId scaled(ValueId value, float number, ValueId like) { return number == 1 ? value : op("Mul", {value, scalar(number, like)}); }

 private:
  Graph& graph_;
  NodeId before_;
  std::string name_;
};

/// Adds nodes in front of the node that is taken apart, and in the end removes it.
class Decomposition : public NodeWriter {
 public:
  Decomposition(Graph& graph, NodeId node) : NodeWriter(graph, node, graph.node(node).name), node_(node) {}

  NodeId id() const { return node_; }
  const Node& node() const { return graph().node(node_); }
  const Attributes& attributes() const { return node().attributes; }
  bool has(size_t input) const { return node().has_input(input); }
  /// kNoValue for an absent input.
  ValueId in(size_t input) const { return has(input) ? node().inputs[input] : kNoValue; }
  /// True if something reads the output.
  bool wants(size_t output) const {
    if (!node().has_output(output)) return false;
    ValueId value = node().outputs[output];
    return !graph().value(value).uses.empty() || graph().is_output(value);
  }
  /// The attributes of these names that the node has.
  Attributes copied(std::initializer_list<std::string_view> names) const {
    Attributes result;
    for (std::string_view name : names)
      if (const Attribute* attribute = attributes().find(name)) result.set(name, *attribute);
    return result;
  }

  /// From now on `value` is output `i`: it takes its uses, name and declared type.
  void give(size_t i, ValueId value) {
    if (!node().has_output(i)) return;
    ValueId old = node().outputs[i];
    std::string name = graph().value(old).name;
    graph().replace_uses(old, value);
    if (graph().value(value).kind != Value::Kind::computed) return;
    graph().rename_value(old, "replaced");
    graph().rename_value(value, name);
  }
  /// @throws Error(not_implemented) if something reads output i.
  void refuse(size_t i, std::string_view what) const {
    if (wants(i)) throw Error(ErrorCode::not_implemented, fmt::format("the output {} ({}) is not implemented", i, what));
  }
  void finish() { graph().remove_node(node_); }

 private:
  NodeId node_;
};

}  // namespace treadle::ops
