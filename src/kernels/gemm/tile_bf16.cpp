#include "kernels/gemm/tile_bf16.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gemm/tile_bf16.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "core/base/cpu_info.h"
#include "core/values/built_types.h"
#include "core/values/float_types.h"
#include "kernels/elementwise/unary_f32.h"
#include "kernels/gemm/tile-inl.h"
#include "kernels/gemm/tile_amx.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using DU = hn::ScalableTag<uint32_t>;
using V = hn::Vec<D>;
using VU = hn::Vec<DU>;
using DH = hn::Rebind<uint16_t, D>;
using VH = hn::Vec<DH>;

// Returns the maximum number of rows of a tile. It is limited, because each number of rows instantiates four functions, which take
// compilers minutes.
constexpr int max_rows_bf16(int vectors) { return std::min(max_rows(vectors), vectors >= 3 ? 6 : 8); }

#if HWY_TARGET == HWY_AVX3
// Adds the two products of each pair to `sum`. Uses inline assembly, because this file's functions are compiled for AVX-512 without
// bfloat16, a target that Highway does not have. Called only if the CPU has AVX512-BF16.
[[maybe_unused]] HWY_INLINE V add_pairs(V sum, VU a, VU b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
  return sum;
}
[[maybe_unused]] HWY_INLINE VH nearest(V x) {
  VH to;
  asm("vcvtneps2bf16 %1, %0" : "=v"(to.raw) : "v"(x.raw));
  return to;
}
#else
[[maybe_unused]] HWY_INLINE V add_pairs(V sum, VU, VU) { return sum; }
[[maybe_unused]] HWY_INLINE VH nearest(V) { return VH(); }
#endif
constexpr bool kHasPairs = HWY_TARGET == HWY_AVX3;

#define TREADLE_EACH_ROW _Pragma("GCC unroll 8") for (int r = 0; r < kRows; ++r)
#define TREADLE_EACH_VECTOR _Pragma("GCC unroll 4") for (int v = 0; v < kVectors; ++v)

HWY_INLINE uint32_t pair_at(const uint16_t* p) {
  uint32_t pair;
  std::memcpy(&pair, p, sizeof pair);
  return pair;
}
HWY_INLINE VU odd_of(VU pairs) { return hn::And(pairs, hn::Set(DU(), 0xFFFF0000U)); }

// How pairs of numbers are multiplied: by the CPU's bfloat16 dot products, or in float32 after widening bfloat16 or float16.
enum class By { pairs, bfloat16, float16 };

// Converts float16 numbers, each in the lower half of a word.
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
// Portable targets have no conversion instruction, and Highway's emulation does not handle infinity.
HWY_INLINE V from_float16(VU halves) {
  uint32_t bits[hn::MaxLanes(DU())];
  float values[hn::MaxLanes(D())];
  hn::StoreU(halves, DU(), bits);
  for (size_t i = 0; i < hn::MaxLanes(D()); ++i) values[i] = static_cast<float>(Float16::from_bits(static_cast<uint16_t>(bits[i])));
  return hn::LoadU(D(), values);
}
HWY_INLINE VU to_float16(V numbers) {
  uint32_t bits[hn::MaxLanes(DU())];
  float values[hn::MaxLanes(D())];
  hn::StoreU(numbers, D(), values);
  for (size_t i = 0; i < hn::MaxLanes(D()); ++i) bits[i] = Float16(values[i]).bits;
  return hn::LoadU(DU(), bits);
}
#else
using DF16 = hn::Rebind<hwy::float16_t, D>;
HWY_INLINE V from_float16(VU halves) { return hn::PromoteTo(D(), hn::BitCast(DF16(), hn::TruncateTo(DH(), halves))); }
HWY_INLINE VU to_float16(V numbers) { return hn::PromoteTo(DU(), hn::BitCast(DH(), hn::DemoteTo(DF16(), numbers))); }
#endif

