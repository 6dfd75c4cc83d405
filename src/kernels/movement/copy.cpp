#include "kernels/movement/copy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/movement/element.h"
#include "kernels/movement/transpose_plane.h"

namespace treadle::kernels {
namespace {

constexpr int64_t kGrainBytes = 64 * 1024;

void row_major(std::span<const int64_t> dims, int64_t* strides) {
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= dims[i];
  }
}

void check_rank(std::span<const int64_t> dims, int limit) {
  if (dims.size() > static_cast<size_t>(limit)) {
    throw Error(ErrorCode::invalid_argument, "rank " + std::to_string(dims.size()) + " is above the limit of " + std::to_string(limit));
  }
}

template <typename T>
void copy_run(const T* src, int64_t src_stride, T* dst, int64_t dst_stride, int64_t n) {
  if (src_stride == 1 && dst_stride == 1) {
    std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(T));
  } else if (src_stride == 0 && dst_stride == 1) {
    std::fill(dst, dst + n, *src);
  } else if (dst_stride == 1) {
    for (int64_t i = 0; i < n; ++i) dst[i] = src[i * src_stride];
  } else {
    for (int64_t i = 0; i < n; ++i) dst[i * dst_stride] = src[i * src_stride];
  }
}

/// Two axes of a loop that form a plane to transpose: the source is contiguous along `row`, the destination along the last axis.
struct Plane {
  int row = -1;  // axis along which the source is contiguous; -1: there is none
  int64_t outer = 1;
};

Plane find_plane(const CopyPlan& plan) {
  Plane plane;
  const int last = plan.rank - 1;
  if (plan.strides[1][last] != 1 || plan.strides[0][last] == 1 || plan.strides[0][last] == 0) return plane;
  for (int i = 0; i < last; ++i) {
    if (plan.strides[0][i] == 1) plane.row = i;
  }
  return plane;
}

// Copies square tiles. When a tile reads lines with a stride, they are still in L1 when their other elements are read.
template <typename T>
void copy_plane(const CopyPlan& plan, int row_axis, const T* src, T* dst, ThreadPool* pool) {
  const int last = plan.rank - 1;
  const int64_t rows = plan.dims[row_axis], columns = plan.dims[last];
  const int64_t src_column = plan.strides[0][last], dst_row = plan.strides[1][row_axis];
  auto are_few = [](int64_t planes) { return sizeof(T) <= 4 && planes >= 2 && planes <= 4; };
  const bool joins = are_few(columns) && dst_row == columns, parts = are_few(rows) && src_column == rows;
  const int64_t tile = joins ? 4096 : sizeof(T) >= 8 ? 16 : sizeof(T) == 4 ? 64 : 32;
  CopyPlan outer = plan;  // the loop over the other axes; the plane's two axes get extent 1
  outer.dims[row_axis] = outer.dims[last] = 1;
  outer.size = plan.size / (rows * columns);
  const int64_t bands = (rows + tile - 1) / tile;
  const int64_t grain = std::max<int64_t>(1, kGrainBytes / (std::min(tile, rows) * columns * static_cast<int64_t>(sizeof(T))));
  parallel_for(pool, outer.size * bands, grain, [&](int64_t begin, int64_t end) {
    // Advances the offsets of planes incrementally: divisions would take longer than copying a small plane.
    int64_t at[kMaxLoopRank], s = 0, t = 0, band = begin % bands, rest = begin / bands;
    for (int i = outer.rank - 1; i >= 0; --i) {
      at[i] = rest % outer.dims[i];
      rest /= outer.dims[i];
      s += at[i] * outer.strides[0][i];
      t += at[i] * outer.strides[1][i];
    }
    auto advance = [&] {
      if (++band < bands) return;
      band = 0;
      for (int i = outer.rank - 1; i >= 0; --i) {
        s += outer.strides[0][i], t += outer.strides[1][i];
        if (++at[i] < outer.dims[i]) return;
        s -= at[i] * outer.strides[0][i], t -= at[i] * outer.strides[1][i];
        at[i] = 0;
      }
    };
    for (int64_t item = begin; item < end; ++item, advance()) {
      const int64_t r0 = band * tile, r1 = std::min(rows, r0 + tile);
      if constexpr (sizeof(T) <= 4) {
        if (parts) {
          deinterleave(static_cast<int>(rows), columns, src + s, dst + t, dst_row);
          continue;
        }
        if (joins) {
          interleave(static_cast<int>(columns), r1 - r0, src + s + r0, src_column, dst + t + r0 * dst_row);
          continue;
        }
      }
      if constexpr (sizeof(T) == 4 || sizeof(T) == 2) {
        if (r1 - r0 >= 8 && (sizeof(T) == 4 || columns >= 8)) {
          transpose_plane(columns, r1 - r0, src + s + r0, src_column, dst + t + r0 * dst_row, dst_row);
          continue;
        }
      }
      for (int64_t c0 = 0; c0 < columns; c0 += tile) {
        const int64_t c1 = std::min(columns, c0 + tile);
        for (int64_t r = r0; r < r1; ++r) {
          const T* from = src + s + r;
          T* to = dst + t + r * dst_row;
          for (int64_t c = c0; c < c1; ++c) to[c] = from[c * src_column];
        }
      }
    }
  });
}

