// Compiled for AMX; called only if cpu_info() reports it.
#include "kernels/gemm/tile_amx.h"

#include <algorithm>

#include "core/base/cpu_info.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace treadle::kernels {

namespace {
constexpr int64_t kTileRows = 16, kTilePairs = 16;
constexpr int64_t kPartBytes = 24 * 1024;  // size of a part of a panel that stays in L1 while all rows use it
constexpr int64_t kLeastPairs = 6;         // minimum number of pairs per tile; loading a smaller tile takes longer than vectors would
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

#define TREADLE_AMX __attribute__((target("avx512f,avx512bw,avx512vl,amx-tile,amx-bf16,amx-int8")))

namespace {

// Tells the compiler that `memory` is read, because GCC 12's tile intrinsics do not declare their reads.
inline void written_before(const void* memory) { __asm__ volatile("" : : "r"(memory) : "memory"); }

// Copies rows that are unevenly spaced into contiguous rows of a tile.
TREADLE_AMX void gather(const uint16_t* A, const int64_t* pixels, int64_t rows, __mmask16 words, uint32_t* to) {
  for (int64_t r = 0; r < rows; ++r) _mm512_store_si512(to + r * kTilePairs, _mm512_maskz_loadu_epi32(words, A + pixels[r]));
}

// Prefetches one share of the lines of B that are used next. Inlined, because GCC drops calls of functions that only prefetch.
__attribute__((always_inline)) inline void fetch(const AmxBlock& b, const uint32_t* B, int64_t lines, int64_t share, int64_t shares) {
  const uintptr_t next = reinterpret_cast<uintptr_t>(B) + static_cast<uintptr_t>(b.fetch_distance);
  for (int64_t line = lines * share / shares; line < lines * (share + 1) / shares; ++line)
    __builtin_prefetch(reinterpret_cast<const void*>(next + static_cast<uintptr_t>(64 * line)), 0, 2);
}

/// A position in A and B, in steps. A step covers as many pairs of a segment as a tile is deep.
struct Steps {
  const AmxBlock& b;
  int64_t depth, width, per_segment, a_step, segment, step;
  const uint16_t* a;
  const uint32_t* columns;