// Widens one number of each pair to float32.
template <By kBy, bool kOdd>
HWY_INLINE V widened(VU pairs) {
  const D d;
  if constexpr (kBy == By::float16)
    return from_float16(kOdd ? hn::ShiftRight<16>(pairs) : pairs);
  else
    return hn::BitCast(d, kOdd ? odd_of(pairs) : hn::ShiftLeft<16>(pairs));
}
// Broadcasts one number of a pair (the odd one if kOdd) to all lanes.
template <By kBy, bool kOdd>
HWY_INLINE V broadcast(uint32_t pair) {
  const D d;
  if constexpr (kBy == By::float16)
    return from_float16(hn::Set(DU(), kOdd ? pair >> 16 : pair));
  else
    return hn::BitCast(d, hn::Set(DU(), kOdd ? pair & 0xFFFF0000U : pair << 16));
}

// kApart: rows of A are at the offsets job.pixels; otherwise they are job.a_row apart, and row number `row` is at A.
template <By kBy, int kRows, int kVectors, bool kApart>
HWY_NOINLINE void bf16_rows(const Bf16Tile& job, const uint16_t* A, int64_t row, [[maybe_unused]] int64_t ahead) {
  const D d;
  const DU du;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), a_row = job.a_row, length = job.length;
  V sum[kRows][kVectors];
  TREADLE_EACH_ROW TREADLE_EACH_VECTOR sum[r][v] = hn::Zero(d);
  for (int64_t s = 0; s < job.num_segments; ++s) {
    const uint32_t* HWY_RESTRICT b = job.B + (job.b_first + s) % job.b_segments * (length / 2) * kVectors * lanes;
    const uint16_t* HWY_RESTRICT first = A + job.segments[s];
    [[maybe_unused]] const uint16_t* a[kRows];
    if constexpr (kApart) {
      TREADLE_EACH_ROW a[r] = first + job.pixels[row + r];
    }
    for (int64_t k = 0; k < length; k += 2) {
      // Prefetches a line of the next panel for each row of this one, as the float32 kernels do. A prefetch never faults.
      if constexpr (kVectors > 2)
        __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(b) + static_cast<uintptr_t>(ahead)), 0, 2);
      auto pair = [&](int r) HWY_ATTR { return pair_at(kApart ? a[r] + k : first + r * a_row + k); };
      if constexpr (kBy == By::pairs) {
        VU bv[kVectors];
        TREADLE_EACH_VECTOR bv[v] = hn::LoadU(du, b + v * lanes);
        TREADLE_EACH_ROW {
          const VU av = hn::Set(du, pair(r));
          TREADLE_EACH_VECTOR sum[r][v] = add_pairs(sum[r][v], av, bv[v]);
        }
      } else {
        V bv[kVectors];
        TREADLE_EACH_VECTOR bv[v] = widened<kBy, false>(hn::LoadU(du, b + v * lanes));
        TREADLE_EACH_ROW {
          const V av = broadcast<kBy, false>(pair(r));
          TREADLE_EACH_VECTOR sum[r][v] = hn::MulAdd(av, bv[v], sum[r][v]);
        }
        TREADLE_EACH_VECTOR bv[v] = widened<kBy, true>(hn::LoadU(du, b + v * lanes));
        TREADLE_EACH_ROW {
          const V av = broadcast<kBy, true>(pair(r));
          TREADLE_EACH_VECTOR sum[r][v] = hn::MulAdd(av, bv[v], sum[r][v]);
        }
      }
      b += kVectors * lanes;
    }
  }
  finish<float, kRows, kVectors>(d, sum, job.to, row);
}
#undef TREADLE_EACH_ROW
#undef TREADLE_EACH_VECTOR

int64_t bytes_to_next(const Bf16Tile& job) {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(job.to.next) - reinterpret_cast<uintptr_t>(job.B));
}

template <By kBy, int kVectors, bool kApart, int kRows = max_rows_bf16(kVectors)>
HWY_INLINE void bf16_rows_of(int64_t rows, const Bf16Tile& job, const uint16_t* A, int64_t row, int64_t ahead) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return bf16_rows_of<kBy, kVectors, kApart, kRows - 1>(rows, job, A, row, ahead);
  }
  bf16_rows<kBy, kRows, kVectors, kApart>(job, A, row, ahead);
}

