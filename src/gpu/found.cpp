// Computes NonZero, Compress, Unique and NonMaxSuppression. The host waits for the number of elements found, and then allocates the output.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/base/checked.h"
#include "gpu/converted.h"
#include "gpu/gather.h"
#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "gpu/sorting.h"
#include "ops/object_detection/suppression.h"
#include "ops/tensor/index_plans.h"
#include "ops/tensor/movement.h"
#include "ops/widen.h"

namespace treadle::gpu {
namespace {

struct FoundState final : FaultState {
  const vulkan::Shader *keys = nullptr, *counts = nullptr, *places = nullptr;
  const vulkan::Shader* stages[5] = {};  // the stages of unique.comp
  size_t word_bytes = 4;
  int64_t words = 1;                  // number of words per element
  DType computed = DType::undefined;  // dtype in which Unique compares elements
};

/// Waits for the stream. Returns the sum of the counts, which are in the device's memory.
int64_t total_of(const void* counts, int64_t num_counts) {
  std::vector<uint32_t> read(static_cast<size_t>(num_counts));
  stream().copy(read.data(), counts, read.size() * sizeof(uint32_t), CopyKind::device_to_host);
  stream().synchronize();
  return std::accumulate(read.begin(), read.end(), int64_t{0});
}

/// The arguments of the shader nonzero.comp. Each of its work groups searches one part of the elements.
struct Marked {
  static constexpr int kMostAxes = 8;  // limit of nonzero.comp
  int64_t count = 0, words = 1, part = 0, parts = 0;
  int rank = 1;
  int64_t dims[kMostAxes] = {};

  static Marked of(int64_t count, int64_t words, std::span<const int64_t> dims) {
    constexpr int64_t kMostParts = 1024, kGroup = 256;
    Marked k{count32(count), words, 0, 0, static_cast<int>(dims.size()), {}};
    count32(count * words);
    k.part = (count / kMostParts / kGroup + 1) * kGroup;
    k.parts = (count + k.part - 1) / k.part;
    std::copy(dims.begin(), dims.end(), k.dims);
    return k;
  }
  size_t counts_bytes() const { return static_cast<size_t>(std::max<int64_t>(parts, 1)) * sizeof(uint32_t); }
  /// Counts the nonzero elements. Waits for the device.
  int64_t total(RunContext& c, const void* x, void* counts) const {
    if (parts == 0) return 0;
    dispatch(*c.packed<FoundState>().counts, x, counts, nullptr, 0);
    return total_of(counts, parts);
  }
  /// Writes the indices of the nonzero elements, [rank, total]. Must be called after total().
  void write_places(RunContext& c, const void* x, void* counts, void* places, int64_t total) const {
    if (total > 0 && rank > 0) dispatch(*c.packed<FoundState>().places, x, counts, places, total);
  }

 private:
  void dispatch(const vulkan::Shader& shader, const void* x, void* counts, void* y, int64_t total) const {
    Push push;
    push.pointer(x).pointer(counts).pointer(y);
    push_sizes(push, {count, words, parts, part, rank, total});
    for (const int64_t extent : dims) push.word(static_cast<uint32_t>(extent));
    stream().dispatch(shader, push.bytes(), groups_for(parts));
  }
};

struct NonZero {
  static constexpr bool allocates = true;
  Marked marked;

  static NonZero bind(BindContext& c) {
    const NonZero k{Marked::of(c.num_elements(0), c.packed<FoundState>().words, c.shape(0).dims())};
    c.request_scratch(k.marked.counts_bytes());
    return k;
  }
  void run(RunContext& c) const {
    const int64_t total = marked.total(c, c.in<void>(0), c.scratch<void>());
    const Tensor places = c.allocate_output(0, Shape{marked.rank, total});
    marked.write_places(c, c.in<void>(0), c.scratch<void>(), places.raw(), total);
  }
};

/// Compress: finds the indices of the conditions that are true, then gathers the slices at these indices.
struct Compress {
  static constexpr bool allocates = true;
  ops::AlongAxis along;
  int64_t slice;  // number of words
  Marked marked;
  int64_t places;  // offset of the indices in scratch memory, in bytes

  static Compress bind(BindContext& c) {
    const int64_t words = c.packed<FoundState>().words;
    const auto along = ops::AlongAxis::bind(c);
    Compress k{along, along.inner * words, {}, 0};
    count32(c.num_elements(0) * words);
    const int64_t conditions = std::min(c.num_elements(1), along.extent);
    k.marked = Marked::of(conditions, 1, std::span(&conditions, 1));
    ops::ScratchLayout layout;
    layout.take(k.marked.counts_bytes());
    k.places = layout.take(static_cast<size_t>(conditions) * sizeof(int64_t));
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    const int64_t total = marked.total(c, c.in<void>(1), c.scratch<void>());
    const Tensor y = c.allocate_output(0, along.with_extent(total));
    if (y.num_elements() == 0) return;
    marked.write_places(c, c.in<void>(1), c.scratch<void>(), ops::scratch_at(c, places), total);
    gather_slices(
        {y.raw(), c.in<void>(0), ops::scratch_at(c, places), c.packed<FoundState>().word_bytes, along.outer, along.extent, total, slice});
  }
};

/// Unique for single numbers: sorts the numbers, then counts those that differ from the one before.
struct Unique {
  static constexpr bool allocates = true;
  int64_t count, items_extent, part, parts;
  bool sorted, has_output[4];
  ConvertedOperand x;
  int64_t items, order, counts, groups, firsts, places;  // offsets in scratch memory, in bytes

