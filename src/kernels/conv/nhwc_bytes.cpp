#include "kernels/conv/nhwc_bytes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/base/cpu_info.h"
#include "core/trace/kernel_phases.h"
#include "kernels/conv/byte_tile.h"
#include "kernels/gemm/gemm_bytes.h"
#include "kernels/movement/transpose_plane.h"
#include "kernels/scratch_slots.h"

namespace treadle::kernels {
namespace {

constexpr int64_t kPanel = 64;
constexpr int64_t kGathered = 48, kInPlace = 96;  // rows of a chunk: the gathered windows stay in L1, those in place in L2
// Returns the number of rows of a chunk. AMX multiplies a few rows faster than the next weights are loaded, so its chunks are larger.
int64_t gathered_rows() { return cpu_info().features.amx_int8 ? kInPlace : kGathered; }
constexpr int64_t kSmallCopy = 16;

bool is_depthwise(const ConvParams& p) { return p.group > 1; }
int64_t depth_of(const ConvParams& p) { return p.C * p.window.kernel_size(); }
int64_t quads_of(const ConvParams& p) { return (depth_of(p) + 3) / 4; }
int64_t rounded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/// Returns true if the rows of the product are the pixels of the image.
bool is_pointwise(const ConvParams& p) {
  const Window& w = p.window;
  return w.kernel_size() == 1 && w.stride[1] == 1 && w.stride[2] == 1 && w.in[1] == w.out[1] && w.in[2] == w.out[2] && p.C % 4 == 0;
}

// Adds the offset to a sum, which wraps around as in the vector instructions.
int32_t total(uint32_t sum, const ByteEpilogue& e, int64_t column) {
  return static_cast<int32_t>(sum + static_cast<uint32_t>(e.offsets[column]));
}
uint8_t to_byte(uint32_t sum, const ByteEpilogue& e, int64_t column) {
  const float scaled = std::min(1e6F, std::max(-1e6F, static_cast<float>(total(sum, e, column)) * e.scales[column]));
  const int32_t shifted = static_cast<int32_t>(std::nearbyint(scaled)) + e.zero;
  return static_cast<uint8_t>(e.is_signed ? std::clamp(shifted, -128, 127) : std::clamp(shifted, 0, 255));
}

/// Gathers the windows of outputs [begin, end) into rows of `lda` bytes each (im2col). Pads are filled with `fill`.
class Gather {
 public:
  Gather(const ConvParams& p, const ByteConv& conv)
      : p_(p),
        w_(p.window),
        x_(static_cast<const uint8_t*>(conv.x)),
        x_end_(x_ + p.N * p.window.in_size() * p.C),
        fill_(static_cast<uint8_t>(conv.x_zero)),
        flip_(conv.x_signed ? 0x80 : 0) {}

  void rows(int64_t begin, int64_t end, int64_t lda, uint8_t* dst) const {
    if (is_pointwise(p_)) return flipped(x_ + begin * p_.C, (end - begin) * p_.C, dst);
    int64_t n = begin / w_.out_size(), oh = begin % w_.out_size() / w_.out[2], ow = begin % w_.out[2];
    uint8_t* row = dst;
    for (int64_t i = begin; i < end; ++i, row += lda) {
      window(x_ + n * w_.in_size() * p_.C, oh, ow, row);
      if (++ow < w_.out[2]) continue;
      ow = 0;
      if (++oh == w_.out[1]) oh = 0, ++n;
    }
    // Also flips the bytes after a window's end; they are multiplied by zero weights.
    if (flip_ != 0) flipped(dst, (end - begin) * lda, dst);
  }

