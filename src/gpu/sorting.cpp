#include "gpu/sorting.h"

#include "gpu/launch.h"
#include "gpu/shaders.h"

namespace treadle::gpu {
namespace {

constexpr int64_t kSortedTogether = 512;  // number of items that a work group sorts in its shared memory

const vulkan::Shader& sort_shader(bool local) {
  const uint32_t constants[] = {uint32_t{local}};
  return *find_moving_shader("sort", 4, constants);
}

}  // namespace

void sort_items(void* items, int64_t rows, int64_t extent) {
  const int64_t count = rows * extent;
  if (extent < 2 || count == 0) return;
  const auto dispatch = [&](bool local, int64_t first, int64_t last, int64_t reach) {
    static const vulkan::Shader *const in_groups = &sort_shader(true), *const in_pairs = &sort_shader(false);
    Push push;
    push.pointer(items);
    push_sizes(push, {count, extent, first, last, reach});
    stream().dispatch(local ? *in_groups : *in_pairs, push.bytes(),
                      local ? groups_for((count + kSortedTogether - 1) / kSortedTogether) : groups_over(count32(count / 2)));
  };
  count32(count);
  dispatch(true, 2, std::min(extent, kSortedTogether), 0);
  for (int64_t run = 2 * kSortedTogether; run <= extent; run *= 2) {
    for (int64_t reach = run / 2; reach >= kSortedTogether; reach /= 2) dispatch(false, run, run, reach);
    dispatch(true, run, run, 0);
  }
}

}  // namespace treadle::gpu
