#include "kernels/gemm/gemm_int.h"

#include <algorithm>

#include "core/trace/kernel_phases.h"
#include "kernels/gemm/tile.h"
#include "kernels/gemm/tile_i16.h"
#include "kernels/scratch_slots.h"

namespace treadle::kernels {
namespace {

constexpr int64_t kRowsPerChunk = 96;
constexpr int64_t kMinMacsPerChunk = 100'000;

ByteMatrix moved(ByteMatrix m, int64_t offset) {
  m.data = static_cast<const uint8_t*>(m.data) + offset;
  if (m.elements > 0) m.zero = static_cast<const uint8_t*>(m.zero) + offset / m.elements * m.lines;
  return m;
}

Panels panels_of(int64_t N) { return Panels(N, panel_shape<float>()); }  // the panels of float fit, as int32 has as many lanes

}  // namespace

int32_t zero_of(const ByteMatrix& m, int64_t line) {
  if (m.zero == nullptr) return 0;
  const int64_t at = m.zero_per_line ? line : 0;
  return m.is_signed ? int32_t{static_cast<const int8_t*>(m.zero)[at]} : int32_t{static_cast<const uint8_t*>(m.zero)[at]};
}

void pack_a_i16(const ByteMatrix& A, int64_t M, int64_t K, int64_t lda, int16_t* data, ThreadPool* pool) {
  const int64_t padded = (K + 1) / 2 * 2;
  const PhaseScope phase(KernelPhase::pack);
  parallel_for(pool, M, std::max<int64_t>(1, 65'536 / std::max<int64_t>(1, K)), [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      int16_t* dst = data + m * padded;
      widen_to_i16(static_cast<const uint8_t*>(A.data) + m * lda, A.is_signed, zero_of(A, m), K, dst);
      if (padded > K) dst[K] = 0;
    }
  });
}

int64_t packed_b_i16_size(int64_t K, int64_t N) { return (K + 1) / 2 * 2 * panels_of(N).padded_columns(); }

PackedI16 pack_b_i16(const ByteMatrix& B, int64_t K, int64_t N, int64_t ldb, bool transposed, int16_t* data, ThreadPool* pool) {
  const Panels panels = panels_of(N);
  const int64_t pairs = (K + 1) / 2;
  const auto* src = static_cast<const uint8_t*>(B.data);
  const PhaseScope phase(KernelPhase::pack);
  parallel_for(pool, panels.count, std::max<int64_t>(1, 1024 / std::max<int64_t>(1, K)), [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t n0 = panels.first_column(panel), width = panels.width_vectors(panel) * panels.lanes, columns = std::min(width, N - n0);
      int16_t* dst = data + 2 * pairs * n0;
      for (int64_t k = 0; k < K; k += 2, dst += 2 * width) {
        const bool odd = k + 1 < K;
        const uint8_t* even = transposed ? src + n0 * ldb + k : src + k * ldb + n0;
        pairs_to_i16({.even = even,
                      .odd = odd ? even + (transposed ? 1 : ldb) : nullptr,
                      .step = transposed ? ldb : 1,
                      .is_signed = B.is_signed,
                      .zero = B.zero_per_line ? 0 : zero_of(B, 0)},
                     columns, dst);
        std::fill(dst + 2 * columns, dst + 2 * width, int16_t{0});
        if (!B.zero || !B.zero_per_line) continue;
        for (int64_t j = 0; j < columns; ++j) {
          const int32_t zero = zero_of(B, n0 + j);
          dst[2 * j] = static_cast<int16_t>(dst[2 * j] - zero);
          if (odd) dst[2 * j + 1] = static_cast<int16_t>(dst[2 * j + 1] - zero);
        }
      }
    }
  });
  return {K, N, data};
}

