// Convolutions of bytes whose groups have few channels, or one (depthwise). Compiled for AVX512-VNNI; called only if the CPU has it.
#include "kernels/conv/byte_tile.h"

#if defined(__x86_64__)
// GCC 12 warns about registers that its own intrinsics leave undefined on purpose.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/conv/byte_scaling_avx512.h"

namespace treadle::kernels {
namespace {

using namespace avx512;

constexpr int kPixels = 4;  // outputs that are computed at once, so that weights are loaded once for all

/// The addresses of the taps of kPixels windows. Taps outside of the image are in the padding.
class WindowTaps {
 public:
  /// @param line, places  number of places for each line of taps, and in all
  WindowTaps(const ByteGroupRow& row, int64_t line, int64_t places) : count(places), row_(row), line_(line) {
    const Window& w = *row.window;
    for (int64_t t = 0; t < count; ++t)
      for (const uint8_t*& address : at[t]) address = row.pad;
    const Outputs left = outputs_inside(w, 2, 0), right = outputs_inside(w, 2, w.kernel[2] - 1);
    first_inside_ = left.first, last_inside_ = right.last;
  }
  /// Moves to the windows of outputs [ow, ow + kPixels); those beyond the row's end are repetitions of the last one.
  void move_to(int64_t ow) {
    const Window& w = *row_.window;
    const bool inside = ow >= first_inside_ && ow + kPixels <= last_inside_;
    if (inside && was_inside_) {
      const int64_t step = (ow - ow_) * w.stride[2] * row_.C;
      for (int64_t ky = first_line_; ky < last_line_; ++ky)
        for (int64_t t = ky * line_; t < ky * line_ + w.kernel[2]; ++t)
          for (const uint8_t*& address : at[t]) address += step;
    } else {
      set(ow);
    }
    ow_ = ow, was_inside_ = inside;
  }

  const uint8_t* at[ByteGroupRow::kMaxTaps][kPixels];
  int64_t count;

 private:
  void set(int64_t ow) {
    const Window& w = *row_.window;
    const Taps down = taps_inside(w, 1, row_.oh);
    first_line_ = down.first, last_line_ = down.last;
    for (int p = 0; p < kPixels; ++p) {
      const Taps along = taps_inside(w, 2, std::min(ow + p, w.out[2] - 1));
      for (int64_t ky = down.first; ky < down.last; ++ky) {
        const uint8_t* line = row_.x + (down.start + ky * w.dilation[1]) * w.in[2] * row_.C;
        for (int64_t kx = 0; kx < w.kernel[2]; ++kx)
          at[ky * line_ + kx][p] = kx >= along.first && kx < along.last ? line + (along.start + kx * w.dilation[2]) * row_.C : row_.pad;
      }
    }
  }