// Splits rows evenly: 7 rows are 4 + 3, never 6 + 1.
template <By kBy, int kVectors, bool kApart>
void bf16_blocks(const Bf16Tile& job) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(D()));
  const int64_t rows = job.to.row_end - job.to.row_begin, blocks = (rows + max_rows_bf16(kVectors) - 1) / max_rows_bf16(kVectors);
  int64_t row = job.to.row_begin;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t count = rows / blocks + (block < rows % blocks ? 1 : 0);
    // Tile number `block` prefetches vector number `block` of each row of the next panel, as long as there are vectors.
    const bool fetches = job.to.next != nullptr && block < kVectors;
    const int64_t ahead = fetches ? bytes_to_next(job) + block * lanes * static_cast<int64_t>(sizeof(uint32_t)) : 0;
    bf16_rows_of<kBy, kVectors, kApart>(count, job, kApart ? job.A : job.A + row * job.a_row, row, ahead);
    row += count;
  }
}

template <By kBy, int kVectors = kMaxVectors>
void bf16_any(const Bf16Tile& job) {
  if constexpr (kVectors > 1) {
    if (job.to.vectors < kVectors) return bf16_any<kBy, kVectors - 1>(job);
  }
  return job.pixels != nullptr ? bf16_blocks<kBy, kVectors, true>(job) : bf16_blocks<kBy, kVectors, false>(job);
}

// Pixels of one image row are evenly spaced, like rows of a matrix. Pixels with other distances are gathered in blocks of 16.
[[maybe_unused]] void multiply_pixels(AmxTiles& tiles, const int64_t* pixels, AmxBlock block) {
  const int64_t step = block.rows > 1 ? pixels[1] - pixels[0] : 0;
  bool even = true;
  for (int64_t r = 2; r < block.rows; ++r) even &= pixels[r] - pixels[r - 1] == step;
  if (even) {
    block.A += pixels[0], block.a_row = step;
    return tiles.multiply(block);
  }
  const int64_t rows = block.rows, width = block.vectors * static_cast<int64_t>(hn::Lanes(D()));
  for (int64_t row = 0; row < rows; row += 16) {
    block.pixels = pixels + row, block.rows = std::min<int64_t>(16, rows - row);
    tiles.multiply(block);
    block.sums += 16 * width, block.fetch_shares = 0;
  }
}

