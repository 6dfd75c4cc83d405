// Compiled for AMX; called only where cpu_info() says that the machine has it.
#include "kernels/gemm/tile_amx.h"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace treadle::kernels {

namespace {
constexpr int64_t kTileRows = 16, kTilePairs = 16;
constexpr int64_t kLeastPairs = 6;  // of a tile; with fewer, its loads take longer than vectors would
}  // namespace

int64_t amx_even_pairs(int64_t pairs) {
  const int64_t tiles = (pairs + kTilePairs - 1) / kTilePairs;
  return tiles > 0 ? (pairs + tiles - 1) / tiles * tiles : 0;
}

int64_t amx_depth(int64_t pairs) {
  for (int64_t depth = std::min(pairs, kTilePairs); depth >= kLeastPairs; --depth)
    if (pairs % depth == 0) return depth;
  return 0;
}

#if defined(__x86_64__)

#define TREADLE_AMX __attribute__((target("avx512f,avx512bw,avx512vl,amx-tile,amx-bf16")))

namespace {

// GCC 12's intrinsics do not tell the compiler what memory they read.
inline void written_before(const void* memory) { __asm__ volatile("" : : "r"(memory) : "memory"); }

// Rows that are not evenly spaced, side by side.
TREADLE_AMX void gather(const uint16_t* A, const int64_t* pixels, int64_t rows, __mmask16 words, uint32_t* to) {
  for (int64_t r = 0; r < rows; ++r) _mm512_store_si512(to + r * kTilePairs, _mm512_maskz_loadu_epi32(words, A + pixels[r]));
}

// kTall: more than 16 rows; kWide: two vectors of columns. Tiles 0 to 3 have the sums, 4 and 5 A, 6 and 7 B.
template <bool kTall, bool kWide, bool kApart>
TREADLE_AMX void multiply_columns(const AmxBlock& b, int64_t depth, int64_t vector) {
  alignas(64) uint32_t rows[kApart ? 2 * kTileRows * kTilePairs : 1];
  const int64_t width = kTilePairs * b.vectors, steps = b.pairs / depth;
  const auto words = static_cast<__mmask16>((1U << depth) - 1);
  const int64_t a_stride = kApart ? 64 : b.a_row * 2, b_stride = width * 4, top = kTall ? kTileRows : b.rows;
  _tile_zero(0);
  if constexpr (kWide) _tile_zero(1);
  if constexpr (kTall) _tile_zero(2);
  if constexpr (kTall && kWide) _tile_zero(3);
  const uint32_t* columns = b.B + vector * kTilePairs;
  for (int64_t s = 0; s < b.num_segments; ++s) {
    const uint16_t* a = b.A + b.segments[s];
    for (int64_t step = 0; step < steps; ++step, a += 2 * depth, columns += depth * width) {
      const void *first = a, *second = a + kTileRows * b.a_row;
      if constexpr (kApart) {
        gather(a, b.pixels, top, words, rows);
        if constexpr (kTall) gather(a, b.pixels + kTileRows, b.rows - kTileRows, words, rows + kTileRows * kTilePairs);
        first = rows, second = rows + kTileRows * kTilePairs;
        written_before(rows);
      }
      if (b.ahead != 0) {
        for (int64_t k = 0; k < depth; ++k) {  // fetching never faults, wherever it points
          const uintptr_t line = reinterpret_cast<uintptr_t>(columns + k * width) + static_cast<uintptr_t>(b.ahead);
          __builtin_prefetch(reinterpret_cast<const void*>(line), 0, 2);
          if constexpr (kWide) __builtin_prefetch(reinterpret_cast<const void*>(line + 64), 0, 2);
        }
      }
      _tile_loadd(4, first, a_stride);
      _tile_loadd(6, columns, b_stride);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (kWide) {
        _tile_loadd(7, columns + kTilePairs, b_stride);
        _tile_dpbf16ps(1, 4, 7);
      }
      if constexpr (kTall) {
        _tile_loadd(5, second, a_stride);
        _tile_dpbf16ps(2, 5, 6);
        if constexpr (kWide) _tile_dpbf16ps(3, 5, 7);
      }
    }
  }
  float *sums = b.sums + vector * kTilePairs, *below = sums + kTileRows * width;
  _tile_stored(0, sums, b_stride);
  if constexpr (kWide) _tile_stored(1, sums + kTilePairs, b_stride);
  if constexpr (kTall) _tile_stored(2, below, b_stride);
  if constexpr (kTall && kWide) _tile_stored(3, below + kTilePairs, b_stride);
}

template <bool kTall, bool kApart>
TREADLE_AMX void multiply_block(const AmxBlock& b, int64_t depth) {
  int64_t vector = 0;
  for (; vector + 2 <= b.vectors; vector += 2) multiply_columns<kTall, true, kApart>(b, depth, vector);
  if (vector < b.vectors) multiply_columns<kTall, false, kApart>(b, depth, vector);
}

TREADLE_AMX void release() { _tile_release(); }

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

}  // namespace

TREADLE_AMX void AmxTiles::configure(int64_t rows, int64_t depth) {
  if (rows == rows_ && depth == depth_) return;
  rows_ = rows, depth_ = depth;
  TileConfig config;
  const auto top = static_cast<uint8_t>(std::min(rows, kTileRows)), below = static_cast<uint8_t>(std::max<int64_t>(rows - kTileRows, 1));
  auto set = [&](int tile, uint8_t tile_rows, int64_t words) {
    config.rows[tile] = tile_rows;
    config.row_bytes[tile] = static_cast<uint16_t>(4 * words);
  };
  set(0, top, kTilePairs), set(1, top, kTilePairs), set(2, below, kTilePairs), set(3, below, kTilePairs);
  set(4, top, depth), set(5, below, depth);
  set(6, static_cast<uint8_t>(depth), kTilePairs), set(7, static_cast<uint8_t>(depth), kTilePairs);
  written_before(&config);
  _tile_loadconfig(&config);
}

AmxTiles::~AmxTiles() {
  if (rows_ != 0) release();
}

TREADLE_AMX void AmxTiles::multiply(const AmxBlock& b) {
  const int64_t depth = amx_depth(b.pairs);
  configure(b.rows, depth);
  const bool apart = b.pixels != nullptr;
  if (b.rows > kTileRows) {
    apart ? multiply_block<true, true>(b, depth) : multiply_block<true, false>(b, depth);
  } else {
    apart ? multiply_block<false, true>(b, depth) : multiply_block<false, false>(b, depth);
  }
}

#else

void AmxTiles::configure(int64_t, int64_t) {}
AmxTiles::~AmxTiles() = default;
void AmxTiles::multiply(const AmxBlock&) {}

#endif

}  // namespace treadle::kernels
