// The GEMM micro-kernel, written once for float32 and float64 and for all instruction sets.
#if defined(TREADLE_KERNELS_GEMM_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TREADLE_KERNELS_GEMM_TILE_INL_H_
#undef TREADLE_KERNELS_GEMM_TILE_INL_H_
#else
#define TREADLE_KERNELS_GEMM_TILE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>

#include "kernels/bounds-inl.h"
#include "kernels/gemm/fetch_ahead.h"
#include "kernels/gemm/tile.h"
#include "kernels/partial-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Accumulators, one row of B and a broadcast of A must fit the registers: 6 x 4 accumulators of 32 registers, or 4 x 3 of 16.
#if HWY_MAX_BYTES >= 64 || HWY_TARGET == HWY_NEON
constexpr int kMaxVectors = 4;
constexpr int max_rows(int vectors) { return vectors == 4 ? 6 : vectors == 3 ? 8 : 12; }
#elif HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
constexpr int kMaxVectors = 2;
constexpr int max_rows(int) { return 2; }
#else
constexpr int kMaxVectors = 3;
constexpr int max_rows(int vectors) { return vectors == 3 ? 4 : 6; }
#endif

// Loads vector v of a row. Only the last vector of a panel can be partial (`cut`).
template <typename T, int kVectors, class D>
HWY_INLINE hn::Vec<D> load_part(D d, const T* row, int v, bool cut, const FirstLanes<D>& first) {
  const T* p = row + v * static_cast<int64_t>(hn::Lanes(d));
  return v == kVectors - 1 && cut ? load_first(d, first, p) : hn::LoadU(d, p);
}

// Applies alpha, bias, residual and clamp to a tile and stores it.
template <typename T, int kRows, int kVectors, class D, class V>
HWY_INLINE void finish(D d, V (&sum)[kRows][kVectors], const TileJob<T>& job, int64_t row) {
  const Epilogue<T>& e = *job.epilogue;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t last = job.columns - (kVectors - 1) * lanes;  // number of columns in the last vector
  const bool cut = last < lanes;
  const FirstLanes first(d, std::min(last, lanes));
#define TREADLE_EACH_ROW _Pragma("GCC unroll 12") for (int r = 0; r < kRows; ++r)
#define TREADLE_EACH_VECTOR _Pragma("GCC unroll 4") for (int v = 0; v < kVectors; ++v)
  if (e.alpha != T{1}) {
    const V alpha = hn::Set(d, e.alpha);
    TREADLE_EACH_ROW TREADLE_EACH_VECTOR sum[r][v] = hn::Mul(sum[r][v], alpha);
  }
  if (e.bias != nullptr) {
    const V beta = hn::Set(d, e.beta);
    const T* bias = e.bias + row * e.bias_row + job.first_column * e.bias_col;
    if (e.bias_col == 0) {
      TREADLE_EACH_ROW {
        const V b = hn::Mul(beta, hn::Set(d, bias[r * e.bias_row]));
        TREADLE_EACH_VECTOR sum[r][v] = hn::Add(sum[r][v], b);
      }
    } else if (e.bias_row == 0) {
      TREADLE_EACH_VECTOR {
        const V b = hn::Mul(beta, load_part<T, kVectors>(d, bias, v, cut, first));
        TREADLE_EACH_ROW sum[r][v] = hn::Add(sum[r][v], b);
      }
    } else {
      TREADLE_EACH_ROW TREADLE_EACH_VECTOR sum[r][v] =
          hn::Add(sum[r][v], hn::Mul(beta, load_part<T, kVectors>(d, bias + r * e.bias_row, v, cut, first)));
    }
  }
  if (e.residual != nullptr) {
    const T* residual = e.residual + row * e.residual_row + job.first_column;
    TREADLE_EACH_ROW TREADLE_EACH_VECTOR sum[r][v] =
        hn::Add(sum[r][v], load_part<T, kVectors>(d, residual + r * e.residual_row, v, cut, first));
  }
  // NaN passes both clamps unchanged.
  if (e.activation == Unary::relu) {
    TREADLE_EACH_ROW TREADLE_EACH_VECTOR sum[r][v] = at_least(hn::Zero(d), sum[r][v]);
  } else if (e.activation == Unary::clip) {
    const V low = hn::Set(d, static_cast<T>(e.a)), high = hn::Set(d, static_cast<T>(e.b));
    TREADLE_EACH_ROW TREADLE_EACH_VECTOR sum[r][v] = at_most(high, at_least(low, sum[r][v]));
  }
  T* c = job.C + row * job.ldc;
  TREADLE_EACH_ROW {
    TREADLE_EACH_VECTOR {
      T* p = c + r * job.ldc + v * lanes;
      if (v == kVectors - 1 && cut) {
        store_first(sum[r][v], d, first, p);
      } else {
        hn::StoreU(sum[r][v], d, p);
      }
    }
  }
#undef TREADLE_EACH_ROW
#undef TREADLE_EACH_VECTOR
}

