#include "kernels/gemm/gemm_split.h"

#include <algorithm>
#include <atomic>

#include "core/trace/kernel_phases.h"
#include "kernels/gemm/tile_amx.h"
#include "kernels/scratch_slots.h"

namespace treadle::kernels {
namespace {

constexpr int64_t kBlock = 32;                                      // number of rows and of columns of a block of C
constexpr int64_t kBlockTiles = kBlock / kSplitRows * kSplitTiles;  // number of bfloat16 numbers in a block of A or B for one step of K
constexpr int64_t kMostTerms = 512;   // maximum number of terms that are summed before the partial sum is added to C
constexpr int64_t kMostBlocks = 8;    // maximum number of blocks of A split together; with kMostTerms terms, they stay in L2
constexpr int64_t kFewestPanels = 8;  // minimum number of panels per column range, as each range splits the rows of A again
constexpr int64_t kLeastExtent = 32;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

/// Divides K into chunks of whole steps.
struct Chunks {
  int64_t steps, count;
  explicit Chunks(int64_t K) : steps(divide_up(K, kSplitTerms)), count(divide_up(K, kMostTerms)) {}
  int64_t first_step(int64_t chunk) const { return steps * chunk / count; }
  int64_t most_steps() const { return divide_up(steps, count); }
};

/// Divides C into row ranges times column ranges; each task computes one range of rows and columns. A task splits its rows of A itself, so
/// that it need not wait for data in another core's caches. B is read once for each range of rows.
struct Division {
  int64_t blocks, panels, row_ranges, column_ranges = 1;
  Division(const GemmShape& s, int64_t threads) : blocks(divide_up(s.M, kBlock)), panels(divide_up(s.N, kBlock)) {
    row_ranges = divide_up(blocks, kMostBlocks);
    if (row_ranges >= threads) {
      row_ranges = std::min(round_up(row_ranges, threads), blocks);
      return;
    }
    column_ranges = std::clamp<int64_t>(panels / kFewestPanels, 1, divide_up(threads, row_ranges));
    row_ranges = std::min(std::max(row_ranges, divide_up(threads, column_ranges)), blocks);
  }
  int64_t items() const { return row_ranges * column_ranges; }
};

size_t slot_bytes(const GemmShape& s) {
  const int64_t tiles = std::min(kMostBlocks, divide_up(s.M, kBlock)) * Chunks(s.K).most_steps() * kBlockTiles;
  return std::max(aligned_bytes<uint16_t>(tiles), aligned_bytes<float>(packed_b_size<float>(s.K, kBlock)));
}

/// Computes the part of C in one row range and one column range.
class Range {
 public:
  Range(const GemmShape& s, const float* A, const SplitB& B, float* C, const Epilogue<float>& epilogue, const Division& division,
        int64_t item, void* slot)
      : s_(s), A_(A), B_(B), C_(C), epilogue_(epilogue), chunks_(s.K), slot_(slot) {
    const int64_t rows = item / division.column_ranges, columns = item % division.column_ranges;
    first_row_ = division.blocks * rows / division.row_ranges * kBlock;
    last_row_ = std::min(s.M, division.blocks * (rows + 1) / division.row_ranges * kBlock);
    first_panel_ = division.panels * columns / division.column_ranges;
    last_panel_ = division.panels * (columns + 1) / division.column_ranges;
    blocks_ = divide_up(last_row_ - first_row_, kBlock);
  }