// Copies blocks of kBytes to less than 2 kBytes bytes, as two overlapping moves of constant size, which do not need to call memcpy.
template <size_t kBytes>
void copy_small_blocks(int64_t count, size_t bytes, const std::byte* from, int64_t src_pitch, std::byte* to, int64_t dst_pitch) {
  if (bytes == kBytes) {
    for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * dst_pitch, from + i * src_pitch, kBytes);
    return;
  }
  const size_t second = bytes - kBytes;
  for (int64_t i = 0; i < count; ++i) {
    std::array<std::byte, kBytes> head, tail;
    std::memcpy(head.data(), from + i * src_pitch, kBytes);
    std::memcpy(tail.data(), from + i * src_pitch + second, kBytes);
    std::memcpy(to + i * dst_pitch, head.data(), kBytes);
    std::memcpy(to + i * dst_pitch + second, tail.data(), kBytes);
  }
}

constexpr int64_t kSmallBlock = 255;    // largest block, in bytes, that copy_some_blocks moves without calling memcpy
constexpr int64_t kRepeatedBlock = 63;  // up to this size in bytes, copy_some_blocks repeats a block faster
void copy_some_blocks(int64_t count, size_t bytes, const std::byte* from, int64_t src_pitch, std::byte* to, int64_t dst_pitch) {
  switch (std::bit_width(bytes)) {
    case 1: return copy_small_blocks<1>(count, bytes, from, src_pitch, to, dst_pitch);
    case 2: return copy_small_blocks<2>(count, bytes, from, src_pitch, to, dst_pitch);
    case 3: return copy_small_blocks<4>(count, bytes, from, src_pitch, to, dst_pitch);
    case 4: return copy_small_blocks<8>(count, bytes, from, src_pitch, to, dst_pitch);
    case 5: return copy_small_blocks<16>(count, bytes, from, src_pitch, to, dst_pitch);
    case 6: return copy_small_blocks<32>(count, bytes, from, src_pitch, to, dst_pitch);
    case 7: return copy_small_blocks<64>(count, bytes, from, src_pitch, to, dst_pitch);
    case 8: return copy_small_blocks<128>(count, bytes, from, src_pitch, to, dst_pitch);
    default:
      for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * dst_pitch, from + i * src_pitch, bytes);
  }
}

// Repeats a block: each copy takes all that has been written so far, so that copies become longer.
template <typename T>
void repeat_block(T* dst, int64_t block, int64_t times) {
  for (int64_t have = 1; have < times;) {
    const int64_t more = std::min(have, times - have);
    std::memcpy(dst + have * block, dst, static_cast<size_t>(more * block) * sizeof(T));
    have += more;
  }
}

// Copies elements [begin, end) along axis `axis`, each with all elements of the inner axes.
template <typename T>
void copy_repeated(const CopyPlan& plan, int axis, int64_t begin, int64_t end, const T* src, T* dst) {
  const int64_t from = plan.strides[0][axis], to = plan.strides[1][axis];
  if (axis == plan.rank - 1) return copy_run(src + begin * from, from, dst + begin * to, to, end - begin);
  constexpr int64_t kBytes = sizeof(T);
  if (axis == plan.rank - 2 && plan.inner_stride(0) == 1 && plan.inner() * kBytes <= (from == 0 ? kRepeatedBlock : kSmallBlock)) {
    return copy_some_blocks(end - begin, static_cast<size_t>(plan.inner() * kBytes), reinterpret_cast<const std::byte*>(src + begin * from),
                            from * kBytes, reinterpret_cast<std::byte*>(dst + begin * to), to * kBytes);
  }
  const int64_t computed = from == 0 ? std::min(end, begin + 1) : end;
  for (int64_t i = begin; i < computed; ++i) copy_repeated(plan, axis + 1, 0, plan.dims[axis + 1], src + i * from, dst + i * to);
  if (from == 0) repeat_block(dst + begin * to, to, end - begin);
}

