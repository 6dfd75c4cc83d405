#include "kernels/conv/nhwc_bytes.h"

#include <algorithm>
#include <cstring>

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

bool is_depthwise(const ConvParams& p) { return p.group > 1 && p.group == p.C && p.M == p.C; }
bool has_groups(const ConvParams& p) { return p.group > 1 && !is_depthwise(p); }
int64_t tap_quads(const ConvParams& p) { return (p.window.kernel[1] * interleaved_line(p.window.kernel[2]) + 3) / 4; }
/// Returns true if depthwise weights are also packed in the order of byte_interleaved_row_avx512vnni().
bool interleaves(const ConvParams& p) {
  return is_depthwise(p) && 4 * tap_quads(p) <= ByteGroupRow::kMaxTaps && has_byte_instructions(ByteInstructions::avx512_vnni);
}
int64_t plain_depthwise_bytes(const ConvParams& p) { return p.C * p.window.kernel_size() * static_cast<int64_t>(sizeof(int32_t)); }
int64_t rounded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
// The bytes of a window's line, of which a row of the product has one for each line of the kernel.
int64_t line_bytes(const ConvParams& p) { return rounded(p.window.kernel[2] * p.C, 4); }
int64_t quads_of(const ConvParams& p) { return p.window.kernel[0] * p.window.kernel[1] * line_bytes(p) / 4; }

/// Returns true if the rows of the product are the pixels of the image.
bool is_pointwise(const ConvParams& p) {
  const Window& w = p.window;
  return w.kernel_size() == 1 && w.stride[1] == 1 && w.stride[2] == 1 && w.in[1] == w.out[1] && w.in[2] == w.out[2] && p.C % 4 == 0;
}

/// The image with its padding, as far as windows reach.
struct PaddedImage {
  int64_t height, width, line;  // `line`: bytes of a row

  explicit PaddedImage(const ConvParams& p) {
    const Window& w = p.window;
    height = (w.out[1] - 1) * w.stride[1] + (w.kernel[1] - 1) * w.dilation[1] + 1;
    width = (w.out[2] - 1) * w.stride[2] + w.kernel[2];
    line = width * p.C;
  }
  /// Tiles read up to three bytes behind a window's line.
  int64_t size() const { return height * line + 4; }
};
/// Returns true if windows are read where they lie: in the image, or in a copy of it with its padding. Neighboring windows overlap, so
/// that gathering them would copy each byte of the image several times. AMX needs whole rows, short lines make short tiles, and a large
/// copy would be read from memory.
bool reads_in_place(const ConvParams& p) {
  constexpr int64_t kShortLine = 14, kLargeCopy = int64_t{8} << 20;
  const Window& w = p.window;
  return !is_pointwise(p) && w.dilation[2] == 1 && w.out[2] >= kShortLine && !cpu_info().features.amx_int8 &&
         PaddedImage(p).size() <= kLargeCopy;
}
/// Returns true if the image is read without a copy: it has no padding, and its windows' lines end with it.
bool needs_no_copy(const ConvParams& p, bool is_signed) {
  const Window& w = p.window;
  const PaddedImage padded(p);
  return !is_signed && w.pad_begin[1] == 0 && w.pad_begin[2] == 0 && padded.height <= w.in[1] && padded.width <= w.in[2] &&
         w.kernel[2] * p.C % 4 == 0;
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
    const int64_t C = p_.C, line = line_bytes(p_);
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
      if (along.last < w_.kernel[2] || line > w_.kernel[2] * C)
        std::memset(dst + along.last * C, fill_, static_cast<size_t>(line - along.last * C));
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
    const uint8_t flip = flip_;  // a local copy, as the compiler must assume
                                 // that byte stores change the member
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
        const ByteConvTile tile{.A = rows,
                                .lda = lda,
                                .B = packed + n0 * lda,
                                .quads = quads,
                                .vectors = static_cast<int>((columns + 15) / 16),
                                .epilogue = epilogue,
                                .y = y + first * p.M + n0,
                                .ldy = p.M,
                                .columns = columns,
                                .rows = last - first,
                                .sums = conv.sums_only ? sums + first * p.M + n0 : nullptr,
                                .first = first * p.M + n0,
                                .column = n0};
        byte_conv_tile(tile, with);
      }
      if (!conv.table) continue;
      phase.next(KernelPhase::epilogue);
      map_some((last - first) * p.M, conv.table, y + first * p.M, y + first * p.M);
    }
  });
}

