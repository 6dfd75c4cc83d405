// Implements Resize and its predecessor Upsample.
#include "ops/tensor/resize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "core/base/to_integer.h"
#include "core/values/dispatch.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/checks.h"
#include "ops/decomposition.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/math/elementwise.h"
#include "ops/tensor/movement.h"
#include "ops/widen.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

using kernels::Coordinates;
using kernels::Filter;
using kernels::Nearest;
using kernels::ResizeAxis;
using kernels::ResizeOptions;

constexpr TypeSet kResizeTypes = kNumeric | kBool | kString | kComplex;

template <typename E, size_t N>
E enum_attribute(const Attributes& attributes, std::string_view name, std::string_view otherwise,
                 const std::pair<std::string_view, E> (&names)[N]) {
  const std::string_view text = attributes.get_string(name, otherwise);
  for (const auto& entry : names)
    if (entry.first == text) return entry.second;
  throw Error(ErrorCode::not_implemented, fmt::format("{} is \"{}\"", name, text));
}

}  // namespace

ResizeOptions resize_options(const Attributes& attributes) {
  ResizeOptions o;
  constexpr std::pair<std::string_view, Filter> kModes[] = {
      {"nearest", Filter::nearest}, {"linear", Filter::linear}, {"cubic", Filter::cubic}};
  o.filter = enum_attribute(attributes, "mode", "nearest", kModes);
  constexpr std::pair<std::string_view, Coordinates> kCoordinates[] = {{"half_pixel", Coordinates::half_pixel},
                                                                       {"half_pixel_symmetric", Coordinates::half_pixel_symmetric},
                                                                       {"pytorch_half_pixel", Coordinates::pytorch_half_pixel},
                                                                       {"align_corners", Coordinates::align_corners},
                                                                       {"asymmetric", Coordinates::asymmetric},
                                                                       {"tf_crop_and_resize", Coordinates::tf_crop_and_resize},
                                                                       {"tf_half_pixel_for_nn", Coordinates::tf_half_pixel_for_nn}};
  o.coordinates = enum_attribute(attributes, "coordinate_transformation_mode", "half_pixel", kCoordinates);
  constexpr std::pair<std::string_view, Nearest> kNearest[] = {{"round_prefer_floor", Nearest::round_prefer_floor},
                                                               {"round_prefer_ceil", Nearest::round_prefer_ceil},
                                                               {"floor", Nearest::floor},
                                                               {"ceil", Nearest::ceil}};
  o.nearest = enum_attribute(attributes, "nearest_mode", "round_prefer_floor", kNearest);
  o.antialias = attributes.get_int("antialias") != 0 && o.filter != Filter::nearest;
  o.exclude_outside = attributes.get_int("exclude_outside") != 0 && o.filter != Filter::nearest;
  o.cubic_a = static_cast<double>(attributes.get_float("cubic_coeff_a", -0.75f));
  return o;
}

namespace {

enum class AspectRatio : uint8_t { stretch, not_larger, not_smaller };
AspectRatio aspect_ratio_of(const Attributes& attributes) {
  constexpr std::pair<std::string_view, AspectRatio> kPolicies[] = {
      {"stretch", AspectRatio::stretch}, {"not_larger", AspectRatio::not_larger}, {"not_smaller", AspectRatio::not_smaller}};
  return enum_attribute(attributes, "keep_aspect_ratio_policy", "stretch", kPolicies);
}

/// The axes for which roi, scales and sizes have elements.
struct Axes {
  int count = 0;
  int axis[kMaxRank] = {};