  Steps(const AmxBlock& block, int64_t pairs_of_tile)
      : b(block),
        depth(pairs_of_tile),
        width(kTilePairs * b.vectors),
        per_segment(b.pairs / depth),
        a_step(b.tiled ? kAmxTile : 2 * depth),
        segment(b.first_step / per_segment),
        step(b.first_step % per_segment),
        a(b.A + b.segments[segment] + step * a_step),
        columns(b.B + (segment % b.b_segments * b.pairs + step * depth) * width) {}
  int64_t count() const { return b.last_step - b.first_step; }
  void next(bool is_last) {
    columns += depth * width;
    a += a_step;
    if (++step < per_segment || is_last) return;
    ++segment, step = 0;
    a = b.A + b.segments[segment];
    if (segment % b.b_segments == 0) columns = b.B;
  }
};

#define TREADLE_TILE_PRODUCT(sum, a, b) \
  do {                                  \
    if constexpr (kBytes)               \
      _tile_dpbusd(sum, a, b);          \
    else                                \
      _tile_dpbf16ps(sum, a, b);        \
  } while (false)

// Multiplies a block. kTall: it has more than 16 rows; kWide: two vectors of columns. Tiles 0-3 hold sums, 4-5 hold A, 6-7 hold B.
template <bool kBytes, bool kTall, bool kWide>
TREADLE_AMX void multiply_columns(const AmxBlock& b, int64_t depth, int64_t vector) {
  Steps at(b, depth);
  const int64_t row_bytes = 2 * (b.tiled ? kAmxPitch : b.a_row), below = b.tiled ? b.a_below : kTileRows * b.a_row;
  const int64_t b_stride = at.width * 4, passes = (b.vectors + 1) / 2;
  float *sums = b.sums + vector * kTilePairs, *lower = sums + kTileRows * at.width;
  if (b.adds) {
    written_before(sums);
    _tile_loadd(0, sums, b_stride);
    if constexpr (kWide) _tile_loadd(1, sums + kTilePairs, b_stride);
    if constexpr (kTall) _tile_loadd(2, lower, b_stride);
    if constexpr (kTall && kWide) _tile_loadd(3, lower + kTilePairs, b_stride);
  } else {
    _tile_zero(0);
    if constexpr (kWide) _tile_zero(1);
    if constexpr (kTall) _tile_zero(2);
    if constexpr (kTall && kWide) _tile_zero(3);
  }
  for (int64_t left = at.count(); left > 0; --left) {
    if (b.fetch_shares != 0) fetch(b, at.columns, depth * b.vectors, b.fetch_share * passes + vector / 2, b.fetch_shares * passes);
    const uint32_t* columns = at.columns + vector * kTilePairs;
    _tile_loadd(4, at.a, row_bytes);
    _tile_loadd(6, columns, b_stride);
    TREADLE_TILE_PRODUCT(0, 4, 6);
    if constexpr (kWide) {
      _tile_loadd(7, columns + kTilePairs, b_stride);
      TREADLE_TILE_PRODUCT(1, 4, 7);
    }
    if constexpr (kTall) {
      _tile_loadd(5, at.a + below, row_bytes);
      TREADLE_TILE_PRODUCT(2, 5, 6);
      if constexpr (kWide) TREADLE_TILE_PRODUCT(3, 5, 7);
    }
    at.next(left == 1);
  }
  _tile_stored(0, sums, b_stride);
  if constexpr (kWide) _tile_stored(1, sums + kTilePairs, b_stride);
  if constexpr (kTall) _tile_stored(2, lower, b_stride);
  if constexpr (kTall && kWide) _tile_stored(3, lower + kTilePairs, b_stride);
}

template <bool kBytes, bool kTall>
TREADLE_AMX void multiply_block(const AmxBlock& b, int64_t depth) {
  int64_t vector = 0;
  for (; vector + 2 <= b.vectors; vector += 2) multiply_columns<kBytes, kTall, true>(b, depth, vector);
  if (vector < b.vectors) multiply_columns<kBytes, kTall, false>(b, depth, vector);
}

#undef TREADLE_TILE_PRODUCT

// Multiplies rows gathered from separate addresses by all vectors of the panel. Tiles 0-3 hold sums, 4 holds A, 5-7 hold B.
template <int kVectors>
TREADLE_AMX void multiply_apart(const AmxBlock& b, int64_t depth) {
  alignas(64) uint32_t rows[kTileRows * kTilePairs];
  Steps at(b, depth);
  const auto words = static_cast<__mmask16>((1U << depth) - 1);
  const int64_t b_stride = at.width * 4;
  if (b.adds) {
    written_before(b.sums);
    _tile_loadd(0, b.sums, b_stride);
    if constexpr (kVectors > 1) _tile_loadd(1, b.sums + kTilePairs, b_stride);
    if constexpr (kVectors > 2) _tile_loadd(2, b.sums + 2 * kTilePairs, b_stride);
    if constexpr (kVectors > 3) _tile_loadd(3, b.sums + 3 * kTilePairs, b_stride);
  } else {
    _tile_zero(0);
    if constexpr (kVectors > 1) _tile_zero(1);
    if constexpr (kVectors > 2) _tile_zero(2);
    if constexpr (kVectors > 3) _tile_zero(3);
  }
  for (int64_t left = at.count(); left > 0; --left) {
    gather(at.a, b.pixels, b.rows, words, rows);
    written_before(rows);
    if (b.fetch_shares != 0) fetch(b, at.columns, depth * b.vectors, b.fetch_share, b.fetch_shares);
    _tile_loadd(4, rows, 4 * kTilePairs);
    _tile_loadd(5, at.columns, b_stride);
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (kVectors > 1) {
      _tile_loadd(6, at.columns + kTilePairs, b_stride);
      _tile_dpbf16ps(1, 4, 6);
    }
    if constexpr (kVectors > 2) {
      _tile_loadd(7, at.columns + 2 * kTilePairs, b_stride);
      _tile_dpbf16ps(2, 4, 7);
    }
    if constexpr (kVectors > 3) {
      _tile_loadd(5, at.columns + 3 * kTilePairs, b_stride);
      _tile_dpbf16ps(3, 4, 5);
    }
    at.next(left == 1);
  }
  _tile_stored(0, b.sums, b_stride);
  if constexpr (kVectors > 1) _tile_stored(1, b.sums + kTilePairs, b_stride);
  if constexpr (kVectors > 2) _tile_stored(2, b.sums + 2 * kTilePairs, b_stride);
  if constexpr (kVectors > 3) _tile_stored(3, b.sums + 3 * kTilePairs, b_stride);
}

// Multiplies split matrices. Tile registers 0-3 hold sums, 4-5 parts of A, 6-7 parts of B. The products are ordered so that each one loads
// a new part of only one matrix.
template <bool kTall, bool kWide>
TREADLE_AMX void multiply_parts(const SplitBlock& b) {
  constexpr int64_t kRowBytes = 64, kPart = kSplitRows * kSplitTerms, kStep = 2 * kSplitTiles;
  constexpr int kHigh = 0, kMiddle = 1, kLow = 2;
  const uint16_t *A = b.A, *B = b.B;
  auto load_a = [&](int part) TREADLE_AMX {
    _tile_loadd(4, A + part * kPart, kRowBytes);
    if constexpr (kTall) _tile_loadd(5, A + kSplitTiles + part * kPart, kRowBytes);
  };
  auto load_b = [&](int part) TREADLE_AMX {
    _tile_loadd(6, B + part * kPart, kRowBytes);
    if constexpr (kWide) _tile_loadd(7, B + kSplitTiles + part * kPart, kRowBytes);
  };
  // Prefetches the next step into L1 and the lines at `later` into L2.
  const uint16_t *next_a = A, *next_b = B;
  const char* later = b.later;
  const int64_t later_lines = (b.later_lines + 5) / 6;
  auto multiply = [&]() TREADLE_AMX {
#pragma GCC unroll 16
    for (int64_t line = 0; line < kStep / 6; line += 32) {
      __builtin_prefetch(next_a + line, 0, 3);
      __builtin_prefetch(next_b + line, 0, 3);
    }
    next_a += kStep / 6, next_b += kStep / 6;
    for (int64_t line = 0; line < later_lines; ++line, later += 64) __builtin_prefetch(later, 0, 2);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kWide) _tile_dpbf16ps(1, 4, 7);
    if constexpr (kTall) _tile_dpbf16ps(2, 5, 6);
    if constexpr (kTall && kWide) _tile_dpbf16ps(3, 5, 7);
  };
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  written_before(A), written_before(B);
  load_a(kHigh);
  for (int64_t step = 0; step < b.steps; ++step) {
    next_a = A + kStep, next_b = step + 1 < b.steps ? B + kStep : b.B;
    load_b(kLow), multiply();
    load_b(kMiddle), multiply();
    load_a(kMiddle), multiply();
    load_b(kHigh), multiply();
    load_a(kLow), multiply();
    load_a(kHigh), multiply();
    A += kStep, B += kStep;
    if (step + 1 < b.steps) load_a(kHigh);
  }
  constexpr int64_t kStride = kWide ? 2 * kRowBytes : kRowBytes;
  float* lower = b.sums + kTileRows * kStride / 4;
  _tile_stored(0, b.sums, kStride);
  if constexpr (kWide) _tile_stored(1, b.sums + kTilePairs, kStride);
  if constexpr (kTall) _tile_stored(2, lower, kStride);
  if constexpr (kTall && kWide) _tile_stored(3, lower + kTilePairs, kStride);
  written_before(b.sums);
}

TREADLE_AMX void release() { _tile_release(); }

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

}  // namespace