// Applies the epilogue to rows whose sums are in memory, kVectors vectors each.
template <int kVectors, int kRows>
HWY_INLINE void finish_rows(const float* sums, const TileJob<float>& to, int64_t row) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  hn::Vec<decltype(d)> sum[kRows][kVectors];
  _Pragma("GCC unroll 8") for (int r = 0; r < kRows; ++r) _Pragma("GCC unroll 4") for (int v = 0; v < kVectors; ++v) sum[r][v] =
      hn::Load(d, sums + (r * kVectors + v) * lanes);
  finish<float, kRows, kVectors>(d, sum, to, row);
}

// A single row has too few accumulators to hide the latency, so even and odd k use separate ones.
constexpr int num_sets(int rows) { return rows == 1 ? 2 : 1; }

// Adds the next k columns of A times the next k rows of B to `sum`. kFromL2: B exceeds L1, so its rows are prefetched from L2.
template <bool kFromL2, typename T, int kRows, int kVectors, class D, class V>
HWY_INLINE void add_products(D d, const TileJob<T>& job, const T*& a, const T*& b, int64_t k, NextLines& next,
                             V (&sum)[num_sets(kRows) * kRows][kVectors]) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t a_row = job.a_row, a_col = job.a_col, b_row = job.b_row;
  [[maybe_unused]] constexpr int64_t kBytes = sizeof(T);
  if constexpr (num_sets(kRows) == 2) {
    for (; k >= 2; k -= 2) {
      const V a0 = hn::Set(d, a[0]), a1 = hn::Set(d, a[a_col]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        sum[0][v] = hn::MulAdd(a0, hn::LoadU(d, b + v * lanes), sum[0][v]);
        sum[1][v] = hn::MulAdd(a1, hn::LoadU(d, b + b_row + v * lanes), sum[1][v]);
      }
      a += 2 * a_col;
      b += 2 * b_row;
    }
  }
  for (; k > 0; --k) {
    V bv[kVectors];
    if constexpr (kRows > 1 && kVectors > 2) {
      next.fetch();
      if constexpr (kFromL2) fetch_into_l1<kVectors>(b, kRowsAhead * b_row * kBytes, lanes * kBytes);
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) bv[v] = hn::LoadU(d, b + v * lanes);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const V av = hn::Set(d, a[r * a_row]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(av, bv[v], sum[r][v]);
    }
    a += a_col;
    b += b_row;
  }
}

#define TREADLE_EACH_SUM(kSums) \
  _Pragma("GCC unroll 12") for (int r = 0; r < (kSums); ++r) _Pragma("GCC unroll 4") for (int v = 0; v < kVectors; ++v)