/// Copies rows [begin, end) of the padded image.
void copy_padded(const ConvParams& p, const uint8_t* x, uint8_t pad, uint8_t flip, const PaddedImage& image, int64_t begin, int64_t end,
                 uint8_t* dst) {
  const Window& w = p.window;
  const int64_t left = std::min(w.pad_begin[2], image.width), inside = std::clamp<int64_t>(image.width - left, 0, w.in[2]);
  const auto fill = static_cast<uint8_t>(pad ^ flip);
  for (int64_t row = begin; row < end; ++row) {
    uint8_t* to = dst + row * image.line;
    const int64_t ih = row - w.pad_begin[1];
    if (ih < 0 || ih >= w.in[1]) {
      std::memset(to, fill, static_cast<size_t>(image.line));
      continue;
    }
    const uint8_t* from = x + ih * w.in[2] * p.C;
    std::memset(to, fill, static_cast<size_t>(left * p.C));
    to += left * p.C;
    if (flip == 0) {
      std::memcpy(to, from, static_cast<size_t>(inside * p.C));
    } else {
      for (int64_t i = 0; i < inside * p.C; ++i) to[i] = from[i] ^ flip;
    }
    std::memset(to + inside * p.C, fill, static_cast<size_t>((image.width - left - inside) * p.C));
  }
}

/// Computes a convolution whose windows are read in place.
void dense_in_place(const ConvParams& p, const ByteConv& conv, const int8_t* packed, const ByteEpilogue& epilogue, uint8_t* y,
                    void* scratch, ThreadPool* pool) {
  const ByteInstructions with = byte_instructions();
  const Window& w = p.window;
  const PaddedImage padded(p);
  const bool copies = !needs_no_copy(p, conv.x_signed);
  const int64_t lda = 4 * quads_of(p), line = copies ? padded.line : w.in[2] * p.C;
  auto* copy = static_cast<uint8_t*>(scratch);
  auto* sums = reinterpret_cast<int32_t*>(y);
  // Rows of outputs of a chunk share the weights of a panel in L1.
  const int64_t chunk = std::max<int64_t>(1, kInPlace / w.out[2]), macs = std::max<int64_t>(1, chunk * w.out[2] * lda * p.M);
  for (int64_t n = 0; n < p.N; ++n) {
    const uint8_t* x = static_cast<const uint8_t*>(conv.x) + n * w.in_size() * p.C;
    if (copies) {
      const PhaseScope phase(KernelPhase::windows);
      parallel_for(pool, padded.height, std::max<int64_t>(1, 65'536 / padded.line), [&](int64_t begin, int64_t end) {
        copy_padded(p, x, static_cast<uint8_t>(conv.x_zero), conv.x_signed ? 0x80 : 0, padded, begin, end, copy);
      });
      std::memset(copy + padded.size() - 4, 0, 4);
      x = copy;
    }
    const PhaseScope phase(KernelPhase::compute);
    parallel_for(pool, (w.out[1] + chunk - 1) / chunk, std::max<int64_t>(1, 400'000 / macs), [&](int64_t begin, int64_t end) {
      for (int64_t oh = begin * chunk; oh < std::min(w.out[1], end * chunk); oh += chunk) {
        const int64_t last = std::min(w.out[1], oh + chunk);
        for (int64_t n0 = 0; n0 < p.M; n0 += kPanel) {
          const int64_t columns = std::min(kPanel, p.M - n0);
          for (int64_t row = oh; row < last; ++row) {
            const int64_t first = (n * w.out[1] + row) * w.out[2] * p.M + n0;
            byte_conv_tile({.A = x + row * w.stride[1] * line,
                            .lda = w.stride[2] * p.C,
                            .B = packed + n0 * lda,
                            .quads = line_bytes(p) / 4,
                            .vectors = static_cast<int>((columns + 15) / 16),
                            .epilogue = epilogue,
                            .y = y + first,
                            .ldy = p.M,
                            .columns = columns,
                            .rows = w.out[2],
                            .sums = conv.sums_only ? sums + first : nullptr,
                            .segments = w.kernel[1],
                            .a_segment = w.dilation[1] * line,
                            .first = first,
                            .column = n0},
                           with);
          }
        }
        if (conv.table) {
          uint8_t* results = y + (n * w.out[1] + oh) * w.out[2] * p.M;
          map_some((last - oh) * w.out[2] * p.M, conv.table, results, results);
        }
      }
    });
  }
}

