// Decomposes image operators of com.microsoft, most of which have channels last. MaxpoolWithMask has a kernel instead.
#include <algorithm>
#include <limits>
#include <string>

#include "ops/checks.h"
#include "ops/list.h"
#include "ops/microsoft/microsoft.h"
#include "ops/nn/window.h"
#include "ops/rank_branches.h"

namespace treadle::ops {
namespace {

/// Returns the rank of an image with channels last. @throws Error(invalid_model) if it is below 3.
int image_rank(const Decomposition& d, ValueId x) {
  int rank = d.rank(x);
  if (rank < 3) throw Error(ErrorCode::invalid_model, fmt::format("the input is of rank {}, at least 3 expected", rank));
  return rank;
}

/// Finds the rank of images, from the rank of windows or filters if it is unknown. Returns true if the node was replaced by branches, one
/// per possible rank.
bool settle_rank(Decomposition& d, const std::vector<size_t>& images, int window_axes) {
  return branch_by_rank(d, images, window_axes > 0 ? std::vector<int>{window_axes + 2} : std::vector<int>{4, 3, 5});
}

ValueId channels_first(Decomposition& d, ValueId x, int rank) {
  std::vector<int64_t> order{0, rank - 1};
  for (int i = 1; i + 1 < rank; ++i) order.push_back(i);
  return d.op("Transpose", {x}, {{"perm", order}});
}

ValueId channels_last(Decomposition& d, ValueId x, int rank) {
  std::vector<int64_t> order{0};
  for (int i = 2; i < rank; ++i) order.push_back(i);
  order.push_back(1);
  return d.op("Transpose", {x}, {{"perm", order}});
}

void decompose_max_pool(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  if (settle_rank(d, {0}, static_cast<int>(d.attributes().get_ints("kernel_shape").size()))) return;
  int rank = image_rank(d, d.in(0));
  ValueId y = d.op("MaxPool", {channels_first(d, d.in(0), rank)},
                   d.copied({"auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides"}));
  d.give(0, channels_last(d, y, rank));
  d.finish();
}

/// The filters are always [M, C / group, kH, kW], even if the images have channels last.
void decompose_conv(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  bool quantized = d.node().op_type == "QLinearConv", last = !quantized || d.attributes().get_int("channels_last", 0) != 0;
  const std::vector<size_t> images = d.node().op_type == "NhwcFusedConv" ? std::vector<size_t>{0, 3} : std::vector<size_t>{0};
  if (last && settle_rank(d, images, d.rank(d.in(quantized ? 3 : 1)) - 2)) return;
  int rank = last ? image_rank(d, d.in(0)) : 0;
  std::vector<ValueId> inputs;
  for (size_t i = 0; i < static_cast<size_t>(d.node().num_formal_inputs); ++i) {
    const bool image = std::find(images.begin(), images.end(), i) != images.end();
    inputs.push_back(last && image && d.has(i) ? channels_first(d, d.in(i), rank) : d.in(i));
  }
  Attributes attributes =
      d.copied({"activation", "activation_params", "auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"});
  ValueId y = d.node().op_type == "NhwcFusedConv" ? d.microsoft_op("FusedConv", inputs, attributes)
                                                  : d.op(quantized ? "QLinearConv" : "Conv", inputs, attributes);
  d.give(0, last ? channels_last(d, y, rank) : y);
  d.finish();
}

/// Returns x plus a bias [C] plus the skip connection, which is [N, .., C], [N, 1, 1, C] or [N, C].
ValueId with_skip(Decomposition& d, int rank) {
  ValueId skip = d.in(3), sum = d.in(0);
  const int skip_rank = d.rank(skip);
  if (skip_rank != rank && skip_rank != 2) throw Error(ErrorCode::not_implemented, "skip must be of the rank of X, or [N, C]");
  std::vector<int64_t> axes;
  for (int i = 1; i + 1 < rank; ++i) axes.push_back(i);
  if (skip_rank == 2 && rank > 2) skip = d.op("Unsqueeze", {skip, d.ints(axes)});
  sum = d.op("Add", {sum, skip});
  return d.has(4) ? d.op("Add", {sum, d.in(4)}) : sum;
}

void decompose_group_norm(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  const Attributes& a = d.attributes();
  bool last = a.get_int("channels_last", 1) != 0, skips = d.node().op_type == "SkipGroupNorm";
  int64_t activation = a.get_int("activation");
  if (activation != 0 && activation != 1)
    throw Error(ErrorCode::invalid_model, fmt::format("activation = {}; expected 0 or 1", activation));
  if (skips && !last) throw Error(ErrorCode::not_implemented, "SkipGroupNorm is implemented for channels_last = 1");
  if (last && settle_rank(d, {0}, 0)) return;
  int rank = last ? image_rank(d, d.in(0)) : 0;
  if (skips && branch_by_rank(d, {3}, {rank, 2})) return;
  ValueId x = skips ? with_skip(d, rank) : d.in(0);
  d.give(1, x);
  if (last) x = channels_first(d, x, rank);
  auto parameter = [&](size_t i) {
    return d.type(d.in(i)).dtype == d.type(d.in(0)).dtype ? d.in(i) : d.op("CastLike", {d.in(i), d.in(0)});
  };
  ValueId y = d.op("GroupNormalization", {x, parameter(1), parameter(2)},
                   {{"num_groups", a.get_int("groups")}, {"epsilon", a.get_float("epsilon", 1e-5F)}});
  if (activation == 1) y = d.op("Swish", {y});
  d.give(0, last ? channels_last(d, y, rank) : y);
  d.finish();
}

void decompose_bias_add(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  d.give(0, d.op("Add", {d.op("Add", {d.in(0), d.in(1)}), d.in(2)}));
  d.finish();
}

void decompose_bias_split_gelu(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  auto halves = d.op_n("Split", {d.op("Add", {d.in(0), d.in(1)})}, 2, {{"axis", int64_t{-1}}, {"num_outputs", int64_t{2}}});
  d.give(0, d.op("Mul", {halves[0], d.op("Gelu", {halves[1]})}));
  d.finish();
}

// The pads may be known only during the run, when ConvTranspose cannot take them. So a Pad with negated pads follows, which removes rows
// and columns (or adds them for negative pads). The bias is added last, as added elements get it, too.
void decompose_conv_transpose(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  Attributes attributes = d.copied({"auto_pad", "dilations", "group", "kernel_shape", "output_padding", "strides"});
  if (!d.has(2)) {
    d.give(0, d.op("ConvTranspose", {d.in(0), d.in(1), d.in(3)}, std::move(attributes)));
    return d.finish();
  }
  const auto window_axes = static_cast<int>(attributes.get_ints("kernel_shape").size());
  const int64_t numbers = d.rank(d.in(2)) == 1 ? d.extent(d.in(2), 0) : -1;
  if (numbers < 0 && settle_rank(d, {0}, std::max(window_axes, d.rank(d.in(1)) - 2))) return;
  const int64_t axes = numbers >= 0 ? numbers / 2 : image_rank(d, d.in(0)) - 2;
  if (axes > kMaxRank) throw Error(ErrorCode::invalid_model, fmt::format("Pads has {} elements", numbers));
  std::vector<int64_t> spatial;
  for (int64_t i = 0; i < axes; ++i) spatial.push_back(i + 2);
  ValueId y = d.op("ConvTranspose", {d.in(0), d.in(1)}, std::move(attributes));
  y = d.op("Pad", {y, d.op("Neg", {d.in(2)}), kNoValue, d.ints(spatial)});
  if (d.has(3)) {
    for (int64_t& axis : spatial) --axis;
    y = d.op("Add", {y, d.op("Unsqueeze", {d.in(3), d.ints(spatial)})});
  }
  d.give(0, y);
  d.finish();
}

void infer_masked_max_pool(InferContext& c) {
  if (!c.has_rank(0)) return c.set_output_dtype(0, c.dtype(0));
  const SymbolicShape& x = c.shape(0);
  const std::vector<int64_t>& kernel = c.get_ints("kernel_shape");
  if (x.size() < 3 || kernel.size() + 2 != x.size())
    throw Error(ErrorCode::invalid_argument, fmt::format("X is of rank {}, kernel_shape of {} extents", x.size(), kernel.size()));
  SymbolicShape out = infer_window(c.attributes(), spatial(x), SymbolicShape(kernel.begin(), kernel.end()));
  out.insert(out.begin(), {x[0], x[1]});
  c.set_output(0, c.dtype(0), std::move(out));
}

// Computes the maximum of each window. In each of its rows, only elements before the first one that the mask hides count; if there are
// none, the result is the lowest float. As in ONNX Runtime, an image's very first element always counts, except in signals with one axis.
struct MaskedMaxPool {
  kernels::Window window;
  int64_t batch, channels, mask_batch, mask_channel;  // mask_...: strides of the mask

