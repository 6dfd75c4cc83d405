// Layout rules for nodes that are moved because an operand has been moved to channels-last layout.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "passes/layout_rules.h"
#include "passes/matching.h"
#include "passes/trace.h"

namespace treadle::passes::layout {
namespace {

bool is_one_element(const Type& type) {
  return std::all_of(type.shape->begin(), type.shape->end(), [](const Dim& dim) { return dim == Dim(1); });
}

// Returns true if a pointwise operator on images of this rank can read this operand in channels-last layout.
bool can_follow(const Graph& graph, ValueId id, int rank) {
  if (id == kNoValue) return true;
  const Type& type = graph.type(id);
  if (!type.is_tensor() || !type.has_rank() || type.rank() > rank) return false;
  // Truth values are usually results of comparisons. Constants with more than one truth value are not handled.
  if (type.dtype == DType::boolean) return type.rank() == rank && (is_one_element(type) || !graph.value(id).is_constant());
  if (type.dtype != DType::float32) return false;
  if (type.rank() == rank) return true;
  return is_one_element(type) || graph.constant_tensor(id) != nullptr;
}

// Returns the operand in the form that a moved pointwise operator reads. Constants are permuted; a single element broadcasts in any layout.
ValueId followed(Layout& layout, ValueId id, int rank, NodeId before) {
  Graph& graph = layout.graph();
  if (id == kNoValue || (is_one_element(graph.type(id)) && !layout.has_moved(id))) return id;
  const Tensor* constant = graph.constant_tensor(id);
  if (constant && (!layout.has_moved(id) || layout.rank(id) != rank))
    return graph.add_constant(graph.value(id).name + "/channels_last", channels_last_constant(*constant, rank));
  return layout.channels_last(id, before);
}

bool has_axis(const OpDef& op) {
  return std::any_of(op.attributes.begin(), op.attributes.end(), [](const AttributeDef& attribute) { return attribute.name == "axis"; });
}

// Returns the default value of an integer attribute.
int64_t default_of(const OpDef& op, std::string_view name) {
  for (const AttributeDef& attribute : op.attributes)
    if (const auto* value = std::get_if<int64_t>(&attribute.value); value && attribute.name == name) return *value;
  return 0;
}

// Returns the axes listed by a constant operand, as they are in the new layout; nullopt if one is out of range.
std::optional<Ints> moved_axes(const Graph& graph, ValueId id, int rank) {
  std::optional<Ints> axes = constant_ints(graph, id);
  if (!axes) return std::nullopt;
  for (int64_t& axis : *axes) {
    if (axis < -rank || axis >= rank) return std::nullopt;
    axis = channels_last_axis(axis, rank);
  }
  return axes;
}

// Returns the axes `first`, `first` + 1 etc., `count` of them.
Ints axes_from(int64_t first, int count) {
  Ints axes(static_cast<size_t>(count));
  std::iota(axes.begin(), axes.end(), first);
  return axes;
}

bool is_vector_of(const Graph& graph, ValueId id, int64_t length) {
  const Type& type = graph.type(id);
  return type.is_tensor() && type.has_rank() && type.rank() == 1 && (*type.shape)[0] == Dim(length);
}

// Permutes a vector with one element per axis to the order of the new layout. The vector need not be constant.
ValueId permuted_vector(Layout& layout, ValueId id, int rank, NodeId before) {
  Graph& graph = layout.graph();
  const ValueId order = layout.ints(channels_last_order(rank), graph.value(id).name + "/order");
  return graph.node(graph.add_node({.op_type = "Gather", .inputs = {id, order}}, before)).outputs[0];
}

}  // namespace

bool elementwise(Layout& layout, const Node& node) {
  const Graph& graph = layout.graph();
  if (!(is_image(graph, node.outputs[0]) || is_mask(graph, node.outputs[0])) || node.outputs.size() != 1)
    return declined(node, [&] {
      return "it makes " + found(graph, node.outputs[0]) + "; float32 or truth values of rank 3 or 4 go with channels innermost";
    });
  const int rank = layout.rank(node.outputs[0]);
  int moved = 0, others = 0;
  for (ValueId input : node.inputs) {
    if (!can_follow(graph, input, rank))
      return declined(node, [&] {
        return "its operand is " + found(graph, input) + ", which cannot be put in the order of the one with channels innermost";
      });
    if (input == kNoValue || layout.rank(input) != rank || graph.value(input).is_constant()) continue;
    (layout.has_moved(input) ? moved : others) += 1;
  }
  if (moved < others || moved == 0)
    return declined(node, [&] {
      return fmt::format("{} of its operands have channels innermost and {} have not: it stays with the most", moved, others);
    });
  NodeSpec spec = same_operator(node);
  for (ValueId& input : spec.inputs) input = followed(layout, input, rank, node.id);
  return layout.replace(node, std::move(spec));
}

// The other operands must apply to all elements of the image: one scale, not one per index of an axis. In channels-last layout, the int32
// sums of ConvInteger are floats.
bool first_operand(Layout& layout, const Node& node) {
  const Graph& graph = layout.graph();
  const ValueId x = node.inputs[0];
  if (!layout.has_moved(x) || !(is_any_image(graph, x) || graph.type(x).dtype == DType::int32) || !is_any_image(graph, node.outputs[0]))
    return false;
  for (size_t i = 1; i < node.inputs.size() && has_axis(*node.op); ++i)
    if (node.inputs[i] != kNoValue && (!graph.type(node.inputs[i]).has_rank() || !is_one_element(graph.type(node.inputs[i])))) return false;
  for (size_t i = 1; i < node.outputs.size(); ++i)
    if (node.outputs[i] == kNoValue || !graph.type(node.outputs[i]).has_rank() || layout.rank(node.outputs[i]) != 0) return false;
  return layout.replace_image(node, same_operator(node));
}

bool along_axis(Layout& layout, const Node& node) {
  const Graph& graph = layout.graph();
  if (!is_any_image(graph, node.outputs[0])) return false;
  const int rank = layout.rank(node.outputs[0]);
  const bool joins = node.op->pieces == Pieces::concat;
  const size_t images = joins ? node.inputs.size() : 1;
  int moved = 0;
  for (size_t i = 0; i < images; ++i) {
    if (!is_any_image(graph, node.inputs[i]) || layout.rank(node.inputs[i]) != rank) return false;
    moved += layout.has_moved(node.inputs[i]) ? 1 : -1;
  }
  if (moved < 0) return false;
  for (ValueId output : node.outputs)
    if (output != kNoValue && !is_any_image(graph, output)) return false;
  const int64_t axis = node.attributes.get_int("axis", default_of(*node.op, "axis"));
  if (axis < -rank || axis >= rank) return false;
  NodeSpec spec = same_operator(node);
  for (size_t i = 0; i < images; ++i) spec.inputs[i] = layout.channels_last(node.inputs[i], node.id);
  spec.attributes.set("axis", channels_last_axis(axis, rank));
  return layout.replace(node, std::move(spec));
}

bool window(Layout& layout, const Node& node) {
  const Graph& graph = layout.graph();
  if (node.outputs.size() > 1 && node.outputs[1] != kNoValue) return window_with_places(layout, node);
  const Ints pads = node.attributes.get_ints("pads");
  const std::string_view bytes_op = node.op->channels_last.bytes_op;
  const bool bytes = !bytes_op.empty() && is_byte_image(graph, node.inputs[0]);
  if (!bytes && (!is_image(graph, node.inputs[0]) || !is_image(graph, node.outputs[0]))) return false;
  if (node.outputs.size() > 1 || std::any_of(pads.begin(), pads.end(), [](int64_t pad) { return pad < 0; })) return false;
  NodeSpec spec = layout_operator(node);
  if (bytes) spec.op_type = bytes_op;
  spec.attributes.erase("storage_order");
  return layout.replace_image(node, std::move(spec));
}

bool spatial_reduction(Layout& layout, const Node& node) {
  const ValueId x = layout.channels_last(node.inputs[0], node.id);
  const std::string op(node.op->channels_last.op);
  if (find_op("treadle", op)) return layout.replace(node, {.op_type = op, .inputs = {x}, .domain = "treadle"});
  const ValueId axes = layout.ints(axes_from(1, layout.rank(node.inputs[0]) - 2), node.name + "/axes");
  return layout.replace(node, {.op_type = op, .inputs = {x, axes}, .attributes = {{"keepdims", int64_t{1}}}});
}

bool reduction(Layout& layout, const Node& node) {
  Graph& graph = layout.graph();
  if (!node.has_input(1)) return false;
  const int rank = layout.rank(node.inputs[0]);
  std::optional<Ints> axes = moved_axes(graph, node.inputs[1], rank);
  if (!axes || axes->empty()) return false;
  std::sort(axes->begin(), axes->end());
  const Ints spatial = axes_from(1, rank - 2);
  const int64_t keeps = node.attributes.get_int("keepdims", 1);
  // If the reduced axes are removed, the remaining axes must keep their order, so they must be batch and channels, or channels only.
  if (keeps == 0 && *axes != spatial && *axes != axes_from(0, rank - 1)) return false;
  NodeSpec spec{.op_type = node.op_type, .inputs = {layout.channels_last(node.inputs[0], node.id)}, .attributes = node.attributes};
  if (const std::string_view op = node.op->channels_last.op; !op.empty() && *axes == spatial) {
    spec.op_type = op;
    spec.domain = "treadle";
    spec.attributes = {{"keepdims", keeps}};
  } else {
    spec.inputs.push_back(layout.ints(*axes, node.name + "/axes"));
  }
  if (keeps != 0) return layout.replace(node, std::move(spec));
  const ValueId out = node.outputs[0];
  spec.name = node.name;
  const NodeId made = graph.add_node(std::move(spec), node.id);
  graph.value(graph.node(made).outputs[0]).type = graph.type(out);
  graph.replace_uses(out, graph.node(made).outputs[0]);
  return true;
}

bool scale_and_shift(Layout& layout, const Node& node) {
  Graph& graph = layout.graph();
  if (node.attributes.get_int("training_mode") != 0) return statistics(layout, node);
  if (node.outputs.size() != 1) return false;
  const Tensor* constants[4];
  for (size_t i = 0; i < 4; ++i) {
    constants[i] = graph.constant_tensor(node.inputs[i + 1]);
    if (!constants[i] || constants[i]->dtype() != DType::float32 || !constants[i]->is_contiguous() ||
        constants[i]->num_elements() != constants[0]->num_elements())
      return computed_scale_and_shift(layout, node);
  }
  const int64_t count = constants[0]->num_elements();
  const double epsilon = node.attributes.get_float("epsilon", 1e-5F);
  std::vector<float> scale(static_cast<size_t>(count)), shift(scale.size());
  for (size_t c = 0; c < scale.size(); ++c) {
    auto at = [&](int i) { return static_cast<double>(constants[i]->data<float>()[c]); };
    const double s = at(0) / std::sqrt(at(3) + epsilon);
    scale[c] = static_cast<float>(s);
    shift[c] = static_cast<float>(at(1) - at(2) * s);
    if (!std::isfinite(scale[c]) || !std::isfinite(shift[c])) return false;
  }
  return layout.replace(node, {.op_type = std::string(node.op->channels_last.op),
                               .inputs = {layout.channels_last(node.inputs[0], node.id),
                                          graph.add_constant(node.name + "/scale", Tensor::vector<float>(scale)),
                                          graph.add_constant(node.name + "/shift", Tensor::vector<float>(shift))},
                               .domain = "treadle"});
}

bool normalization(Layout& layout, const Node& node) {
  NodeSpec spec = layout_operator(node);
  spec.attributes = {};
  spec.attributes.set("epsilon", node.attributes.get_float("epsilon", 1e-5F));
  if (node.attributes.has("num_groups")) spec.attributes.set("num_groups", node.attributes.get_int("num_groups"));
  return layout.replace_image(node, std::move(spec));
}

bool resize(Layout& layout, const Node& node) {
  const Graph& graph = layout.graph();
  if (node.attributes.has("axes") || node.attributes.get_string("coordinate_transformation_mode") == "tf_crop_and_resize" ||
      node.attributes.get_string("keep_aspect_ratio_policy", "stretch") != "stretch")
    return false;
  const int rank = layout.rank(node.inputs[0]);
  for (size_t i = 2; i < 4; ++i)
    if (node.has_input(i) && !is_vector_of(graph, node.inputs[i], rank) && !is_vector_of(graph, node.inputs[i], 0)) return false;
  NodeSpec spec{.op_type = "Resize", .inputs = {layout.channels_last(node.inputs[0], node.id), kNoValue}, .attributes = node.attributes};
  for (size_t i = 2; i < 4 && i < node.inputs.size(); ++i) {
    const bool given = node.has_input(i) && !is_vector_of(graph, node.inputs[i], 0);
    spec.inputs.push_back(given ? permuted_vector(layout, node.inputs[i], rank, node.id) : kNoValue);
  }
  return layout.replace(node, std::move(spec));
}

bool pad(Layout& layout, const Node& node) {
  if (node.has_input(3)) return false;
  const int rank = layout.rank(node.inputs[0]);
  const std::optional<Ints> pads = constant_ints(layout.graph(), node.inputs[1]);
  if (!pads || static_cast<int>(pads->size()) != 2 * rank) return false;
  const Ints begin(pads->begin(), pads->begin() + rank), end(pads->begin() + rank, pads->end());
  Ints both = permuted(begin, channels_last_order(rank));
  for (int64_t value : permuted(end, channels_last_order(rank))) both.push_back(value);
  NodeSpec spec{.op_type = "Pad", .inputs = node.inputs, .attributes = node.attributes};
  spec.inputs[1] = layout.ints(both, node.name + "/pads");
  return layout.replace_image(node, std::move(spec));
}

bool slice(Layout& layout, const Node& node) {
  if (!node.has_input(3)) return false;
  const std::optional<Ints> axes = moved_axes(layout.graph(), node.inputs[3], layout.rank(node.inputs[0]));
  // The new axes are int64 and must have the type of the other operands, so int32 is not handled.
  if (!axes || layout.graph().type(node.inputs[3]).dtype != DType::int64) return false;
  NodeSpec spec{.op_type = "Slice", .inputs = node.inputs, .attributes = node.attributes};
  spec.inputs[3] = layout.ints(*axes, node.name + "/axes");
  return layout.replace_image(node, std::move(spec));
}

// Handles Shape: computes the shape of the channels-last form and reorders it, so that no image is transposed.
bool measurement(Layout& layout, const Node& node) {
  Graph& graph = layout.graph();
  if (!layout.has_moved(node.inputs[0]) || node.attributes.has("start") || node.attributes.has("end")) return false;
  const NodeId old = node.id;
  const ValueId out = node.outputs[0], moved = layout.moved(node.inputs[0]);
  const int rank = layout.rank(node.inputs[0]);
  const ValueId measured = graph.node(graph.add_node({.op_type = "Shape", .inputs = {moved}, .name = node.name}, old)).outputs[0];
  const ValueId order = layout.ints(channels_first_order(rank), node.name + "/order");
  const ValueId result = graph.node(graph.add_node({.op_type = "Gather", .inputs = {measured, order}}, old)).outputs[0];
  graph.value(result).type = graph.type(out);
  graph.value(result).known = graph.value(out).known;
  graph.replace_uses(out, result);
  return true;
}

}  // namespace treadle::passes::layout