  static Axes of(const Attributes& attributes, int rank) {
    Axes axes;
    if (!attributes.has("axes")) {
      for (int i = 0; i < rank; ++i) axes.axis[axes.count++] = i;
      return axes;
    }
    const std::vector<int64_t>& given = attributes.get_ints("axes");
    if (given.size() > static_cast<size_t>(rank))
      throw Error(ErrorCode::invalid_argument, fmt::format("axes has {} elements, X is of rank {}", given.size(), rank));
    for (int64_t axis : given) axes.axis[axes.count++] = normalize_axis(axis, rank, "axes");
    return axes;
  }
};

void check_scale(float scale) {
  if (!(scale > 0) || scale > 1e9f) throw Error(ErrorCode::invalid_argument, fmt::format("scales contains {}", scale));
}

// Multiplies in float32, as exporters do. There, 10 * 0.7 is 7; in double, it would be rounded down to 6.
int64_t scaled_extent(int64_t extent, float scale) {
  const int64_t scaled = to_integer<int64_t>(std::floor(static_cast<float>(extent) * scale));
  if (scaled < 0) throw Error(ErrorCode::invalid_argument, fmt::format("an extent of {} times {} is too large", extent, scale));
  return scaled;
}

// Scales a symbolic extent. Returns false if the scale is not a short binary fraction, so that no exact expression exists.
bool scaled_extent(const Dim& extent, float scale, Dim& result) {
  constexpr int64_t kDenominator = 1 << 8;
  const double numerator = static_cast<double>(scale) * kDenominator;
  if (numerator != std::floor(numerator) || numerator > 1e6) return false;
  int64_t n = static_cast<int64_t>(numerator), d = kDenominator;
  while (d > 1 && n % 2 == 0) n /= 2, d /= 2;
  result = floor_div(extent * n, d);
  return true;
}

// Returns the one scale for all axes, such that no axis exceeds its requested size (not_larger), or none falls below it (not_smaller).
double common_scale(AspectRatio policy, const Axes& axes, const Shape& in, const int64_t* sizes) {
  double scale = policy == AspectRatio::not_larger ? std::numeric_limits<double>::infinity() : 0;
  for (int i = 0; i < axes.count; ++i) {
    const double own = static_cast<double>(sizes[i]) / static_cast<double>(std::max<int64_t>(in[axes.axis[i]], 1));
    scale = policy == AspectRatio::not_larger ? std::min(scale, own) : std::max(scale, own);
  }
  return scale;
}

void check_count(std::string_view name, size_t count, const Axes& axes) {
  if (count != static_cast<size_t>(axes.count))
    throw Error(ErrorCode::invalid_argument, fmt::format("{} has {} elements for {} axes", name, count, axes.count));
}

// Returns true if an input is present and not empty. An empty tensor is treated as absent.
bool is_given(const InferContext& c, int input) {
  return c.has_input(input) && !(c.has_rank(input) && c.rank(input) == 1 && c.shape(input)[0].is_const(0));
}
bool is_given(const BindContext& c, int input) { return c.has_input(input) && c.num_elements(input) > 0; }

void infer_resize(InferContext& c) {
  if (!c.has_rank(0)) return c.set_output_dtype(0, c.dtype(0));
  resize_options(c.attributes());
  const int rank = c.rank(0);
  const Axes axes = Axes::of(c.attributes(), rank);
  SymbolicShape out = c.shape(0);
  auto axis_of = [&](int i) -> Dim& { return out[static_cast<size_t>(axes.axis[i])]; };
  if (is_given(c, 3)) {
    const AspectRatio policy = aspect_ratio_of(c.attributes());
    const auto sizes = c.known(3);
    if (sizes) check_count("sizes", sizes->size(), axes);
    if (sizes && policy == AspectRatio::stretch) {
      for (int i = 0; i < axes.count; ++i) axis_of(i) = (*sizes)[static_cast<size_t>(i)];
    } else if (const auto ints = c.known_ints(3); ints && c.input(0).is_static()) {
      const Shape in = c.input(0).static_shape();
      const double scale = common_scale(policy, axes, in, ints->data());
      for (int i = 0; i < axes.count; ++i) axis_of(i) = to_integer<int64_t>(scale * static_cast<double>(in[axes.axis[i]]) + 0.5);
    } else {
      for (int i = 0; i < axes.count; ++i) axis_of(i) = c.data_dependent_dim("resize");
    }
  } else if (is_given(c, 2)) {
    const Tensor* scales = c.constant(2);
    if (scales && scales->num_elements() > 0) {
      check_count("scales", static_cast<size_t>(scales->num_elements()), axes);
      const Tensor dense = scales->contiguous();
      for (int i = 0; i < axes.count; ++i) {
        const float scale = dense.data<float>()[i];
        check_scale(scale);
        Dim& extent = axis_of(i);
        if (extent.is_const())
          extent = scaled_extent(extent.value(), scale);
        else if (!scaled_extent(extent, scale, extent))
          extent = c.data_dependent_dim("resize");
      }
    } else {
      for (int i = 0; i < axes.count; ++i) axis_of(i) = c.data_dependent_dim("resize");
    }
  } else {
    throw Error(ErrorCode::invalid_model, "neither scales nor sizes is given");
  }
  c.set_output(0, c.dtype(0), std::move(out));
}

double float_value(const Tensor& tensor, int64_t i) {
  return visit_dtype<TypeList<float, double, Float16>>(tensor.dtype(),
                                                       [&]<typename T>() { return static_cast<double>(tensor.data<T>()[i]); });
}

void set_scales(const BindContext& c, const Axes& named, const Shape& in, ResizeAxis* all) {
  if (is_given(c, 3)) {
    if (is_given(c, 2)) throw Error(ErrorCode::invalid_argument, "both scales and sizes are given; ONNX expects one of them");
    const AspectRatio policy = aspect_ratio_of(c.node().attributes);
    int64_t sizes[kMaxRank];
    check_equal(c.value_count(3), named.count, "elements of sizes, and axes");
    for (int i = 0; i < named.count; ++i) sizes[i] = c.value_at(3, i);
    const double common = policy == AspectRatio::stretch ? 0 : common_scale(policy, named, in, sizes);
    for (int i = 0; i < named.count; ++i) {
      ResizeAxis& axis = all[named.axis[i]];
      axis.scale =
          policy == AspectRatio::stretch ? static_cast<double>(axis.out) / static_cast<double>(std::max<int64_t>(axis.in, 1)) : common;
    }
    return;
  }
  check_equal(c.value_count(2), named.count, "elements of scales, and axes");
  for (int i = 0; i < named.count; ++i) {
    const float scale = c.value(2)->data<float>()[i];
    check_scale(scale);
    all[named.axis[i]].scale = static_cast<double>(scale);
  }
}

}  // namespace