// Multiplies one part of the panel's depth by all rows before the next part: the part stays in L1, and the rows' sums stay in L2.
template <int kVectors = kMaxVectors>
void amx_any(const Bf16Tile& job) {
  if constexpr (kVectors > 1) {
    if (job.to.vectors < kVectors) return amx_any<kVectors - 1>(job);
  }
  constexpr int64_t kMostRows = 128, kPartBytes = 40 * 1024;
  constexpr int kRows = 4;
  const int64_t width = kVectors * static_cast<int64_t>(hn::Lanes(D())), row_bytes = width * static_cast<int64_t>(sizeof(uint32_t));
  HWY_ALIGN float sums[kMostRows * kVectors * hn::MaxLanes(D())];
  AmxTiles tiles;
  const int64_t depth = amx_depth(job.length / 2), steps = job.num_segments * (job.length / 2 / depth);
  const int64_t parts = std::max<int64_t>(1, (steps * depth * row_bytes + kPartBytes / 2) / kPartBytes);
  // If there are gaps between image rows, the pixels in the gaps are computed too. Of every `pitch` pixels, the first `line` are wanted;
  // the first pixel computed has the index `first_in_line` within its image row.
  const bool lined = job.line != 0;
  const int64_t line = lined ? job.line : job.to.row_end - job.to.row_begin, pitch = lined ? line + job.gap : line;
  const int64_t first_in_line = lined ? job.first_in_line : 0;
  auto with_gaps = [&](int64_t row) { return (first_in_line + row) / line * pitch + (first_in_line + row) % line - first_in_line; };
  const int64_t begin = lined ? 0 : job.to.row_begin, end = lined ? with_gaps(job.to.row_end - 1) + 1 : job.to.row_end;
  for (int64_t first = begin; first < end; first += kMostRows) {
    const int64_t rows = std::min(kMostRows, end - first), blocks = (rows + kAmxRows - 1) / kAmxRows;
    for (int64_t part = 0; part < parts; ++part) {
      for (int64_t i = 0; i < blocks; ++i) {
        const int64_t row = first + i * kAmxRows;
        AmxBlock block{.A = job.A,
                       .a_row = job.a_row,
                       .pixels = nullptr,
                       .tiled = job.a_tiles != 0,
                       .segments = job.segments,
                       .a_below = job.a_tiles,
                       .b_segments = job.b_segments,
                       .pairs = job.length / 2,
                       .first_step = steps * part / parts,
                       .last_step = steps * (part + 1) / parts,
                       .B = job.B,
                       .vectors = kVectors,
                       .rows = std::min(kAmxRows, rows - i * kAmxRows),
                       .sums = sums + i * kAmxRows * width,
                       .adds = part > 0};
        if (job.to.next != nullptr && first == begin)
          block.fetch_distance = bytes_to_next(job), block.fetch_share = i, block.fetch_shares = blocks;
        if (lined) {
          block.A += job.pixels[0];
        } else if (job.a_tiles == 0 && job.pixels != nullptr) {
          multiply_pixels(tiles, job.pixels + row, block);
          continue;
        }
        block.A += job.a_tiles != 0 ? row / 16 * job.a_tiles : row * job.a_row;
        tiles.multiply(block);
      }
    }
    for (int64_t r = 0; r < rows;) {
      const int64_t place = first_in_line + first + r - begin, number = place / pitch, inside = place % pitch;
      if (inside >= line) {
        r += pitch - inside;
        continue;
      }
      int64_t row = begin + number * line + inside - first_in_line;
      const int64_t run_end = std::min(rows, r + line - inside);
      for (; r + kRows <= run_end; r += kRows, row += kRows) finish_rows<kVectors, kRows>(sums + r * width, job.to, row);
      for (; r < run_end; ++r, ++row) finish_rows<kVectors, 1>(sums + r * width, job.to, row);
    }
  }
}

// Rounds to bfloat16 in the upper half of each word; the lower half is not cleared.
HWY_INLINE VU rounded(V x) {
  const DU du;
  const VU bits = hn::BitCast(du, x), odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1U));
  const VU up = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFFU)));
  // A NaN must not round to infinity.
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), hn::Or(bits, hn::Set(du, 0x400000U)), up);
}

// Rounds to the bits of bfloat16. The CPU's instruction flushes denormals to zero.
template <bool kPairs>
HWY_INLINE VH narrowed(V x) {
  if constexpr (kPairs) return nearest(x);
  return hn::TruncateTo(DH(), hn::ShiftRight<16>(rounded(x)));
}

HWY_INLINE V rest_of(V x) {
  const D d;
  const V near = hn::BitCast(d, odd_of(rounded(x)));
  const V rest = hn::Sub(x, near);
  return hn::IfThenElseZero(hn::IsFinite(near), rest);
}

template <bool kPairs>
void to_bf16_here(const float* src, int64_t n, uint16_t* dst, uint16_t* rest) {
  const D d;
  const DH d16;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  while (i + lanes <= n) {
    const V x = hn::LoadU(d, src + i);
    hn::StoreU(narrowed<kPairs>(x), d16, dst + i);
    if (rest != nullptr) hn::StoreU(narrowed<kPairs>(rest_of(x)), d16, rest + i);
    i += lanes;
    if (i < n && i + lanes > n) i = n - lanes;  // the last vector may overlap the previous one
  }
  if (i >= n) return;
  HWY_ALIGN float last[hn::MaxLanes(d)] = {};
  HWY_ALIGN uint16_t last16[hn::MaxLanes(d)];
  std::copy(src + i, src + n, last);
  const V x = hn::Load(d, last);
  hn::StoreU(narrowed<kPairs>(x), d16, last16);
  std::copy(last16, last16 + (n - i), dst + i);
  if (rest == nullptr) return;
  hn::StoreU(narrowed<kPairs>(rest_of(x)), d16, last16);
  std::copy(last16, last16 + (n - i), rest + i);
}

