// A loop over an index space that several arrays walk with strides of their own: broadcasts, transpositions, slices. The space is
// collapsed once, at bind, to as few dimensions as its strides allow; the plan is plain data, and running it allocates nothing.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "treadle/error.h"
#include "treadle/shape.h"

namespace treadle::kernels {

/// Twice the rank of a tensor, as Tile needs (repeat and extent of each axis).
inline constexpr int kMaxLoopRank = 2 * kMaxRank;

template <int kOperands>
struct StridedLoop {
  int rank = 0;  ///< at least 1 once collapsed
  int64_t size = 0;
  int64_t dims[kMaxLoopRank] = {};                ///< outermost first
  int64_t strides[kOperands][kMaxLoopRank] = {};  ///< in elements; 0 repeats, negative walks backwards

  int64_t inner() const { return dims[rank - 1]; }
  int64_t inner_stride(int operand) const { return strides[operand][rank - 1]; }
};

/// Drops extents of 1 and merges neighbours that every operand walks as one.
/// @param dims     extents, outermost first, at most kMaxLoopRank
/// @param strides  per operand, as many as there are extents
template <int kOperands>
StridedLoop<kOperands> collapse(std::span<const int64_t> dims, const std::array<std::span<const int64_t>, kOperands>& strides) {
  StridedLoop<kOperands> loop;
  if (std::find(dims.begin(), dims.end(), 0) != dims.end()) {  // the others may be huge, as Tile's repeats of nothing
    loop.rank = 1;
    return loop;
  }
  loop.size = 1;
  for (size_t i = 0; i < dims.size(); ++i) {
    loop.size *= dims[i];
    if (dims[i] == 1) continue;
    const int last = loop.rank - 1;
    bool merges = last >= 0;
    for (int o = 0; merges && o < kOperands; ++o) merges = loop.strides[o][last] == strides[static_cast<size_t>(o)][i] * dims[i];
    if (!merges && loop.rank == kMaxLoopRank)
      throw Error(ErrorCode::not_implemented, "a loop over more than " + std::to_string(kMaxLoopRank) + " dimensions");
    const int at = merges ? last : loop.rank++;
    loop.dims[at] = merges ? loop.dims[at] * dims[i] : dims[i];
    for (int o = 0; o < kOperands; ++o) loop.strides[o][at] = strides[static_cast<size_t>(o)][i];
  }
  if (loop.rank == 0) {
    loop.rank = 1;
    loop.dims[0] = loop.size;
    for (int o = 0; o < kOperands; ++o) loop.strides[o][0] = 1;  // one element: as contiguous as anything
  }
  return loop;
}

/// Calls fn(first, n, offsets) for each piece of an innermost run inside elements [begin, end): `first` is the number of the first
/// element in row-major order, offsets[o] its place in operand o; the following n - 1 are inner strides apart.
template <int kOperands, typename Fn>
inline void for_each_run(const StridedLoop<kOperands>& loop, int64_t begin, int64_t end, Fn&& fn) {
  if (begin >= end) return;
  int64_t index[kMaxLoopRank], offsets[kOperands] = {};
  int64_t rest = begin;
  for (int i = loop.rank - 1; i >= 0; --i) {
    index[i] = rest % loop.dims[i];
    rest /= loop.dims[i];
    for (int o = 0; o < kOperands; ++o) offsets[o] += index[i] * loop.strides[o][i];
  }
  const int last = loop.rank - 1;
  while (begin < end) {
    const int64_t n = std::min(loop.dims[last] - index[last], end - begin);
    fn(begin, n, offsets);
    begin += n;
    // To the start of the next run; only the first run can start in the middle.
    for (int o = 0; o < kOperands; ++o) offsets[o] -= index[last] * loop.strides[o][last];
    index[last] = 0;
    for (int i = last - 1; i >= 0; --i) {
      for (int o = 0; o < kOperands; ++o) offsets[o] += loop.strides[o][i];
      if (++index[i] < loop.dims[i]) break;
      for (int o = 0; o < kOperands; ++o) offsets[o] -= loop.dims[i] * loop.strides[o][i];
      index[i] = 0;
    }
  }
}

}  // namespace treadle::kernels
