// Operators that take elements from places which follow from their own place: Pad, Resize. And Range, whose elements follow from it too.
#include <algorithm>
#include <cmath>
#include <cstring>

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
  int64_t word_bytes = 4, words = 1;  // of an element
};

struct Pad {
  kernels::PadPlan plan;

  static Pad bind(BindContext& c) {
    const Pad k{ops::bind_pad(c)};
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

/// Converts a position to units of 2^-32 elements.
int64_t in_parts(double place) {
  if (!(std::abs(place) < 1 << 30))
    throw Error(ErrorCode::not_implemented, "Resize on the GPU, of an axis whose positions or steps exceed 2^30 elements");
  return std::llround(place * 4294967296.0);
}

/// An axis after the other, by way of scratch.
struct Resize {
  ops::ResizePlan plan;
  int64_t buffers[2];

  static Resize bind(BindContext& c) {
    Resize k{ops::ResizePlan::make(c), {}};
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
    for (int64_t& buffer : k.buffers) buffer = layout.take(static_cast<size_t>(largest * state.words * state.word_bytes));
    if (largest > 0) c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<ResampleState>();
    const void* from = c.in<void>(0);
    Shape now = plan.in;
    if (plan.count == 0) {
      const int64_t bytes = now.num_elements() * state.words * state.word_bytes;
      return stream().copy(c.out<void>(0), from, static_cast<size_t>(bytes), CopyKind::device_to_device);
    }
    for (int i = 0; i < plan.count; ++i) {
      void* const to = i + 1 == plan.count ? c.out<void>(0) : static_cast<void*>(ops::scratch_at(c, buffers[i % 2]));
      const int64_t inner = now.product(plan.axis[i] + 1, now.rank()) * state.words;
      now[plan.axis[i]] = plan.axes[i].out;
      pass(*state.shader, plan.axes[i], inner, count32(now.num_elements() * state.words), from, to);
      from = to;
    }
  }

 private:
  void pass(const vulkan::Shader& shader, const kernels::ResizeAxis& axis, int64_t inner, uint32_t count, const void* x, void* y) const {
    if (count == 0) return;
    const double first = kernels::resize_source(axis, plan.options.coordinates, 0);
    const double last = kernels::resize_source(axis, plan.options.coordinates, axis.out - 1);
    const int64_t start = in_parts(first), step = axis.out > 1 ? in_parts((last - first) / static_cast<double>(axis.out - 1)) : 0;
    Push push;
    push.pointer(y).pointer(x).word(count);
    for (const int64_t value : {axis.in, axis.out, inner, start >> 32, step >> 32}) push.word(static_cast<int32_t>(value));
    push.word(static_cast<uint32_t>(start)).word(static_cast<uint32_t>(step));
    push.word(static_cast<float>(plan.options.cubic_a)).word(uint32_t{plan.options.exclude_outside});
    stream().dispatch(shader, push.bytes(), groups_over(count));
  }
};

template <typename T>
struct Range {
  T start, delta;
  int64_t length;

  static Range bind(BindContext& c) { return {*c.value(0)->data<T>(), *c.value(2)->data<T>(), c.output_shape(0)[0]}; }
  void run(RunContext& c) const {
    Push push;
    push.pointer(c.out<void>(0));
    for (const T value : {start, delta}) {
      uint32_t words[sizeof(T) / 4];
      std::memcpy(words, &value, sizeof(T));
      for (const uint32_t word : words) push.word(word);
    }
    push.word(count32(length));
    stream().dispatch(*c.packed<ResampleState>().shader, push.bytes(), groups_over(count32(length)));
  }
};

DeviceKernel find_resize(const Graph& graph, const Node& node, std::shared_ptr<ResampleState> state) {
  static const KernelDef kernel = treadle::kernel<Resize>("gpu");
  const kernels::ResizeOptions options = ops::resize_options(node.attributes);
  if (options.antialias || options.coordinates == kernels::Coordinates::tf_crop_and_resize) return {};
  const bool is_nearest = options.filter == kernels::Filter::nearest;
  const uint32_t constants[] = {is_nearest ? static_cast<uint32_t>(options.nearest) : static_cast<uint32_t>(options.filter)};
  const DType dtype = graph.type(node.inputs[0]).dtype;
  // Between passes, sums of narrower types would be rounded.
  if (is_nearest)
    state->shader = find_moving_shader("resize_nearest", static_cast<size_t>(state->word_bytes), constants);
  else if (dtype == DType::float32)
    state->shader = find_shader("resize", dtype, constants);
  return state->shader ? DeviceKernel{&kernel, std::move(state)} : DeviceKernel();
}

DeviceKernel find_range(const Graph& graph, const Node& node, std::shared_ptr<ResampleState> state) {
  static const KernelDef of_float = kernel<Range<float>>("gpu"), of_int = kernel<Range<int32_t>>("gpu"),
                         of_long = kernel<Range<int64_t>>("gpu");
  const DType dtype = graph.type(node.outputs[0]).dtype;
  state->shader = find_shader("range", dtype);
  if (!state->shader) return {};
  return {dtype == DType::float32 ? &of_float : dtype == DType::int32 ? &of_int : &of_long, std::move(state)};
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
  if (node.op_type != "Pad" || x.shape->size() > size_t{kMaxPaddedRank}) return {};
  const uint32_t constants[] = {static_cast<uint32_t>(ops::pad_mode(node.attributes))};
  state->shader = find_moving_shader("pad", static_cast<size_t>(state->word_bytes), constants);
  return {&pad, std::move(state)};
}

}  // namespace treadle::gpu
