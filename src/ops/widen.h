// 16-bit floats for kernels that compute in float: operands are widened into scratch, results narrowed from it. Types that compute in
// themselves pass through untouched, so that one template serves all four float types.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/float_types.h"
#include "core/thread_pool.h"
#include "graph/kernel.h"

namespace treadle::ops {

/// Lays out the scratch of one kernel; every piece starts on a cache line.
class ScratchLayout {
 public:
  /// Offset in bytes of a new piece.
  int64_t take(size_t bytes) {
    const size_t at = total_;
    total_ += (bytes + 63) & ~size_t{63};
    return static_cast<int64_t>(at);
  }
  size_t total() const { return total_; }

 private:
  size_t total_ = 0;
};

/// An operand of `count` elements and where its widened form lies.
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

/// The operand as the type it is computed in; null stays null.
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

/// Where to compute an output: the output itself, or its widened form; null stays null.
template <typename T>
compute_type_t<T>* wide_output(RunContext& c, T* dst, const Wide& wide) {
  if constexpr (computes_in_itself<T>)
    return dst;
  else
    return dst == nullptr ? nullptr : reinterpret_cast<compute_type_t<T>*>(scratch_at(c, wide.offset));
}

/// Completes what wide_output began.
template <typename T>
void narrow(RunContext& c, const Wide& wide, T* dst) {
  if constexpr (!computes_in_itself<T>) {
    if (dst == nullptr) return;
    convert_array(reinterpret_cast<const compute_type_t<T>*>(scratch_at(c, wide.offset)), dst, wide.count, c.pool());
  }
}

}  // namespace treadle::ops