  void compute() {
    PhaseScope phase(KernelPhase::pack);
    // If A turns out to be out of range, a block is recomputed without splitting. That is impossible if the residual is C itself, which
    // holds partial sums by then. So all rows are checked first in this case.
    if (chunks_.count > 1 && epilogue_.residual == C_) look_at_rows();
    for (int64_t chunk = 0; chunk < chunks_.count; ++chunk) {
      const int64_t first_step = chunks_.first_step(chunk), steps = chunks_.first_step(chunk + 1) - first_step;
      phase.next(KernelPhase::pack);
      split_rows(first_step, steps, chunk + 1 == chunks_.count);
      phase.next(KernelPhase::compute);
      Epilogue<float> own = epilogue_;  // C contains the partial sum of earlier chunks
      if (chunk + 1 < chunks_.count) own.bias = nullptr, own.activation = Unary::none;
      if (chunk > 0) own.residual = C_, own.residual_row = s_.ldc;
      for (int64_t panel = first_panel_; panel < last_panel_; ++panel) multiply_panel(panel, first_step, steps, own);
    }
    if (!is_clamp(epilogue_.activation)) {
      phase.next(KernelPhase::epilogue);
      for (int64_t row = first_row_; row < last_row_; ++row) {
        float* c = C_ + row * s_.ldc + first_panel_ * kBlock;
        if (!is_beyond(row)) unary_f32(epilogue_.activation, epilogue_.a, epilogue_.b, c, c, last_column() - first_panel_ * kBlock);
      }
    }
    phase.next(KernelPhase::compute);
    for (int64_t block = 0; block < blocks_; ++block)
      if (beyond_[block]) multiply_by_vectors(first_row_ + block * kBlock);
  }

 private:
  int64_t last_column() const { return std::min(s_.N, last_panel_ * kBlock); }
  int64_t block_end(int64_t row) const { return std::min(last_row_, row + kBlock); }
  bool is_beyond(int64_t row) const { return beyond_[(row - first_row_) / kBlock]; }

  void look_at_rows() {
    for (int64_t block = 0; block < blocks_; ++block) {
      const int64_t row = first_row_ + block * kBlock, rows = block_end(row) - row;
      const bool turned = s_.a_col != 1;
      largest_[block] =
          turned ? largest_magnitude(A_ + row, s_.a_col, s_.K, rows) : largest_magnitude(A_ + row * s_.a_row, s_.a_row, rows, s_.K);
      beyond_[block] = !can_split(largest_[block], B_.largest);
    }
  }

  void split_rows(int64_t first_step, int64_t steps, bool are_last) {
    for (int64_t item = 0; item < blocks_ * steps; ++item) {  // in the memory order of A
      const int64_t block = s_.a_col == 1 ? item / steps : item % blocks_, step = s_.a_col == 1 ? item % steps : item / blocks_;
      const int64_t k = (first_step + step) * kSplitTerms, terms = std::min(kSplitTerms, s_.K - k);
      uint16_t* tiles = parts() + (block * steps + step) * kBlockTiles;
      for (int64_t row = first_row_ + block * kBlock, half = 0; half < 2 && row < last_row_;
           ++half, row += kSplitRows, tiles += kSplitTiles) {
        const float* from = A_ + row * s_.a_row + k * s_.a_col;
        largest_[block] = std::max(largest_[block], split_a(from, s_.a_row, s_.a_col, std::min(kSplitRows, last_row_ - row), terms, tiles));
      }
    }
    // Whether all magnitudes are too small is known only after the last chunk, as later terms may be larger.
    for (int64_t block = 0; block < blocks_; ++block)
      beyond_[block] |= are_last ? !can_split(largest_[block], B_.largest) : !have_parts(largest_[block]) || !have_parts(B_.largest);
  }

