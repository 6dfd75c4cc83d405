// Computes ScatterElements, ScatterND and MaxUnpool. The tuples of indices are sorted by the slice that they refer to, so that updates of
// the same slice are applied in order.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/base/checked.h"
#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "gpu/sorting.h"
#include "ops/tensor/index_plans.h"
#include "ops/tensor/movement.h"

namespace treadle::gpu {
namespace {

constexpr int kMaxScatteredRank = 4;  // limit for the axes of positions and for the indices of a tuple

struct ScatterState final : FaultState {
  const vulkan::Shader *targets = nullptr, *writes = nullptr;
  int64_t element_bytes = 4;
  int64_t words = 1;  // words per element, for elements that are only copied
};

struct Scattering {
  int64_t size_bytes = 0;  // size of the data
  int64_t tuples = 0, slice = 1;
  int depth = 1;
  uint32_t index_words = 1;
  int64_t dims[kMaxScatteredRank] = {1, 1, 1, 1}, steps[kMaxScatteredRank] = {}, extents[kMaxScatteredRank] = {},
          strides[kMaxScatteredRank] = {};

  void run(RunContext& c) const {
    const auto& state = c.packed<ScatterState>();
    if (c.in<void>(0) != c.out<void>(0))
      stream().copy(c.out<void>(0), c.in<void>(0), static_cast<size_t>(size_bytes), CopyKind::device_to_device);
    if (tuples * slice == 0) return;
    sort_targets(c);
    Push write;
    write.pointer(c.out<void>(0)).pointer(c.in<void>(2)).pointer(c.scratch<void>());
    write.word(static_cast<uint32_t>(tuples)).word(static_cast<uint32_t>(slice * state.words));
    stream().dispatch(*state.writes, write.bytes(), groups_over(count32(tuples * slice * state.words)));
  }

 protected:
  // Makes an item for each tuple of indices, and sorts the items by the slice that the tuple refers to.
  vulkan::VulkanStream::FaultSite sort_targets(RunContext& c) const {
    const auto& state = c.packed<ScatterState>();
    const auto site = state.fault("an index is outside of its axis");
    const int64_t items = item_extent(tuples);
    Push push;
    push.pointer(c.scratch<void>()).pointer(c.in<void>(1)).fault(site);
    push_sizes(push, {tuples, items, depth, index_words, site.number});
    for (const auto* values : {&dims, &steps, &extents, &strides})
      for (const int64_t value : *values) push.word(static_cast<uint32_t>(value));
    stream().dispatch(*state.targets, push.bytes(), groups_over(count32(items)));
    sort_items(c.scratch<void>(), 1, items);
    return site;
  }
  void settle(BindContext& c) {
    const auto& state = c.packed<ScatterState>();
    size_bytes = c.num_elements(0) * state.element_bytes;
    index_words = c.dtype(1) == DType::int64 ? 2U : 1U;
    count32(c.num_elements(0) * state.words), count32(c.num_elements(2) * state.words);
    c.request_scratch(static_cast<size_t>(count32(item_extent(tuples))) * kItemBytes);
  }
};

struct ScatterElements : Scattering {
  static ScatterElements bind(BindContext& c) {
    const kernels::ElementsPlan plan = ops::bind_scatter_elements(c);
    ScatterElements k;
    k.tuples = c.num_elements(1);
    k.extents[0] = plan.axis_extent, k.strides[0] = plan.axis_stride;
    const int missing = kMaxScatteredRank - plan.loop.rank;
    if (missing < 0) throw Error(ErrorCode::not_implemented, fmt::format("ScatterElements of {} dimensions, on the GPU", plan.loop.rank));
    for (int i = 0; i < plan.loop.rank; ++i) k.dims[missing + i] = plan.loop.dims[i], k.steps[missing + i] = plan.loop.strides[0][i];
    k.settle(c);
    return k;
  }
};

struct ScatterNd : Scattering {
  static ScatterNd bind(BindContext& c) {
    const kernels::TuplePlan plan = ops::bind_scatter_nd(c);
    ScatterNd k;
    k.tuples = plan.tuples, k.slice = plan.slice, k.depth = plan.depth;
    k.dims[kMaxScatteredRank - 1] = std::max<int64_t>(plan.tuples, 1);
    for (int i = 0; i < plan.depth; ++i) k.extents[i] = plan.extents[i], k.strides[i] = plan.strides[i];
    k.settle(c);
    return k;
  }
};

struct MaxUnpool : Scattering {
  static MaxUnpool bind(BindContext& c) {
    if (!(c.shape(1) == c.shape(0)))
      throw Error(ErrorCode::invalid_argument, fmt::format("I is {}, X is {}", to_string(c.shape(1)), to_string(c.shape(0))));
    MaxUnpool k;
    k.tuples = c.num_elements(0);
    k.index_words = 2;
    k.dims[kMaxScatteredRank - 1] = std::max<int64_t>(k.tuples, 1);
    k.extents[0] = c.output_shape(0).num_elements(), k.strides[0] = 1;
    k.count = count32(k.extents[0] * c.packed<ScatterState>().words);
    c.request_scratch(static_cast<size_t>(count32(item_extent(k.tuples))) * kItemBytes);
    return k;
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<ScatterState>();
    const vulkan::VulkanStream::FaultSite site = sort_targets(c);
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0)).pointer(c.scratch<void>()).pointer(c.in<void>(1));
    push.fault(site);
    push_sizes(push, {count, state.words, tuples, site.number});
    stream().dispatch(*state.writes, push.bytes(), groups_over(count32(count)));
  }

