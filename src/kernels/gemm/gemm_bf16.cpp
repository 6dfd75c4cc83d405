#include "kernels/gemm/gemm_bf16.h"

#include <algorithm>
#include <vector>

#include "kernels/gemm/tile_bf16.h"
#include "kernels/scratch_slots.h"

namespace treadle::kernels {
namespace {

constexpr int64_t kRowsPerChunk = 96;          // as the float32 product's: the block of C stays in L1
constexpr int64_t kMinMacsPerChunk = 200'000;  // about 2 us of work
constexpr int64_t kMinConverted = 16'384;      // elements that are worth a chunk

int64_t pairs_of(int64_t K) { return (K + 1) / 2; }
int64_t terms_of(Bf16Form form) { return form == Bf16Form::three ? 3 : 1; }

}  // namespace

int64_t packed_bf16_size(int64_t K, int64_t N, Bf16Form form) {
  return pairs_of(K) * terms_of(form) * Panels(N, panel_shape<float>()).padded_columns();
}

PackedBf16 pack_bf16(const float* B, int64_t K, int64_t N, int64_t ldb, bool transposed, Bf16Form form, uint32_t* data, ThreadPool* pool) {
  const Panels panels(N, panel_shape<float>());
  const int64_t rows = pairs_of(K) * terms_of(form);
  auto pack_panels = [&](int64_t begin, int64_t end) {
    std::vector<float> wide;
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t n0 = panels.first_column(panel), width = panels.width_vectors(panel) * panels.lanes;
      wide.resize(static_cast<size_t>(K * width));
      pack_b(B + n0 * (transposed ? ldb : 1), K, std::min(width, N - n0), ldb, transposed, wide.data());
      uint32_t* dst = data + rows * n0;
      for (int64_t term = 0; term < terms_of(form); ++term, dst += pairs_of(K) * width) pair_rows(wide.data(), K, width, term == 1, dst);
    }
  };
  if (K > 0) parallel_for(pool, panels.count, std::max<int64_t>(1, 4096 / K), pack_panels);
  return {K, N, form, data};
}

size_t gemm_bf16_scratch_bytes(int64_t M, int64_t K, Bf16Form form) {
  return aligned_bytes<uint16_t>(M * 2 * pairs_of(K) * (form == Bf16Form::three ? 2 : 1));
}

void gemm_bf16(int64_t M, const float* A, int64_t lda, const PackedBf16& B, float* C, int64_t ldc, const Epilogue<float>& epilogue,
               void* scratch, ThreadPool* pool, bool emulated) {
  if (M <= 0 || B.N <= 0) return;
  const bool three = B.form == Bf16Form::three;
  const int64_t K = B.K, length = 2 * pairs_of(K), row = length * (three ? 2 : 1);
  auto* narrow = static_cast<uint16_t*>(scratch);
  parallel_for(pool, M, std::max<int64_t>(1, kMinConverted / std::max<int64_t>(1, K)), [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      uint16_t *hi = narrow + m * row, *lo = three ? hi + length : nullptr;
      to_bf16(A + m * lda, K, hi, lo);
      if (K == length) continue;
      hi[K] = 0;
      if (three) lo[K] = 0;
    }
  });
  // The panel holds B's upper, lower and upper parts below each other; they meet A's upper, upper and lower ones.
  const int64_t segments[] = {0, 0, length};
  const Panels panels(B.N, panel_shape<float>());
  const int64_t chunks = (M + kRowsPerChunk - 1) / kRowsPerChunk, width = (panels.vectors + 1) * panels.lanes;
  const int64_t macs = K * terms_of(B.form) * std::min(M, kRowsPerChunk) * width;
  parallel_for(pool, panels.count * chunks, std::max<int64_t>(1, kMinMacsPerChunk / std::max<int64_t>(1, macs)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t item = begin; item < end; ++item) {
                   const int64_t panel = item / chunks, n0 = panels.first_column(panel), vectors = panels.width_vectors(panel);
                   Bf16Tile job{.A = narrow,
                                .a_row = row,
                                .pixels = nullptr,
                                .segments = segments,
                                .num_segments = terms_of(B.form),
                                .length = length,
                                .B = B.data + pairs_of(K) * terms_of(B.form) * n0,
                                .to = {},
                                .emulated = emulated};
                   job.to.vectors = vectors;
                   job.to.C = C + n0, job.to.ldc = ldc;
                   job.to.row_begin = M * (item % chunks) / chunks, job.to.row_end = M * (item % chunks + 1) / chunks;
                   job.to.first_column = n0, job.to.columns = std::min(vectors * panels.lanes, B.N - n0);
                   job.to.epilogue = &epilogue;
                   job.to.fetches_ahead = item % chunks == 0;
                   run_bf16_tile(job);
                 }
               });
}

}  // namespace treadle::kernels
