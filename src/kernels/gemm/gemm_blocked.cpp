#include "kernels/gemm/gemm_blocked.h"

#include <algorithm>
#include <cstring>

#include "core/trace/kernel_phases.h"
#include "kernels/gemm/tile.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gemm/gemm_blocked.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/partial-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// A product of some rows of A by one panel.
struct BlockedJob {
  const PackedBlocked& B;
  const float* A;
  int64_t lda, rows;
  const float* sums;  // sums of A over each block, [rows, blocks]; null if the weights have no zero points
  int64_t panel;
  float* C;
};

using BlockedTag = hn::ScalableTag<float>;
using BlockedVec = hn::Vec<BlockedTag>;
using BlockedWordTag = hn::RebindToSigned<BlockedTag>;

/// Decodes the code at position kPlace of each word to a float.
template <int kBits, int kPlace>
HWY_INLINE BlockedVec decode(BlockedTag d, hn::Vec<BlockedWordTag> words, [[maybe_unused]] BlockedVec table) {
#if HWY_TARGET <= HWY_AVX3
  // The permutation instruction uses only four bits of each index, so this lookup needs neither masks nor conversion.
  if constexpr (kBits == 4) return hn::TableLookupLanes(table, hn::Indices512<float>{hn::ShiftRight<4 * kPlace>(words).raw});
#endif
  return hn::ConvertTo(d, hn::ShiftRight<32 - kBits>(hn::ShiftLeft<32 - kBits*(kPlace + 1)>(words)));
}

template <int kRows, int kVectors, int kBits>
struct BlockedTile {
  static constexpr int kPerWord = 32 / kBits;
  // A single row needs two accumulators per vector to hide the latency of a multiply-add.
  static constexpr int kChains = kRows == 1 && HWY_TARGET <= HWY_AVX3 ? 2 : 1;
  BlockedVec sums[kChains][kRows][kVectors];

  // Written out, because GCC compiles an implicit constructor without the instruction set that vector members need.
  HWY_INLINE BlockedTile() {}

  template <int kPlace>
  HWY_INLINE void place(BlockedTag d, const float* A, int64_t lda, const hn::Vec<BlockedWordTag>* words, BlockedVec table) {
    if constexpr (kPlace < kPerWord) {
      BlockedVec weights[kVectors];
      for (int v = 0; v < kVectors; ++v) weights[v] = decode<kBits, kPlace>(d, words[v], table);
      for (int r = 0; r < kRows; ++r) {
        const BlockedVec a = hn::Set(d, A[r * lda + kPlace]);
        for (int v = 0; v < kVectors; ++v) sums[kPlace % kChains][r][v] = hn::MulAdd(a, weights[v], sums[kPlace % kChains][r][v]);
      }
      place<kPlace + 1>(d, A, lda, words, table);
    }
  }