// Returns true for Expand and Tile: the destination is contiguous, and the source is repeated along an axis before the last. Returns false
// if the first axis has few elements, as the general copy then divides the work better.
bool repeats(const CopyPlan& plan) {
  bool repeated = false;
  int64_t block = 1;
  for (int i = plan.rank - 1; i >= 0; --i) {
    if (plan.strides[1][i] != block) return false;
    repeated |= plan.strides[0][i] == 0 && i < plan.rank - 1;
    block *= plan.dims[i];
  }
  return repeated && (plan.dims[0] >= 16 || plan.size < kGrainBytes);
}

template <typename T>
void copy_elements(const CopyPlan& plan, const T* src, T* dst, ThreadPool* pool) {
  const Plane plane = find_plane(plan);
  if (plane.row >= 0) return copy_plane(plan, plane.row, src, dst, pool);
  if (repeats(plan)) {
    const int64_t grain = std::max<int64_t>(1, kGrainBytes / (plan.strides[1][0] * static_cast<int64_t>(sizeof(T))));
    return parallel_for(pool, plan.dims[0], grain, [&](int64_t begin, int64_t end) { copy_repeated(plan, 0, begin, end, src, dst); });
  }
  parallel_for(pool, plan.size, kGrainBytes / static_cast<int64_t>(sizeof(T)), [&](int64_t begin, int64_t end) {
    for_each_run(plan, begin, end, [&](int64_t, int64_t n, const int64_t* at) {
      copy_run(src + at[0], plan.inner_stride(0), dst + at[1], plan.inner_stride(1), n);
    });
  });
}

thread_local Mover* current_mover = nullptr;

/// Moves blocks as elements of the largest size that divides the blocks' size, addresses and pitches.
void move_blocks(Mover& mover, int64_t count, int64_t block_bytes, const void* src, int64_t src_pitch, void* dst, int64_t dst_pitch) {
  const auto from = reinterpret_cast<uintptr_t>(src), to = reinterpret_cast<uintptr_t>(dst);
  auto reach = [&](int64_t pitch) { return static_cast<uintptr_t>((count - 1) * pitch + block_bytes); };
  if (count > 1 && src_pitch != dst_pitch && from < to + reach(dst_pitch) && to < from + reach(src_pitch))
    throw Error(ErrorCode::not_implemented, "blocks that move within the memory where they lie, on a device");
  const uint64_t all = from | to | static_cast<uint64_t>(block_bytes) | static_cast<uint64_t>(src_pitch) | static_cast<uint64_t>(dst_pitch);
  const int64_t bytes = all % 4 == 0 ? 4 : all % 2 == 0 ? 2 : 1;
  const int64_t dims[2] = {count, block_bytes / bytes}, steps[2] = {src_pitch / bytes, 1}, to_steps[2] = {dst_pitch / bytes, 1};
  mover.copy(plan_copy(dims, steps, to_steps), static_cast<size_t>(bytes), src, dst);
}

}  // namespace

Mover* Mover::current() noexcept { return current_mover; }
Mover::Scope::Scope(Mover& mover) noexcept : before_(std::exchange(current_mover, &mover)) {}
Mover::Scope::~Scope() { current_mover = before_; }

CopyPlan plan_copy(std::span<const int64_t> dims, std::span<const int64_t> src_strides, std::span<const int64_t> dst_strides) {
  return collapse<2>(dims, {src_strides, dst_strides});
}

CopyPlan plan_transpose(std::span<const int64_t> dims, std::span<const int64_t> perm) {
  check_rank(dims, kMaxLoopRank);
  int64_t in_strides[kMaxLoopRank], out_dims[kMaxLoopRank], src[kMaxLoopRank], dst[kMaxLoopRank];
  row_major(dims, in_strides);
  const size_t rank = dims.size();
  for (size_t i = 0; i < rank; ++i) {
    out_dims[i] = dims[static_cast<size_t>(perm[i])];
    src[i] = in_strides[perm[i]];
  }
  row_major({out_dims, rank}, dst);
  return plan_copy({out_dims, rank}, {src, rank}, {dst, rank});
}

CopyPlan plan_expand(std::span<const int64_t> in, std::span<const int64_t> out) {
  check_rank(out, kMaxLoopRank);
  if (in.size() > out.size()) {
    throw Error(ErrorCode::invalid_argument,
                "rank " + std::to_string(in.size()) + " does not broadcast to rank " + std::to_string(out.size()));
  }
  int64_t src[kMaxLoopRank] = {}, dst[kMaxLoopRank];
  row_major(out, dst);
  int64_t stride = 1;
  const size_t rank = out.size();
  for (size_t i = 0; i < in.size(); ++i) {
    const int64_t extent = in[in.size() - 1 - i], wanted = out[rank - 1 - i];
    if (extent != wanted && extent != 1) {
      throw Error(ErrorCode::invalid_argument,
                  "an extent of " + std::to_string(extent) + " does not broadcast to " + std::to_string(wanted));
    }
    src[rank - 1 - i] = extent == 1 ? 0 : stride;
    stride *= extent;
  }
  return plan_copy(out, {src, rank}, {dst, rank});
}

