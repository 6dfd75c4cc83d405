// A loop over an index space that several arrays traverse with different strides, for broadcasting, transposition and slicing. Planning
// merges dimensions where the strides allow it. The plan is plain data, and running it allocates no memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "treadle/error.h"
#include "treadle/shape.h"

namespace treadle::kernels {

/// The maximum rank: twice that of a tensor, as Tile needs two dimensions per axis (repeat and extent).
inline constexpr int kMaxLoopRank = 2 * kMaxRank;

template <int kOperands>
struct StridedLoop {
  int rank = 0;  ///< number of dimensions after merging, at least 1
  int64_t size = 0;
  int64_t dims[kMaxLoopRank] = {};                ///< extents, outermost first
  int64_t strides[kOperands][kMaxLoopRank] = {};  ///< strides in elements; 0 repeats an element, a negative stride goes backwards

  int64_t inner() const { return dims[rank - 1]; }
  int64_t inner_stride(int operand) const { return strides[operand][rank - 1]; }
};

/// Plans a loop: drops dimensions of extent 1 and merges adjacent dimensions that are contiguous for every operand.
/// @param dims     extents, outermost first, at most kMaxLoopRank
/// @param strides  for each operand, one stride per dimension
template <int kOperands>
StridedLoop<kOperands> collapse(std::span<const int64_t> dims, const std::array<std::span<const int64_t>, kOperands>& strides) {
  StridedLoop<kOperands> loop;
  // This case comes first, as the product of the other extents might overflow, for example with Tile's repeats.
  if (std::find(dims.begin(), dims.end(), 0) != dims.end()) {
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
    for (int o = 0; o < kOperands; ++o) loop.strides[o][0] = 1;  // a single element counts as contiguous
  }
  return loop;
}

/// Calls fn(first, n, offsets) for each run along the innermost dimension within elements [begin, end): `first` is the row-major index of
/// the run's first element, and offsets[o] its offset in operand o. The other n - 1 elements follow at the inner strides.
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
    // Advances to the start of the next run. Only the first run may start in the middle of the dimension.
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

/// Returns the loop for one operand alone, which may need fewer dimensions than the loop for all operands.
template <int kOperands>
StridedLoop<1> loop_of(const StridedLoop<kOperands>& loop, int operand) {
  const auto rank = static_cast<size_t>(loop.rank);
  return collapse<1>(std::span(loop.dims, rank), {std::span(loop.strides[operand], rank)});
}

/// Innermost runs below this length take longer to set up than to process.
inline constexpr int64_t kShortRun = 16;

/// Copies elements [begin, end) of a strided operand to contiguous memory. Meant for short runs.
template <typename T, typename U>
void gather_elements(const StridedLoop<1>& loop, int64_t begin, int64_t end, const T* src, U* dst) {
  const int64_t length = loop.inner(), stride = loop.inner_stride(0);
  U* const last = dst + (end - begin);
  const auto copy = [&](const T* from, int64_t n) {
    // Writes kShortRun elements, as a constant count takes only a few vectors; the next run overwrites the excess elements.
    if (stride == 0 && n <= kShortRun && last - dst >= kShortRun) {
      const U value = static_cast<U>(*from);
      for (int64_t i = 0; i < kShortRun; ++i) dst[i] = value;
      dst += n;
      return;
    }
    for (int64_t i = 0; i < n; ++i) *dst++ = static_cast<U>(from[i * stride]);
  };
  if (loop.rank > 2) return for_each_run(loop, begin, end, [&](int64_t, int64_t n, const int64_t* at) { copy(src + at[0], n); });
  const int64_t row_stride = loop.rank == 2 ? loop.strides[0][0] : 0;
  int64_t row = begin / length, at = begin % length;
  for (; begin < end; ++row, at = 0) {
    const int64_t n = std::min(length - at, end - begin);
    copy(src + row * row_stride + at * stride, n);
    begin += n;
  }
}

}  // namespace treadle::kernels