/// Calls row(index of the image, row of outputs, number of results before) for all rows of outputs.
template <typename Fn>
void for_each_row(const ConvParams& p, ThreadPool* pool, const Fn& fn) {
  const Window& w = p.window;
  const int64_t line = w.out[2] * p.M, depth = p.C / p.group * w.kernel_size();
  const PhaseScope phase(KernelPhase::compute);
  parallel_for(pool, p.N * w.out[1], std::max<int64_t>(1, 60'000 / std::max<int64_t>(1, line * depth)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) fn(i / w.out[1], i % w.out[1], i * line);
  });
}

void depthwise(const ConvParams& p, const ByteConv& conv, const int8_t* packed, const ByteEpilogue& epilogue, uint8_t* y,
               ThreadPool* pool) {
  const ByteInstructions with = byte_instructions();
  const int64_t line = p.window.out[2] * p.C;
  for_each_row(p, pool, [&](int64_t n, int64_t oh, int64_t first) {
    const ByteDepthwiseRow row{&p.window,
                               p.C,
                               oh,
                               static_cast<const uint8_t*>(conv.x) + n * p.window.in_size() * p.C,
                               conv.x_signed,
                               conv.x_zero,
                               reinterpret_cast<const int32_t*>(packed),
                               epilogue,
                               y + first,
                               conv.sums_only ? reinterpret_cast<int32_t*>(y) + first : nullptr,
                               first};
    byte_depthwise_row(row, with);
    if (conv.table) map_some(line, conv.table, row.y, row.y);
  });
}

/// Groups of several channels, or of one if four taps are read at a time.
void grouped(const ConvParams& p, const ByteConv& conv, const int8_t* weights, const ByteEpilogue& epilogue, const uint8_t* pad, uint8_t* y,
             ThreadPool* pool) {
  const ByteInstructions with = byte_instructions();
  const int64_t line = p.window.out[2] * p.M;
  for_each_row(p, pool, [&](int64_t n, int64_t oh, int64_t first) {
    const ByteGroupRow row{&p.window, p.C,
                           p.M,       p.group,
                           oh,        static_cast<const uint8_t*>(conv.x) + n * p.window.in_size() * p.C,
                           pad,       static_cast<uint8_t>(conv.x_signed ? 0x80 : 0),
                           weights,   epilogue,
                           y + first, conv.sums_only ? reinterpret_cast<int32_t*>(y) + first : nullptr,
                           first};
    is_depthwise(p) ? byte_interleaved_row_avx512vnni(row) : byte_group_row(row, with);
    if (conv.table) map_some(line, conv.table, row.y, row.y);
  });
}

}  // namespace

bool has_nhwc_bytes(const ConvParams& p) {
  if (p.group == 1 || is_depthwise(p)) return true;
  return p.C % p.group == 0 && p.M % p.group == 0 && has_byte_groups(p.C / p.group, p.M / p.group) &&
         p.window.kernel_size() <= ByteGroupRow::kMaxTaps && has_byte_instructions(ByteInstructions::avx512_vnni);
}