 private:
  void window(const uint8_t* image, int64_t oh, int64_t ow, uint8_t* dst) const {
    const int64_t C = p_.C, line = w_.kernel[2] * C;
    const int64_t top = oh * w_.stride[1] - w_.pad_begin[1], left = ow * w_.stride[2] - w_.pad_begin[2];
    const bool inside = left >= 0 && left + (w_.kernel[2] - 1) * w_.dilation[2] < w_.in[2];
    const Taps along = inside ? Taps{0, w_.kernel[2], left} : taps_inside(w_, 2, ow);
    for (int64_t ky = 0; ky < w_.kernel[1]; ++ky, dst += line) {
      const int64_t ih = top + ky * w_.dilation[1];
      if (ih < 0 || ih >= w_.in[1] || along.first == along.last) {
        std::memset(dst, fill_, static_cast<size_t>(line));
        continue;
      }
      const uint8_t* src = image + (ih * w_.in[2] + left) * C;
      if (along.first > 0) std::memset(dst, fill_, static_cast<size_t>(along.first * C));
      if (w_.dilation[2] == 1) {
        copy(src + along.first * C, (along.last - along.first) * C, dst + along.first * C);
      } else {
        for (int64_t kx = along.first; kx < along.last; ++kx) copy(src + kx * w_.dilation[2] * C, C, dst + kx * C);
      }
      if (along.last < w_.kernel[2]) std::memset(dst + along.last * C, fill_, static_cast<size_t>((w_.kernel[2] - along.last) * C));
    }
  }
  // May copy a few bytes too many: the next copy overwrites them, and the scratch has space after the last row.
  void copy(const uint8_t* src, int64_t n, uint8_t* dst) const {
    if (n <= kSmallCopy && x_end_ - src >= kSmallCopy) {
      std::memcpy(dst, src, kSmallCopy);
    } else {
      std::memcpy(dst, src, static_cast<size_t>(n));
    }
  }

  void flipped(const uint8_t* src, int64_t n, uint8_t* dst) const {
    const uint8_t flip = flip_;  // a local copy, as the compiler must assume that byte stores change the member
    int64_t i = 0;
    for (; i + 64 <= n; i += 64) {
      uint8_t block[64];
      std::memcpy(block, src + i, sizeof block);
      for (uint8_t& byte : block) byte ^= flip;
      std::memcpy(dst + i, block, sizeof block);
    }
    for (; i < n; ++i) dst[i] = src[i] ^ flip;
  }

  const ConvParams& p_;
  const Window& w_;
  const uint8_t *x_, *x_end_;
  uint8_t fill_, flip_;
};

int64_t dense_chunks(const ConvParams& p, bool in_place) {
  const int64_t rows = in_place ? kInPlace : gathered_rows();
  return (p.N * p.window.out_size() + rows - 1) / rows;
}
size_t slot_bytes(const ConvParams& p) { return aligned_bytes<uint8_t>(gathered_rows() * 4 * quads_of(p) + kSmallCopy); }
int num_slots(const ConvParams& p, int max_threads) { return ScratchSlots::count(max_threads, dense_chunks(p, false)); }

void map_some(int64_t n, const uint8_t* table, const uint8_t* x, uint8_t* y) {
  if (map_bytes_avx512vbmi(n, table, x, y)) return;
  static const bool has_avx2 = cpu_info().features.avx2;
  // For few bytes, setting up the vector table would cost more than it saves.
  const auto map = has_avx2 && n >= 256 ? map_bytes_avx2 : map_bytes_plain;
  map(n, table, x, y);
}

void dense(const ConvParams& p, const ByteConv& conv, const int8_t* packed, const ByteEpilogue& epilogue, uint8_t* y, void* scratch,
           int max_threads, ThreadPool* pool) {
  const ByteInstructions with = byte_instructions();
  const bool in_place = is_pointwise(p) && !conv.x_signed;
  auto* sums = reinterpret_cast<int32_t*>(y);
  const int64_t quads = quads_of(p), lda = 4 * quads, pixels = p.N * p.window.out_size(), chunks = dense_chunks(p, in_place);
  const Gather gather(p, conv);
  ScratchSlots slots(scratch, slot_bytes(p), num_slots(p, max_threads));
  const int64_t macs = std::max<int64_t>(1, lda * p.M * pixels / chunks);
  parallel_for(pool, chunks, std::max<int64_t>(1, 400'000 / macs), [&](int64_t begin, int64_t end) {
    ScratchSlots::Lease lease(slots);
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t first = pixels * chunk / chunks, last = pixels * (chunk + 1) / chunks;
      const uint8_t* rows = static_cast<const uint8_t*>(conv.x) + first * p.C;
      PhaseScope phase(in_place ? KernelPhase::compute : KernelPhase::windows);
      if (!in_place) {
        uint8_t* room = reinterpret_cast<uint8_t*>(lease.data());
        gather.rows(first, last, lda, room);
        rows = room;
        phase.next(KernelPhase::compute);
      }
      for (int64_t n0 = 0; n0 < p.M; n0 += kPanel) {
        const int64_t columns = std::min(kPanel, p.M - n0);
        const ByteConvTile tile{rows,
                                lda,
                                packed + n0 * lda,
                                quads,
                                static_cast<int>((columns + 15) / 16),
                                {epilogue.offsets + n0, epilogue.scales + n0, epilogue.zero, epilogue.is_signed},
                                y + first * p.M + n0,
                                p.M,
                                columns,
                                last - first,
                                conv.sums_only ? sums + first * p.M + n0 : nullptr};
        byte_conv_tile(tile, with);
      }
      if (!conv.table) continue;
      phase.next(KernelPhase::epilogue);
      map_some((last - first) * p.M, conv.table, y + first * p.M, y + first * p.M);
    }
  });
}

void depthwise(const ConvParams& p, const ByteConv& conv, const int8_t* packed, const ByteEpilogue& epilogue, uint8_t* y,
               ThreadPool* pool) {
  const ByteInstructions with = byte_instructions();
  const Window& w = p.window;
  const int64_t line = w.out[2] * p.C;
  const PhaseScope phase(KernelPhase::compute);
  parallel_for(pool, p.N * w.out[1], std::max<int64_t>(1, 60'000 / std::max<int64_t>(1, line * w.kernel_size())),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   const ByteDepthwiseRow row{&w,
                                              p.C,
                                              i % w.out[1],
                                              static_cast<const uint8_t*>(conv.x) + i / w.out[1] * w.in_size() * p.C,
                                              conv.x_signed,
                                              conv.x_zero,
                                              reinterpret_cast<const int32_t*>(packed),
                                              epilogue,
                                              y + i * line,
                                              conv.sums_only ? reinterpret_cast<int32_t*>(y) + i * line : nullptr};
                   byte_depthwise_row(row, with);
                   if (conv.table) map_some(line, conv.table, row.y, row.y);
                 }
               });
}

}  // namespace