TREADLE_AMX void AmxTiles::configure(int64_t rows, int64_t depth, bool apart) {
  if (rows == rows_ && depth == depth_ && apart == apart_) return;
  rows_ = rows, depth_ = depth, apart_ = apart;
  TileConfig config;
  const int64_t top = std::min(rows, kTileRows), below = apart ? top : std::max<int64_t>(rows - kTileRows, 1);
  auto set = [&](int tile, int64_t tile_rows, int64_t words) {
    config.rows[tile] = static_cast<uint8_t>(tile_rows);
    config.row_bytes[tile] = static_cast<uint16_t>(4 * words);
  };
  set(0, top, kTilePairs), set(1, top, kTilePairs), set(2, below, kTilePairs), set(3, below, kTilePairs);
  set(4, top, depth);
  apart ? set(5, depth, kTilePairs) : set(5, below, depth);
  set(6, depth, kTilePairs), set(7, depth, kTilePairs);
  written_before(&config);
  _tile_loadconfig(&config);
}

AmxTiles::~AmxTiles() {
  if (rows_ != 0) release();
}

TREADLE_AMX void AmxTiles::multiply(const AmxBlock& b) {
  const int64_t depth = amx_depth(b.pairs);
  configure(b.rows, depth, b.pixels != nullptr);
  if (b.pixels == nullptr) return b.rows > kTileRows ? multiply_block<false, true>(b, depth) : multiply_block<false, false>(b, depth);
  static constexpr void (*kApart[])(const AmxBlock&, int64_t) = {multiply_apart<1>, multiply_apart<2>, multiply_apart<3>,
                                                                 multiply_apart<4>};
  kApart[b.vectors - 1](b, depth);
}