  static Unique bind(BindContext& c) {
    Unique k{};
    k.count = c.num_elements(0);
    k.items_extent = item_extent(k.count);
    k.sorted = c.get_int("sorted", 1) != 0;
    for (int i = 0; i < 4; ++i) k.has_output[i] = c.has_output(i);
    const Marked marked = Marked::of(k.count, c.packed<FoundState>().words, {});
    k.part = marked.part, k.parts = marked.parts;
    ops::ScratchLayout layout;
    k.x = ConvertedOperand::reserve(layout, c.dtype(0), c.packed<FoundState>().computed, k.count);
    k.items = layout.take(static_cast<size_t>(count32(k.items_extent)) * kItemBytes);
    k.order = layout.take(k.sorted ? 0 : static_cast<size_t>(k.items_extent) * kItemBytes);
    k.counts = layout.take(marked.counts_bytes());
    for (int64_t* numbers : {&k.groups, &k.firsts, &k.places}) *numbers = layout.take(static_cast<size_t>(k.count) * sizeof(uint32_t));
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<FoundState>();
    int64_t total = 0;
    if (count > 0) {
      Push keys;
      keys.pointer(nullptr).pointer(x.read(c, 0)).pointer(nullptr).pointer(ops::scratch_at(c, items));
      push_sizes(keys, {1, count, 1, items_extent, 0, 0, 0});
      stream().dispatch(*state.keys, keys.bytes(), groups_over(count32(items_extent)));
      sort_items(ops::scratch_at(c, items), 1, items_extent);
      dispatch(c, 0, 0, {}, groups_for(parts));
      total = total_of(ops::scratch_at(c, counts), parts);
    }
    void* outputs[4] = {};
    for (int i = 0; i < 4; ++i)
      if (has_output[i]) outputs[i] = c.allocate_output(i, Shape{i == 2 ? count : total}).raw();
    if (total == 0) return;
    dispatch(c, 1, total, outputs, groups_for(parts));
    if (!sorted) {
      dispatch(c, 2, total, outputs, groups_over(count32(item_extent(total))));
      sort_items(ops::scratch_at(c, order), 1, item_extent(total));
    }
    dispatch(c, 3, total, outputs, groups_over(count32(total)));
    if (has_output[2]) dispatch(c, 4, total, outputs, groups_over(count32(count)));
  }

 private:
  void dispatch(RunContext& c, size_t stage, int64_t total, std::span<void* const> outputs,
                const std::array<uint32_t, 3>& groups_of) const {
    const auto output = [&](size_t i) { return i < outputs.size() ? outputs[i] : nullptr; };
    Push push;
    for (const int64_t offset : {items, order, counts, groups, firsts, places}) push.pointer(ops::scratch_at(c, offset));
    push.pointer(output(0)).pointer(c.in<void>(0)).pointer(output(1)).pointer(output(2)).pointer(output(3));
    uint32_t mask = 0;
    for (uint32_t i = 0; i < 4; ++i) mask |= (has_output[i] ? 1U : 0U) << i;
    push_sizes(push, {count, c.packed<FoundState>().words, parts, part, total, item_extent(total), !sorted, mask});
    stream().dispatch(*c.packed<FoundState>().stages[stage], push.bytes(), groups_of);
  }
};

struct Suppression {
  static constexpr bool allocates = true;
  ops::SuppressionPlan plan;
  int64_t extent;                   // items (candidates) per class and image
  int64_t items, selected, counts;  // offsets in scratch memory, in bytes

  static Suppression bind(BindContext& c) {
    Suppression k{ops::SuppressionPlan::bind(c), 0, 0, 0, 0};
    const int64_t tasks = checked_mul(k.plan.batches, k.plan.classes);
    k.extent = item_extent(k.plan.boxes);
    count32(c.num_elements(0)), count32(c.num_elements(1));
    ops::ScratchLayout layout;
    k.items = layout.take(static_cast<size_t>(count32(checked_mul(tasks, k.extent))) * kItemBytes);
    k.selected = layout.take(static_cast<size_t>(tasks * k.plan.limit) * sizeof(uint32_t));
    k.counts = layout.take(static_cast<size_t>(tasks) * sizeof(uint32_t));
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<FoundState>();
    const int64_t tasks = plan.batches * plan.classes;
    int64_t total = 0;
    if (tasks > 0 && plan.limit > 0) {
      const auto site = state.fault("iou_threshold is not in [0, 1]");
      dispatch(c, *state.keys, site, nullptr, groups_over(count32(tasks * extent)));
      sort_items(ops::scratch_at(c, items), tasks, extent);
      dispatch(c, *state.counts, site, nullptr, groups_for(tasks));
      total = total_of(ops::scratch_at(c, counts), tasks);
    }
    const Tensor rows = c.allocate_output(0, Shape{total, 3});
    if (total > 0) dispatch(c, *state.places, {}, rows.raw(), groups_over(count32(tasks * plan.limit)));
  }

