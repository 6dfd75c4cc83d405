// Computes GatherGradRows: sorts the indices together with their positions, and sums the rows of dY that have the same index, in order.
#include <fmt/format.h>

#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "gpu/sorting.h"
#include "ops/tensor/gather.h"
#include "ops/widen.h"

namespace treadle::gpu {
namespace {

struct RowsState final : FaultState {
  const vulkan::Shader *targets = nullptr, *finds = nullptr, *sums = nullptr;
};

struct GatheredRows : ops::GatheredRowsPlan {
  int64_t items, firsts;  // offsets in scratch memory, in bytes

  static GatheredRows bind(BindContext& c) {
    GatheredRows k{GatheredRowsPlan::bind(c), 0, 0};
    count32(c.num_elements(0)), count32(c.output_shape(0).num_elements()), count32(k.extent);
    ops::ScratchLayout layout;
    k.items = layout.take(static_cast<size_t>(count32(item_extent(k.count))) * kItemBytes);
    k.firsts = layout.take(static_cast<size_t>(k.room + 2) * sizeof(uint32_t));
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<RowsState>();
    void* const sorted = ops::scratch_at(c, items);
    make_items(c, state, sorted);
    sort_items(sorted, 1, item_extent(count));
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0)).pointer(c.out<void>(1)).pointer(sorted).pointer(ops::scratch_at(c, firsts));
    push_sizes(push, {count, room, inner});
    stream().dispatch(*state.finds, push.bytes(), groups_for(1));
    stream().dispatch(*state.sums, push.bytes(), groups_over(count32(room * inner)));
  }

 private:
  // Makes the items that are then sorted. The shader scatter_targets.comp works on tuples of indices; here a tuple has one index.
  void make_items(RunContext& c, const RowsState& state, void* sorted) const {
    const auto site = state.fault(fmt::format("an index is outside of the axis, which has {} elements", extent));
    Push push;
    push.pointer(sorted).pointer(c.in<void>(1)).fault(site);
    push_sizes(push, {count, item_extent(count), 1, wide_index ? 2 : 1, site.number});
    push_sizes(push, {1, 1, 1, std::max<int64_t>(count, 1)});
    for (int i = 0; i < 4; ++i) push.word(uint32_t{0});  // tuples start at slice 0
    for (const int64_t first : {extent, int64_t{1}}) {   // first the extents, then the strides
      push.word(static_cast<uint32_t>(first));
      for (int i = 1; i < 4; ++i) push.word(uint32_t{0});
    }
    stream().dispatch(*state.targets, push.bytes(), groups_over(count32(item_extent(count))));
  }
};

}  // namespace

DeviceKernel find_gathered_rows(const Graph& graph, const Node& node) {
  static const KernelDef kernel = treadle::kernel<GatheredRows>("gpu");
  if (!node.is("GatherGradRows", "treadle") || !node.has_output(1) || graph.type(node.inputs[0]).dtype != DType::float32) return {};
  const uint32_t no[] = {0}, yes[] = {1};
  auto state = std::make_shared<RowsState>();
  state->targets = find_moving_shader("scatter_targets", 4);
  state->finds = find_moving_shader("gathered_rows", 4, no);
  state->sums = find_moving_shader("gathered_rows", 4, yes);
  state->node = describe(node);
  return {&kernel, std::move(state)};
}

}  // namespace treadle::gpu