TREADLE_AMX void AmxTiles::multiply_bytes(const AmxBlock& b) {
  const int64_t depth = amx_depth(b.pairs);
  configure(b.rows, depth, false);
  b.rows > kTileRows ? multiply_block<true, true>(b, depth) : multiply_block<true, false>(b, depth);
}

TREADLE_AMX void AmxTiles::multiply_split(const SplitBlock& b) {
  configure(kAmxRows, kTilePairs, false);
  if (b.tall) return b.wide ? multiply_parts<true, true>(b) : multiply_parts<true, false>(b);
  b.wide ? multiply_parts<false, true>(b) : multiply_parts<false, false>(b);
}

#else

void AmxTiles::multiply_split(const SplitBlock&) {}
void AmxTiles::multiply_bytes(const AmxBlock&) {}
void AmxTiles::configure(int64_t, int64_t, bool) {}
AmxTiles::~AmxTiles() = default;
void AmxTiles::multiply(const AmxBlock&) {}

#endif

bool uses_amx_bytes(int64_t rows, int64_t quads) { return cpu_info().features.amx_int8 && rows >= kLeastAmxRows && amx_depth(quads) > 0; }

void amx_byte_sums(const uint8_t* A, int64_t lda, const int8_t* B, int64_t quads, int64_t vectors, int64_t rows, int32_t* sums) {
  static constexpr int64_t kOneRun = 0;
  const int64_t width = kTilePairs * vectors, steps = quads / amx_depth(quads);
  const int64_t parts = std::max<int64_t>(1, (quads * width * 4 + kPartBytes / 2) / kPartBytes);
  AmxTiles tiles;
  for (int64_t part = 0; part < parts; ++part) {
    for (int64_t row = 0; row < rows; row += kAmxRows) {
      tiles.multiply_bytes({.A = reinterpret_cast<const uint16_t*>(A + row * lda),
                            .a_row = lda / 2,
                            .pixels = nullptr,
                            .tiled = false,
                            .segments = &kOneRun,
                            .a_below = 0,
                            .b_segments = 1,
                            .pairs = quads,
                            .first_step = steps * part / parts,
                            .last_step = steps * (part + 1) / parts,
                            .B = reinterpret_cast<const uint32_t*>(B),
                            .vectors = vectors,
                            .rows = std::min(kAmxRows, rows - row),
                            .sums = reinterpret_cast<float*>(sums + row * width),
                            .adds = part > 0});
    }
  }
}

}  // namespace treadle::kernels