  /// Multiplies one panel and prefetches the next one, which has the same size, into L2.
  void multiply_panel(int64_t panel, int64_t first_step, int64_t steps, const Epilogue<float>& epilogue) {
    alignas(64) float sums[kBlock * kBlock];
    const int64_t panel_tiles = chunks_.steps * kBlockTiles, first_column = panel * kBlock;
    const uint16_t* B = B_.parts + panel * panel_tiles + first_step * kBlockTiles;
    constexpr int64_t kLine = 64, kStepLines = kBlockTiles * static_cast<int64_t>(sizeof(uint16_t)) / kLine;
    const char* later = panel + 1 < last_panel_ ? reinterpret_cast<const char*>(B + panel_tiles) : nullptr;
    const int64_t later_lines = later != nullptr ? divide_up(kStepLines, blocks_) : 0;
    TileJob<float> to{};
    to.columns = std::min(kBlock, s_.N - first_column), to.vectors = divide_up(to.columns, kSplitRows);
    to.C = C_ + first_column, to.ldc = s_.ldc, to.first_column = first_column, to.epilogue = &epilogue;
    for (int64_t block = 0; block < blocks_; ++block) {
      if (beyond_[block]) continue;
      to.row_begin = first_row_ + block * kBlock, to.row_end = block_end(to.row_begin);
      for (int64_t row = to.row_begin; row < to.row_end; ++row) {  // prefetches C for writing
        __builtin_prefetch(to.C + row * to.ldc, 1, 3);
        __builtin_prefetch(to.C + row * to.ldc + kSplitRows, 1, 3);
      }
      tiles_.multiply_split({.A = parts() + block * steps * kBlockTiles,
                             .B = B,
                             .steps = steps,
                             .tall = to.row_end - to.row_begin > kSplitRows,
                             .wide = to.vectors > 1,
                             .sums = sums,
                             .later = later,
                             .later_lines = later_lines});
      if (later != nullptr) later += later_lines * steps * kLine;
      finish_sums(sums, to);
    }
  }

  /// Multiplies a block without splitting it. B is packed anew for each such block, as numbers that cannot be split are rare.
  void multiply_by_vectors(int64_t row) {
    for (int64_t column = first_panel_ * kBlock; column < last_column(); column += kBlock) {
      const PackedB<float> packed = packed_columns(column, std::min(kBlock, s_.N - column));
      Epilogue<float> own = epilogue_;
      if (own.bias != nullptr) own.bias += row * own.bias_row + column * own.bias_col;
      if (own.residual != nullptr) own.residual += row * own.residual_row + column;
      gemm(block_end(row) - row, {A_ + row * s_.a_row, s_.a_row, s_.a_col}, packed, C_ + row * s_.ldc + column, s_.ldc, own, nullptr);
    }
  }

  PackedB<float> packed_columns(int64_t column, int64_t columns) {
    auto* to = static_cast<float*>(slot_);
    if (B_.whole != nullptr) return pack_b(B_.whole + column * (s_.b_transposed ? s_.ldb : 1), s_.K, columns, s_.ldb, s_.b_transposed, to);
    const int64_t width = packed_b_size<float>(1, columns);  // all columns form one panel
    join_b(s_, B_, column, columns, to, width);
    for (int64_t k = 0; k < s_.K; ++k) std::fill(to + k * width + columns, to + (k + 1) * width, 0.0F);
    return {s_.K, columns, to};
  }

  uint16_t* parts() const { return static_cast<uint16_t*>(slot_); }