  const ByteGroupRow& row_;
  int64_t line_, first_inside_, last_inside_, first_line_ = 0, last_line_ = 0, ow_ = 0;
  bool was_inside_ = false;
};

/// Calls some(taps, ow) for groups of kPixels outputs. The last group may overlap the previous one, or be shorter than the row.
template <typename Some>
void each_output(const ByteGroupRow& row, int64_t line, int64_t places, Some some) {
  const int64_t out = row.window->out[2];
  WindowTaps taps(row, line, places);
  for (int64_t ow = 0; ow < out; ow += kPixels) {
    const int64_t begin = std::max<int64_t>(0, std::min(ow, out - kPixels));
    taps.move_to(begin);
    some(taps, begin);
  }
}

// Depthwise convolutions. A block has four vectors; the bytes of four taps of a channel are the four bytes of an element. Codes are clamped
// from above only: a number too large for an integer would become the lowest one, while others saturate where they are packed.

struct Block64 {
  using V = __m512i;
  static constexpr int64_t kChannels = 64;
  static TREADLE_VNNI V load(const uint8_t* p, int64_t count) {
    return count >= 64 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi8((uint64_t{1} << count) - 1, p);
  }
  static TREADLE_VNNI V zero() { return _mm512_setzero_si512(); }
  static TREADLE_VNNI V flipped(V x) { return _mm512_xor_si512(x, _mm512_set1_epi8(static_cast<char>(0x80))); }
  static TREADLE_VNNI V low8(V a, V b) { return _mm512_unpacklo_epi8(a, b); }
  static TREADLE_VNNI V high8(V a, V b) { return _mm512_unpackhi_epi8(a, b); }
  static TREADLE_VNNI V low16(V a, V b) { return _mm512_unpacklo_epi16(a, b); }
  static TREADLE_VNNI V high16(V a, V b) { return _mm512_unpackhi_epi16(a, b); }
  static TREADLE_VNNI V dot(V sum, V x, V w) { return _mm512_dpbusd_epi32(sum, x, w); }
  static TREADLE_VNNI V weights(const int8_t* p) { return _mm512_loadu_si512(p); }
  static TREADLE_VNNI V offsets(const int32_t* offsets) { return _mm512_loadu_si512(offsets); }
  static TREADLE_VNNI V codes(V sums, const float* scales) {
    return _mm512_cvtps_epi32(_mm512_min_ps(_mm512_set1_ps(1e6F), _mm512_mul_ps(_mm512_cvtepi32_ps(sums), _mm512_loadu_ps(scales))));
  }
  static TREADLE_VNNI V bytes(const V (&codes)[4], V zero, bool is_signed) {
    const V low = _mm512_adds_epi16(_mm512_packs_epi32(codes[0], codes[1]), zero),
            high = _mm512_adds_epi16(_mm512_packs_epi32(codes[2], codes[3]), zero);
    return is_signed ? _mm512_packs_epi16(low, high) : _mm512_packus_epi16(low, high);
  }
  static TREADLE_VNNI V words(int32_t value) { return _mm512_set1_epi16(static_cast<int16_t>(value)); }
  static TREADLE_VNNI V next_taps(V weights) { return _mm512_slli_epi32(weights, 8); }
  static TREADLE_VNNI void store(V x, int64_t count, uint8_t* p) {
    _mm512_mask_storeu_epi8(p, count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1, x);
  }
};

struct Block32 {
  using V = __m256i;
  static constexpr int64_t kChannels = 32;
  static TREADLE_VNNI V load(const uint8_t* p, int64_t count) {
    return count >= 32 ? _mm256_loadu_si256(reinterpret_cast<const V*>(p))
                       : _mm256_maskz_loadu_epi8(static_cast<__mmask32>((uint64_t{1} << count) - 1), p);
  }
  static TREADLE_VNNI V zero() { return _mm256_setzero_si256(); }
  static TREADLE_VNNI V flipped(V x) { return _mm256_xor_si256(x, _mm256_set1_epi8(static_cast<char>(0x80))); }
  static TREADLE_VNNI V low8(V a, V b) { return _mm256_unpacklo_epi8(a, b); }
  static TREADLE_VNNI V high8(V a, V b) { return _mm256_unpackhi_epi8(a, b); }
  static TREADLE_VNNI V low16(V a, V b) { return _mm256_unpacklo_epi16(a, b); }
  static TREADLE_VNNI V high16(V a, V b) { return _mm256_unpackhi_epi16(a, b); }
  static TREADLE_VNNI V dot(V sum, V x, V w) { return _mm256_dpbusd_epi32(sum, x, w); }
  static TREADLE_VNNI V weights(const int8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const V*>(p)); }
  static TREADLE_VNNI V offsets(const int32_t* offsets) { return _mm256_loadu_si256(reinterpret_cast<const V*>(offsets)); }
  static TREADLE_VNNI V codes(V sums, const float* scales) {
    return _mm256_cvtps_epi32(_mm256_min_ps(_mm256_set1_ps(1e6F), _mm256_mul_ps(_mm256_cvtepi32_ps(sums), _mm256_loadu_ps(scales))));
  }
  static TREADLE_VNNI V bytes(const V (&codes)[4], V zero, bool is_signed) {
    const V low = _mm256_adds_epi16(_mm256_packs_epi32(codes[0], codes[1]), zero),
            high = _mm256_adds_epi16(_mm256_packs_epi32(codes[2], codes[3]), zero);
    return is_signed ? _mm256_packs_epi16(low, high) : _mm256_packus_epi16(low, high);
  }
  static TREADLE_VNNI V words(int32_t value) { return _mm256_set1_epi16(static_cast<int16_t>(value)); }
  static TREADLE_VNNI V next_taps(V weights) { return _mm256_slli_epi32(weights, 8); }
  static TREADLE_VNNI void store(V x, int64_t count, uint8_t* p) {
    _mm256_mask_storeu_epi8(p, count >= 32 ? ~__mmask32{0} : static_cast<__mmask32>((uint64_t{1} << count) - 1), x);
  }
};

struct Block16 {
  using V = __m128i;
  static constexpr int64_t kChannels = 16;
  static TREADLE_VNNI V load(const uint8_t* p, int64_t count) {
    return count >= 16 ? _mm_loadu_si128(reinterpret_cast<const V*>(p))
                       : _mm_maskz_loadu_epi8(static_cast<__mmask16>((1U << count) - 1), p);
  }
  static TREADLE_VNNI V zero() { return _mm_setzero_si128(); }
  static TREADLE_VNNI V flipped(V x) { return _mm_xor_si128(x, _mm_set1_epi8(static_cast<char>(0x80))); }
  static TREADLE_VNNI V low8(V a, V b) { return _mm_unpacklo_epi8(a, b); }
  static TREADLE_VNNI V high8(V a, V b) { return _mm_unpackhi_epi8(a, b); }
  static TREADLE_VNNI V low16(V a, V b) { return _mm_unpacklo_epi16(a, b); }
  static TREADLE_VNNI V high16(V a, V b) { return _mm_unpackhi_epi16(a, b); }
  static TREADLE_VNNI V dot(V sum, V x, V w) { return _mm_dpbusd_epi32(sum, x, w); }
  static TREADLE_VNNI V weights(const int8_t* p) { return _mm_loadu_si128(reinterpret_cast<const V*>(p)); }
  static TREADLE_VNNI V offsets(const int32_t* offsets) { return _mm_loadu_si128(reinterpret_cast<const V*>(offsets)); }
  static TREADLE_VNNI V codes(V sums, const float* scales) {
    return _mm_cvtps_epi32(_mm_min_ps(_mm_set1_ps(1e6F), _mm_mul_ps(_mm_cvtepi32_ps(sums), _mm_loadu_ps(scales))));
  }
  static TREADLE_VNNI V bytes(const V (&codes)[4], V zero, bool is_signed) {
    const V low = _mm_adds_epi16(_mm_packs_epi32(codes[0], codes[1]), zero),
            high = _mm_adds_epi16(_mm_packs_epi32(codes[2], codes[3]), zero);
    return is_signed ? _mm_packs_epi16(low, high) : _mm_packus_epi16(low, high);
  }
  static TREADLE_VNNI V words(int32_t value) { return _mm_set1_epi16(static_cast<int16_t>(value)); }
  static TREADLE_VNNI V next_taps(V weights) { return _mm_slli_epi32(weights, 8); }
  static TREADLE_VNNI void store(V x, int64_t count, uint8_t* p) {
    _mm_mask_storeu_epi8(p, count >= 16 ? __mmask16{0xFFFF} : static_cast<__mmask16>((1U << count) - 1), x);
  }
};

/// Interleaves the bytes of four taps.
template <class B, bool kFlip, bool kFull>
struct Quads {
  using V = typename B::V;
  V of[4];