// Sums k terms. The accumulators are local, so that the compiler keeps them in registers.
template <bool kFromL2, typename T, int kRows, int kVectors, class D>
HWY_INLINE void add_chain(D d, const TileJob<T>& job, const T*& a, const T*& b, int64_t k, NextLines& next,
                          hn::Vec<D> (&total)[kRows][kVectors]) {
  constexpr int kSums = num_sets(kRows) * kRows;
  hn::Vec<D> sum[kSums][kVectors];
  TREADLE_EACH_SUM(kSums) sum[r][v] = hn::Zero(d);
  add_products<kFromL2, T, kRows, kVectors>(d, job, a, b, k, next, sum);
  TREADLE_EACH_SUM(kRows) {
    if constexpr (kSums > kRows) {
      total[r][v] = hn::Add(sum[r][v], sum[r + kRows][v]);
    } else {
      total[r][v] = sum[r][v];
    }
  }
}

template <bool kFromL2, typename T, int kRows, int kVectors>
HWY_NOINLINE void tile(const TileJob<T>& job, int64_t row, NextLines next) {
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const T* a = job.A + (job.a_rows > 0 ? row / job.a_rows * job.a_panel : row * job.a_row);
  const T* b = job.B;
  const int64_t longest = job.epilogue->longest_sum;
  HWY_ALIGN T sums[kRows * kVectors * hn::MaxLanes(d)];
  T* before = nullptr;  // the sums of earlier chains; null: this is the first
  int64_t k = job.K;
  for (; k > longest; k -= longest) {
    V sum[kRows][kVectors];
    add_chain<kFromL2, T, kRows, kVectors>(d, job, a, b, longest, next, sum);
    if (before != nullptr) TREADLE_EACH_SUM(kRows) sum[r][v] = hn::Add(sum[r][v], hn::Load(d, before + (r * kVectors + v) * lanes));
    before = sums;
    TREADLE_EACH_SUM(kRows) hn::Store(sum[r][v], d, before + (r * kVectors + v) * lanes);
  }
  V sum[kRows][kVectors];
  add_chain<kFromL2, T, kRows, kVectors>(d, job, a, b, k, next, sum);
  if (before != nullptr) TREADLE_EACH_SUM(kRows) sum[r][v] = hn::Add(sum[r][v], hn::Load(d, before + (r * kVectors + v) * lanes));
  finish<T, kRows, kVectors>(d, sum, job, row);
}
#undef TREADLE_EACH_SUM

template <bool kFromL2, typename T, int kVectors, int kRows = max_rows(kVectors)>
HWY_INLINE void tile_of(int64_t rows, const TileJob<T>& job, int64_t row, NextLines next) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return tile_of<kFromL2, T, kVectors, kRows - 1>(rows, job, row, next);
  }
  tile<kFromL2 && (kRows > 1), T, kRows, kVectors>(job, row, next);
}

// Splits rows evenly: 7 rows are 4 + 3, never 6 + 1. If A was copied into blocks of rows, these blocks are the tiles.
template <bool kFromL2, typename T, int kVectors>
void rows_of(const TileJob<T>& job) {
  const int64_t rows = job.row_end - job.row_begin;
  const int64_t blocks = (rows + max_rows(kVectors) - 1) / max_rows(kVectors);
  const int64_t low = rows / blocks, extra = rows % blocks;
  int64_t row = job.row_begin;
  NextLines next(job.next, job.B, job.b_row * static_cast<int64_t>(sizeof(T)), blocks);
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t even = low + (block < extra ? 1 : 0);
    const int64_t count = job.a_rows > 0 ? std::min(job.a_rows, job.row_end - row) : even;
    tile_of<kFromL2, T, kVectors>(count, job, row, next);
    next.skip(job.K);
    row += count;
  }
}

template <typename T, int kVectors = kMaxVectors>
void rows_any(const TileJob<T>& job) {
  if constexpr (kVectors > 1) {
    if (job.vectors < kVectors) return rows_any<T, kVectors - 1>(job);
  }
  const bool from_l2 = job.K * job.b_row * static_cast<int64_t>(sizeof(T)) > kPanelBytesInL1;
  if (kVectors > 2 && from_l2)
    rows_of<(kVectors > 2), T, kVectors>(job);
  else
    rows_of<false, T, kVectors>(job);
}

