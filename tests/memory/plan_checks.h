// Checks that the tests of both planners share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "treadle/memory.h"

namespace treadle::memory {

inline bool alive_together(const Buffer& a, const Buffer& b) { return a.first < b.last && b.first < a.last; }

// Checks every pair of buffers, without the planner's data structures.
inline void expect_valid(std::span<const Buffer> buffers, const ArenaPlan& plan, size_t alignment) {
  ASSERT_EQ(plan.offsets.size(), buffers.size());
  EXPECT_GE(plan.size_bytes, plan.lower_bound_bytes);
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].fixed_offset != Buffer::kAnywhere)
      ASSERT_EQ(plan.offsets[i], buffers[i].fixed_offset);
    else
      ASSERT_EQ(plan.offsets[i] % alignment, 0U);
    ASSERT_LE(plan.offsets[i] + buffers[i].size_bytes, plan.size_bytes);
    for (size_t j = 0; j < i; ++j) {
      if (!alive_together(buffers[i], buffers[j])) continue;
      bool apart = plan.offsets[i] + buffers[i].size_bytes <= plan.offsets[j] || plan.offsets[j] + buffers[j].size_bytes <= plan.offsets[i];
      ASSERT_TRUE(apart) << "buffers " << i << " and " << j << " share bytes";
    }
  }
}

// Finds the smallest arena by trying all orders. Placing buffers at the lowest free offset, in the order of an optimal plan's offsets, is
// optimal.
inline size_t optimum_by_search(std::span<const Buffer> buffers) {
  std::vector<size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), size_t{0});
  size_t best = std::numeric_limits<size_t>::max();
  do {
    std::vector<std::pair<size_t, size_t>> placed;  // pairs of offset and index
    size_t height = 0;
    for (size_t index : order) {
      size_t offset = 0;
      std::sort(placed.begin(), placed.end());
      for (auto [other_offset, other] : placed) {
        if (!alive_together(buffers[index], buffers[other])) continue;
        if (other_offset >= offset + buffers[index].size_bytes) break;
        offset = std::max(offset, other_offset + buffers[other].size_bytes);
      }
      placed.emplace_back(offset, index);
      height = std::max(height, offset + buffers[index].size_bytes);
    }
    best = std::min(best, height);
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

}  // namespace treadle::memory