  static MaskedMaxPool bind(BindContext& c) {
    const Shape &x = c.shape(0), &mask = c.shape(1);
    if (mask.rank() != x.rank()) throw Error(ErrorCode::invalid_argument, fmt::format("M is {}, X {}", to_string(mask), to_string(x)));
    MaskedMaxPool k{bind_pool(c), x[0], x[1], 0, 0};
    for (int axis = 0; axis < x.rank(); ++axis)
      if (axis >= 2 || mask[axis] != 1) check_equal(mask[axis], x[axis], "extents of the mask and of X");
    const int64_t plane = k.window.in_size();
    k.mask_channel = mask[1] == 1 ? 0 : plane;
    k.mask_batch = mask[0] == 1 ? 0 : mask[1] * plane;
    return k;
  }

  void run(RunContext& c) const {
    const auto *x = c.in<float>(0), *end = x + batch * channels * window.in_size();
    const auto* mask = c.in<int32_t>(1);
    auto* y = c.out<float>(0);
    for (int64_t plane = 0; x != end; ++plane, x += window.in_size(), y += window.out_size())
      pool_plane(x, mask + plane / channels * mask_batch + plane % channels * mask_channel, y);
  }

 private:
  void pool_plane(const float* x, const int32_t* mask, float* y) const {
    const auto &in = window.in, &out = window.out;
    for (int64_t o = 0; o < window.out_size(); ++o) {
      const kernels::Taps a = taps_inside(window, 0, o / (out[1] * out[2])), b = taps_inside(window, 1, o / out[2] % out[1]),
                          c = taps_inside(window, 2, o % out[2]);
      float largest = std::numeric_limits<float>::lowest();
      for (int64_t i = a.first; i < a.last; ++i)
        for (int64_t j = b.first; j < b.last; ++j)
          for (int64_t k = c.first; k < c.last; ++k) {
            const int64_t at = ((a.start + i) * in[1] + b.start + j) * in[2] + c.start + k;
            if ((at > 0 || window.rank == 1) && mask[at] == 0) break;
            largest = std::max(largest, x[at]);
          }
      y[o] = largest;
    }
  }
};

}  // namespace

std::vector<OpDef> microsoft_image_ops() {
  constexpr TypeSet kBytes{DType::uint8, DType::int8};
  const Port x{"X", kFloats, "T"}, y{"Y", kFloats, "T"}, w{"W", kFloats, "T"}, b = maybe("B", kFloats, "T");
  const Port gamma{"gamma", kFloats, "M"}, beta{"beta", kFloats, "M"}, bias{"bias", kFloats, "T"};
  const std::vector<AttributeDef> conv = {{"auto_pad"}, {"dilations"}, {"group"}, {"kernel_shape"}, {"pads"}, {"strides"}};
  auto with = [](std::vector<AttributeDef> attributes, std::initializer_list<AttributeDef> more) {
    attributes.insert(attributes.end(), more);
    return attributes;
  };
  const std::vector<AttributeDef> norm = {
      {"activation", AttributeDef::Required{}}, {"channels_last", int64_t{1}}, {"epsilon", 1e-5F}, {"groups", AttributeDef::Required{}}};
  return {
      {.name = "MaxpoolWithMask",
       .domain = kMicrosoft,
       .since = {1},
       .inputs = {{"X", {DType::float32}, "T"}, {"M", {DType::int32}}},
       .outputs = {{"Y", {DType::float32}, "T"}},
       .attributes = {{"auto_pad"}, {"kernel_shape", AttributeDef::Required{}}, {"pads"}, {"storage_order"}, {"strides"}},
       .infer = infer_masked_max_pool,
       .kernels = {kernel<MaskedMaxPool>()}},
      op("NhwcMaxPool", {{"x", kBytes | kFloats, "T"}}, {{"y", kBytes | kFloats, "T"}},
         {{"auto_pad"}, {"ceil_mode"}, {"dilations"}, {"kernel_shape", AttributeDef::Required{}}, {"pads"}, {"strides"}},
         decompose_max_pool),
      op("NhwcConv", {x, w, b}, {y}, conv, decompose_conv),
      op("NhwcFusedConv", {x, w, b, maybe("Z", kFloats, "T")}, {y}, with(conv, {{"activation"}, {"activation_params"}}), decompose_conv),
      op("QLinearConv",
         {{"x", kBytes},
          {"x_scale", kFloats},
          {"x_zero_point", kBytes},
          {"w", kBytes},
          {"w_scale", kFloats},
          {"w_zero_point", kBytes},
          {"y_scale", kFloats},
          {"y_zero_point", kBytes},
          maybe("B", {DType::int32})},
         {{"y", kBytes}}, with(conv, {{"channels_last"}}), decompose_conv),
      op("GroupNorm", {x, gamma, beta}, {y}, norm, decompose_group_norm),
      op("SkipGroupNorm", {x, gamma, beta, {"skip", kFloats, "T"}, maybe("bias", kFloats, "T")}, {y, maybe("S", kFloats, "T")}, norm,
         decompose_group_norm),
      op("BiasAdd", {x, bias, {"skip", kFloats, "T"}}, {y}, {}, decompose_bias_add),
      op("BiasSplitGelu", {x, bias}, {y}, {}, decompose_bias_split_gelu),
      op("ConvTransposeWithDynamicPads", {x, w, maybe("Pads", kInt64), b}, {y},
         {{"auto_pad"}, {"dilations"}, {"group"}, {"kernel_shape"}, {"output_padding"}, {"strides"}}, decompose_conv_transpose),
  };
}

}  // namespace treadle::ops
