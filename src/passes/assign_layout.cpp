// One walk in topological order. A node that moves leaves a Transpose back behind, which its old readers read; readers that move as well
// read the new value, and the Transpose dies. Nodes that compute elementwise, pool, join or resize move if an operand has moved.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "graph/rewriter.h"
#include "kernels/conv/nhwc_bytes.h"
#include "kernels/gemm/gemm_bytes.h"
#include "passes/channels_last.h"
#include "passes/layout.h"
#include "passes/matching.h"
#include "passes/whole_graph.h"

namespace treadle::passes {
namespace {

constexpr int64_t kMaxTaps = 512;  // of a window, that the kernels list on their stack

bool all_equal(const Ints& values, int64_t value) {
  return std::all_of(values.begin(), values.end(), [&](int64_t v) { return v == value; });
}

bool is_explicit(const Attributes& attributes) {
  const std::string_view pad = attributes.get_string("auto_pad", "NOTSET");
  return pad.empty() || pad == "NOTSET" || pad == "VALID";
}

class LayoutPass {
 public:
  explicit LayoutPass(Rewriter& rewriter) : rewriter_(rewriter), g_(rewriter.graph()) {}

  void run() {
    for (NodeId id : g_.order()) {
      const Node& node = g_.node(id);
      if (!node.bodies.empty() || node.outputs.empty() || node.outputs[0] == kNoValue) continue;
      rewriter_.change(id, [&] { return move(node); });
    }
  }

 private:
  // What the operator does under the layout is its own fact (OpDef::channels_last).
  bool move(const Node& node) {
    using How = ChannelsLast::How;
    if (!node.op) return false;
    const How how = node.op->channels_last.how;
    switch (how) {
      case How::convolution: return conv(node);
      case How::quantised_convolution: return quantised_conv(node);
      case How::transposed_convolution: return conv_transpose(node);
      case How::permutation: return transpose(node);
      default: break;
    }
    if (!reads_moved(node)) return false;
    switch (how) {
      case How::by_element: return node.op->pointwise && elementwise(node);
      case How::first_operand: return first_operand(node);
      case How::axis: return along_axis(node);
      case How::axes_vector: return slice(node);
      case How::pads_vector: return pad(node);
      case How::numbers_per_axis: return resize(node);
      case How::reduction: return reduce(node);
      case How::spatial_reduction: return global_pool(node);
      case How::window: return pool(node);
      case How::scale_and_shift: return batch_norm(node);
      case How::normalization: return group_norm(node);
      case How::shape: return shape(node);
      default: return false;
    }
  }

  /// The node under the same operator, or under the one that computes it with channels innermost.
  static NodeSpec same_operator(const Node& node) {
    return {.op_type = node.op_type, .inputs = node.inputs, .attributes = node.attributes, .domain = node.domain};
  }
  static NodeSpec layout_operator(const Node& node) {
    return {.op_type = std::string(node.op->channels_last.op), .inputs = node.inputs, .attributes = node.attributes, .domain = "treadle"};
  }

  bool is_image(ValueId id) const {
    if (id == kNoValue) return false;
    const Type& type = g_.type(id);
    return type.is_tensor() && type.dtype == DType::float32 && type.has_rank() && (type.rank() == 3 || type.rank() == 4);
  }
  bool is_byte_image(ValueId id) const {
    if (id == kNoValue) return false;
    const Type& type = g_.type(id);
    return type.is_tensor() && (type.dtype == DType::uint8 || type.dtype == DType::int8) && type.has_rank() &&
           (type.rank() == 3 || type.rank() == 4);
  }
  bool is_any_image(ValueId id) const { return is_image(id) || is_byte_image(id); }
  int rank(ValueId id) const { return g_.type(id).rank(); }
  bool has_moved(ValueId id) const {
    return id != kNoValue && index_of(id) < moved_values_.size() && moved_values_[index_of(id)] != kNoValue;
  }
  bool reads_moved(const Node& node) const {
    return std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) { return has_moved(input); });
  }
  void set_moved(ValueId id, ValueId moved) {
    if (moved_values_.size() <= index_of(id)) moved_values_.resize(index_of(id) + 1, kNoValue);
    moved_values_[index_of(id)] = moved;
  }

