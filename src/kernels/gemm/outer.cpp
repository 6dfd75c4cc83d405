#include "kernels/gemm/outer.h"

#include <algorithm>

#include "core/trace/kernel_phases.h"
#include "kernels/elementwise/broadcast.h"
#include "kernels/gemm/tile.h"

namespace treadle::kernels {
namespace {

constexpr int64_t kFewTerms = 4, kFewestRows = 5;
constexpr int64_t kFewestColumns = 256;  // with fewer columns, the tiles of the GEMM are as fast

}  // namespace

template <typename T>
bool is_outer(const GemmShape& s, const Epilogue<T>& e) {
  const bool is_plain = e.alpha == 1 && e.bias == nullptr && e.residual == nullptr && e.activation == Unary::none;
  return s.M >= kFewestRows && s.N >= kFewestColumns && s.K > 0 && s.K <= kFewTerms && !s.b_transposed && is_plain;
}

template <typename T>
void outer_products(const GemmShape& s, const BatchStrides& batch, const T* A, const T* B, T* C, ThreadPool* pool) {
  const PhaseScope phase(KernelPhase::compute);
  const int64_t rows_at_once = std::max<int64_t>(1, kElementwiseGrain / s.N);
  parallel_for(pool, num_products(batch) * s.M, rows_at_once, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const BatchOffsets o = offsets_of(batch, row / s.M);
      const int64_t m = row % s.M;
      gemm_row_product(A + o.a + m * s.a_row, s.a_col, B + o.b, s.ldb, C + o.c + m * s.ldc, s.N, s.K);
    }
  });
}

template bool is_outer(const GemmShape&, const Epilogue<float>&);
template bool is_outer(const GemmShape&, const Epilogue<double>&);
template void outer_products(const GemmShape&, const BatchStrides&, const float*, const float*, float*, ThreadPool*);
template void outer_products(const GemmShape&, const BatchStrides&, const double*, const double*, double*, ThreadPool*);

}  // namespace treadle::kernels