void byte_conv_tile_plain(const ByteConvTile& tile) {
  for (int64_t r = 0; r < tile.rows; ++r) {
    uint32_t sums[kPanel] = {};
    const uint8_t* a = tile.A + r * tile.lda;
    const int8_t* b = tile.B;
    const int64_t width = 16 * tile.vectors;
    for (int64_t k = 0; k < tile.quads; ++k, a += 4, b += 4 * width)
      for (int64_t n = 0; n < width; ++n)
        sums[n] += static_cast<uint32_t>(a[0] * b[4 * n] + a[1] * b[4 * n + 1] + a[2] * b[4 * n + 2] + a[3] * b[4 * n + 3]);
    if (tile.sums) {
      for (int64_t n = 0; n < tile.columns; ++n) tile.sums[r * tile.ldy + n] = total(sums[n], tile.epilogue, n);
      continue;
    }
    for (int64_t n = 0; n < tile.columns; ++n) tile.y[r * tile.ldy + n] = to_byte(sums[n], tile.epilogue, n);
  }
}

void byte_depthwise_row_plain(const ByteDepthwiseRow& row) {
  const Window& w = *row.window;
  const Taps down = taps_inside(w, 1, row.oh);
  for (int64_t ow = 0; ow < w.out[2]; ++ow) {
    const Taps along = taps_inside(w, 2, ow);
    for (int64_t c = 0; c < row.C; ++c) {
      uint32_t sum = 0;
      for (int64_t i = down.first; i < down.last; ++i)
        for (int64_t j = along.first; j < along.last; ++j) {
          const uint8_t byte = row.x[((down.start + i * w.dilation[1]) * w.in[2] + along.start + j * w.dilation[2]) * row.C + c];
          const int32_t x = row.x_signed ? static_cast<int8_t>(byte) : byte;
          sum += static_cast<uint32_t>((x - row.x_zero) * static_cast<int16_t>(row.weights[(i * w.kernel[2] + j) * row.C + c]));
        }
      if (row.sums)
        row.sums[ow * row.C + c] = total(sum, row.epilogue, c);
      else
        row.y[ow * row.C + c] = to_byte(sum, row.epilogue, c);
    }
  }
}