  TREADLE_VNNI __attribute__((always_inline)) Quads(const uint8_t* a, const uint8_t* b, const uint8_t* c, const uint8_t* d, int64_t count) {
    const V x0 = load(a, count), x1 = load(b, count), x2 = load(c, count), x3 = load(d, count);
    const V low01 = B::low8(x0, x1), high01 = B::high8(x0, x1), low23 = B::low8(x2, x3), high23 = B::high8(x2, x3);
    of[0] = B::low16(low01, low23), of[1] = B::high16(low01, low23), of[2] = B::low16(high01, high23), of[3] = B::high16(high01, high23);
  }
  TREADLE_VNNI __attribute__((always_inline)) static V load(const uint8_t* x, int64_t count) {
    const V bytes = kFull ? B::load(x, B::kChannels) : B::load(x, count);
    return kFlip ? B::flipped(bytes) : bytes;
  }
};

// Computes kPixels outputs for at most B::kChannels channels from c on. kShared: windows are three wide and neighbors one pixel apart, so
// that four pixels belong to two windows.
template <class B, bool kFlip, bool kFull, bool kShared>
TREADLE_VNNI void interleaved_block(const ByteGroupRow& row, const WindowTaps& taps, int64_t ow, int64_t c) {
  using V = typename B::V;
  using Q = Quads<B, kFlip, kFull>;
  const ByteEpilogue& e = row.epilogue;
  constexpr int64_t kStep = B::kChannels / 4;
  const int64_t count = std::min(B::kChannels, row.C - c), stride = 4 * interleaved_channels(row.C);
  const int8_t* weights = row.weights + 4 * c;
  V sum[kPixels][4];
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) {
    const V offset = B::offsets(e.offsets + c + v * kStep);
#pragma GCC unroll 4
    for (int p = 0; p < kPixels; ++p) sum[p][v] = offset;
  }
  for (int64_t t = 0; t < taps.count; t += 4, weights += stride) {
    V factors[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) factors[v] = B::weights(weights + v * B::kChannels);
    if constexpr (kShared) {
#pragma GCC unroll 2
      for (int p = 0; p < kPixels; p += 2) {
        const Q x(taps.at[t][p] + c, taps.at[t + 1][p] + c, taps.at[t + 2][p] + c, taps.at[t + 2][p + 1] + c, count);
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) {
          sum[p][v] = B::dot(sum[p][v], x.of[v], factors[v]);
          sum[p + 1][v] = B::dot(sum[p + 1][v], x.of[v], B::next_taps(factors[v]));
        }
      }
    } else {
#pragma GCC unroll 4
      for (int p = 0; p < kPixels; ++p) {
        const Q x(taps.at[t][p] + c, taps.at[t + 1][p] + c, taps.at[t + 2][p] + c, taps.at[t + 3][p] + c, count);
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) sum[p][v] = B::dot(sum[p][v], x.of[v], factors[v]);
      }
    }
  }
  const int pixels = static_cast<int>(std::min<int64_t>(kPixels, row.window->out[2] - ow));
  const V zero = B::words(e.zero);