  static HWY_NOINLINE void run(const BlockedJob& job, int64_t row, int64_t column) {
    const BlockedTag d;
    const BlockedWordTag di;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    const BlockedShape& s = job.B.shape;
    const int64_t blocks = s.blocks(), words_per_panel = (s.K + kPerWord - 1) / kPerWord, block_words = s.block_size / kPerWord;
    const auto* codes = reinterpret_cast<const int32_t*>(job.B.codes) + job.panel * words_per_panel * 64 + column;
    const int64_t scale_at = job.panel * blocks * 64 + column;
    HWY_ALIGN static constexpr float kCodes[16] = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
    const BlockedVec table = hn::LoadU(d, kCodes);
    const float* A = job.A + row * job.lda;
    BlockedVec totals[kRows][kVectors];
    for (auto& line : totals)
      for (BlockedVec& total : line) total = hn::Zero(d);
    for (int64_t b = 0; b < blocks; ++b) {
      BlockedTile tile;
      for (auto& chain : tile.sums)
        for (auto& line : chain)
          for (BlockedVec& sum : line) sum = hn::Zero(d);
      const int64_t end = std::min(words_per_panel, (b + 1) * block_words);
      for (int64_t w = b * block_words; w < end; ++w) {
        hn::Vec<BlockedWordTag> words[kVectors];
        for (int v = 0; v < kVectors; ++v) words[v] = hn::LoadU(di, codes + w * 64 + v * lanes);
        tile.template place<0>(d, A + w * kPerWord, job.lda, words, table);
      }
      for (int v = 0; v < kVectors; ++v) {
        const BlockedVec scale = hn::LoadU(d, job.B.scales + scale_at + b * 64 + v * lanes);
        for (int r = 0; r < kRows; ++r) {
          BlockedVec sum = tile.sums[0][r][v];
          if constexpr (kChains == 2) sum = hn::Add(sum, tile.sums[1][r][v]);
          if (job.B.zeros)
            sum =
                hn::NegMulAdd(hn::LoadU(d, job.B.zeros + scale_at + b * 64 + v * lanes), hn::Set(d, job.sums[(row + r) * blocks + b]), sum);
          totals[r][v] = hn::MulAdd(scale, sum, totals[r][v]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        const int64_t n = job.panel * 64 + column + v * lanes;
        if (n < s.N) store_first(totals[r][v], d, FirstLanes(d, std::min(lanes, s.N - n)), job.C + (row + r) * s.N + n);
      }
    }
  }

  static void columns(const BlockedJob& job, int64_t row) {
    const int64_t step = kVectors * static_cast<int64_t>(hn::Lanes(BlockedTag()));
    const int64_t left = std::min<int64_t>(64, job.B.shape.N - job.panel * 64);
    for (int64_t column = 0; column < left; column += step) run(job, row, column);
  }
};

/// Multiplies by as many columns of the panel at a time as there are registers for accumulators.
template <int kRows, int kBits>
void blocked_tile(const BlockedJob& job, int64_t row) {
  constexpr int kWide = kRows <= 2 ? 4 : 2, kNarrow = kRows == 1 ? 4 : kRows == 2 ? 2 : 1;
  BlockedTile<kRows, HWY_TARGET <= HWY_AVX3 ? kWide : kNarrow, kBits>::columns(job, row);
}

/// Splits rows evenly into tiles of at most six, as a tile of one row costs nearly as much as one of three.
template <int kBits>
void blocked_rows_of(const BlockedJob& job) {
  constexpr void (*kTiles[])(const BlockedJob&, int64_t) = {blocked_tile<1, kBits>, blocked_tile<2, kBits>, blocked_tile<3, kBits>,
                                                            blocked_tile<4, kBits>, blocked_tile<5, kBits>, blocked_tile<6, kBits>};
  int64_t tiles = (job.rows + 5) / 6;
  for (int64_t row = 0; row < job.rows; --tiles) {
    const int64_t rows = (job.rows - row + tiles - 1) / tiles;
    kTiles[rows - 1](job, row);
    row += rows;
  }
}

void blocked_rows(const BlockedJob& job) { job.B.shape.bits == 4 ? blocked_rows_of<4>(job) : blocked_rows_of<8>(job); }

/// Decodes the weights of a panel to floats, [K, 64].
template <int kBits>
struct Decoder {
  static constexpr int kPerWord = 32 / kBits;

  template <int kPlace>
  static HWY_INLINE void place(BlockedTag d, hn::Vec<BlockedWordTag> words, BlockedVec table, BlockedVec scale, BlockedVec zero,
                               int64_t places, float* to) {
    if constexpr (kPlace < kPerWord) {
      if (kPlace >= places) return;
      hn::StoreU(hn::Mul(hn::Sub(decode<kBits, kPlace>(d, words, table), zero), scale), d, to + kPlace * 64);
      place<kPlace + 1>(d, words, table, scale, zero, places, to);
    }
  }

  static void run(const PackedBlocked& B, int64_t panel, float* to) {
    const BlockedTag d;
    const BlockedWordTag di;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    const BlockedShape& s = B.shape;
    const int64_t words = (s.K + kPerWord - 1) / kPerWord, block_words = s.block_size / kPerWord;
    const auto* codes = reinterpret_cast<const int32_t*>(B.codes) + panel * words * 64;
    HWY_ALIGN static constexpr float kCodes[16] = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
    const BlockedVec table = hn::LoadU(d, kCodes);
    for (int64_t b = 0; b < s.blocks(); ++b) {
      const int64_t scale_at = (panel * s.blocks() + b) * 64, end = std::min(words, (b + 1) * block_words);
      for (int64_t column = 0; column < 64; column += lanes) {
        const BlockedVec scale = hn::LoadU(d, B.scales + scale_at + column);
        const BlockedVec zero = B.zeros ? hn::LoadU(d, B.zeros + scale_at + column) : hn::Zero(d);
        for (int64_t w = b * block_words; w < end; ++w)
          place<0>(d, hn::LoadU(di, codes + w * 64 + column), table, scale, zero, s.K - w * kPerWord, to + w * kPerWord * 64 + column);
      }
    }
  }
};

void decode_panel_here(const PackedBlocked& B, int64_t panel, float* to) {
  B.shape.bits == 4 ? Decoder<4>::run(B, panel, to) : Decoder<8>::run(B, panel, to);
}

void gemm_blocked_here(int64_t M, const float* A, int64_t lda, const PackedBlocked& B, const float* sums, float* C, ThreadPool* pool) {
  const BlockedShape& s = B.shape;
  // Processes the rows in parts, so that a part of A stays in cache while it is multiplied by a panel.
  constexpr int64_t kRowsPerPart = 48, kMacsPerChunk = 100'000;
  const int64_t panels = s.padded_columns() / 64, parts = (M + kRowsPerPart - 1) / kRowsPerPart, blocks = s.blocks();
  const int64_t macs = std::max<int64_t>(1, s.K * 64 * std::min(M, kRowsPerPart));
  parallel_for(pool, panels * parts, std::max<int64_t>(1, kMacsPerChunk / macs), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i % parts * kRowsPerPart;
      blocked_rows(
          {B, A + row * lda, lda, std::min(kRowsPerPart, M - row), sums ? sums + row * blocks : nullptr, i / parts, C + row * s.N});
    }
  });
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(gemm_blocked_here);
HWY_EXPORT(decode_panel_here);

namespace {

int64_t padded_depth(const BlockedShape& s) { return (s.K + 7) / 8 * 8; }
size_t padded_bytes(int64_t M, const BlockedShape& s) {
  return padded_depth(s) == s.K ? 0 : static_cast<size_t>((M * padded_depth(s) + 15) / 16 * 16) * sizeof(float);
}

// With at least this many rows, a panel is decoded to floats once and multiplied by the float32 micro-kernel.
constexpr int64_t kManyRows = 32, kMostPanelBytes = int64_t{16} << 20;

size_t panel_bytes(const BlockedShape& s) { return static_cast<size_t>(s.K * 64) * sizeof(float); }
// Returns the number of panels that are decoded at the same time: at most one per thread, limited by memory.
int64_t panels_at_once(const BlockedShape& s) {
  return std::clamp<int64_t>(kMostPanelBytes / static_cast<int64_t>(std::max<size_t>(1, panel_bytes(s))), 1,
                             std::min<int64_t>(16, s.padded_columns() / 64));
}

void gemm_by_panels(int64_t M, const float* A, const PackedBlocked& B, float* C, float* room, ThreadPool* pool) {
  const BlockedShape& s = B.shape;
  const PanelShape widths = panel_shape<float>();
  const Epilogue<float> plain;
  const int64_t panels = s.padded_columns() / 64, tasks = std::min<int64_t>(panels_at_once(s), pool ? pool->num_threads() : 1);
  const PhaseScope phase(KernelPhase::compute);
  parallel_for(pool, tasks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      float* weights = room + task * s.K * 64;
      for (int64_t panel = task; panel < panels; panel += tasks) {
        {
          const PhaseScope decoding(KernelPhase::pack);
          HWY_DYNAMIC_DISPATCH(decode_panel_here)(B, panel, weights);
        }
        const int64_t first = panel * 64, columns = std::min<int64_t>(64, s.N - first), step = widths.max_vectors * widths.lanes;
        for (int64_t column = 0; column < columns; column += step) {
          const int64_t width = std::min(step, columns - column);
          run_tile(TileJob<float>{.A = A,
                                  .a_row = s.K,
                                  .a_col = 1,
                                  .B = weights + column,
                                  .b_row = 64,
                                  .vectors = (width + widths.lanes - 1) / widths.lanes,
                                  .C = C + first + column,
                                  .ldc = s.N,
                                  .K = s.K,
                                  .row_begin = 0,
                                  .row_end = M,
                                  .first_column = first + column,
                                  .columns = width,
                                  .epilogue = &plain});
        }
      }
    }
  });
}

}  // namespace