 private:
  int64_t count = 0;  // number of words of the output
};

DeviceKernel find_max_unpool(const Graph& graph, const Node& node, std::shared_ptr<ScatterState> state) {
  static const KernelDef kernel = treadle::kernel<MaxUnpool>("gpu");
  const DType dtype = graph.type(node.inputs[0]).dtype;
  const int64_t bytes = ops::element_bytes(dtype), word = std::min<int64_t>(bytes, 4);
  state->words = bytes / word;
  state->targets = find_moving_shader("scatter_targets", 4);
  state->writes = find_moving_shader("unpool", static_cast<size_t>(word));
  return {&kernel, std::move(state)};
}

}  // namespace

DeviceKernel find_scatter(const Graph& graph, const Node& node) {
  static const KernelDef by_element = kernel<ScatterElements>("gpu"), by_tuple = kernel<ScatterNd>("gpu");
  auto state = std::make_shared<ScatterState>();
  state->node = describe(node);
  if (node.is("MaxUnpool", "")) return find_max_unpool(graph, node, std::move(state));
  const bool elements = node.is("ScatterElements", "");
  if (!elements && !node.is("ScatterND", "")) return {};
  const Type &data = graph.type(node.inputs[0]), &indices = graph.type(node.inputs[1]);
  if (!ops::has_plain_bytes(data.dtype) || (indices.dtype != DType::int32 && indices.dtype != DType::int64)) return {};
  if (elements && data.shape->size() > size_t{kMaxScatteredRank}) return {};
  if (!elements && (indices.shape->empty() || !indices.shape->back().is_const() || indices.shape->back().value() > kMaxScatteredRank))
    return {};
  state->element_bytes = ops::element_bytes(data.dtype);
  state->targets = find_moving_shader("scatter_targets", 4);
  if (const auto reduction = ops::scatter_reduction(node.attributes); reduction != ops::ScatterReduction::none) {
    const uint32_t constants[] = {static_cast<uint32_t>(reduction)};
    state->writes = find_shader("scatter_reduce", data.dtype, constants);
  } else {
    const int64_t word = std::min<int64_t>(state->element_bytes, 4);
    state->words = state->element_bytes / word;
    state->writes = find_moving_shader("scatter", static_cast<size_t>(word));
  }
  if (!state->writes) return {};
  return {elements ? &by_element : &by_tuple, std::move(state)};
}

}  // namespace treadle::gpu