bool has_nhwc_bytes(std::span<const int64_t> weights, int64_t group) {
  const size_t rank = weights.size();
  if (rank < 3 || rank > 4 || group <= 0) return false;
  ConvParams p;
  p.group = group, p.M = weights[0], p.C = weights[1] * group;
  for (size_t i = 2; i < rank; ++i) p.window.kernel[3 - (rank - i)] = weights[i];
  return has_nhwc_bytes(p);
}

int64_t nhwc_bytes_packed_size(const ConvParams& p) {
  if (is_depthwise(p)) return plain_depthwise_bytes(p) + (interleaves(p) ? 4 * tap_quads(p) * interleaved_channels(p.C) : 0);
  if (has_groups(p)) return rounded(p.M, 16) / 16 * byte_group_bytes(p.window.kernel_size(), p.C / p.group);
  return rounded(p.M, 16) * 4 * quads_of(p);
}

namespace {

void pack_interleaved(const ConvParams& p, const int8_t* weights, int8_t* packed) {
  const int64_t taps = p.window.kernel_size(), channels = interleaved_channels(p.C), width = p.window.kernel[2];
  const auto place = [&](int64_t tap) { return tap / width * interleaved_line(width) + tap % width; };
  std::memset(packed, 0, static_cast<size_t>(4 * tap_quads(p) * channels));
  for (int64_t m = 0; m < p.M; ++m)
    for (int64_t tap = 0; tap < taps; ++tap)
      packed[4 * (place(tap) / 4 * channels + interleaved_place(p.C, m)) + place(tap) % 4] = weights[m * taps + tap];
}

void pack_groups(const ConvParams& p, const int8_t* weights, int8_t* packed) {
  const int64_t taps = p.window.kernel_size(), channels = p.C / p.group, quads = channels / 4;
  const int64_t filters = p.M / p.group;
  std::memset(packed, 0, static_cast<size_t>(nhwc_bytes_packed_size(p)));
  for (int64_t m = 0; m < p.M; m += 16) {
    const int64_t last = std::min(p.M, m + 16) - 1, group = m / filters;
    ByteGroupHeader header{};
    for (int64_t i = 0; i < 16; ++i) header.places[i] = static_cast<int32_t>((std::min(m + i, last) / filters - group) * quads);
    header.first_channel = static_cast<int32_t>(group * channels);
    header.quads = static_cast<int32_t>((last / filters - group + 1) * quads);
    std::memcpy(packed + m / 16 * byte_group_bytes(taps, channels), &header, sizeof header);
  }
  for (int64_t m = 0; m < p.M; ++m)
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t tap = 0; tap < taps; ++tap)
        packed[m / 16 * byte_group_bytes(taps, channels) + static_cast<int64_t>(sizeof(ByteGroupHeader)) +
               ((tap * quads + c / 4) * 16 + m % 16) * 4 + c % 4] = weights[(m * channels + c) * taps + tap];
}

}  // namespace

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
    if (interleaves(p)) pack_interleaved(p, weights, packed + plain_depthwise_bytes(p));
    return;
  }
  if (has_groups(p)) return pack_groups(p, weights, packed);
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
    // Writes in order, line by line of the kernel. Each filter is read tap by tap, in steps of `taps` bytes.
    const int64_t lines = p.window.kernel[0] * p.window.kernel[1], width_taps = p.window.kernel[2];
    for (int64_t line = 0; line < lines; ++line)
      for (int64_t k = 0; k < width_taps * channels; k += 4) {
        int64_t places[4];
        const int64_t count = std::min<int64_t>(4, width_taps * channels - k);
        for (int64_t j = 0; j < 4; ++j) places[j] = (k + j) % channels * taps + line * width_taps + (k + j) / channels;
        for (int64_t n = 0; n < columns; ++n) {
          const int8_t* src = rows + n * depth;
          int8_t* dst = panel + (line * line_bytes(p) + k) * width + 4 * n;
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
  const int64_t columns = std::max(rounded(p.M, 16), interleaved_channels(p.M));
  const size_t bytes = aligned_bytes<int32_t>(columns) + aligned_bytes<float>(columns);
  if (p.group > 1) return bytes + aligned_bytes<uint8_t>(p.C);
  if (reads_in_place(p)) return bytes + aligned_bytes<uint8_t>(PaddedImage(p).size());
  return bytes + slot_bytes(p) * static_cast<size_t>(num_slots(p, max_threads));
}

void nhwc_bytes(const ConvParams& p, const ByteConv& conv, const int8_t* packed, const int32_t* sums, void* y, void* scratch,
                int max_threads, ThreadPool* pool) {
  if (p.N * p.M * p.window.out_size() <= 0) return;
  // Four taps at a time if nothing but a table follows.
  const bool interleaved = interleaves(p) && !conv.sums_only && conv.num_additions == 0;
  const int64_t columns = interleaved ? interleaved_channels(p.M) : rounded(p.M, 16);
  auto* room = static_cast<std::byte*>(scratch);
  auto* offsets = reinterpret_cast<int32_t*>(room);
  auto* scales = reinterpret_cast<float*>(room += aligned_bytes<int32_t>(columns));
  room += aligned_bytes<float>(columns);
  // The zero point relative to unsigned x; 0 for depthwise kernels that subtract it from x themselves. Arithmetic wraps around as int32
  // does.
  const auto zero = static_cast<uint32_t>(is_depthwise(p) && !interleaved ? 0 : conv.x_zero + (conv.x_signed ? 128 : 0));
  std::fill_n(offsets, columns, 0);
  std::fill_n(scales, columns, 0.0F);
  for (int64_t m = 0; m < p.M; ++m) {
    const uint32_t bias = conv.bias ? static_cast<uint32_t>(conv.bias[m]) : 0;
    const int64_t place = interleaved ? interleaved_place(p.M, m) : m;
    offsets[place] = static_cast<int32_t>(bias - zero * static_cast<uint32_t>(sums[m]));
    scales[place] = conv.scales ? conv.scales[m] : 0;
  }
  const ByteEpilogue epilogue{.offsets = offsets,
                              .scales = scales,
                              .zero = conv.y_zero,
                              .is_signed = conv.y_signed,
                              .additions = conv.additions,
                              .num_additions = conv.num_additions};
  auto* bytes = static_cast<uint8_t*>(y);
  if (interleaved || has_groups(p)) {
    auto* pad = reinterpret_cast<uint8_t*>(room);
    std::fill_n(pad, p.C, static_cast<uint8_t>(conv.x_zero));
    return grouped(p, conv, interleaved ? packed + plain_depthwise_bytes(p) : packed, epilogue, pad, bytes, pool);
  }
  if (is_depthwise(p)) return depthwise(p, conv, packed, epilogue, bytes, pool);
  if (reads_in_place(p)) return dense_in_place(p, conv, packed, epilogue, bytes, room, pool);
  dense(p, conv, packed, epilogue, bytes, room, max_threads, pool);
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

void map_byte_rows(int64_t rows, int64_t n, int64_t stride, const uint8_t* table, uint8_t* y) {
  if (map_byte_rows_avx512vbmi(rows, n, stride, table, y)) return;
  for (int64_t r = 0; r < rows; ++r) map_some(n, table, y + r * stride, y + r * stride);
}

void map_bytes(int64_t n, const uint8_t* table, const uint8_t* x, uint8_t* y, ThreadPool* pool) {
  parallel_for(pool, n, 65'536, [&](int64_t begin, int64_t end) { map_some(end - begin, table, x + begin, y + begin); });
}

}  // namespace treadle::kernels
