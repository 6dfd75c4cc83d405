#include "exec/plan/offset_plan.h"

#include <utility>
#include <vector>

#include "core/base/checked.h"
#include "exec/program/parallel_plan.h"
#include "memory/planner.h"
#include "treadle/error.h"

namespace treadle::exec {
namespace {

int64_t bucket_of(int64_t extent) {
  if (extent <= 16) return extent;
  int64_t step = 1;
  while (step * 16 < extent) step *= 2;
  return (extent + step - 1) / step * step;
}

// Returns the maximum number of steps of the exact search, which runs if greedy plans miss the lower bound (rare). Steps are limited, not
// time, so that the same extents always get the same plan. Programs with many buffers get greedy plans only, to load fast.
int64_t search_steps(size_t num_buffers) { return num_buffers <= 400 ? 2 * static_cast<int64_t>(num_buffers) : 0; }
constexpr double kNoLimitSeconds = 1e6;

}  // namespace

size_t bytes_for(const Program& program, SlotId slot, std::span<const int64_t> values) {
  int64_t elements = 1;
  for (const Dim& dim : *program.type(slot).shape) elements = checked_mul(elements, std::max<int64_t>(0, treadle::evaluate(dim, values)));
  return size_bytes(program.slots()[slot].dtype, elements);
}

IdVector<BufferId, size_t> bucketed_sizes(const Program& program, const IdVector<BufferId, size_t>& sizes,
                                          const std::vector<int64_t>& values) {
  std::vector<int64_t> upper = values;
  for (int32_t symbol : program.extents().symbols) upper[static_cast<size_t>(symbol)] = bucket_of(upper[static_cast<size_t>(symbol)]);
  try {
    program.extents().code.run(upper);
  } catch (const Error&) {
    upper = values;  // the rounded extents do not broadcast, so use the exact ones
  }
  IdVector<BufferId, size_t> bounds = sizes;
  for (BufferId b : bounds.ids()) {
    const SlotId slot = program.buffers()[b].slot;
    if (slot == kNoSlot)
      bounds[b] += bounds[b] / 8;  // scratch sizes for rounded extents are unknown here
    else
      bounds[b] = std::max(bounds[b], bytes_for(program, slot, upper));
  }
  return bounds;
}

void add_offsets(const Program& program, OffsetPlan& plan) {
  if (const ParallelPlan* parallel = program.parallel()) {
    memory::ArenaPlan arena = memory::plan_arena(
        plan.sizes, [&](size_t a, size_t b) { return parallel->conflict(id_at<BufferId>(a), id_at<BufferId>(b)); }, Storage::kAlignment);
    plan.offsets = IdVector<BufferId, size_t>(std::move(arena.offsets));
    plan.arena_bytes = arena.size_bytes;
    plan.lower_bound_bytes = arena.lower_bound_bytes;
    return;
  }
  std::vector<memory::Buffer> buffers;
  buffers.reserve(plan.sizes.size());
  for (BufferId b : plan.sizes.ids()) {
    const BufferInfo& info = program.buffers()[b];
    buffers.push_back({plan.sizes[b], static_cast<int32_t>(info.first), static_cast<int32_t>(info.last) + 1});
  }
  memory::ArenaPlan arena = memory::plan_arena_exactly(
      buffers, {.alignment = Storage::kAlignment, .time_limit_seconds = kNoLimitSeconds, .max_steps = search_steps(buffers.size())});
  plan.offsets = IdVector<BufferId, size_t>(std::move(arena.offsets));
  plan.arena_bytes = arena.size_bytes;
  plan.lower_bound_bytes = arena.lower_bound_bytes;
}

}  // namespace treadle::exec