CopyPlan plan_tile(std::span<const int64_t> dims, std::span<const int64_t> repeats) {
  check_rank(dims, kMaxRank);
  int64_t in_strides[kMaxRank], extents[kMaxLoopRank], src[kMaxLoopRank], dst[kMaxLoopRank];
  row_major(dims, in_strides);
  const size_t rank = dims.size();
  for (size_t i = 0; i < rank; ++i) {
    extents[2 * i] = repeats[i];
    extents[2 * i + 1] = dims[i];
    src[2 * i] = 0;
    src[2 * i + 1] = in_strides[i];
  }
  row_major({extents, 2 * rank}, dst);
  return plan_copy({extents, 2 * rank}, {src, 2 * rank}, {dst, 2 * rank});
}

CopyPlan plan_slice(std::span<const int64_t> dims, std::span<const int64_t>, std::span<const int64_t> steps,
                    std::span<const int64_t> counts) {
  check_rank(dims, kMaxLoopRank);
  int64_t src[kMaxLoopRank], dst[kMaxLoopRank];
  row_major(dims, src);
  row_major(counts, dst);
  for (size_t i = 0; i < dims.size(); ++i) src[i] *= steps[i];
  return plan_copy(counts, {src, dims.size()}, {dst, dims.size()});
}

int64_t slice_offset(std::span<const int64_t> dims, std::span<const int64_t> starts) {
  int64_t offset = 0;
  for (size_t i = 0; i < dims.size(); ++i) offset = offset * dims[i] + starts[i];
  return offset;
}

void strided_copy(const CopyPlan& plan, size_t element_bytes, const void* src, void* dst, ThreadPool* pool) {
  if (plan.size == 0) return;
  if (current_mover) return current_mover->copy(plan, element_bytes, src, dst);
  visit_element(element_bytes, [&]<typename T>() { copy_elements(plan, static_cast<const T*>(src), static_cast<T*>(dst), pool); });
}

void copy_blocks(int64_t count, int64_t block_bytes, const void* src, int64_t src_pitch_bytes, void* dst, int64_t dst_pitch_bytes,
                 ThreadPool* pool) {
  if (block_bytes <= 0 || count <= 0) return;
  if (current_mover) return move_blocks(*current_mover, count, block_bytes, src, src_pitch_bytes, dst, dst_pitch_bytes);
  if (src_pitch_bytes == block_bytes && dst_pitch_bytes == block_bytes) {  // both sides are contiguous, so they are one block
    block_bytes *= count;
    count = 1;
  }
  const auto* from = static_cast<const std::byte*>(src);
  auto* to = static_cast<std::byte*>(dst);
  const auto from_address = reinterpret_cast<uintptr_t>(from), to_address = reinterpret_cast<uintptr_t>(to);
  const auto reach = static_cast<uintptr_t>((count - 1) * std::max(src_pitch_bytes, dst_pitch_bytes) + block_bytes);
  // Copies in order, since each block may overwrite the source of a block copied earlier.
  if (to_address < from_address && from_address - to_address < reach) {
    for (int64_t i = 0; i < count; ++i)
      std::memmove(to + i * dst_pitch_bytes, from + i * src_pitch_bytes, static_cast<size_t>(block_bytes));
    return;
  }
  if (count == 1) {
    parallel_for(pool, block_bytes, 4 * kGrainBytes,
                 [&](int64_t begin, int64_t end) { std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin)); });
    return;
  }
  parallel_for(pool, count, std::max<int64_t>(1, kGrainBytes / block_bytes), [&](int64_t begin, int64_t end) {
    copy_some_blocks(end - begin, static_cast<size_t>(block_bytes), from + begin * src_pitch_bytes, src_pitch_bytes,
                     to + begin * dst_pitch_bytes, dst_pitch_bytes);
  });
}

void fill(size_t element_bytes, const void* value, void* dst, int64_t n, ThreadPool* pool) {
  visit_element(element_bytes, [&]<typename T>() {
    T element;
    std::memcpy(&element, value, sizeof(T));
    T* to = static_cast<T*>(dst);
    parallel_for(pool, n, kGrainBytes / static_cast<int64_t>(sizeof(T)),
                 [&](int64_t begin, int64_t end) { std::fill(to + begin, to + end, element); });
  });
}

}  // namespace treadle::kernels