template <typename T>
void dot_rows(const T* A, int64_t a_row, const T* B, int64_t ldb, T* C, int64_t ldc, int64_t M, int64_t n_begin, int64_t n_end, int64_t K) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t m = 0; m < M; ++m) {
    const T* a = A + m * a_row;
    int64_t n = n_begin;
    for (; n + 4 <= n_end; n += 4) {
      const T* b = B + n * ldb;
      auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
      int64_t k = 0;
      for (; k + lanes <= K; k += lanes) {
        const auto av = hn::LoadU(d, a + k);
        s0 = hn::MulAdd(av, hn::LoadU(d, b + k), s0);
        s1 = hn::MulAdd(av, hn::LoadU(d, b + ldb + k), s1);
        s2 = hn::MulAdd(av, hn::LoadU(d, b + 2 * ldb + k), s2);
        s3 = hn::MulAdd(av, hn::LoadU(d, b + 3 * ldb + k), s3);
      }
      T t[4] = {hn::GetLane(hn::SumOfLanes(d, s0)), hn::GetLane(hn::SumOfLanes(d, s1)), hn::GetLane(hn::SumOfLanes(d, s2)),
                hn::GetLane(hn::SumOfLanes(d, s3))};
      for (; k < K; ++k) {
        for (int j = 0; j < 4; ++j) t[j] += a[k] * b[j * ldb + k];
      }
      for (int j = 0; j < 4; ++j) C[m * ldc + n + j] = t[j];
    }
    for (; n < n_end; ++n) {
      const T* b = B + n * ldb;
      auto s = hn::Zero(d);
      int64_t k = 0;
      for (; k + lanes <= K; k += lanes) s = hn::MulAdd(hn::LoadU(d, a + k), hn::LoadU(d, b + k), s);
      T t = hn::GetLane(hn::SumOfLanes(d, s));
      for (; k < K; ++k) t += a[k] * b[k];
      C[m * ldc + n] = t;
    }
  }
}

// Multiplies one row of A by all of B. B's rows are read in memory order: if B were read panel by panel, each row would be read in pieces
// of one or two cache lines, which the hardware prefetcher does not follow. The sums stay in L1.
template <typename T>
void row_product(const T* A, int64_t a_col, const T* B, int64_t ldb, T* C, int64_t N, int64_t K) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int kRows = 4;
  for (int64_t k = 0; k < K;) {
    const int rows = K - k >= kRows ? kRows : 1;
    const T *a = A + k * a_col, *b = B + k * ldb;
    int64_t n = 0;
    if (rows == kRows) {
      hn::Vec<decltype(d)> factors[kRows];  // loaded once, because the compiler must assume that C overlaps A
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) factors[r] = hn::Set(d, a[r * a_col]);
      for (; n + lanes <= N; n += lanes) {
        auto sum = k == 0 ? hn::Zero(d) : hn::LoadU(d, C + n);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) sum = hn::MulAdd(factors[r], hn::LoadU(d, b + r * ldb + n), sum);
        hn::StoreU(sum, d, C + n);
      }
    } else {
      const auto av = hn::Set(d, *a);
      for (; n + lanes <= N; n += lanes)
        hn::StoreU(hn::MulAdd(av, hn::LoadU(d, b + n), k == 0 ? hn::Zero(d) : hn::LoadU(d, C + n)), d, C + n);
    }
    for (; n < N; ++n) {
      T sum = k == 0 ? T{0} : C[n];
      for (int r = 0; r < rows; ++r) sum += a[r * a_col] * b[r * ldb + n];
      C[n] = sum;
    }
    k += rows;
  }
}

template <typename T>
PanelShape panel_shape_here() {
  return {static_cast<int64_t>(hn::Lanes(hn::ScalableTag<T>())), kMaxVectors, max_rows(kMaxVectors)};
}

}  // namespace
}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TREADLE_KERNELS_GEMM_TILE_INL_H_