void byte_max_row_plain(const ByteMaxRow& row) {
  const Window& w = *row.window;
  const Taps down = taps_inside(w, 1, row.oh);
  for (int64_t ow = 0; ow < w.out[2]; ++ow) {
    const Taps along = taps_inside(w, 2, ow);
    for (int64_t c = 0; c < row.C; ++c) {
      uint8_t largest = 0;
      for (int64_t i = down.first; i < down.last; ++i)
        for (int64_t j = along.first; j < along.last; ++j) {
          const int64_t at = ((down.start + i * w.dilation[1]) * w.in[2] + along.start + j * w.dilation[2]) * row.C + c;
          largest = std::max<uint8_t>(largest, row.x[at] ^ row.flip);
        }
      row.y[ow * row.C + c] = largest ^ row.flip;
    }
  }
}

void byte_conv_tile(const ByteConvTile& tile, ByteInstructions with) {
  switch (with) {
    case ByteInstructions::avx512_vnni: return byte_conv_tile_avx512vnni(tile);
    case ByteInstructions::avx_vnni: return byte_conv_tile_avx2(tile, /*vnni=*/true);
    case ByteInstructions::avx2: return byte_conv_tile_avx2(tile, /*vnni=*/false);
    case ByteInstructions::plain: return byte_conv_tile_plain(tile);
  }
}
void byte_depthwise_row(const ByteDepthwiseRow& row, ByteInstructions with) {
  if (with == ByteInstructions::avx512_vnni) return byte_depthwise_row_avx512vnni(row);
  with == ByteInstructions::plain ? byte_depthwise_row_plain(row) : byte_depthwise_row_avx2(row);
}
void byte_max_row(const ByteMaxRow& row, ByteInstructions with) {
  if (with == ByteInstructions::avx512_vnni) return byte_max_row_avx512vnni(row);
  with == ByteInstructions::plain ? byte_max_row_plain(row) : byte_max_row_avx2(row);
}

void map_bytes_plain(int64_t n, const uint8_t* table, const uint8_t* x, uint8_t* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = table[x[i]];
}

bool has_nhwc_bytes(const ConvParams& p) { return p.group == 1 || (p.group == p.C && p.M == p.C); }

int64_t nhwc_bytes_packed_size(const ConvParams& p) {
  if (is_depthwise(p)) return p.C * p.window.kernel_size() * static_cast<int64_t>(sizeof(int32_t));
  return rounded(p.M, 16) * 4 * quads_of(p);
}

void nhwc_bytes_pack(const ConvParams& p, const int8_t* weights, int8_t* packed, int32_t* sums) {
  const int64_t taps = p.window.kernel_size(), channels = p.C / p.group, depth = channels * taps;
  for (int64_t m = 0; m < p.M; ++m) {
    int32_t sum = 0;
    for (int64_t k = 0; k < depth; ++k) sum += weights[m * depth + k];
    sums[m] = sum;
  }
  if (is_depthwise(p)) {
    for (int64_t m = 0; m < p.M; ++m)
      for (int64_t tap = 0; tap < taps; ++tap) {
        const int32_t low = static_cast<uint16_t>(weights[m * taps + tap]);
        std::memcpy(packed + (tap * p.C + m) * static_cast<int64_t>(sizeof low), &low, sizeof low);
      }
    return;
  }
  std::memset(packed, 0, static_cast<size_t>(nhwc_bytes_packed_size(p)));
  for (int64_t n0 = 0; n0 < p.M; n0 += kPanel) {
    const int64_t columns = std::min(kPanel, p.M - n0), width = rounded(columns, 16);
    const int8_t* rows = weights + n0 * depth;
    int8_t* panel = packed + n0 * 4 * quads_of(p);
    if (taps == 1 && depth % 4 == 0 && reinterpret_cast<uintptr_t>(rows) % sizeof(uint32_t) == 0) {
      const auto* quads = reinterpret_cast<const uint32_t*>(rows);
      transpose_plane(columns, depth / 4, quads, depth / 4, reinterpret_cast<uint32_t*>(panel), width);
      continue;
    }
    // Writes the packed weights in order. Consecutive channels of one tap are `taps` bytes apart in a filter.
    for (int64_t k = 0; k < depth; k += 4) {
      int64_t places[4];
      const int64_t count = std::min<int64_t>(4, depth - k);
      for (int64_t j = 0; j < 4; ++j) places[j] = (k + j) % channels * taps + (k + j) / channels;
      for (int64_t n = 0; n < columns; ++n) {
        const int8_t* src = rows + n * depth;
        int8_t* dst = panel + k * width + 4 * n;
        if (count == 4) {
          const int8_t quad[4] = {src[places[0]], src[places[1]], src[places[2]], src[places[3]]};
          std::memcpy(dst, quad, sizeof quad);
        } else {
          for (int64_t j = 0; j < count; ++j) dst[j] = src[places[j]];
        }
      }
    }
  }
}

