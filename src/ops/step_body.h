// Builds the body of a Scan, for gradient rules that rewrite an operator as a loop over a sequence.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "graph/infer.h"
#include "ops/decomposition.h"

namespace treadle::ops {

/// Builds the body of a Scan. Its formal inputs are the states, followed by the scanned values.
class StepBody {
 public:
  StepBody(Graph& outer, DType dtype, const std::string& name)
      : outer_(outer), dtype_(dtype), body_{"body", std::make_unique<Graph>(outer.symbol_table()), {}}, w_(*body_.graph, kNoNode, name) {}

  ValueId formal(std::string_view name) { return body_.graph->add_input(name, {}); }
  ValueId capture(ValueId from) {
    captured_.emplace_back(body_.graph->add_value("captured", {}, Value::Kind::input), from);
    return captured_.back().first;
  }
  ValueId op(std::string_view op_type, std::vector<ValueId> inputs, Attributes attributes = {}) {
    return w_.op(op_type, std::move(inputs), std::move(attributes));
  }
  ValueId add(ValueId a, ValueId b) { return op("Add", {a, b}); }
  ValueId mul(ValueId a, ValueId b) { return op("Mul", {a, b}); }
  ValueId ints(std::vector<int64_t> values) { return w_.ints(std::move(values)); }
  ValueId number(double value) {
    return w_.constant(dtype_ == DType::float64 ? Tensor::scalar(value) : Tensor::scalar(static_cast<float>(value)));
  }
  /// Adds the Scan at the end of the graph, so that values which the body captures are computed before. @return the Scan's outputs
  std::vector<ValueId> finish(NodeSpec scan, std::vector<ValueId> outputs) {
    const NodeId id = outer_.add_node(std::move(scan));
    Graph& graph = *body_.graph;
    graph.outputs = std::move(outputs);
    for (const auto& [inside, from] : captured_) {
      graph.inputs.push_back(inside);
      body_.captures.emplace_back(inside, outer_.add_capture(id, from));
    }
    outer_.node(id).bodies.push_back(std::move(body_));
    infer_node(outer_, id);
    return outer_.node(id).outputs;
  }

 private:
  Graph& outer_;
  const DType dtype_;
  Body body_;
  NodeWriter w_;
  std::vector<std::pair<ValueId, ValueId>> captured_;  // (value inside the body, captured value outside)
};

}  // namespace treadle::ops
