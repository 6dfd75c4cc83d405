// What moves because an operand has moved.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "passes/layout_pass.h"
#include "passes/matching.h"
#include "passes/trace.h"

namespace treadle::passes {

// Elementwise operators, constants broadcast along.
bool LayoutPass::can_follow(ValueId id, int r) const {
  if (id == kNoValue) return true;
  const Type& type = g_.type(id);
  if (!type.is_tensor() || !type.has_rank() || type.rank() > r) return false;
  // Truth values come of comparisons; constant ones are rare.
  if (type.dtype == DType::boolean) return type.rank() == r && (is_one_element(type) || !g_.value(id).is_constant());
  if (type.dtype != DType::float32) return false;
  if (type.rank() == r) return true;
  return is_one_element(type) || g_.constant_tensor(id) != nullptr;
}

bool LayoutPass::is_one_element(const Type& type) {
  return std::all_of(type.shape->begin(), type.shape->end(), [](const Dim& dim) { return dim == Dim(1); });
}

ValueId LayoutPass::followed(ValueId id, int r, NodeId before) {
  // One element broadcasts in any layout.
  if (id == kNoValue || (is_one_element(g_.type(id)) && !has_moved(id))) return id;
  if (const Tensor* constant = g_.constant_tensor(id)) {
    if (!has_moved(id) || rank(id) != r) return g_.add_constant(g_.value(id).name + "/channels_last", channels_last_constant(*constant, r));
  }
  return channels_last(id, before);
}

bool LayoutPass::elementwise(const Node& node) {
  if (!(is_image(node.outputs[0]) || is_mask(node.outputs[0])) || node.outputs.size() != 1)
    return declined(node, [&] {
      return "it makes " + found(g_, node.outputs[0]) + "; float32 or truth values of rank 3 or 4 go with channels innermost";
    });
  const int r = rank(node.outputs[0]);
  int moved = 0, others = 0;
  for (ValueId input : node.inputs) {
    if (!can_follow(input, r))
      return declined(node, [&] {
        return "its operand is " + found(g_, input) + ", which cannot be put in the order of the one with channels innermost";
      });
    if (input == kNoValue || g_.type(input).rank() != r || g_.value(input).is_constant()) continue;
    (has_moved(input) ? moved : others) += 1;
  }
  if (moved < others || moved == 0)
    return declined(node, [&] {
      return fmt::format("{} of its operands have channels innermost and {} have not: it stays with the most", moved, others);
    });
  NodeSpec spec = same_operator(node);
  for (ValueId& input : spec.inputs) input = followed(input, r, node.id);
  replace(node, std::move(spec));
  return true;
}

// Operands beyond the first hold for all elements: one scale for all, not one for each index of an axis. Sums of ConvInteger, which are
// int32, become floats here.
bool LayoutPass::first_operand(const Node& node) {
  const ValueId x = node.inputs[0];
  if (!has_moved(x) || !(is_any_image(x) || g_.type(x).dtype == DType::int32) || !is_any_image(node.outputs[0])) return false;
  for (size_t i = 1; i < node.inputs.size() && has_axis(*node.op); ++i)
    if (node.inputs[i] != kNoValue && (!g_.type(node.inputs[i]).has_rank() || !is_one_element(g_.type(node.inputs[i])))) return false;
  for (size_t i = 1; i < node.outputs.size(); ++i)
    if (node.outputs[i] == kNoValue || !g_.type(node.outputs[i]).has_rank() || g_.type(node.outputs[i]).rank() != 0) return false;
  NodeSpec spec = same_operator(node);
  spec.inputs[0] = channels_last(x, node.id);
  replace(node, std::move(spec));
  return true;
}

bool LayoutPass::has_axis(const OpDef& op) {
  return std::any_of(op.attributes.begin(), op.attributes.end(), [](const AttributeDef& attribute) { return attribute.name == "axis"; });
}

int64_t LayoutPass::default_of(const OpDef& op, std::string_view name) {
  for (const AttributeDef& attribute : op.attributes)
    if (const auto* value = std::get_if<int64_t>(&attribute.value); value && attribute.name == name) return *value;
  return 0;
}

bool LayoutPass::along_axis(const Node& node) {
  if (!is_any_image(node.outputs[0])) return false;
  const int r = rank(node.outputs[0]);
  const bool joins = node.op->pieces == Pieces::concat;
  const size_t images = joins ? node.inputs.size() : 1;
  int moved = 0;
  for (size_t i = 0; i < images; ++i) {
    if (!is_any_image(node.inputs[i]) || rank(node.inputs[i]) != r) return false;
    moved += has_moved(node.inputs[i]) ? 1 : -1;
  }
  if (moved < 0) return false;
  for (ValueId output : node.outputs)
    if (output != kNoValue && !is_any_image(output)) return false;
  NodeSpec spec = same_operator(node);
  for (size_t i = 0; i < images; ++i) spec.inputs[i] = channels_last(node.inputs[i], node.id);
  const int64_t axis = node.attributes.get_int("axis", default_of(*node.op, "axis"));
  if (axis < -r || axis >= r) return false;
  spec.attributes.set("axis", channels_last_axis(axis, r));
  replace(node, std::move(spec));
  return true;
}

// Pools and reductions.
bool LayoutPass::pool(const Node& node) {
  if (node.outputs.size() > 1 && node.outputs[1] != kNoValue) return pool_with_places(node);
  const Ints pads = node.attributes.get_ints("pads");
  const std::string_view bytes_op = node.op->channels_last.bytes_op;
  const bool bytes = !bytes_op.empty() && is_byte_image(node.inputs[0]);
  if (!bytes && (!is_image(node.inputs[0]) || !is_image(node.outputs[0]))) return false;
  if (node.outputs.size() > 1 || std::any_of(pads.begin(), pads.end(), [](int64_t pad) { return pad < 0; })) return false;
  NodeSpec spec = layout_operator(node);
  if (bytes) spec.op_type = bytes_op;
  spec.inputs[0] = channels_last(node.inputs[0], node.id);
  spec.attributes.erase("storage_order");
  replace(node, std::move(spec));
  return true;
}

bool LayoutPass::global_pool(const Node& node) {
  if (!is_image(node.inputs[0]) || !is_image(node.outputs[0])) return false;
  const ValueId x = channels_last(node.inputs[0], node.id);
  const std::string op(node.op->channels_last.op);
  if (find_op("treadle", op)) {
    replace(node, {.op_type = op, .inputs = {x}, .domain = "treadle"});
    return true;
  }
  Ints axes(static_cast<size_t>(rank(node.inputs[0]) - 2));
  std::iota(axes.begin(), axes.end(), 1);
  replace(node, {.op_type = op, .inputs = {x, ints(axes, node.name + "/axes")}, .attributes = {{"keepdims", int64_t{1}}}});
  return true;
}

bool LayoutPass::reduce(const Node& node) {
  if (!is_image(node.inputs[0]) || !node.has_input(1)) return false;
  auto axes = constant_ints(g_, node.inputs[1]);
  if (!axes || axes->empty()) return false;
  const int r = rank(node.inputs[0]);
  for (int64_t& axis : *axes) {
    if (axis < -r || axis >= r) return false;
    axis = channels_last_axis(axis, r);
  }
  std::sort(axes->begin(), axes->end());
  Ints spatial(static_cast<size_t>(r - 2));
  std::iota(spatial.begin(), spatial.end(), 1);
  const int64_t keeps = node.attributes.get_int("keepdims", 1);
  NodeSpec spec{.op_type = node.op_type, .inputs = {channels_last(node.inputs[0], node.id)}, .attributes = node.attributes};
  if (const std::string_view op = node.op->channels_last.op; !op.empty() && *axes == spatial) {
    spec.op_type = op;
    spec.domain = "treadle";
    spec.attributes = {{"keepdims", keeps}};
  } else {
    spec.inputs.push_back(ints(*axes, node.name + "/axes"));
  }
  if (keeps != 0) {
    replace(node, std::move(spec));
    return true;
  }
  // What is left is in its order: batch and channels, or the channels alone.
  Ints all_but_channels(static_cast<size_t>(r - 1));
  std::iota(all_but_channels.begin(), all_but_channels.end(), 0);
  if (*axes != spatial && *axes != all_but_channels) return false;
  const ValueId out = node.outputs[0];
  spec.name = node.name;
  const NodeId made = g_.add_node(std::move(spec), node.id);
  g_.value(g_.node(made).outputs[0]).type = g_.type(out);
  g_.replace_uses(out, g_.node(made).outputs[0]);
  return true;
}

bool LayoutPass::batch_norm(const Node& node) {
  if (node.attributes.get_int("training_mode") != 0) return batch_statistics(node);
  if (!is_image(node.inputs[0]) || node.outputs.size() != 1) return false;
  const Tensor* constants[4];
  for (size_t i = 0; i < 4; ++i) {
    constants[i] = g_.constant_tensor(node.inputs[i + 1]);
    if (!constants[i] || constants[i]->dtype() != DType::float32 || !constants[i]->is_contiguous() ||
        constants[i]->num_elements() != constants[0]->num_elements())
      return computed_affine(node);
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
  replace(node, {.op_type = std::string(node.op->channels_last.op),
                 .inputs = {channels_last(node.inputs[0], node.id), g_.add_constant(node.name + "/scale", Tensor::vector<float>(scale)),
                            g_.add_constant(node.name + "/shift", Tensor::vector<float>(shift))},
                 .domain = "treadle"});
  return true;
}

bool LayoutPass::group_norm(const Node& node) {
  if (!is_image(node.inputs[0])) return false;
  NodeSpec spec = layout_operator(node);
  spec.attributes = {};
  spec.inputs[0] = channels_last(node.inputs[0], node.id);
  spec.attributes.set("epsilon", node.attributes.get_float("epsilon", 1e-5F));
  if (node.attributes.has("num_groups")) spec.attributes.set("num_groups", node.attributes.get_int("num_groups"));
  replace(node, std::move(spec));
  return true;
}

// Operators with one number for every axis.
ValueId LayoutPass::permuted_vector(ValueId id, int r, NodeId before) {
  return g_.node(g_.add_node({.op_type = "Gather", .inputs = {id, ints(channels_last_order(r), g_.value(id).name + "/order")}}, before))
      .outputs[0];
}

bool LayoutPass::is_vector_of(ValueId id, int64_t length) const {
  const Type& type = g_.type(id);
  return type.is_tensor() && type.has_rank() && type.rank() == 1 && (*type.shape)[0] == Dim(length);
}

bool LayoutPass::resize(const Node& node) {
  if (!is_image(node.inputs[0]) || !is_image(node.outputs[0]) || node.attributes.has("axes")) return false;
  const int r = rank(node.inputs[0]);
  if (node.attributes.get_string("coordinate_transformation_mode") == "tf_crop_and_resize") return false;
  for (size_t i = 2; i < 4; ++i)
    if (node.has_input(i) && !is_vector_of(node.inputs[i], r) && !is_empty_vector(node.inputs[i])) return false;
  if (node.attributes.get_string("keep_aspect_ratio_policy", "stretch") != "stretch") return false;
  NodeSpec spec{.op_type = "Resize", .inputs = {channels_last(node.inputs[0], node.id), kNoValue}, .attributes = node.attributes};
  for (size_t i = 2; i < 4 && i < node.inputs.size(); ++i) {
    const bool given = node.has_input(i) && !is_empty_vector(node.inputs[i]);
    spec.inputs.push_back(given ? permuted_vector(node.inputs[i], r, node.id) : kNoValue);
  }
  replace(node, std::move(spec));
  return true;
}

bool LayoutPass::pad(const Node& node) {
  if (!is_image(node.inputs[0]) || !is_image(node.outputs[0]) || node.has_input(3)) return false;
  const int r = rank(node.inputs[0]);
  auto pads = constant_ints(g_, node.inputs[1]);
  if (!pads || static_cast<int>(pads->size()) != 2 * r) return false;
  Ints begin(pads->begin(), pads->begin() + r), end(pads->begin() + r, pads->end());
  Ints both = permuted(begin, channels_last_order(r));
  for (int64_t value : permuted(end, channels_last_order(r))) both.push_back(value);
  NodeSpec spec{.op_type = "Pad", .inputs = node.inputs, .attributes = node.attributes};
  spec.inputs[0] = channels_last(node.inputs[0], node.id);
  spec.inputs[1] = ints(both, node.name + "/pads");
  replace(node, std::move(spec));
  return true;
}

bool LayoutPass::slice(const Node& node) {
  if (!is_image(node.inputs[0]) || !is_image(node.outputs[0]) || !node.has_input(3)) return false;
  const int r = rank(node.inputs[0]);
  auto axes = constant_ints(g_, node.inputs[3]);
  if (!axes) return false;
  for (int64_t& axis : *axes) {
    if (axis < -r || axis >= r) return false;
    axis = channels_last_axis(axis, r);
  }
  // The other operands may be of int32; the axes then must be, too.
  if (g_.type(node.inputs[3]).dtype != DType::int64) return false;
  NodeSpec spec{.op_type = "Slice", .inputs = node.inputs, .attributes = node.attributes};
  spec.inputs[0] = channels_last(node.inputs[0], node.id);
  spec.inputs[3] = ints(*axes, node.name + "/axes");
  replace(node, std::move(spec));
  return true;
}

// The shape of a moved value is that of the moved one, reordered: nobody transposes an image to measure it.
bool LayoutPass::shape(const Node& node) {
  if (!has_moved(node.inputs[0]) || node.attributes.has("start") || node.attributes.has("end")) return false;
  const int r = rank(node.inputs[0]);
  const NodeId old = node.id;
  const ValueId out = node.outputs[0], moved = moved_values_[index_of(node.inputs[0])];
  const ValueId measured = g_.node(g_.add_node({.op_type = "Shape", .inputs = {moved}, .name = node.name}, old)).outputs[0];
  const ValueId order = ints(channels_first_order(r), node.name + "/order");
  const ValueId result = g_.node(g_.add_node({.op_type = "Gather", .inputs = {measured, order}}, old)).outputs[0];
  g_.value(result).type = g_.type(out);
  g_.value(result).known = g_.value(out).known;
  g_.replace_uses(out, result);
  return true;
}

}  // namespace treadle::passes
