// Computes Pad, CenterCropPad, Resize and Range. The position of an output element determines which input elements it depends on or, for
// Range, its value.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/values/dispatch.h"
#include "gpu/converted.h"
#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "ops/tensor/movement.h"
#include "ops/tensor/pad.h"
#include "ops/tensor/resize.h"
#include "ops/widen.h"

namespace treadle::gpu {
namespace {

constexpr int kMaxPaddedRank = 4;

struct ResampleState final : PackedState {
  const vulkan::Shader* shader = nullptr;
  int64_t word_bytes = 4, words = 1;  // bytes per word; words per element
  bool filters = false;               // true: a Resize with weighted sums, in float32
};

struct Pad {
  kernels::PadPlan plan;

  static Pad bind(BindContext& c) {
    const Pad k{c.node().op_type == "Pad" ? ops::bind_pad(c) : ops::bind_center(c)};
    const int64_t words = c.packed<ResampleState>().words;
    count32(k.plan.in_size * words), count32(k.plan.out_size * words);
    for (int axis = 0; axis < k.plan.rank; ++axis) count32(std::abs(k.plan.before[axis]));
    return k;
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<ResampleState>();
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0)).pointer(c.in<void>(2)).word(count32(plan.out_size * state.words));
    push.word(static_cast<uint32_t>(state.words)).word(uint32_t{c.in<void>(2) != nullptr});
    push_axes(push, plan.out_dims, 1), push_axes(push, plan.in_dims, 1), push_axes(push, plan.first, 0);
    push_axes(push, plan.kept, 1), push_axes(push, plan.before, 0);
    stream().dispatch(*state.shader, push.bytes(), groups_over(count32(plan.out_size * state.words)));
  }

 private:
  void push_axes(Push& push, const int64_t* values, int32_t missing) const {
    for (int i = plan.rank; i < kMaxPaddedRank; ++i) push.word(missing);
    for (int i = 0; i < plan.rank; ++i) push.word(static_cast<int32_t>(values[i]));
  }
};

/// These functions return the bounds of integer types of up to 16 bits, and 0 for other types.
double highest_of(DType dtype) {
  if (!is_integer(dtype)) return 0;
  return std::exp2(static_cast<double>(bits_of(dtype)) - (is_signed_integer(dtype) ? 1 : 0)) - 1;
}
double lowest_of(DType dtype) { return is_signed_integer(dtype) ? -highest_of(dtype) - 1 : 0; }

/// Converts a position along an axis to fixed point, in units of 2^-32 elements.
int64_t in_parts(double place) {
  if (!(std::abs(place) < 1 << 30))
    throw Error(ErrorCode::not_implemented, "Resize on the GPU, of an axis whose positions or steps exceed 2^30 elements");
  return std::llround(place * 4294967296.0);
}

/// Resizes one axis after the other. Intermediate results are in scratch memory.
struct Resize {
  ops::ResizePlan plan;
  int64_t buffers[2];
  ConvertedOperand x, y;
  float extrapolation;

  static Resize bind(BindContext& c) {
    Resize k{ops::ResizePlan::make(c), {}, {}, {}, c.get_float("extrapolation_value")};
    const auto& state = c.packed<ResampleState>();
    Shape now = k.plan.in;
    int64_t largest = 0;
    for (int i = 0; i < k.plan.count; ++i) {
      count32(now.num_elements() * state.words);
      now[k.plan.axis[i]] = k.plan.axes[i].out;
      if (i + 1 < k.plan.count) largest = std::max(largest, now.num_elements());
    }
    count32(now.num_elements() * state.words);
    ops::ScratchLayout layout;
    const int64_t element_bytes = state.filters ? int64_t{sizeof(float)} : state.words * state.word_bytes;
    for (int64_t& buffer : k.buffers) buffer = layout.take(static_cast<size_t>(largest * element_bytes));
    const DType given = c.dtype(0), computed = state.filters ? DType::float32 : given;
    k.x = ConvertedOperand::reserve(layout, given, computed, k.plan.in.num_elements());
    k.y = ConvertedOperand::reserve(layout, given, computed, k.plan.out.num_elements());
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<ResampleState>();
    Shape now = plan.in;
    if (plan.count == 0) {
      const size_t bytes = static_cast<size_t>(now.num_elements()) * bits_of(x.given) / 8;
      return stream().copy(c.out<void>(0), c.in<void>(0), bytes, CopyKind::device_to_device);
    }
    const void* from = x.read(c, 0);
    for (int i = 0; i < plan.count; ++i) {
      const bool is_last = i + 1 == plan.count;
      void* const to = is_last ? y.result(c, 0) : static_cast<void*>(ops::scratch_at(c, buffers[i % 2]));
      const int64_t inner = now.product(plan.axis[i] + 1, now.rank()) * state.words;
      now[plan.axis[i]] = plan.axes[i].out;
      pass(*state.shader, plan.axes[i], inner, count32(now.num_elements() * state.words), is_last, from, to);
      from = to;
    }
    y.store(c, 0);
  }

