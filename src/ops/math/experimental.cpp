// Implements operators that ONNX called experimental and removed in opset 10. Converters of that time wrote them: many image networks begin
// with ImageScaler or Crop. As onnxruntime does, they are accepted in models below opset 10. Source: ONNX 1.4, defs/experiments.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/checked.h"
#include "ops/decomposition.h"
#include "ops/list.h"

namespace treadle::ops {
namespace {

ValueId shifted(Decomposition& d, ValueId x, float by) { return by == 0 ? x : d.op("Add", {x, d.scalar(by, x)}); }

/// Replaces the decomposed node by the value `y`.
void become(Decomposition& d, ValueId y) {
  d.give(0, y);
  d.finish();
}

void decompose_affine(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  const ValueId x = d.in(0);
  become(d, shifted(d, d.op("Mul", {x, d.scalar(d.attributes().get_float("alpha", 1), x)}), d.attributes().get_float("beta", 0)));
}

void decompose_scale(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  const ValueId x = d.in(0);
  become(d, d.op("Mul", {x, d.scalar(d.attributes().get_float("scale", 1), x)}));
}

// Decomposes y = alpha * f(beta * x).
template <const char* kFunction>
void decompose_scaled(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  const ValueId x = d.in(0);
  const float alpha = d.attributes().get_float("alpha", 1), beta = d.attributes().get_float("beta", 1);
  become(d, d.op("Mul", {d.op(kFunction, {d.op("Mul", {x, d.scalar(beta, x)})}), d.scalar(alpha, x)}));
}
constexpr char kTanh[] = "Tanh", kSoftplus[] = "Softplus";

// Decomposes ImageScaler: y = x * scale + bias[c] for x [N, C, H, W].
void decompose_image_scaler(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  const ValueId x = d.in(0);
  const auto& bias = d.attributes().get_floats("bias");
  const auto channels = static_cast<int64_t>(bias.size());
  const int64_t expected = d.extent(x, 1);
  if (d.rank(x) >= 0 && d.rank(x) != 4) throw Error(ErrorCode::invalid_model, fmt::format("the input is of rank {}, not 4", d.rank(x)));
  if (channels == 0 || (expected >= 0 && channels != expected))
    throw Error(ErrorCode::invalid_model,
                fmt::format("bias has {} elements for {} channels", channels, expected >= 0 ? std::to_string(expected) : "some number of"));
  Tensor by_channel(DType::float32, Shape{1, channels, 1, 1});
  std::copy(bias.begin(), bias.end(), by_channel.data<float>());
  ValueId added = d.constant(std::move(by_channel));
  if (d.type(x).dtype != DType::float32) added = d.op("CastLike", {added, x});
  become(d, d.op("Add", {d.op("Mul", {x, d.scalar(d.attributes().get_float("scale", 1), x)}), added}));
}

// Decomposes Crop of x [N, C, H, W]. `border` has the numbers of pixels to remove: left, top, right, bottom. If `scale` (height, width) is
// given, the result has that size and begins at the left and top border.
void decompose_crop(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  const auto &border = d.attributes().get_ints("border"), &scale = d.attributes().get_ints("scale");
  if (border.size() != 4) throw Error(ErrorCode::invalid_model, fmt::format("border has {} elements, not 4", border.size()));
  if (!scale.empty() && scale.size() != 2) throw Error(ErrorCode::invalid_model, fmt::format("scale has {} elements, not 2", scale.size()));
  for (int64_t width : border)
    if (width < 0 || width > std::numeric_limits<int32_t>::max())
      throw Error(ErrorCode::invalid_model, fmt::format("border has the element {}", width));
  const int64_t left = border[0], top = border[1];
  std::vector<int64_t> end{-border[3], -border[2]};
  if (!scale.empty()) end = {checked_add(top, scale[0]), checked_add(left, scale[1])};
  for (size_t k = 0; k < 2; ++k)
    if (scale.empty() && end[k] == 0) end[k] = std::numeric_limits<int64_t>::max();
  become(d, d.op("Slice", {d.in(0), d.ints({top, left}), d.ints(std::move(end)), d.ints({2, 3})}));
}

void decompose_dynamic_slice(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  become(d, d.op("Slice", {d.in(0), d.in(1), d.in(2), d.in(3)}));
}

OpDef experimental(std::string_view name, std::vector<AttributeDef> attributes, RewriteNode decompose) {
  return {.name = name,
          .since = {1},
          .inputs = {{"input", kFloats, "T"}},
          .outputs = {{"output", kFloats, "T"}},
          .attributes = std::move(attributes),
          .decompose = decompose};
}

}  // namespace

std::vector<OpDef> experimental_ops() {
  constexpr TypeSet kIndices{DType::int32, DType::int64};
  return {experimental("Affine", {{"alpha", 1.0F}, {"beta", 0.0F}}, decompose_affine),
          experimental("Crop", {{"border"}, {"scale"}}, decompose_crop),
          {.name = "DynamicSlice",
           .since = {1},
           .inputs = {{"data", kAllTensors, "T"},
                      {"starts", kIndices, "Tind"},
                      {"ends", kIndices, "Tind"},
                      {"axes", kIndices, "Tind", Presence::optional}},
           .outputs = {{"output", kAllTensors, "T"}},
           .decompose = decompose_dynamic_slice},
          experimental("ImageScaler", {{"bias"}, {"scale", 1.0F}}, decompose_image_scaler),
          experimental("ParametricSoftplus", {{"alpha", 1.0F}, {"beta", 1.0F}}, decompose_scaled<kSoftplus>),
          experimental("Scale", {{"scale", 1.0F}}, decompose_scale),
          experimental("ScaledTanh", {{"alpha", 1.0F}, {"beta", 1.0F}}, decompose_scaled<kTanh>)};
}

}  // namespace treadle::ops