void to_tiles_here(const float* rows, int64_t lda, int64_t count, int64_t K, int64_t even_columns, int64_t depth, uint16_t* hi,
                   uint16_t* lo) {
  const D d;
  const DH d16;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t first = 0; first < even_columns; first += 2 * depth) {
    const int64_t columns = std::clamp<int64_t>(K - first, 0, 2 * depth);
    for (int64_t r = 0; r < count; ++r) {
      const float* from = rows + r * lda + first;
      for (int64_t k = 0; k < kAmxPitch; k += lanes) {
        const V x = k + lanes <= columns ? hn::LoadU(d, from + k)
                    : k < columns        ? load_first(d, FirstLanes(d, columns - k), from + k)
                                         : hn::Zero(d);
        hn::StoreU(narrowed<kHasPairs>(x), d16, hi + r * kAmxPitch + k);
        if (lo != nullptr) hn::StoreU(narrowed<kHasPairs>(rest_of(x)), d16, lo + r * kAmxPitch + k);
      }
    }
    hi += kAmxTile;
    if (lo != nullptr) lo += kAmxTile;
  }
}

void pair_float16_rows_here(const float* rows, int64_t ld, int64_t K, int64_t width, uint32_t* dst) {
  const D d;
  const DU du;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t k = 0; k < K; k += 2) {
    for (int64_t n = 0; n < width; n += lanes) {
      const VU even = to_float16(hn::LoadU(d, rows + k * ld + n));
      const VU odd = k + 1 < K ? to_float16(hn::LoadU(d, rows + (k + 1) * ld + n)) : hn::Zero(du);
      hn::StoreU(hn::Or(even, hn::ShiftLeft<16>(odd)), du, dst + k / 2 * width + n);
    }
  }
}

void pair_rows_here(const float* rows, int64_t ld, int64_t K, int64_t width, bool rest, uint32_t* dst) {
  const D d;
  const DU du;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t k = 0; k < K; k += 2) {
    for (int64_t n = 0; n < width; n += lanes) {
      V even = hn::LoadU(d, rows + k * ld + n);
      V odd = k + 1 < K ? hn::LoadU(d, rows + (k + 1) * ld + n) : hn::Zero(d);
      if (rest) even = rest_of(even), odd = rest_of(odd);
      hn::StoreU(hn::Or(hn::ShiftRight<16>(rounded(even)), odd_of(rounded(odd))), du, dst + k / 2 * width + n);
    }
  }
}

}  // namespace