#pragma GCC unroll 4
  for (int p = 0; p < kPixels; ++p) {
    if (p >= pixels) break;
    V codes[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) codes[v] = B::codes(sum[p][v], e.scales + c + v * kStep);
    B::store(B::bytes(codes, zero, e.is_signed), count, row.y + (ow + p) * row.C + c);
  }
}

template <bool kFlip, bool kShared>
void interleaved_outputs(const ByteGroupRow& row, const WindowTaps& taps, int64_t ow) {
  int64_t c = 0;
  for (; c + 64 <= row.C; c += 64) interleaved_block<Block64, kFlip, true, kShared>(row, taps, ow, c);
  const int64_t left = row.C - c;
  if (left > 32)
    interleaved_block<Block64, kFlip, false, kShared>(row, taps, ow, c);
  else if (left == 32)
    interleaved_block<Block32, kFlip, true, kShared>(row, taps, ow, c);
  else if (left > 16)
    interleaved_block<Block32, kFlip, false, kShared>(row, taps, ow, c);
  else if (left == 16)
    interleaved_block<Block16, kFlip, true, kShared>(row, taps, ow, c);
  else if (left > 0)
    interleaved_block<Block16, kFlip, false, kShared>(row, taps, ow, c);
}

template <bool kFlip>
void interleaved_row(const ByteGroupRow& row) {
  const Window& w = *row.window;
  const int64_t line = interleaved_line(w.kernel[2]), count = (w.kernel[1] * line + 3) / 4 * 4;
  if (w.kernel[2] == 3 && w.stride[2] == 1 && w.dilation[2] == 1)
    each_output(row, line, count, [&](const WindowTaps& taps, int64_t ow) { interleaved_outputs<kFlip, true>(row, taps, ow); });
  else
    each_output(row, line, count, [&](const WindowTaps& taps, int64_t ow) { interleaved_outputs<kFlip, false>(row, taps, ow); });
}