size_t blocked_code_words(const BlockedShape& s) {
  return static_cast<size_t>((s.K + s.codes_per_word() - 1) / s.codes_per_word() * s.padded_columns());
}
size_t blocked_scale_count(const BlockedShape& s) { return static_cast<size_t>(s.blocks() * s.padded_columns()); }

void pack_blocked_code(const BlockedShape& s, int64_t k, int64_t n, int32_t code, uint32_t* words) {
  const int64_t per_word = s.codes_per_word(), depth = (s.K + per_word - 1) / per_word;
  const uint32_t mask = (1U << static_cast<unsigned>(s.bits)) - 1U;
  words[(n / 64 * depth + k / per_word) * 64 + n % 64] |= (static_cast<uint32_t>(code) & mask)
                                                          << static_cast<unsigned>(k % per_word * s.bits);
}

int64_t blocked_scale_place(const BlockedShape& s, int64_t block, int64_t n) { return (n / 64 * s.blocks() + block) * 64 + n % 64; }

size_t gemm_blocked_scratch(int64_t M, const BlockedShape& s) {
  if (M >= kManyRows) return static_cast<size_t>(panels_at_once(s)) * panel_bytes(s);
  return padded_bytes(M, s) + (s.has_zeros ? static_cast<size_t>(M * s.blocks()) * sizeof(float) : 0);
}