 private:
  void pass(const vulkan::Shader& shader, const kernels::ResizeAxis& axis, int64_t inner, uint32_t count, bool is_last, const void* src,
            void* dst) const {
    if (count == 0) return;
    const double first = kernels::resize_source(axis, plan.options.coordinates, 0);
    const double last = kernels::resize_source(axis, plan.options.coordinates, axis.out - 1);
    const int64_t start = in_parts(first), step = axis.out > 1 ? in_parts((last - first) / static_cast<double>(axis.out - 1)) : 0;
    Push push;
    push.pointer(dst).pointer(src).word(count);
    for (const int64_t value : {axis.in, axis.out, inner, start >> 32, step >> 32}) push.word(static_cast<int32_t>(value));
    push.word(static_cast<uint32_t>(start)).word(static_cast<uint32_t>(step));
    push.word(static_cast<float>(plan.options.cubic_a)).word(uint32_t{plan.options.exclude_outside});
    // If the image shrinks, an antialiasing filter is wider, by the same factor.
    const double factor = plan.options.antialias ? std::min(axis.scale, 1.0) : 1.0;
    push.word(static_cast<uint32_t>(kernels::resize_taps(axis, plan.options) / 2)).word(static_cast<float>(factor));
    push.word(uint32_t{plan.options.antialias || plan.options.exclude_outside});
    push.word(uint32_t{plan.options.coordinates == kernels::Coordinates::tf_crop_and_resize}).word(extrapolation);
    const bool bounds = is_last && is_integer(y.given);
    push.word(!bounds ? 0U : plan.options.antialias ? 2U : 1U);
    for (const double bound : {lowest_of(y.given), highest_of(y.given)}) push.word(static_cast<float>(bound));
    stream().dispatch(shader, push.bytes(), groups_over(count));
  }
};

template <typename T>
struct Range {
  T start, delta;
  ConvertedOperand y;

  static Range bind(BindContext& c) {
    Range k{number_at(c, 0), number_at(c, 2), {}};
    ops::ScratchLayout layout;
    k.y = ConvertedOperand::reserve(layout, c.output_dtype(0), dtype_of<T>, c.output_shape(0)[0]);
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    Push push;
    push.pointer(y.result(c, 0));
    for (const T value : {start, delta}) {
      uint32_t words[sizeof(T) / 4];
      std::memcpy(words, &value, sizeof(T));
      for (const uint32_t word : words) push.word(word);
    }
    push.word(count32(y.count));
    stream().dispatch(*c.packed<ResampleState>().shader, push.bytes(), groups_over(count32(y.count)));
    y.store(c, 0);
  }

 private:
  static T number_at(const BindContext& c, int input) {
    T number{};
    visit_dtype<TypeList<float, double, Float16, BFloat16, int16_t, int32_t, int64_t>>(c.dtype(input), [&]<typename Given>() {
      number = static_cast<T>(static_cast<compute_type_t<Given>>(*c.value(input)->data<Given>()));
    });
    return number;
  }
};

DeviceKernel find_resize(const Graph& graph, const Node& node, std::shared_ptr<ResampleState> state) {
  static const KernelDef kernel = treadle::kernel<Resize>("gpu");
  const kernels::ResizeOptions options = ops::resize_options(node.attributes);
  const bool is_nearest = options.filter == kernels::Filter::nearest;
  if (is_nearest && options.coordinates == kernels::Coordinates::tf_crop_and_resize) return {};
  const uint32_t constants[] = {is_nearest ? static_cast<uint32_t>(options.nearest) : static_cast<uint32_t>(options.filter)};
  const DType dtype = graph.type(node.inputs[0]).dtype;
  if (is_nearest) {
    state->shader = find_moving_shader("resize_nearest", static_cast<size_t>(state->word_bytes), constants);
  } else if (wide_type(dtype) == DType::float32 || (is_integer(dtype) && bits_of(dtype) <= 16)) {
    state->shader = find_shader("resize", DType::float32, constants);  // float32, since narrower types would round between passes
    state->filters = true;
    state->words = 1;
  }
  return state->shader ? DeviceKernel{&kernel, std::move(state)} : DeviceKernel();
}

DeviceKernel find_range(const Graph& graph, const Node& node, std::shared_ptr<ResampleState> state) {
  static const KernelDef of_float = kernel<Range<float>>("gpu"), of_double = kernel<Range<double>>("gpu"),
                         of_int = kernel<Range<int32_t>>("gpu"), of_long = kernel<Range<int64_t>>("gpu");
  const DType dtype = graph.type(node.outputs[0]).dtype, computed = dtype == DType::int16 ? DType::int32 : wide_type(dtype);
  state->shader = find_shader("range", computed);
  if (!state->shader) return {};
  return {computed == DType::float32   ? &of_float
          : computed == DType::float64 ? &of_double
          : computed == DType::int32   ? &of_int
                                       : &of_long,
          std::move(state)};
}

}  // namespace

DeviceKernel find_resampling(const Graph& graph, const Node& node) {
  static const KernelDef pad = kernel<Pad>("gpu");
  if (!node.domain.empty()) return {};
  const Type& x = graph.type(node.inputs[0]);
  auto state = std::make_shared<ResampleState>();
  if (node.op_type == "Range") return find_range(graph, node, std::move(state));
  if (!ops::has_plain_bytes(x.dtype)) return {};
  state->word_bytes = std::min<int64_t>(ops::element_bytes(x.dtype), 4);
  state->words = ops::element_bytes(x.dtype) / state->word_bytes;
  if (node.op_type == "Resize") return find_resize(graph, node, std::move(state));
  const bool centers = node.op_type == "CenterCropPad";
  if ((!centers && node.op_type != "Pad") || x.shape->size() > size_t{kMaxPaddedRank}) return {};
  const uint32_t constants[] = {static_cast<uint32_t>(centers ? kernels::PadMode::constant : ops::pad_mode(node.attributes))};
  state->shader = find_moving_shader("pad", static_cast<size_t>(state->word_bytes), constants);
  return {&pad, std::move(state)};
}

}  // namespace treadle::gpu
