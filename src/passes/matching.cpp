#include "passes/matching.h"

#include <algorithm>
#include <cmath>

#include "core/values/float_types.h"
#include "graph/infer.h"
#include "graph/internal_attributes.h"
#include "graph/op_def.h"
#include "graph/patch.h"

namespace treadle::passes {

const Node* producer_of(const Graph& graph, ValueId id) {
  if (id == kNoValue) return nullptr;
  NodeId producer = graph.value(id).producer;
  return producer == kNoNode ? nullptr : &graph.node(producer);
}

bool is_used_once(const Graph& graph, ValueId id) { return graph.value(id).uses.size() == 1 && !graph.is_output(id); }

bool has_internal_attribute(const Node& node, std::string_view name) {
  return node.op && is_internal_attribute(node.op->domain, name) &&
         std::ranges::find(node.op->attributes, name, &AttributeDef::name) != node.op->attributes.end();
}

std::optional<size_t> input_named(const Node& node, std::string_view name) {
  if (!node.op) return std::nullopt;
  const auto found = std::ranges::find(node.op->inputs, name, &Port::name);
  return found == node.op->inputs.end() ? std::nullopt : std::optional(static_cast<size_t>(found - node.op->inputs.begin()));
}

std::optional<std::vector<int64_t>> constant_ints(const Graph& graph, ValueId id) {
  const Tensor* tensor = graph.constant_tensor(id);
  if (!tensor) return std::nullopt;
  if (tensor->dtype() == DType::int64) return std::vector<int64_t>(tensor->span<int64_t>().begin(), tensor->span<int64_t>().end());
  if (tensor->dtype() == DType::int32) return std::vector<int64_t>(tensor->span<int32_t>().begin(), tensor->span<int32_t>().end());
  return std::nullopt;
}

bool all_elements_are(const Tensor& tensor, double number, bool negative_zero) {
  constexpr int64_t kMaxElements = 4096;
  if (tensor.num_elements() == 0 || tensor.num_elements() > kMaxElements || !tensor.is_contiguous()) return false;
  auto same = [&](auto* data, auto to_double) {
    return std::all_of(data, data + tensor.num_elements(), [&](auto element) {
      double x = to_double(element);
      return x == number && (number != 0 || std::signbit(x) == negative_zero);
    });
  };
  auto cast = [](auto x) { return static_cast<double>(x); };
  switch (tensor.dtype()) {
    case DType::float32: return same(tensor.data<float>(), cast);
    case DType::float64: return same(tensor.data<double>(), cast);
    case DType::float16:
      return same(reinterpret_cast<const uint16_t*>(tensor.raw()),
                  [](uint16_t x) { return static_cast<double>(static_cast<float>(Float16::from_bits(x))); });
    case DType::int64: return same(tensor.data<int64_t>(), cast);
    case DType::int32: return same(tensor.data<int32_t>(), cast);
    case DType::int16: return same(tensor.data<int16_t>(), cast);
    case DType::int8: return same(tensor.data<int8_t>(), cast);
    case DType::uint64: return same(tensor.data<uint64_t>(), cast);
    case DType::uint32: return same(tensor.data<uint32_t>(), cast);
    case DType::uint16: return same(tensor.data<uint16_t>(), cast);
    case DType::uint8: return same(tensor.data<uint8_t>(), cast);
    default: return false;
  }
}

bool is_view(const Node& node) { return node.op && node.op->moves == Moves::in_order; }

std::optional<std::vector<int64_t>> reshape_target(const SymbolicShape& in, const SymbolicShape& out) {
  std::vector<int64_t> target;
  std::optional<size_t> hole;
  Dim others = 1;
  for (size_t axis = 0; axis < out.size(); ++axis) {
    const Dim& extent = out[axis];
    if (extent.is_const(0)) return std::nullopt;
    if (extent.is_const()) {
      target.push_back(extent.value());
    } else if (axis < in.size() && in[axis] == extent) {
      target.push_back(0);
    } else if (!hole) {
      hole = axis;
      target.push_back(-1);
      continue;
    } else {
      return std::nullopt;
    }
    others = others * extent;
  }
  if (hole && (others.is_const(0) || floor_div(product(in), others) != out[*hole])) return std::nullopt;
  return target;
}

ValueId add_inferred(Graph& graph, NodeSpec spec, NodeId before, const std::vector<std::string>& sources) {
  const NodeId id = graph.add_node(std::move(spec), before);
  graph.node(id).sources = sources;
  infer_node(graph, id);
  return graph.node(id).outputs[0];
}

Patch reshape_to(const Node& node, const std::vector<int64_t>& target) {
  Patch patch;
  const ValueId shape = patch.constant(node.name + "/shape", Tensor::vector<int64_t>(target));
  patch.replace(node.outputs[0], patch.add({.op_type = "Reshape", .inputs = {node.inputs[0], shape}, .name = node.name}));
  return patch;
}

Node as_node(NodeSpec spec, const Node& replaced) {
  Node node;
  node.id = replaced.id;
  node.op = find_op(spec.domain, spec.op_type);
  node.name = std::move(spec.name), node.op_type = std::move(spec.op_type), node.domain = std::move(spec.domain);
  node.num_formal_inputs = static_cast<int>(spec.inputs.size());
  node.inputs = std::move(spec.inputs), node.outputs = replaced.outputs;
  node.attributes = std::move(spec.attributes);
  node.sources = replaced.sources, node.metadata = replaced.metadata;
  return node;
}

}  // namespace treadle::passes