void gemm_blocked(int64_t M, const float* A, const PackedBlocked& B, float* C, void* scratch, ThreadPool* pool) {
  const BlockedShape& s = B.shape;
  if (M == 0 || s.N == 0) return;
  if (s.K == 0) return std::fill_n(C, M * s.N, 0.0F), void();
  if (M >= kManyRows) return gemm_by_panels(M, A, B, C, static_cast<float*>(scratch), pool);
  int64_t lda = s.K;
  auto* room = static_cast<std::byte*>(scratch);
  PhaseScope phase(KernelPhase::pack);
  if (padded_depth(s) != s.K) {  // pads A, so that the last word's codes beyond K are multiplied by zeros
    lda = padded_depth(s);
    auto* padded = reinterpret_cast<float*>(room);
    for (int64_t m = 0; m < M; ++m) {
      std::memcpy(padded + m * lda, A + m * s.K, static_cast<size_t>(s.K) * sizeof(float));
      std::fill_n(padded + m * lda + s.K, lda - s.K, 0.0F);
    }
    A = padded;
  }
  float* sums = nullptr;
  if (s.has_zeros) {
    sums = reinterpret_cast<float*>(room + padded_bytes(M, s));
    for (int64_t m = 0; m < M; ++m) {
      for (int64_t b = 0; b < s.blocks(); ++b) {
        const float *from = A + m * lda + b * s.block_size, *end = std::min(from + s.block_size, A + m * lda + s.K);
        float sum = 0;
        for (; from < end; ++from) sum += *from;
        sums[m * s.blocks() + b] = sum;
      }
    }
  }
  phase.next(KernelPhase::compute);
  HWY_DYNAMIC_DISPATCH(gemm_blocked_here)(M, A, lda, B, sums, C, pool);
}

}  // namespace treadle::kernels
#endif
