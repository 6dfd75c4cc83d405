#include "cli/model_totals.h"

#include <sstream>

#include "graph/op_def.h"

namespace treadle::cli {
namespace {

void add_tensor(const Tensor& tensor, ModelTotals& totals) {
  const DType dtype = tensor.dtype();
  const bool is_narrow = is_integer(dtype) && bits_of(dtype) <= 8;
  if (is_float(dtype) || is_narrow) totals.num_parameters += tensor.num_elements();
  totals.weight_bytes[std::string(name_of(dtype))] += tensor.size_bytes();
}

// Adds an attribute's tensors and lists, whatever they mean: a Constant's tensor, a tree ensemble's thresholds, but also strides.
void add_attribute(const Attribute& attribute, ModelTotals& totals) {
  size_t list_bytes = 0;
  if (const auto* datum = std::get_if<Datum>(&attribute)) {
    if (datum->is_tensor()) add_tensor(datum->tensor(), totals);
  } else if (const auto* floats = std::get_if<std::vector<float>>(&attribute)) {
    totals.num_parameters += static_cast<int64_t>(floats->size());
    list_bytes = floats->size() * sizeof(float);
  } else if (const auto* ints = std::get_if<std::vector<int64_t>>(&attribute)) {
    list_bytes = ints->size() * sizeof(int64_t);
  } else if (const auto* texts = std::get_if<std::vector<std::string>>(&attribute)) {
    for (const std::string& text : *texts) list_bytes += text.size();
  } else if (const auto* data = std::get_if<std::vector<Datum>>(&attribute)) {
    for (const Datum& item : *data)
      if (item.is_tensor()) add_tensor(item.tensor(), totals);
  }
  if (list_bytes > 0) totals.weight_bytes["attributes"] += list_bytes;
}

void add_cost(const Graph& graph, const Node& node, ModelTotals& totals) {
  std::vector<Shape> shapes;
  std::vector<DType> dtypes;
  auto operand = [&](ValueId id) {
    shapes.emplace_back();
    dtypes.push_back(DType::undefined);
    if (id == kNoValue) return true;
    if (!graph.type(id).is_static()) return false;
    shapes.back() = graph.type(id).static_shape();
    dtypes.back() = graph.type(id).dtype;
    return true;
  };
  bool known = true;
  for (ValueId id : node.inputs) known &= operand(id);
  for (ValueId id : node.outputs) known &= operand(id);
  if (!known) {
    ++totals.nodes_without_cost;
    return;
  }
  if (!node.op || !node.op->cost) return;
  std::vector<const Shape*> pointers;
  for (const Shape& shape : shapes) pointers.push_back(&shape);
  ShapeContext context(node);
  context.shapes_ = pointers;
  context.dtypes_ = dtypes;
  const Cost cost = node.op->cost(context);
  totals.flops += cost.flops;
  totals.bytes_moved += cost.bytes;
}

void collect(const Graph& graph, ModelTotals& totals) {
  for (size_t i = 0; i < graph.num_values(); ++i) {
    const ValueId id{static_cast<uint32_t>(i)};
    const Tensor* constant = graph.constant_tensor(id);
    if (constant && !graph.value(id).uses.empty()) add_tensor(*constant, totals);
  }
  for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id)) {
    const Node& node = graph.node(id);
    ++totals.operators[(node.domain.empty() ? "" : node.domain + ".") + node.op_type];
    for (const auto& [name, attribute] : node.attributes) add_attribute(attribute, totals);
    add_cost(graph, node, totals);
    for (const Body& body : node.bodies) collect(*body.graph, totals);
  }
}

}  // namespace

size_t ModelTotals::total_weight_bytes() const {
  size_t bytes = 0;
  for (const auto& entry : weight_bytes) bytes += entry.second;
  return bytes;
}

int64_t ModelTotals::num_nodes() const {
  int64_t nodes = 0;
  for (const auto& entry : operators) nodes += entry.second;
  return nodes;
}

std::vector<std::string> class_names(const Model& model) {
  std::vector<std::string> names;
  const auto& custom = model.metadata().custom;
  const auto found = custom.find(kClassNames);
  if (found == custom.end()) return names;
  std::istringstream lines(found->second);
  for (std::string line; std::getline(lines, line);) names.push_back(line);
  return names;
}

ModelTotals totals_of(const Graph& graph) {
  ModelTotals totals;
  collect(graph, totals);
  return totals;
}

}  // namespace treadle::cli