  const GemmShape& s_;
  const float* A_;
  const SplitB& B_;
  float* C_;
  const Epilogue<float>& epilogue_;
  Chunks chunks_;
  void* slot_;
  AmxTiles tiles_;
  int64_t first_row_, last_row_, first_panel_, last_panel_, blocks_;
  Magnitude largest_[kMostBlocks] = {};  // the largest magnitude of each block of A so far
  bool beyond_[kMostBlocks] = {};        // for each block of A: true if it has numbers that cannot be split into parts
};

}  // namespace

bool pays_to_split(const GemmShape& s, bool b_is_split) {
  if (!has_split_tiles() || (s.a_row != 1 && s.a_col != 1)) return false;
  if (std::min({s.M, s.N, s.K}) < kLeastExtent) return false;
  // Costs in picoseconds, measured on one core of a Xeon 6. A multiply-add costs kTiles with AMX tiles (times `edges`, for padding) and
  // kVectors with vectors. Splitting an element of A (once per N columns) or of B (once per M rows) costs kSplit; reading a split element
  // of B costs kRead, and writing an element of C costs kWrite.
  constexpr double kTiles = 4.8, kSplit = 500, kRead = 250, kWrite = 100, kVectors = 12;
  const double edges = static_cast<double>(round_up(s.M, kSplitRows) * round_up(s.N, kSplitRows)) / static_cast<double>(s.M * s.N) *
                       static_cast<double>(round_up(s.K, kSplitTerms)) / static_cast<double>(s.K);
  const auto M = static_cast<double>(s.M), N = static_cast<double>(s.N), K = static_cast<double>(s.K);
  return kTiles * edges + kSplit / N + (b_is_split ? kRead : kSplit) / M + kWrite / K < kVectors;
}

size_t split_b_bytes(const GemmShape& s) { return aligned_bytes<uint16_t>(divide_up(s.N, kBlock) * Chunks(s.K).steps * kBlockTiles); }

SplitB split_b(const GemmShape& s, const float* B, void* data, ThreadPool* pool) {
  const PhaseScope phase(KernelPhase::pack);
  auto* parts = static_cast<uint16_t*>(data);
  const int64_t b_row = s.b_transposed ? 1 : s.ldb, b_col = s.b_transposed ? s.ldb : 1, steps = Chunks(s.K).steps;
  std::atomic<Magnitude> largest = 0;
  parallel_for(pool, divide_up(s.N, kBlock), divide_up(1 << 14, kBlock * s.K), [&](int64_t begin, int64_t end) {
    Magnitude found = 0;
    for (int64_t panel = begin; panel < end; ++panel) {
      for (int64_t step = 0; step < steps; ++step) {
        const float* from = B + step * kSplitTerms * b_row + panel * kBlock * b_col;
        uint16_t* tiles = parts + (panel * steps + step) * kBlockTiles;
        const int64_t terms = std::min(kSplitTerms, s.K - step * kSplitTerms), columns = s.N - panel * kBlock;
        for (int64_t half = 0; half < kBlock && half < columns; half += kSplitRows, tiles += kSplitTiles)
          found = std::max(found, split_b(from + half * b_col, b_row, b_col, terms, std::min(kSplitRows, columns - half), tiles));
      }
    }
    Magnitude before = largest.load(std::memory_order_relaxed);
    while (before < found && !largest.compare_exchange_weak(before, found, std::memory_order_relaxed)) {
    }
  });
  return {B, parts, largest};
}

void join_b(const GemmShape& s, const SplitB& B, int64_t first, int64_t columns, float* to, int64_t ld) {
  const int64_t steps = Chunks(s.K).steps;
  for (int64_t k = 0; k < s.K; ++k) {
    for (int64_t n = 0; n < columns; ++n) {
      const int64_t column = first + n;
      const uint16_t* tiles =
          B.parts + (column / kBlock * steps + k / kSplitTerms) * kBlockTiles + column % kBlock / kSplitRows * kSplitTiles;
      to[k * ld + n] = number_of_b(tiles, k % kSplitTerms, column % kSplitRows);
    }
  }
}

size_t gemm_split_scratch_bytes(const GemmShape& s, int max_threads) {
  return slot_bytes(s) * static_cast<size_t>(ScratchSlots::count(max_threads, Division(s, max_threads).items()));
}

void gemm_split(const GemmShape& s, const float* A, const SplitB& B, float* C, const Epilogue<float>& epilogue, void* scratch,
                int max_threads, ThreadPool* pool) {
  const Division division(s, max_threads);
  ScratchSlots slots(scratch, slot_bytes(s), ScratchSlots::count(max_threads, division.items()));
  parallel_for(pool, division.items(), 1, [&](int64_t begin, int64_t end) {
    const ScratchSlots::Lease lease(slots);
    for (int64_t item = begin; item < end; ++item) Range(s, A, B, C, epilogue, division, item, lease.data()).compute();
  });
}

}  // namespace treadle::kernels