size_t nhwc_bytes_scratch_bytes(const ConvParams& p, int max_threads) {
  const size_t columns = aligned_bytes<int32_t>(rounded(p.M, 16)) + aligned_bytes<float>(rounded(p.M, 16));
  return columns + (is_depthwise(p) ? 0 : slot_bytes(p) * static_cast<size_t>(num_slots(p, max_threads)));
}

void nhwc_bytes(const ConvParams& p, const ByteConv& conv, const int8_t* packed, const int32_t* sums, void* y, void* scratch,
                int max_threads, ThreadPool* pool) {
  if (p.N * p.M * p.window.out_size() <= 0) return;
  const int64_t columns = rounded(p.M, 16);
  auto* room = static_cast<std::byte*>(scratch);
  auto* offsets = reinterpret_cast<int32_t*>(room);
  auto* scales = reinterpret_cast<float*>(room += aligned_bytes<int32_t>(columns));
  room += aligned_bytes<float>(columns);
  // x's zero point if x is read as unsigned bytes; 0 for depthwise kernels, which subtract the zero point from x themselves. Arithmetic
  // wraps around as int32 does.
  const auto zero = static_cast<uint32_t>(is_depthwise(p) ? 0 : conv.x_zero + (conv.x_signed ? 128 : 0));
  for (int64_t m = 0; m < columns; ++m) {
    const bool exists = m < p.M;
    const uint32_t bias = exists && conv.bias ? static_cast<uint32_t>(conv.bias[m]) : 0;
    offsets[m] = exists ? static_cast<int32_t>(bias - zero * static_cast<uint32_t>(sums[m])) : 0;
    scales[m] = exists && conv.scales ? conv.scales[m] : 0;
  }
  const ByteEpilogue epilogue{offsets, scales, conv.y_zero, conv.y_signed};
  if (is_depthwise(p)) return depthwise(p, conv, packed, epilogue, static_cast<uint8_t*>(y), pool);
  dense(p, conv, packed, epilogue, static_cast<uint8_t*>(y), room, max_threads, pool);
}

void max_pool_bytes(const Window& w, int64_t N, int64_t C, bool is_signed, const void* x, void* y, ThreadPool* pool) {
  const ByteInstructions with = byte_instructions();
  const int64_t line = w.out[2] * C, image = w.in_size() * C;
  parallel_for(pool, N * w.out[1], std::max<int64_t>(1, 200'000 / std::max<int64_t>(1, line * w.kernel_size())),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   const ByteMaxRow row{&w,
                                        C,
                                        i % w.out[1],
                                        static_cast<const uint8_t*>(x) + i / w.out[1] * image,
                                        static_cast<uint8_t>(is_signed ? 0x80 : 0),
                                        static_cast<uint8_t*>(y) + i * line};
                   byte_max_row(row, with);
                 }
               });
}

void map_bytes(int64_t n, const uint8_t* table, const uint8_t* x, uint8_t* y, ThreadPool* pool) {
  parallel_for(pool, n, 65'536, [&](int64_t begin, int64_t end) { map_some(end - begin, table, x + begin, y + begin); });
}

}  // namespace treadle::kernels