ResizePlan ResizePlan::make(const BindContext& c) {
  ResizePlan p;
  p.options = resize_options(c.node().attributes);
  p.in = c.shape(0), p.out = c.output_shape(0);
  const int rank = p.in.rank();
  const Axes named = Axes::of(c.node().attributes, rank);
  ResizeAxis all[kMaxRank];
  for (int i = 0; i < rank; ++i) all[i].in = p.in[i], all[i].out = p.out[i];
  set_scales(c, named, p.in, all);
  if (p.options.coordinates == Coordinates::tf_crop_and_resize && is_given(c, 1)) {
    const Tensor& roi = *c.value(1);
    check_equal(roi.num_elements(), 2 * named.count, "elements of roi, and two for each axis");
    for (int i = 0; i < named.count; ++i) {
      all[named.axis[i]].roi_begin = float_value(roi, i);
      all[named.axis[i]].roi_end = float_value(roi, named.count + i);
    }
  }
  for (int i = 0; i < rank; ++i) {
    const bool same = all[i].in == all[i].out && std::abs(all[i].scale - 1) < 1e-9 && all[i].roi_begin == 0 && all[i].roi_end == 1;
    if (same) continue;
    if (all[i].in == 0 && all[i].out > 0)
      throw Error(ErrorCode::invalid_argument, fmt::format("an empty axis cannot be resized to an extent of {}", all[i].out));
    p.axes[p.count] = all[i];
    p.axis[p.count++] = i;
  }
  for (int i = 1; i < p.count; ++i)
    for (int k = i; k > 0 && p.axes[k].scale < p.axes[k - 1].scale; --k)
      std::swap(p.axes[k], p.axes[k - 1]), std::swap(p.axis[k], p.axis[k - 1]);
  return p;
}

namespace {

/// The mode "nearest", which copies elements of any type.
struct ResizeNearest {
  ResizePlan plan;
  DType dtype;
  float extrapolation;
  int64_t tables[kMaxRank];  // offsets of index tables in scratch; -1 for unchanged axes