void bf16_tile_here(const Bf16Tile& job) {
  if (job.is_float16) return bf16_any<By::float16>(job);
  if constexpr (kHasPairs) {
    if (uses_amx(job)) return amx_any(job);
    if (!job.emulated && cpu_info().features.avx512_bf16) return bf16_any<By::pairs>(job);
  }
  bf16_any<By::bfloat16>(job);
}
bool has_pairs_here() { return kHasPairs && cpu_info().features.avx512_bf16; }
void to_bf16_for(const float* src, int64_t n, uint16_t* dst, uint16_t* rest) {
  has_pairs_here() ? to_bf16_here<kHasPairs>(src, n, dst, rest) : to_bf16_here<false>(src, n, dst, rest);
}
void to_tiles_for(const float* rows, int64_t lda, int64_t count, int64_t K, int64_t even_columns, int64_t depth, uint16_t* hi,
                  uint16_t* lo) {
  to_tiles_here(rows, lda, count, K, even_columns, depth, hi, lo);
}
void pair_rows_for(const float* rows, int64_t ld, int64_t K, int64_t width, bool rest, uint32_t* dst) {
  pair_rows_here(rows, ld, K, width, rest, dst);
}
void pair_float16_rows_for(const float* rows, int64_t ld, int64_t K, int64_t width, uint32_t* dst) {
  pair_float16_rows_here(rows, ld, K, width, dst);
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

bool uses_amx(const Bf16Tile& job) {
  if (job.a_tiles != 0) return true;
  return !job.emulated && !job.is_float16 && cpu_info().features.amx_bf16 && job.to.row_end - job.to.row_begin >= kLeastAmxRows &&
         amx_depth(job.length / 2) > 0;
}

HWY_EXPORT(bf16_tile_here);
HWY_EXPORT(to_bf16_for);
HWY_EXPORT(to_tiles_for);
HWY_EXPORT(pair_rows_for);
HWY_EXPORT(pair_float16_rows_for);

namespace {
constexpr int64_t kPanelBytes = 384 * 1024;  // size of a panel that stays in L2 (1 MB) beside the rows of A
constexpr int64_t kFewRows = 4;              // up to this number of rows, a panel is read only once
}  // namespace

void bf16_tile([[maybe_unused]] const Bf16Tile& job) {
  if constexpr (kIsBuilt<BFloat16>) {  // in builds without bfloat16, bf16_form() declines
    if (job.to.row_end > job.to.row_begin) HWY_DYNAMIC_DISPATCH(bf16_tile_here)(job);
  }
}

void to_bf16(const float* src, int64_t n, uint16_t* dst, uint16_t* rest) { HWY_DYNAMIC_DISPATCH(to_bf16_for)(src, n, dst, rest); }

void to_bf16_tiles(const float* rows, int64_t lda, int64_t count, int64_t K, int64_t even_columns, int64_t depth, uint16_t* hi,
                   uint16_t* lo) {
  HWY_DYNAMIC_DISPATCH(to_tiles_for)(rows, lda, count, K, even_columns, depth, hi, lo);
}

void pair_rows(const float* rows, int64_t ld, int64_t K, int64_t width, bool rest, uint32_t* dst) {
  HWY_DYNAMIC_DISPATCH(pair_rows_for)(rows, ld, K, width, rest, dst);
}

void pair_float16_rows(const float* rows, int64_t ld, int64_t K, int64_t width, uint32_t* dst) {
  HWY_DYNAMIC_DISPATCH(pair_float16_rows_for)(rows, ld, K, width, dst);
}

void run_bf16_tile(const Bf16Tile& job) {
  const Epilogue<float>& e = *job.to.epilogue;
  const int64_t width = job.to.vectors * panel_shape<float>().lanes, pairs = job.length / 2;
  const int64_t depth = std::max<int64_t>(1, kPanelBytes / (width * static_cast<int64_t>(sizeof(uint32_t))));
  const bool whole = uses_amx(job) || job.num_segments * pairs <= depth + depth / 2 || job.to.row_end - job.to.row_begin <= kFewRows;
  if (whole) {
    bf16_tile(job);
  } else {
    // Each pass multiplies whole segments or a piece of one; between passes, C contains the partial sum.
    const int64_t pieces = pairs <= depth + depth / 2 ? 1 : (pairs + depth - 1) / depth;
    const int64_t each = pieces > 1 ? 1 : std::max<int64_t>(1, depth / std::max<int64_t>(1, pairs));
    Epilogue<float> own = e;
    own.bias = nullptr;
    own.activation = Unary::none;
    Bf16Tile part = job;
    part.to.epilogue = &own;
    for (int64_t s = 0; s < job.num_segments; s += each) {
      for (int64_t piece = 0; piece < pieces; ++piece) {
        const int64_t begin = pairs * piece / pieces, end = pairs * (piece + 1) / pieces;
        const bool is_last = s + each >= job.num_segments && piece + 1 == pieces;
        if (is_last) own.bias = e.bias, own.activation = e.activation;
        part.A = job.A + 2 * begin;
        part.segments = job.segments + s;
        part.num_segments = std::min(each, job.num_segments - s);
        part.length = 2 * (end - begin);
        part.b_first = s;
        if (pieces > 1) part.B = job.B + (s % job.b_segments * pairs + begin) * width, part.b_segments = 1;
        bf16_tile(part);
        own.residual = job.to.C - job.to.first_column;
        own.residual_row = job.to.ldc;
      }
    }
  }
  if (is_clamp(e.activation)) return;
  for (int64_t m = job.to.row_begin; m < job.to.row_end; ++m) {
    float* c = job.to.C + m * job.to.ldc;
    unary_f32(e.activation, e.a, e.b, c, c, job.to.columns);
  }
}

}  // namespace treadle::kernels
#endif