  ValueId ints(const Ints& values, const std::string& name) { return g_.add_constant(name, Tensor::vector<int64_t>(values)); }

  /// Transposes, by a Reshape where only extents of 1 move.
  ValueId transposed(ValueId id, const Ints& perm, const NodeSpec& like, NodeId before) {
    const SymbolicShape& in = *g_.type(id).shape;
    const SymbolicShape out = permuted(in, perm);
    Ints order_in, order_out;
    for (size_t i = 0; i < perm.size(); ++i) {
      if (in[i] != Dim(1)) order_in.push_back(static_cast<int64_t>(i));
      if (out[i] != Dim(1)) order_out.push_back(perm[i]);
    }
    NodeSpec spec = like;
    std::optional<Ints> target;
    if (order_in == order_out) target = reshape_target(in, out);
    if (target) {
      spec.op_type = "Reshape";
      spec.inputs = {id, ints(*target, like.name + "/shape")};
    } else {
      spec.op_type = "Transpose";
      spec.inputs = {id};
      spec.attributes = {{"perm", perm}};
    }
    const ValueId result = g_.node(g_.add_node(std::move(spec), before)).outputs[0];
    g_.value(result).type = Type::tensor(g_.type(id).dtype, out);
    return result;
  }

  /// The value with channels innermost; made before `before` if there is none yet.
  ValueId channels_last(ValueId id, NodeId before) {
    if (has_moved(id)) return moved_values_[index_of(id)];
    const ValueId result = transposed(id, channels_last_order(rank(id)), {.name = g_.value(id).name + "/channels_last"}, before);
    set_moved(id, result);
    return result;
  }