  static std::string declines(const CreateContext& c) {
    return c.attributes().get_string("mode", "nearest") == "nearest" ? std::string() : "the mode is not nearest";
  }
  static ResizeNearest bind(BindContext& c) {
    ResizeNearest k{ResizePlan::make(c), c.dtype(0), c.get_float("extrapolation_value"), {}};
    ScratchLayout layout;
    std::fill(std::begin(k.tables), std::end(k.tables), -1);
    for (int i = 0; i < k.plan.count; ++i)
      k.tables[k.plan.axis[i]] = layout.take(static_cast<size_t>(k.plan.axes[i].out) * sizeof(int64_t));
    c.request_scratch(layout.total());
    return k;
  }

  template <typename T>
  void pick(RunContext& c, T outside) const {
    const int rank = plan.in.rank();
    const T* x = c.in<T>(0);
    T* y = c.out<T>(0);
    if (rank == 0) {
      *y = *x;
      return;
    }
    const int64_t* table[kMaxRank];
    int64_t stride[kMaxRank];
    for (int i = rank - 1, step = 0; i >= 0; --i, ++step) {
      stride[i] = step == 0 ? 1 : stride[i + 1] * plan.in[i + 1];
      table[i] = tables[i] < 0 ? nullptr : reinterpret_cast<const int64_t*>(scratch_at(c, tables[i]));
    }
    const int64_t width = plan.out.back(), rows = plan.out.product(0, rank - 1);
    const int64_t* last = table[rank - 1];
    const bool leaves = last && std::any_of(last, last + width, [](int64_t from) { return from < 0; });
    const int times = last && sizeof(T) <= 4 ? kernels::resize_times(last, width) : 0;
    parallel_for(c.pool(), rows, std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(1, width)), [&](int64_t begin, int64_t end) {
      int64_t base_before = -1;  // a row with the same source as the row before is copied
      const T* dst_before = nullptr;
      for (int64_t row = begin; row < end; ++row) {
        int64_t rest = row, base = 0;
        bool inside = true;
        for (int i = rank - 2; i >= 0; --i) {
          const int64_t at = rest % plan.out[i];
          rest /= plan.out[i];
          const int64_t from = table[i] ? table[i][at] : at;
          inside &= from >= 0;
          base += from * stride[i];
        }
        T* dst = y + row * width;
        if (!inside) {
          std::fill_n(dst, width, outside);
          continue;
        }
        const T* src = x + base;
        if (base == std::exchange(base_before, base))
          std::copy_n(dst_before, width, dst);
        else if (!last)
          std::copy_n(src, width, dst);
        else if (times > 0)
          kernels::repeat_each(times, width / times, src, dst);
        else if (leaves)
          for (int64_t i = 0; i < width; ++i) dst[i] = last[i] < 0 ? outside : src[last[i]];
        else
          for (int64_t i = 0; i < width; ++i) dst[i] = src[last[i]];
        dst_before = dst;
      }
    });
  }

  void run(RunContext& c) const {
    for (int i = 0; i < plan.count; ++i)
      kernels::resize_nearest_table(plan.axes[i], plan.options, reinterpret_cast<int64_t*>(scratch_at(c, tables[plan.axis[i]])));
    if (plan.options.coordinates == Coordinates::tf_crop_and_resize && extrapolation != 0 && kNumeric.has(dtype))
      return visit_dtype<NumericTypes>(dtype, [&]<typename T>() { pick<T>(c, static_cast<T>(extrapolation)); });
    if (dtype == DType::string) return pick<std::string>(c, {});
    kernels::visit_element(bits_of(dtype) / 8, [&]<typename T>() { pick<T>(c, T{}); });
  }
};

/// The modes with weights. Sums are in float32, or in float64 for element types that float32 cannot represent.
template <typename T>
struct ResizeFilter {
  using C = std::conditional_t<(sizeof(T) >= 4 && !std::is_same_v<T, float>), double, float>;
  ResizePlan plan;
  C extrapolation;
  int64_t indices[kMaxRank], weights[kMaxRank], taps[kMaxRank];
  int64_t buffers[2];

