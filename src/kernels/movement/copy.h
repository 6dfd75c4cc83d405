// Strided copies of elements of 1, 2, 4, 8 or 16 bytes: transpose, slice, tile, expand, concatenate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/threads/thread_pool.h"
#include "kernels/strided_loop.h"

namespace treadle::kernels {

/// The plan of a copy: a loop whose operand 0 is the source and operand 1 the destination.
using CopyPlan = StridedLoop<2>;

/// @param dims         extents of the copied index space
/// @param src_strides  in elements; 0 repeats (expand, tile), negative goes backwards (slice)
/// @param dst_strides  in elements
CopyPlan plan_copy(std::span<const int64_t> dims, std::span<const int64_t> src_strides, std::span<const int64_t> dst_strides);

/// Transposes a contiguous array with extents `dims` to a contiguous array whose axis i is the source's axis perm[i].
CopyPlan plan_transpose(std::span<const int64_t> dims, std::span<const int64_t> perm);

/// Broadcasts a contiguous array with extents `in` to a contiguous array with extents `out`, by NumPy's rules.
/// @throws Error(invalid_argument) if `in` does not broadcast to `out`
CopyPlan plan_expand(std::span<const int64_t> in, std::span<const int64_t> out);

/// Repeats a contiguous array with extents `dims` to a contiguous array that is repeats[i] times as long along axis i.
CopyPlan plan_tile(std::span<const int64_t> dims, std::span<const int64_t> repeats);

/// Copies a slice of a contiguous array of `dims` to a contiguous array. The source pointer must be advanced by slice_offset() elements.
/// @param starts, steps, counts  per axis, clamped: element i of the slice is start + i * step
CopyPlan plan_slice(std::span<const int64_t> dims, std::span<const int64_t> starts, std::span<const int64_t> steps,
                    std::span<const int64_t> counts);
int64_t slice_offset(std::span<const int64_t> dims, std::span<const int64_t> starts);

/// Moves elements in memory that only a device can access. While a Mover is current on a thread, strided_copy and copy_blocks call it
/// instead of their loops. So operators that only move elements run on devices with the same code as on the host.
class Mover {
 public:
  /// Returns the calling thread's mover; null if copies run as loops on the host.
  static Mover* current() noexcept;

  /// Runs a copy plan. Source and destination do not overlap.
  virtual void copy(const CopyPlan& plan, size_t element_bytes, const void* src, void* dst) = 0;

  /// While the scope exists, all copies on this thread use the mover.
  class Scope {
   public:
    explicit Scope(Mover& mover) noexcept;
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Mover* const before_;
  };

 protected:
  ~Mover() = default;
};

/// Runs a plan. Source and destination must not overlap.
/// @param element_bytes  1, 2, 4, 8 or 16. @throws Error(invalid_argument) otherwise.
void strided_copy(const CopyPlan& plan, size_t element_bytes, const void* src, void* dst, ThreadPool* pool);

/// Copies `count` blocks of `block_bytes` each, with different pitches, as Concat and Split need. Memory may overlap if each block moves to
/// a lower address and ends before the next one begins.
void copy_blocks(int64_t count, int64_t block_bytes, const void* src, int64_t src_pitch_bytes, void* dst, int64_t dst_pitch_bytes,
                 ThreadPool* pool);

/// Sets n elements at dst to the element at `value`, of 1, 2, 4, 8 or 16 bytes.
void fill(size_t element_bytes, const void* value, void* dst, int64_t n, ThreadPool* pool);

}  // namespace treadle::kernels
