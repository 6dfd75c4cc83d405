#include "train/graph/row_gradients.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/nearest.h"
#include "core/base/pattern.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

bool is_along_rows(const Node& node, int rank) {
  const int64_t axis = node.attributes.get_int("axis", 0);
  return axis == 0 || axis == -rank;
}

/// Collects the GatherGrad nodes whose sum is the gradient. Returns false if the sum has other terms, or if another node reads a partial
/// sum.
bool collect_addends(const Graph& graph, ValueId gradient, bool is_whole, std::vector<NodeId>& addends) {
  const Value& value = graph.value(gradient);
  if (value.kind != Value::Kind::computed || value.uses.size() > (is_whole ? 0 : 1)) return false;
  const Node& node = graph.node(value.producer);
  if (node.is("Add"))
    return collect_addends(graph, node.inputs[0], false, addends) && collect_addends(graph, node.inputs[1], false, addends);
  if (!node.is("GatherGrad", "treadle") || !value.type.has_rank() || !is_along_rows(node, value.type.rank())) return false;
  addends.push_back(value.producer);
  return true;
}

/// Returns true if the gradient is a product with a transposed CSR matrix, which can be nonzero only in some rows.
bool is_of_csr(const Graph& graph, ValueId gradient) {
  if (gradient == kNoValue || graph.value(gradient).kind != Value::Kind::computed || !graph.value(gradient).uses.empty()) return false;
  const Node& node = graph.node(graph.value(gradient).producer);
  return node.is("SparseMatMul", "treadle") && node.attributes.get_int("transA", 0) != 0;
}

/// Concatenates the gradient rows and the row indices of several GatherGrad nodes.
std::pair<ValueId, ValueId> joined(Graph& graph, const std::vector<NodeId>& addends, const Shape& table, const std::string& name) {
  std::vector<int64_t> row(table.dims().begin(), table.dims().end());
  row[0] = -1;
  auto ints = [&](const char* what, const std::vector<int64_t>& values) {
    return graph.add_constant(graph.unique_name(name + what), Tensor::vector<int64_t>(values));
  };
  const ValueId rows_shape = ints("/rows_shape", row), flat = ints("/flat", {-1});
  std::vector<ValueId> rows, indices;
  for (NodeId addend : addends) {
    const ValueId dy = graph.node(addend).inputs[0], places = graph.node(addend).inputs[1];
    const NodeId wide = append_node(
        graph, {.op_type = "Cast", .inputs = {places}, .attributes = {{"to", static_cast<int64_t>(DType::int64)}}, .name = name + "/cast"});
    const NodeId line =
        append_node(graph, {.op_type = "Reshape", .inputs = {graph.node(wide).outputs[0], flat}, .name = name + "/indices"});
    const NodeId matrix = append_node(graph, {.op_type = "Reshape", .inputs = {dy, rows_shape}, .name = name + "/rows"});
    indices.push_back(graph.node(line).outputs[0]), rows.push_back(graph.node(matrix).outputs[0]);
  }
  auto concat = [&](std::vector<ValueId> parts) {
    const NodeId id = append_node(
        graph, {.op_type = "Concat", .inputs = std::move(parts), .attributes = {{"axis", int64_t{0}}}, .name = name + "/joined"});
    return graph.node(id).outputs[0];
  };
  const ValueId all_rows = concat(std::move(rows));
  return {all_rows, concat(std::move(indices))};
}

/// Returns, for an error message, the reason why a parameter's gradient cannot be stored as rows.
std::string reason(const Graph& graph, ValueId parameter) {
  for (const Use& use : graph.value(parameter).uses) {
    const Node& node = graph.node(use.node);
    if (node.is("Shape") || (node.is("Gather") && use.input == 0 && is_along_rows(node, graph.type(parameter).rank()))) continue;
    return fmt::format("{} reads it", describe(node));
  }
  return "no Gather along its first axis reads it";
}

}  // namespace

ParameterGradient row_gradient(Graph& graph, ValueId gradient) {
  if (is_of_csr(graph, gradient)) {
    const Node& product = graph.node(graph.value(gradient).producer);
    const NodeId made = append_node(graph, {.op_type = "SparseMatMulRows",
                                            .inputs = {product.inputs[0], product.inputs[1]},
                                            .domain = "treadle",
                                            .name = graph.value(gradient).name + "/by_rows",
                                            .num_outputs = 2});
    return {graph.node(made).outputs[0], graph.node(made).outputs[1]};
  }
  std::vector<NodeId> addends;
  if (gradient == kNoValue || !graph.type(gradient).is_static() || !collect_addends(graph, gradient, true, addends)) return {gradient};
  const Shape table = graph.type(gradient).static_shape();
  if (table.num_elements() == 0) return {gradient};
  const std::string name = graph.value(gradient).name;
  ValueId rows = graph.node(addends[0]).inputs[0], indices = graph.node(addends[0]).inputs[1];
  const ValueId shape = graph.node(addends[0]).inputs[2];
  if (addends.size() > 1) std::tie(rows, indices) = joined(graph, addends, table, name);
  const NodeId made = append_node(
      graph,
      {.op_type = "GatherGradRows", .inputs = {rows, indices, shape}, .domain = "treadle", .name = name + "/by_rows", .num_outputs = 2});
  return {graph.node(made).outputs[0], graph.node(made).outputs[1]};
}

std::vector<ParameterGradient> with_rows(const TrainingGraph& training, std::span<const ValueId> grads,
                                         const std::vector<std::string>& chosen, std::string_view option) {
  Graph& graph = *training.graph;
  std::vector<ParameterGradient> made;
  for (size_t i = 0; i < grads.size(); ++i)
    made.push_back(matches_any(chosen, training.parameters[i]) ? row_gradient(graph, grads[i]) : ParameterGradient{grads[i]});
  for (const std::string& pattern : chosen) {
    std::string first;  // the first parameter that the pattern matches
    bool found = false;
    for (size_t i = 0; i < made.size() && !found; ++i) {
      if (!matches(pattern, training.parameters[i])) continue;
      if (first.empty()) first = training.parameters[i];
      found = made[i].has_rows();
    }
    if (found) continue;
    if (first.empty())
      throw Error(ErrorCode::not_found, fmt::format("{} names \"{}\", which is no trained parameter; the nearest: {}", option, pattern,
                                                    nearest_names(pattern, training.parameters)));
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{} names \"{}\", but the gradient of \"{}\" is no matter of single rows: {}. Only tables have such gradients that "
                    "nothing but Gather along the first axis reads, and matrices that one input in CSR is multiplied by",
                    option, pattern, first, reason(graph, graph.find_value(first))));
  }
  return made;
}

std::pair<Tensor, Tensor> without_padding(const Tensor& rows, const Tensor& places) {
  const auto all = places.span<int64_t>();
  const int64_t count = std::find(all.begin(), all.end(), int64_t{-1}) - all.begin();
  Shape shape{count};
  for (int axis = 1; axis < rows.shape().rank(); ++axis) shape.push_back(rows.shape()[axis]);
  auto view = [](const Tensor& of, const Shape& shape) {
    const auto offset = static_cast<const std::byte*>(of.raw()) - static_cast<const std::byte*>(of.storage()->data());
    return Tensor(of.dtype(), shape, of.storage(), static_cast<size_t>(offset));
  };
  return {view(rows, shape), view(places, Shape{count})};
}

}  // namespace treadle::train