  static std::string declines(const CreateContext& c) {
    return c.attributes().get_string("mode", "nearest") == "nearest" ? "the mode is nearest" : std::string();
  }
  static ResizeFilter bind(BindContext& c) {
    ResizeFilter k{ResizePlan::make(c), static_cast<C>(c.get_float("extrapolation_value")), {}, {}, {}, {}};
    ScratchLayout layout;
    Shape now = k.plan.in;
    int64_t largest = now.num_elements();
    for (int i = 0; i < k.plan.count; ++i) {
      const ResizeAxis& axis = k.plan.axes[i];
      k.taps[i] = kernels::resize_taps(axis, k.plan.options);
      k.indices[i] = layout.take(static_cast<size_t>(axis.out * k.taps[i]) * sizeof(int64_t));
      k.weights[i] = layout.take(static_cast<size_t>(axis.out * k.taps[i]) * sizeof(C));
      now[k.plan.axis[i]] = axis.out;
      largest = std::max(largest, now.num_elements());
    }
    for (int64_t& buffer : k.buffers) buffer = layout.take(static_cast<size_t>(largest) * sizeof(C));
    c.request_scratch(layout.total());
    return k;
  }
  static T finish(C value, bool antialias) {
    if constexpr (std::is_integral_v<T>) {
      const C rounded = antialias ? std::nearbyint(value) : std::trunc(value);  // as onnxruntime does; ONNX leaves it undefined
      if (!(rounded >= static_cast<C>(std::numeric_limits<T>::lowest()))) return std::numeric_limits<T>::lowest();
      if (rounded >= static_cast<C>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
      return static_cast<T>(rounded);
    } else {
      return static_cast<T>(value);
    }
  }
  void run(RunContext& c) const {
    const int64_t total = plan.out.num_elements();
    if (total == 0) return;
    const T* x = c.in<T>(0);
    T* y = c.out<T>(0);
    C* room[2] = {reinterpret_cast<C*>(scratch_at(c, buffers[0])), reinterpret_cast<C*>(scratch_at(c, buffers[1]))};
    const C* from;
    if constexpr (std::is_same_v<T, C>) {
      if (plan.count == 0) {
        std::copy_n(x, total, y);
        return;
      }
      from = x;
    } else {
      convert_array(x, room[1], plan.in.num_elements(), c.pool());
      from = room[1];
    }
    Shape now = plan.in;
    for (int i = 0; i < plan.count; ++i) {
      const ResizeAxis& axis = plan.axes[i];
      auto* index = reinterpret_cast<int64_t*>(scratch_at(c, indices[i]));
      C* weight = reinterpret_cast<C*>(scratch_at(c, weights[i]));
      kernels::resize_filter_table(axis, plan.options, index, weight);
      C* to = room[i % 2];
      if constexpr (std::is_same_v<T, C>)
        if (i == plan.count - 1) to = y;
      kernels::resize_axis(now.product(0, plan.axis[i]), axis, now.product(plan.axis[i] + 1, now.rank()), taps[i], index, weight,
                           extrapolation, from, to, c.pool());
      now[plan.axis[i]] = axis.out;
      from = to;
    }
    if constexpr (!std::is_same_v<T, C>) {
      parallel_for(c.pool(), total, kElementwiseGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) y[i] = finish(from[i], plan.options.antialias);
      });
    }
  }
};

Cost resize_cost(const ShapeContext& c) {
  const double outputs = static_cast<double>(c.output_shape(0).num_elements());
  return {4 * outputs, c.size_bytes(0) + outputs * static_cast<double>(bits_of(c.output_dtype(0))) / 8};
}

