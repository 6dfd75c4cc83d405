#include "autodiff/joined_slices.h"

#include <algorithm>
#include <optional>
#include <string>

#include "graph/infer.h"
#include "graph/op_def.h"

namespace treadle::autodiff {
namespace {

/// A partial gradient that covers only the rows [begin, begin + count) of an axis.
struct Part {
  ValueId partial, rows;
  int64_t begin, count;
  size_t axis;
};

std::optional<int64_t> single_int(const Graph& graph, ValueId value) {
  const Tensor* tensor = graph.constant_tensor(value);
  if (!tensor || tensor->num_elements() != 1) return std::nullopt;
  if (tensor->dtype() == DType::int64) return *tensor->data<int64_t>();
  if (tensor->dtype() == DType::int32) return *tensor->data<int32_t>();
  return std::nullopt;
}

// Describes a partial gradient. Returns nullopt if it does not come from a slice along one axis, or if the slice's position is unknown.
std::optional<Part> part_of(const Graph& graph, ValueId partial) {
  const Value& value = graph.value(partial);
  if (value.kind != Value::Kind::computed || !value.uses.empty() || !value.type.has_rank()) return std::nullopt;
  const Node& node = graph.node(value.producer);
  const int64_t rank = static_cast<int64_t>(value.type.shape->size());
  if (!node.is("SliceGrad", "treadle") || !graph.type(node.inputs[0]).has_rank() || rank == 0) return std::nullopt;
  const std::optional<int64_t> start = single_int(graph, node.inputs[2]);
  const std::optional<int64_t> axis = node.has_input(4) ? single_int(graph, node.inputs[4]) : 0;
  if (!start || !axis || *axis < -rank || *axis >= rank || (node.has_input(5) && single_int(graph, node.inputs[5]) != 1))
    return std::nullopt;
  const auto at = static_cast<size_t>(*axis < 0 ? *axis + rank : *axis);
  const Dim &extent = (*value.type.shape)[at], &rows = (*graph.type(node.inputs[0]).shape)[at];
  if (!extent.is_const() || !rows.is_const()) return std::nullopt;
  const int64_t begin = *start < 0 ? *start + extent.value() : *start;
  return Part{partial, node.inputs[0], begin, rows.value(), at};
}

}  // namespace

void join_slices(Graph& graph, std::vector<ValueId>& partials) {
  std::vector<Part> parts;
  for (ValueId partial : partials)
    if (const std::optional<Part> part = part_of(graph, partial); part && (parts.empty() || part->axis == parts.front().axis))
      parts.push_back(*part);
  if (parts.size() < 2) return;
  std::ranges::sort(parts, {}, &Part::begin);
  int64_t end = 0;
  for (const Part& part : parts) {
    if (part.begin != end) return;
    end += part.count;
  }
  const size_t axis = parts.front().axis;
  if (end != (*graph.type(parts.front().partial).shape)[axis].value()) return;
  NodeSpec concat{.op_type = "Concat",
                  .attributes = {{"axis", static_cast<int64_t>(axis)}},
                  .name = graph.node(graph.value(parts.front().partial).producer).name + "/joined"};
  for (const Part& part : parts) concat.inputs.push_back(part.rows);
  const NodeId id = graph.add_node(std::move(concat));
  infer_node(graph, id);
  std::erase_if(partials, [&](ValueId partial) { return std::ranges::count(parts, partial, &Part::partial) > 0; });
  partials.push_back(graph.node(id).outputs[0]);
}

}  // namespace treadle::autodiff
