// Gather and scatter: along an axis, per element, and by index tuples. Negative indices count from the end; an index outside its axis is an
// error. Index is int32_t or int64_t.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "core/threads/thread_pool.h"
#include "kernels/strided_loop.h"
#include "treadle/error.h"

namespace treadle::kernels {

/// Converts a negative index to a nonnegative one. @throws Error(invalid_argument) if `index` is not in [-extent, extent).
inline int64_t checked_index(int64_t index, int64_t extent) {
  const int64_t at = index < 0 ? index + extent : index;
  if (at < 0 || at >= extent) {
    throw Error(ErrorCode::invalid_argument,
                "index " + std::to_string(index) + " is out of bounds for an axis of " + std::to_string(extent));
  }
  return at;
}

/// Checks all indices before they are used, so that the loops over them need no branches.
/// @throws Error(invalid_argument) as checked_index()
void check_indices(const int32_t* indices, int64_t n, int64_t extent);
void check_indices(const int64_t* indices, int64_t n, int64_t extent);

/// Computes items [begin, end) of gather() for blocks of single elements. Checks the indices once for all rows.
template <typename T, typename Index>
void gather_single(int64_t begin, int64_t end, int64_t extent, const T* src, const Index* indices, int64_t num_indices, T* dst) {
  check_indices(indices, num_indices, extent);
  while (begin < end) {
    const int64_t first = begin % num_indices, n = std::min(num_indices - first, end - begin);
    const T* row = src + begin / num_indices * extent;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t index = static_cast<int64_t>(indices[first + i]);
      dst[begin + i] = row[index < 0 ? index + extent : index];
    }
    begin += n;
  }
}

/// Computes Gather: dst[o, i, :] = src[o, indices[i], :]. @param inner_bytes  size of a block src[o, i, :]
template <typename Index>
void gather(int64_t outer, int64_t extent, int64_t inner_bytes, const void* src, const Index* indices, int64_t num_indices, void* dst,
            ThreadPool* pool) {
  if (inner_bytes <= 0) return;
  const auto* from = static_cast<const std::byte*>(src);
  auto* to = static_cast<std::byte*>(dst);
  const int64_t grain = inner_bytes >= 65536 ? 1 : 65536 / inner_bytes;
  parallel_for(pool, outer * num_indices, grain, [&](int64_t begin, int64_t end) {
    if (end - begin >= num_indices) {
      auto single = [&]<typename T>(T) {
        gather_single(begin, end, extent, static_cast<const T*>(src), indices, num_indices, static_cast<T*>(dst));
      };
      if (inner_bytes == 1) return single(uint8_t());
      if (inner_bytes == 2) return single(uint16_t());
      if (inner_bytes == 4) return single(uint32_t());
      if (inner_bytes == 8) return single(uint64_t());
    }
    for (int64_t item = begin; item < end; ++item) {
      const int64_t at = checked_index(static_cast<int64_t>(indices[item % num_indices]), extent);
      const std::byte* block = from + (item / num_indices * extent + at) * inner_bytes;
      std::memcpy(to + item * inner_bytes, block, static_cast<size_t>(inner_bytes));
    }
  });
}

/// The loop over the index array of GatherElements or ScatterElements. The loop's operand 0 is the data, with stride 0 along `axis`.
/// @param data_dims, index_dims  of equal rank; both arrays are contiguous
struct ElementsPlan {
  StridedLoop<1> loop;
  int64_t axis_extent = 0, axis_stride = 0;
};
ElementsPlan plan_elements(std::span<const int64_t> data_dims, std::span<const int64_t> index_dims, int64_t axis);