// Upgrades opset 10, where Resize had only scales, and coordinates like today's "asymmetric". Nearest rounded up on axes that shrink and
// down on axes that grow. If the scales are computed, both may occur, so one Resize shrinks and another one then grows.
void name_coordinates(Graph& graph, NodeId id) {
  require_inputs(graph.node(id), 2);
  const ValueId x = graph.node(id).inputs[0], scales = graph.node(id).inputs[1];
  std::string mode(graph.node(id).attributes.get_string("mode", "nearest"));
  if (mode == "bilinear") mode = "linear";
  auto attributes = [&](const char* nearest) {
    return Attributes{
        {"coordinate_transformation_mode", std::string("asymmetric")}, {"mode", mode}, {"nearest_mode", std::string(nearest)}};
  };
  const Tensor* values = graph.constant_tensor(scales);
  bool shrinks = !values, grows = !values;
  if (values && values->dtype() == DType::float32) {
    const Tensor dense = values->contiguous();
    for (int64_t i = 0; i < dense.num_elements(); ++i) shrinks |= dense.data<float>()[i]<1, grows |= dense.data<float>()[i]> 1;
  }
  if (mode != "nearest" || !shrinks || !grows)
    return void(replace_node(graph, id,
                             {.op_type = "Resize", .inputs = {x, kNoValue, scales}, .attributes = attributes(shrinks ? "ceil" : "floor")}));
  Decomposition d(graph, id);
  const ValueId one = d.constant(Tensor::scalar(1.0F));
  const ValueId smaller = d.op("Resize", {x, kNoValue, d.op("Min", {scales, one})}, attributes("ceil"));
  d.give(0, d.op("Resize", {smaller, kNoValue, d.op("Max", {scales, one})}, attributes("floor")));
  d.finish();
}

// Upgrades Upsample. In successive versions, its scales were two attributes, one attribute, and an input.
void scales_of_sides(Graph& graph, NodeId id) {
  Attributes& attributes = graph.node(id).attributes;
  const std::vector<float> scales{1, 1, attributes.get_float("height_scale", 1), attributes.get_float("width_scale", 1)};
  attributes.erase("height_scale");
  attributes.erase("width_scale");
  attributes.set("scales", scales);
}
void scales_to_input(Graph& graph, NodeId id) {
  const std::vector<float> scales = graph.node(id).attributes.get_floats("scales");
  graph.node(id).attributes.erase("scales");
  graph.resize_inputs(id, 2);
  graph.set_input(id, 1, graph.add_constant("scales", Tensor::vector<float>(scales)));
}

}  // namespace

std::vector<OpDef> resize_ops() {
  constexpr TypeSet kRoi{DType::float16, DType::float32, DType::float64}, kScales{DType::float32};
  return {
      {.name = "Resize",
       .since = {10, 11, 13, 18, 19},
       .upgrade = {{10, name_coordinates}},
       .inputs = {{"X", kResizeTypes, "T1"},
                  {"roi", kRoi, "T2", Presence::optional},
                  {"scales", kScales, "", Presence::optional, of_rank(1)},
                  {"sizes", kInt64, "", Presence::optional, of_rank(1)}},
       .outputs = {{"Y", kResizeTypes, "T1"}},
       .attributes = {{"antialias", int64_t{0}},
                      {"axes"},
                      {"coordinate_transformation_mode", std::string_view("half_pixel")},
                      {"cubic_coeff_a", -0.75f},
                      {"exclude_outside", int64_t{0}},
                      {"extrapolation_value", 0.0f},
                      {"keep_aspect_ratio_policy", std::string_view("stretch")},
                      {"mode", std::string_view("nearest")},
                      {"nearest_mode", std::string_view("round_prefer_floor")}},
       .infer = infer_resize,
       .cost = resize_cost,
       .kernels =
           std::vector{kernel<ResizeNearest>("nearest")} +
           typed<ResizeFilter, float, double, Float16, BFloat16, uint8_t, int8_t, uint16_t, int16_t, int32_t, uint32_t, int64_t, uint64_t>(
               "filter"),
       .gradient = gradients::resize,
       .value_inputs = {1, 2, 3},
       .half = HalfFloats::float32_by_itself,
       .channels_last = {ChannelsLast::How::numbers_per_axis}},
      {.name = "Upsample",
       .since = {1, 7, 9, 10},
       .upgrade = {{1, scales_of_sides}, {7, scales_to_input}},
       .inputs = {{"X", kResizeTypes, "T"}, {"scales", kScales}},
       .outputs = {{"Y", kResizeTypes, "T"}},
       .attributes = {{"mode", std::string_view("nearest")}},
       .decompose = name_coordinates,
       .value_inputs = {1}}};
}

}  // namespace treadle::ops