 private:
  void dispatch(RunContext& c, const vulkan::Shader& shader, const vulkan::VulkanStream::FaultSite& site, void* y,
                const std::array<uint32_t, 3>& groups) const {
    Push push;
    push.pointer(c.in<void>(0)).pointer(c.in<void>(1)).pointer(c.in<void>(3)).pointer(c.in<void>(4));
    push.pointer(ops::scratch_at(c, items)).pointer(ops::scratch_at(c, selected)).pointer(ops::scratch_at(c, counts)).pointer(y);
    push.fault(site);
    push_sizes(push, {plan.batches * plan.classes, plan.classes, plan.boxes, extent, plan.limit});
    for (const bool flag : {c.in<void>(3) != nullptr, c.in<void>(4) != nullptr, plan.center}) push.word(uint32_t{flag});
    push.word(site.number);
    stream().dispatch(shader, push.bytes(), groups);
  }
};

void set_words(FoundState& state, DType dtype) {
  state.word_bytes = static_cast<size_t>(std::min<int64_t>(ops::element_bytes(dtype), 4));
  state.words = ops::element_bytes(dtype) / static_cast<int64_t>(state.word_bytes);
}

/// @param float_bytes  value of the constant FLOATS in nonzero.comp
void find_marked_shaders(FoundState& state, size_t word_bytes, uint32_t float_bytes) {
  const uint32_t counts[] = {1, float_bytes}, places[] = {0, float_bytes};
  state.counts = find_moving_shader("nonzero", word_bytes, counts);
  state.places = find_moving_shader("nonzero", word_bytes, places);
}

DeviceKernel find_nonzero(const Graph& graph, const Node& node, std::shared_ptr<FoundState> state) {
  static const KernelDef kernel = treadle::kernel<NonZero>("gpu");
  const Type& x = graph.type(node.inputs[0]);
  if (!ops::has_plain_bytes(x.dtype) || x.shape->size() > size_t{Marked::kMostAxes} || bits_of(x.dtype) > 64) return {};
  set_words(*state, x.dtype);
  const bool is_float = x.dtype == DType::float16 || x.dtype == DType::bfloat16 || x.dtype == DType::float32 || x.dtype == DType::float64;
  if (!is_float && !is_integer(x.dtype) && x.dtype != DType::boolean) return {};
  find_marked_shaders(*state, state->word_bytes, is_float ? static_cast<uint32_t>(state->word_bytes) : 0);
  return {&kernel, std::move(state)};
}

DeviceKernel find_compress(const Graph& graph, const Node& node, std::shared_ptr<FoundState> state) {
  static const KernelDef kernel = treadle::kernel<Compress>("gpu");
  const DType dtype = graph.type(node.inputs[0]).dtype;
  if (!ops::has_plain_bytes(dtype)) return {};
  set_words(*state, dtype);
  find_marked_shaders(*state, 1, 0);  // conditions are booleans of one byte
  return {&kernel, std::move(state)};
}

DeviceKernel find_unique(const Graph& graph, const Node& node, std::shared_ptr<FoundState> state) {
  static const KernelDef kernel = treadle::kernel<Unique>("gpu");
  const Type& x = graph.type(node.inputs[0]);
  const bool is_row = !node.attributes.has("axis") || x.shape->size() == 1;
  if (!is_row || !ops::has_plain_bytes(x.dtype)) return {};
  const bool is_unsigned = x.dtype == DType::uint64;
  state->computed = is_unsigned ? x.dtype : compared_type(x.dtype);
  const uint32_t keys[] = {1, 0, is_unsigned};  // ascending order
  state->keys = find_shader("top_k", is_unsigned ? DType::int64 : state->computed, keys);
  if (!state->keys) return {};
  set_words(*state, x.dtype);
  for (uint32_t stage = 0; stage < 5; ++stage) state->stages[stage] = find_moving_shader("unique", state->word_bytes, std::span(&stage, 1));
  return {&kernel, std::move(state)};
}

}  // namespace

DeviceKernel find_found(const Graph& graph, const Node& node) {
  static const KernelDef suppression = kernel<Suppression>("gpu");
  auto state = std::make_shared<FoundState>();
  state->node = describe(node);
  if (node.is("NonZero", "")) return find_nonzero(graph, node, std::move(state));
  if (node.is("Compress", "")) return find_compress(graph, node, std::move(state));
  if (node.is("Unique", "")) return find_unique(graph, node, std::move(state));
  if (!node.is("NonMaxSuppression", "")) return {};
  const uint32_t stages[] = {0, 1, 2};
  state->keys = find_moving_shader("suppress", 4, std::span(stages).subspan(0, 1));
  state->counts = find_moving_shader("suppress", 4, std::span(stages).subspan(1, 1));
  state->places = find_moving_shader("suppress", 4, std::span(stages).subspan(2, 1));
  return {&suppression, std::move(state)};
}

}  // namespace treadle::gpu
