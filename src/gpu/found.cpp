// Computes NonZero and NonMaxSuppression: the host reads how many elements were found, and then allocates the output.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/base/checked.h"
#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "gpu/sorting.h"
#include "ops/object_detection/suppression.h"
#include "ops/tensor/movement.h"
#include "ops/widen.h"

namespace treadle::gpu {
namespace {

struct FoundState final : PackedState {
  const vulkan::Shader *keys = nullptr, *counts = nullptr, *places = nullptr;
  int64_t words = 1;  // number of words of an element
  std::string node;   // the node's name, for errors
};

/// Waits for the stream and returns the sum of counts in the device's memory.
int64_t total_of(const void* counts, int64_t num_counts) {
  std::vector<uint32_t> read(static_cast<size_t>(num_counts));
  stream().copy(read.data(), counts, read.size() * sizeof(uint32_t), CopyKind::device_to_host);
  stream().synchronize();
  return std::accumulate(read.begin(), read.end(), int64_t{0});
}

struct NonZero {
  static constexpr bool allocates = true;
  static constexpr int kMostAxes = 8;  // as in nonzero.comp
  int64_t count, parts, part;
  int rank;
  int64_t dims[kMostAxes];

  static NonZero bind(BindContext& c) {
    constexpr int64_t kMostParts = 1024, kGroup = 256;
    NonZero k{c.num_elements(0), 0, 0, c.shape(0).rank(), {}};
    count32(k.count * c.packed<FoundState>().words);
    k.part = (k.count / kMostParts / kGroup + 1) * kGroup;
    k.parts = (k.count + k.part - 1) / k.part;
    std::copy_n(c.shape(0).dims().begin(), k.rank, k.dims);
    c.request_scratch(static_cast<size_t>(std::max<int64_t>(k.parts, 1)) * sizeof(uint32_t));
    return k;
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<FoundState>();
    dispatch(c, *state.counts, nullptr, 0);
    const int64_t total = parts > 0 ? total_of(c.scratch<void>(), parts) : 0;
    const Tensor places = c.allocate_output(0, Shape{rank, total});
    if (total > 0 && rank > 0) dispatch(c, *state.places, places.raw(), total);
  }

 private:
  void dispatch(RunContext& c, const vulkan::Shader& shader, void* y, int64_t total) const {
    Push push;
    push.pointer(c.in<void>(0)).pointer(c.scratch<void>()).pointer(y);
    for (const int64_t value : {count, c.packed<FoundState>().words, parts, part, int64_t{rank}, total})
      push.word(static_cast<uint32_t>(value));
    for (const int64_t extent : dims) push.word(static_cast<uint32_t>(extent));
    stream().dispatch(shader, push.bytes(), groups_for(parts));
  }
};

struct Suppression {
  static constexpr bool allocates = true;
  ops::SuppressionPlan plan;
  int64_t extent;                   // number of items for a class of an image
  int64_t items, selected, counts;  // offsets in the scratch

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
      const vulkan::VulkanStream::FaultSite site = stream().fault_site(fmt::format("{}: iou_threshold is not in [0, 1]", state.node));
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
    push.pointer(reinterpret_cast<const void*>(site.address));
    for (const int64_t value : {plan.batches * plan.classes, plan.classes, plan.boxes, extent, plan.limit})
      push.word(static_cast<uint32_t>(value));
    for (const bool flag : {c.in<void>(3) != nullptr, c.in<void>(4) != nullptr, plan.center}) push.word(uint32_t{flag});
    push.word(site.number);
    stream().dispatch(shader, push.bytes(), groups);
  }
};

DeviceKernel find_nonzero(const Graph& graph, const Node& node, std::shared_ptr<FoundState> state) {
  static const KernelDef kernel = treadle::kernel<NonZero>("gpu");
  const Type& x = graph.type(node.inputs[0]);
  if (!ops::has_plain_bytes(x.dtype) || x.shape->size() > size_t{NonZero::kMostAxes} || bits_of(x.dtype) > 64) return {};
  const int64_t bytes = ops::element_bytes(x.dtype), word = std::min<int64_t>(bytes, 4);
  state->words = bytes / word;
  const bool is_float = x.dtype == DType::float16 || x.dtype == DType::bfloat16 || x.dtype == DType::float32 || x.dtype == DType::float64;
  if (!is_float && !is_integer(x.dtype) && x.dtype != DType::boolean) return {};
  const uint32_t float_bytes = is_float ? static_cast<uint32_t>(word) : 0;
  const uint32_t counts[] = {1, float_bytes}, places[] = {0, float_bytes};
  state->counts = find_moving_shader("nonzero", static_cast<size_t>(word), counts);
  state->places = find_moving_shader("nonzero", static_cast<size_t>(word), places);
  return {&kernel, std::move(state)};
}

}  // namespace

DeviceKernel find_found(const Graph& graph, const Node& node) {
  static const KernelDef suppression = kernel<Suppression>("gpu");
  auto state = std::make_shared<FoundState>();
  state->node = fmt::format("{} node \"{}\"", node.op_type, node.name);
  if (node.is("NonZero", "")) return find_nonzero(graph, node, std::move(state));
  if (!node.is("NonMaxSuppression", "")) return {};
  const uint32_t stages[] = {0, 1, 2};
  state->keys = find_moving_shader("suppress", 4, std::span(stages).subspan(0, 1));
  state->counts = find_moving_shader("suppress", 4, std::span(stages).subspan(1, 1));
  state->places = find_moving_shader("suppress", 4, std::span(stages).subspan(2, 1));
  return {&suppression, std::move(state)};
}

}  // namespace treadle::gpu