  /// Replaces the node by one that computes its outputs with channels innermost.
  void replace(const Node& node, NodeSpec spec) {
    spec.name = node.name;
    spec.num_outputs = static_cast<int>(node.outputs.size());
    const NodeId old = node.id;
    const std::vector<ValueId> outputs = node.outputs;
    const NodeId made = g_.add_node(std::move(spec), old);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i] == kNoValue) continue;
      const ValueId last = g_.node(made).outputs[i];
      if (g_.type(outputs[i]).rank() == 0) {  // a scale or zero point beside the image
        const std::string scalar = g_.value(outputs[i]).name;
        g_.value(last).type = g_.type(outputs[i]);
        g_.rename_value(outputs[i], scalar + "/replaced");
        g_.rename_value(last, scalar);
        g_.replace_uses(outputs[i], last);
        continue;
      }
      const Ints perm = channels_first_order(rank(outputs[i]));
      g_.value(last).type =
          Type::tensor(g_.type(outputs[i]).dtype, permuted(*g_.type(outputs[i]).shape, channels_last_order(rank(outputs[i]))));
      const std::string name = g_.value(outputs[i]).name;
      g_.rename_value(outputs[i], name + "/replaced");
      const ValueId back = transposed(last, perm, {.name = name + "/channels_first", .output_names = {name}}, old);
      g_.value(back).type = g_.type(outputs[i]);
      g_.replace_uses(outputs[i], back);
      set_moved(back, last);
    }
    g_.remove_node(old);
  }

  // Conv.

  bool conv(const Node& node) {
    const Tensor* weights = g_.stored_tensor(node.inputs[1]);
    if (!is_image(node.inputs[0]) || !is_image(node.outputs[0]) || !weights || weights->shape().rank() != rank(node.inputs[0]))
      return false;
    const Ints dilations = node.attributes.get_ints("dilations"), pads = node.attributes.get_ints("pads");
    int64_t taps = weights->shape().product(2, weights->shape().rank());
    if (node.attributes.get_int("group", 1) == 1 && (dilations.empty() || dilations.back() == 1))
      taps /= std::max<int64_t>(1, weights->shape()[weights->shape().rank() - 1]);
    if (taps > kMaxTaps || weights->num_elements() == 0) return false;
    if (std::any_of(pads.begin(), pads.end(), [](int64_t pad) { return pad < 0; })) return false;
    NodeSpec spec = layout_operator(node);
    spec.inputs[0] = channels_last(node.inputs[0], node.id);
    replace(node, std::move(spec));
    return true;
  }

  bool quantised_conv(const Node& node) {
    const bool sums_only = node.is("ConvInteger");
    const size_t w = sums_only ? 1 : 3, zero = sums_only ? 3 : 5;
    const int r = is_byte_image(node.inputs[0]) ? rank(node.inputs[0]) : 0;
    if (!kernels::has_fast_byte_products() || r == 0 || !g_.type(node.outputs[0]).has_rank()) return false;
    const Tensor* weights = g_.stored_tensor(node.inputs[w]);
    if (!weights || weights->dtype() != DType::int8 || weights->shape().rank() != r || weights->num_elements() == 0) return false;
    if (node.has_input(zero)) {
      const Tensor* zeros = g_.constant_tensor(node.inputs[zero]);
      if (!zeros || !all_elements_are(*zeros, 0)) return false;
    }
    kernels::ConvParams params;
    params.group = node.attributes.get_int("group", 1);
    params.M = weights->shape()[0], params.C = weights->shape()[1] * params.group;
    const Ints pads = node.attributes.get_ints("pads");
    if (!kernels::has_nhwc_bytes(params) || std::any_of(pads.begin(), pads.end(), [](int64_t pad) { return pad < 0; })) return false;
    NodeSpec spec = layout_operator(node);
    spec.inputs[0] = channels_last(node.inputs[0], node.id);
    replace(node, std::move(spec));
    return true;
  }

  bool conv_transpose(const Node& node) {
    const Tensor* weights = g_.stored_tensor(node.inputs[1]);
    if (!is_image(node.inputs[0]) || !is_image(node.outputs[0]) || !weights || weights->shape().rank() != rank(node.inputs[0]))
      return false;
    const Attributes& a = node.attributes;
    const Shape& shape = weights->shape();
    const Ints kernel(shape.dims().begin() + 2, shape.dims().end());
    if (a.get_ints("strides") != kernel || !all_equal(a.get_ints("dilations"), 1) || !all_equal(a.get_ints("pads"), 0) ||
        !all_equal(a.get_ints("output_padding"), 0) || a.has("output_shape") || a.get_int("group", 1) != 1 || !is_explicit(a))
      return false;
    NodeSpec spec = layout_operator(node);
    spec.attributes = {};
    spec.inputs[0] = channels_last(node.inputs[0], node.id);
    replace(node, std::move(spec));
    return true;
  }

  // Transposes of the model itself: those into and out of channels innermost vanish.
  bool transpose(const Node& node) {
    if (!is_any_image(node.inputs[0])) return false;
    const int r = rank(node.inputs[0]);
    const Ints perm = node.attributes.get_ints("perm");
    if (static_cast<int>(perm.size()) != r) return false;
    const ValueId in = node.inputs[0], out = node.outputs[0];
    if (has_moved(in)) {
      const ValueId moved = moved_values_[index_of(in)];
      const Ints merged = permuted(channels_first_order(r), perm);
      Ints identity(static_cast<size_t>(r));
      std::iota(identity.begin(), identity.end(), 0);
      if (merged == identity && !g_.is_output(out)) {
        g_.replace_uses(out, moved);
      } else {
        const NodeId old = node.id;
        const ValueId made = transposed(moved, merged, {.name = node.name}, old);
        g_.value(made).type = g_.type(out);
        g_.replace_uses(out, made);
      }
      return true;
    }
    if (perm == channels_first_order(r)) set_moved(out, in);
    return false;
  }

  // Elementwise operators, constants broadcast along.

  /// Whether the operand can follow an image of rank r.
  bool can_follow(ValueId id, int r) const {
    if (id == kNoValue) return true;
    const Type& type = g_.type(id);
    if (!type.is_tensor() || !type.has_rank() || type.dtype != DType::float32 || type.rank() > r) return false;
    if (type.rank() == r) return true;
    return is_one_element(type) || g_.constant_tensor(id) != nullptr;
  }
  static bool is_one_element(const Type& type) {
    return std::all_of(type.shape->begin(), type.shape->end(), [](const Dim& dim) { return dim == Dim(1); });
  }
  ValueId followed(ValueId id, int r, NodeId before) {
    // One element broadcasts in any layout.
    if (id == kNoValue || (is_one_element(g_.type(id)) && !has_moved(id))) return id;
    if (const Tensor* constant = g_.constant_tensor(id)) {
      if (!has_moved(id) || rank(id) != r)
        return g_.add_constant(g_.value(id).name + "/channels_last", channels_last_constant(*constant, r));
    }
    return channels_last(id, before);
  }
  bool elementwise(const Node& node) {
    if (!is_image(node.outputs[0]) || node.outputs.size() != 1) return false;
    const int r = rank(node.outputs[0]);
    int moved = 0, others = 0;
    for (ValueId input : node.inputs) {
      if (!can_follow(input, r)) return false;
      if (input == kNoValue || g_.type(input).rank() != r || g_.value(input).is_constant()) continue;
      (has_moved(input) ? moved : others) += 1;
    }
    if (moved < others || moved == 0) return false;
    NodeSpec spec = same_operator(node);
    for (ValueId& input : spec.inputs) input = followed(input, r, node.id);
    replace(node, std::move(spec));
    return true;
  }

  // Operands beyond the first hold for all elements: one scale for all, not one for each index of an axis. Sums of ConvInteger, which are
  // int32, become floats here.
  bool first_operand(const Node& node) {
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
  static bool has_axis(const OpDef& op) {
    return std::any_of(op.attributes.begin(), op.attributes.end(), [](const AttributeDef& attribute) { return attribute.name == "axis"; });
  }
  /// What an integer attribute is where the node does not give it.
  static int64_t default_of(const OpDef& op, std::string_view name) {
    for (const AttributeDef& attribute : op.attributes)
      if (const auto* value = std::get_if<int64_t>(&attribute.value); value && attribute.name == name) return *value;
    return 0;
  }

  bool along_axis(const Node& node) {
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

  bool pool(const Node& node) {
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

  bool global_pool(const Node& node) {
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

  bool reduce(const Node& node) {
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
    // Without the spatial axes only batch and channels are left, in their order.
    if (*axes != spatial) return false;
    const ValueId out = node.outputs[0];
    spec.name = node.name;
    const NodeId made = g_.add_node(std::move(spec), node.id);
    g_.value(g_.node(made).outputs[0]).type = g_.type(out);
    g_.replace_uses(out, g_.node(made).outputs[0]);
    return true;
  }

  bool batch_norm(const Node& node) {
    if (!is_image(node.inputs[0]) || node.outputs.size() != 1 || node.attributes.get_int("training_mode") != 0) return false;
    const Tensor* constants[4];
    for (size_t i = 0; i < 4; ++i) {
      constants[i] = g_.constant_tensor(node.inputs[i + 1]);
      if (!constants[i] || constants[i]->dtype() != DType::float32 || !constants[i]->is_contiguous() ||
          constants[i]->num_elements() != constants[0]->num_elements())
        return false;
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

  bool group_norm(const Node& node) {
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

  /// A vector of one element an axis, in the new order; its elements may be computed.
  ValueId permuted_vector(ValueId id, int r, NodeId before) {
    return g_.node(g_.add_node({.op_type = "Gather", .inputs = {id, ints(channels_last_order(r), g_.value(id).name + "/order")}}, before))
        .outputs[0];
  }
  bool is_vector_of(ValueId id, int64_t length) const {
    const Type& type = g_.type(id);
    return type.is_tensor() && type.has_rank() && type.rank() == 1 && (*type.shape)[0] == Dim(length);
  }
  bool is_empty_vector(ValueId id) const { return is_vector_of(id, 0); }

  bool resize(const Node& node) {
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

  bool pad(const Node& node) {
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

  bool slice(const Node& node) {
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
  bool shape(const Node& node) {
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

  Rewriter& rewriter_;
  Graph& g_;
  std::vector<ValueId> moved_values_;  // by value: the same with channels innermost
};

}  // namespace

int64_t assign_layout(Graph& graph, int64_t limit) {
  Rewriter rewriter(graph, limit);
  rewriter.for_each_graph([](Rewriter& inside) { LayoutPass(inside).run(); });
  if (rewriter.count() == 0) return 0;
  remove_dead(graph, INT64_MAX);
  infer(graph);
  return rewriter.count();
}

}  // namespace treadle::passes