// Groups of several channels. A vector has 16 filters, which read the channels of one or several groups: these are loaded at once, and a
// permutation gives each filter four channels of its group.

template <bool kFlip>
TREADLE_VNNI void group_outputs(const ByteGroupRow& row, const WindowTaps& taps, int64_t ow) {
  const int64_t quads = row.C / row.group / 4;
  const int pixels = static_cast<int>(std::min<int64_t>(kPixels, row.window->out[2] - ow));
  const int8_t* weights = row.weights;
  for (int64_t m = 0; m < row.M; m += 16) {
    const int64_t count = std::min<int64_t>(16, row.M - m);
    ByteGroupHeader header;
    std::memcpy(&header, weights, sizeof header);
    weights += sizeof header;
    const __m512i begin = _mm512_loadu_si512(header.places);
    const auto mask = static_cast<__mmask16>((1U << header.quads) - 1);
    // Two sums for each output, as one would wait for the instruction before.
    __m512i sum[kPixels], other[kPixels];
#pragma GCC unroll 4
    for (int p = 0; p < kPixels; ++p) sum[p] = other[p] = _mm512_setzero_si512();
    const auto add_tap = [&](int64_t t, __m512i(&to)[kPixels]) TREADLE_VNNI __attribute__((always_inline)) {
      __m512i x[kPixels];
#pragma GCC unroll 4
      for (int p = 0; p < kPixels; ++p) {
        x[p] = _mm512_maskz_loadu_epi32(mask, taps.at[t][p] + header.first_channel);
        if constexpr (kFlip) x[p] = _mm512_xor_si512(x[p], _mm512_set1_epi8(static_cast<char>(0x80)));
      }
      __m512i place = begin;
      for (int64_t q = 0; q < quads; ++q, weights += 64) {
        const __m512i factors = _mm512_loadu_si512(weights);
#pragma GCC unroll 4
        for (int p = 0; p < kPixels; ++p) to[p] = _mm512_dpbusd_epi32(to[p], _mm512_permutexvar_epi32(place, x[p]), factors);
        place = _mm512_add_epi32(place, _mm512_set1_epi32(1));
      }
    };
    int64_t t = 0;
    for (; t + 2 <= taps.count; t += 2) add_tap(t, sum), add_tap(t + 1, other);
    if (t < taps.count) add_tap(t, sum);
#pragma GCC unroll 4
    for (int p = 0; p < kPixels; ++p) sum[p] = _mm512_add_epi32(sum[p], other[p]);
    if (row.sums) {
      for (int p = 0; p < pixels; ++p) store_sums(sum[p], row.epilogue, m, count, row.sums + (ow + p) * row.M + m);
      continue;
    }
    const Scaling scaling(row.epilogue, m);
#pragma GCC unroll 4
    for (int p = 0; p < kPixels; ++p) {
      if (p >= pixels) break;
      const int64_t place = (ow + p) * row.M + m;
      store_bytes(scaling.to_bytes(sum[p], row.first + place, count), count, row.y + place);
    }
  }
}

template <bool kFlip>
void group_row(const ByteGroupRow& row) {
  const Window& w = *row.window;
  each_output(row, w.kernel[2], w.kernel_size(), [&](const WindowTaps& taps, int64_t ow) { group_outputs<kFlip>(row, taps, ow); });
}

}  // namespace

void byte_interleaved_row_avx512vnni(const ByteGroupRow& row) { row.flip != 0 ? interleaved_row<true>(row) : interleaved_row<false>(row); }
void byte_group_row_avx512vnni(const ByteGroupRow& row) { row.flip != 0 ? group_row<true>(row) : group_row<false>(row); }

}  // namespace treadle::kernels
#else
namespace treadle::kernels {
void byte_interleaved_row_avx512vnni(const ByteGroupRow&) {}  // never called: has_byte_instructions() is false
void byte_group_row_avx512vnni(const ByteGroupRow& row) { byte_group_row_plain(row); }
}  // namespace treadle::kernels
#endif