/// Computes GatherElements: dst[i] = src[p], where p is the position of i with its coordinate on the axis replaced by indices[i].
template <typename T, typename Index>
void gather_elements(const ElementsPlan& plan, const T* src, const Index* indices, T* dst, ThreadPool* pool) {
  parallel_for(pool, plan.loop.size, 8192, [&](int64_t begin, int64_t end) {
    const int64_t extent = plan.axis_extent, stride = plan.axis_stride, step = plan.loop.inner_stride(0);
    check_indices(indices + begin, end - begin, extent);
    for_each_run(plan.loop, begin, end, [&](int64_t first, int64_t n, const int64_t* at) {
      const T* row = src + at[0];
      const Index* where = indices + first;
      T* to = dst + first;
      auto place = [&](int64_t i) {
        const auto index = static_cast<int64_t>(where[i]);
        return index + (index >> 63 & extent);
      };
      if (stride == 1 && step == 0) {  // the axis is the last one
        for (int64_t i = 0; i < n; ++i) to[i] = row[place(i)];
      } else {
        for (int64_t i = 0; i < n; ++i, row += step) to[i] = row[place(i) * stride];
      }
    });
  });
}

/// Computes ScatterElements, after the data were copied to dst: dst[p] = reduce(dst[p], updates[i]), with p as in gather_elements(). Runs
/// in order on one thread, as positions may repeat.
template <typename T, typename Index, typename Reduce>
void scatter_elements(const ElementsPlan& plan, const T* updates, const Index* indices, T* dst, Reduce reduce) {
  for_each_run(plan.loop, 0, plan.loop.size, [&](int64_t first, int64_t n, const int64_t* at) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t index = checked_index(static_cast<int64_t>(indices[first + i]), plan.axis_extent);
      T& element = dst[at[0] + i * plan.loop.inner_stride(0) + index * plan.axis_stride];
      element = reduce(element, updates[first + i]);
    }
  });
}

/// The index tuples of GatherND and ScatterND: `tuples` per batch, each with `depth` indices for the first axes after the batch axes.
struct TuplePlan {
  int64_t batch = 1, tuples = 0;
  int depth = 0;
  int64_t extents[kMaxRank] = {}, strides[kMaxRank] = {};  ///< strides are counted in slices
  int64_t slices = 1;                                      ///< number of slices of one batch: product of extents
  int64_t slice = 1;                                       ///< number of elements of one slice
};
/// Plans the tuples. @param batch_dims  leading axes shared by data and indices (GatherND) @throws Error(invalid_argument) if tuples are
/// longer than the data's rank allows
TuplePlan plan_tuples(std::span<const int64_t> data_dims, std::span<const int64_t> index_dims, int64_t batch_dims);

template <typename Index>
int64_t slice_of(const TuplePlan& plan, const Index* tuple) {
  int64_t at = 0;
  for (int i = 0; i < plan.depth; ++i) at += checked_index(static_cast<int64_t>(tuple[i]), plan.extents[i]) * plan.strides[i];
  return at;
}

template <typename Index>
void gather_nd(const TuplePlan& plan, size_t element_bytes, const void* src, const Index* indices, void* dst, ThreadPool* pool) {
  const int64_t bytes = plan.slice * static_cast<int64_t>(element_bytes);
  if (bytes <= 0) return;
  const auto* from = static_cast<const std::byte*>(src);
  auto* to = static_cast<std::byte*>(dst);
  parallel_for(pool, plan.batch * plan.tuples, bytes >= 65536 ? 1 : 65536 / bytes, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t at = item / plan.tuples * plan.slices + slice_of(plan, indices + item * plan.depth);
      std::memcpy(to + item * bytes, from + at * bytes, static_cast<size_t>(bytes));
    }
  });
}

/// Computes ScatterND after the data were copied to dst: dst[s, :] = reduce(dst[s, :], updates[i, :]) for the slice s of tuple i. Runs in
/// order on one thread.
template <typename T, typename Index, typename Reduce>
void scatter_nd(const TuplePlan& plan, const T* updates, const Index* indices, T* dst, Reduce reduce) {
  for (int64_t item = 0; item < plan.batch * plan.tuples; ++item) {
    T* to = dst + (item / plan.tuples * plan.slices + slice_of(plan, indices + item * plan.depth)) * plan.slice;
    const T* from = updates + item * plan.slice;
    for (int64_t i = 0; i < plan.slice; ++i) to[i] = reduce(to[i], from[i]);
  }
}

}  // namespace treadle::kernels