void gemm_i16(int64_t M, const int16_t* packed_a, const PackedI16& B, int32_t* C, int64_t ldc, ThreadPool* pool) {
  if (M <= 0 || B.N <= 0) return;
  const PhaseScope phase(KernelPhase::compute);
  const Panels panels = panels_of(B.N);
  const int64_t chunks = (M + kRowsPerChunk - 1) / kRowsPerChunk, pairs = (B.K + 1) / 2;
  const int64_t macs = std::max<int64_t>(1, B.K * std::min(M, kRowsPerChunk) * (panels.vectors + 1) * panels.lanes);
  parallel_for(pool, panels.count * chunks, std::max<int64_t>(1, kMinMacsPerChunk / macs), [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t panel = item / chunks, n0 = panels.first_column(panel), vectors = panels.width_vectors(panel);
      const int64_t row = item % chunks * kRowsPerChunk;
      gemm_tile_rows_i16({.A = packed_a,
                          .B = B.data + 2 * pairs * n0,
                          .pairs = pairs,
                          .vectors = vectors,
                          .C = C + n0,
                          .ldc = ldc,
                          .row_begin = row,
                          .row_end = std::min(M, row + kRowsPerChunk),
                          .columns = std::min(vectors * panels.lanes, B.N - n0)});
    }
  });
}

size_t gemm_int_packed_scratch_bytes(const GemmShape& s) { return aligned_bytes<int16_t>(packed_a_i16_size(s.M, s.K)); }
size_t gemm_int_scratch_bytes(const GemmShape& s) {
  return gemm_int_packed_scratch_bytes(s) + aligned_bytes<int16_t>(packed_b_i16_size(s.K, s.N));
}

void gemm_int(const GemmShape& s, const BatchStrides& batch, const ByteMatrix& A, const PackedI16& B, int32_t* C, void* scratch,
              ThreadPool* pool) {
  int16_t* packed_a = static_cast<int16_t*>(scratch);
  int64_t a_at = -1;
  for (int64_t i = 0; i < num_products(batch); ++i) {
    const BatchOffsets o = offsets_of(batch, i);
    if (o.a != a_at) pack_a_i16(moved(A, o.a), s.M, s.K, s.a_row, packed_a, pool);
    a_at = o.a;
    gemm_i16(s.M, packed_a, B, C + o.c, s.ldc, pool);
  }
}

void gemm_int(const GemmShape& s, const BatchStrides& batch, const ByteMatrix& A, const ByteMatrix& B, int32_t* C, void* scratch,
              ThreadPool* pool) {
  int16_t* packed_a = static_cast<int16_t*>(scratch);
  int16_t* packed_b = reinterpret_cast<int16_t*>(static_cast<std::byte*>(scratch) + gemm_int_packed_scratch_bytes(s));
  int64_t a_at = -1, b_at = -1;
  for (int64_t i = 0; i < num_products(batch); ++i) {
    const BatchOffsets o = offsets_of(batch, i);
    if (o.a != a_at) pack_a_i16(moved(A, o.a), s.M, s.K, s.a_row, packed_a, pool);
    if (o.b != b_at) pack_b_i16(moved(B, o.b), s.K, s.N, s.ldb, s.b_transposed, packed_b, pool);
    a_at = o.a;
    b_at = o.b;
    gemm_i16(s.M, packed_a, {s.K, s.N, packed_b}, C + o.c, s.ldc, pool);
  }
}

template <typename T>
void gemm_plain(const GemmShape& s, const BatchStrides& batch, const T* A, const T* B, T* C, ThreadPool* pool) {
  const int64_t products = num_products(batch);
  const int64_t grain = std::max<int64_t>(1, kMinMacsPerChunk / std::max<int64_t>(1, s.N * s.K));
  const PhaseScope phase(KernelPhase::compute);
  parallel_for(pool, products * s.M, grain, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const BatchOffsets o = offsets_of(batch, item / s.M);
      const int64_t m = item % s.M;
      T* c = C + o.c + m * s.ldc;
      std::fill(c, c + s.N, T{0});
      for (int64_t k = 0; k < s.K; ++k) {
        const T a = A[o.a + m * s.a_row + k];
        const T* b = B + o.b + k * s.ldb;
        for (int64_t n = 0; n < s.N; ++n) c[n] += a * b[n];
      }
    }
  });
}

template void gemm_plain(const GemmShape&, const BatchStrides&, const uint32_t*, const uint32_t*, uint32_t*, ThreadPool*);
template void gemm_plain(const GemmShape&, const BatchStrides&, const uint64_t*, const uint64_t*, uint64_t*, ThreadPool*);

}  // namespace treadle::kernels
