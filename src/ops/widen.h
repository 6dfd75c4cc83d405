// Lets kernels compute 16-bit floats in float: operands are widened into scratch memory, and results narrowed from it. float32 and float64
// are used in place, so that one kernel template serves all four types.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/threads/thread_pool.h"
#include "core/values/float_types.h"
#include "graph/kernel.h"

namespace treadle::ops {

/// Lays out the scratch memory of a kernel. Every part starts on a cache line.
class ScratchLayout {
 public:
  /// Reserves a part of the given size. Returns its offset in bytes.
  int64_t take(size_t bytes) {
    const size_t at = total_;
    total_ += (bytes + 63) & ~size_t{63};
    return static_cast<int64_t>(at);
  }
  size_t total() const { return total_; }

 private:
  size_t total_ = 0;
};

/// The number of elements of an operand, and the offset in bytes of its widened copy in scratch.
struct Wide {
  int64_t offset = 0, count = 0;
};

template <typename T>
inline constexpr bool computes_in_itself = std::is_same_v<T, compute_type_t<T>>;

template <typename T>
Wide reserve_wide(ScratchLayout& layout, int64_t count) {
  return {computes_in_itself<T> ? 0 : layout.take(static_cast<size_t>(count) * sizeof(compute_type_t<T>)), count};
}

inline std::byte* scratch_at(RunContext& c, int64_t offset) { return c.scratch<std::byte>() + offset; }

inline constexpr int64_t kConvertGrain = 16 * 1024;

template <typename From, typename To>
void convert_array(const From* src, To* dst, int64_t n, ThreadPool* pool) {
  parallel_for(pool, n, kConvertGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) dst[i] = static_cast<To>(src[i]);
  });
}

/// Returns an operand in the type in which the kernel computes. Null stays null.
template <typename T>
const compute_type_t<T>* widen(RunContext& c, const T* src, const Wide& wide) {
  if constexpr (computes_in_itself<T>) {
    return src;
  } else {
    if (src == nullptr) return nullptr;
    auto* dst = reinterpret_cast<compute_type_t<T>*>(scratch_at(c, wide.offset));
    convert_array(src, dst, wide.count, c.pool());
    return dst;
  }
}

/// Returns the memory in which to compute an output: the output itself or, if the result must be narrowed, scratch. Null stays null.
template <typename T>
compute_type_t<T>* wide_output(RunContext& c, T* dst, const Wide& wide) {
  if constexpr (computes_in_itself<T>)
    return dst;
  else
    return dst == nullptr ? nullptr : reinterpret_cast<compute_type_t<T>*>(scratch_at(c, wide.offset));
}

/// Narrows to `dst` an output that was computed in the memory of wide_output().
template <typename T>
void narrow(RunContext& c, const Wide& wide, T* dst) {
  if constexpr (!computes_in_itself<T>) {
    if (dst == nullptr) return;
    convert_array(reinterpret_cast<const compute_type_t<T>*>(scratch_at(c, wide.offset)), dst, wide.count, c.pool());
  }
}

}  // namespace treadle::ops
