#include "kernels/conv/nhwc_tile.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/conv/nhwc_tile.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>
#include <limits>

#include "kernels/bounds-inl.h"
#include "kernels/gemm/fetch_ahead.h"
#include "kernels/partial-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// Accumulators, one row of B and a broadcast of A fit the registers. Panels are as wide as in the GEMM, which packs them.
#if HWY_MAX_BYTES >= 64 || HWY_TARGET == HWY_NEON
constexpr int kMaxVectors = 4;
constexpr int max_rows(int vectors) { return vectors == 4 ? 6 : vectors == 3 ? 8 : 12; }
#elif HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
constexpr int kMaxVectors = 2;
constexpr int max_rows(int) { return 2; }
#else
constexpr int kMaxVectors = 3;
constexpr int max_rows(int vectors) { return vectors == 3 ? 4 : vectors == 2 ? 6 : 8; }
#endif

#if HWY_TARGET == HWY_SCALAR
constexpr int kMaxFold = 1;
#else
constexpr int kMaxFold = 4;
#endif

// For wide panels, rows from several image lines are computed together, with a pointer for each row. Tiles of narrow panels do too little
// work to pay for the pointers, so their lines are computed one by one.
constexpr bool takes_lines_together(int vectors) { return vectors > 2; }

#define TREADLE_EACH_ROW _Pragma("GCC unroll 12") for (int r = 0; r < kRows; ++r)
#define TREADLE_EACH_VECTOR _Pragma("GCC unroll 4") for (int v = 0; v < kVectors; ++v)

// Repeats the next kFold floats of A across the vector: each column of a folded panel has kFold lanes.
template <int kFold>
HWY_INLINE V broadcast(D d, const float* from) {
  if constexpr (kFold == 1) {
    return hn::Set(d, *from);
  } else if constexpr (kFold == 2) {
    double pair;
    __builtin_memcpy(&pair, from, sizeof pair);
    return hn::BitCast(d, hn::Set(hn::Repartition<double, D>(), pair));
  } else {
    return hn::LoadDup128(d, from);
  }
}

// Sums the kFold lanes of each column. The sums are in the first lanes of the result.
template <int kFold>
HWY_INLINE V unfolded([[maybe_unused]] D d, V sum) {
#if HWY_TARGET != HWY_SCALAR
  for (int fold = kFold; fold > 1; fold /= 2) sum = hn::Add(hn::ConcatEven(d, sum, sum), hn::ConcatOdd(d, sum, sum));
#endif
  return sum;
}

// Adds to `sum` the product of `length` columns of A (a segment of each row's window) and as many rows of the panel. kApart: each row has a
// pointer in `a`; otherwise the rows begin at `first` and are a_row apart.
template <bool kFromL2, int kRows, int kVectors, bool kApart, int kFold>
HWY_INLINE void add_run(D d, const float* HWY_RESTRICT first, [[maybe_unused]] const float* const (&a)[kRows], int64_t a_row,
                        int64_t length, [[maybe_unused]] NextLines& next, const float*& panel, V (&sum)[kRows][kVectors]) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  [[maybe_unused]] const int64_t vector_bytes = lanes * static_cast<int64_t>(sizeof(float));
  const float* HWY_RESTRICT b = panel;
  for (int64_t k = 0; k < length; k += kFold) {
    V bv[kVectors];
    // Panels of one or two vectors have no spare load slots for prefetching.
    if constexpr (kVectors > 2) next.fetch();
    if constexpr (kFromL2) fetch_into_l1<kVectors>(b, kRowsAhead * kVectors * vector_bytes, vector_bytes);
    TREADLE_EACH_VECTOR bv[v] = hn::LoadU(d, b + v * lanes);
    TREADLE_EACH_ROW {
      const V av = broadcast<kFold>(d, kApart ? a[r] + k : first + r * a_row);
      TREADLE_EACH_VECTOR sum[r][v] = hn::MulAdd(av, bv[v], sum[r][v]);
    }
    if constexpr (!kApart) first += kFold;
    b += kVectors * lanes;
  }
  panel = b;
}

// kApart: rows are at the offsets job.pixels; otherwise they are a_row apart, and row number `row` is at A.
template <int kRows, int kVectors, bool kApart, int kFold>
HWY_NOINLINE void tile(const NhwcTile& job, const float* A, int64_t a_row, int64_t row, NextLines next) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t last = job.columns - (kVectors - 1) * lanes;
  const bool cut = last < lanes;
  const FirstLanes rest(d, std::min(last, lanes));
  auto load = [&](const float* from, int v) {
    return v == kVectors - 1 && cut ? load_first(d, rest, from + v * lanes) : hn::LoadU(d, from + v * lanes);
  };
  V sum[kRows][kVectors];
  TREADLE_EACH_VECTOR {
    const V bias = job.bias != nullptr && kFold == 1 ? load(job.bias, v) : hn::Zero(d);
    TREADLE_EACH_ROW sum[r][v] = bias;
  }
  const float* b = job.B;
  const bool from_l2 = job.num_segments * job.length * kVectors * lanes * static_cast<int64_t>(sizeof(float)) > kPanelBytesInL1;
  for (int64_t s = 0; s < job.num_segments; ++s) {
    const float* first = A + job.segments[s];
    const float* a[kRows];
    if constexpr (kApart) {
      TREADLE_EACH_ROW a[r] = first + job.pixels[row + r];
    }
    if (kVectors > 2 && from_l2)
      add_run<(kVectors > 2), kRows, kVectors, kApart, kFold>(d, first, a, a_row, job.length, next, b, sum);
    else
      add_run<false, kRows, kVectors, kApart, kFold>(d, first, a, a_row, job.length, next, b, sum);
  }

  if constexpr (kFold > 1) {
    const V bias = job.bias != nullptr ? load(job.bias, 0) : hn::Zero(d);
    TREADLE_EACH_ROW sum[r][0] = hn::Add(unfolded<kFold>(d, sum[r][0]), bias);
  }
  if (job.residual != nullptr) {
    const float* residual = job.residual + row * job.residual_row;
    TREADLE_EACH_ROW TREADLE_EACH_VECTOR sum[r][v] = hn::Add(sum[r][v], load(residual + r * job.residual_row, v));
  }
  // NaN passes both clamps unchanged.
  if (job.low > -std::numeric_limits<float>::infinity()) {
    const V low = hn::Set(d, job.low);
    TREADLE_EACH_ROW TREADLE_EACH_VECTOR sum[r][v] = at_least(low, sum[r][v]);
  }
  if (job.high < std::numeric_limits<float>::infinity()) {
    const V high = hn::Set(d, job.high);
    TREADLE_EACH_ROW TREADLE_EACH_VECTOR sum[r][v] = at_most(high, sum[r][v]);
  }
  float* c = job.C + row * job.ldc;
  TREADLE_EACH_ROW {
    TREADLE_EACH_VECTOR {
      float* to = c + r * job.ldc + v * lanes;
      if (v == kVectors - 1 && cut) {
        store_first(sum[r][v], d, rest, to);
      } else {
        hn::StoreU(sum[r][v], d, to);
      }
    }
  }
}
#undef TREADLE_EACH_ROW
#undef TREADLE_EACH_VECTOR

template <int kVectors, bool kApart, int kFold, int kRows = max_rows(kVectors)>
HWY_INLINE void tile_of(int64_t rows, const NhwcTile& job, const float* A, int64_t a_row, int64_t row, NextLines next) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return tile_of<kVectors, kApart, kFold, kRows - 1>(rows, job, A, a_row, row, next);
  }
  tile<kRows, kVectors, kApart, kFold>(job, A, a_row, row, next);
}

// Splits rows evenly: 7 rows are 4 + 3, never 6 + 1.
template <int kVectors, bool kApart, int kFold = 1>
void blocks_of(const NhwcTile& job, const float* A, int64_t a_row, int64_t row, int64_t rows) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(D()));
  const int64_t blocks = (rows + max_rows(kVectors) - 1) / max_rows(kVectors);
  const int64_t low = rows / blocks, extra = rows % blocks;
  NextLines next(job.next, job.B, kVectors * lanes * static_cast<int64_t>(sizeof(float)), blocks);
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t count = low + (block < extra ? 1 : 0);
    tile_of<kVectors, kApart, kFold>(count, job, A, a_row, row, next);
    next.skip(job.num_segments * job.length);
    row += count;
    A += count * a_row;
  }
}

// Splits the rows into groups of evenly spaced rows, and computes one group after the other.
template <int kVectors, int kFold>
void lines_of(const NhwcTile& job) {
  const int64_t* p = job.pixels;
  if (p == nullptr) return blocks_of<kVectors, false, kFold>(job, job.A, job.a_row, 0, job.rows);
  for (int64_t begin = 0, end = 1; begin < job.rows; begin = end++) {
    const int64_t step = end < job.rows ? p[end] - p[begin] : 0;
    while (end < job.rows && p[end] - p[end - 1] == step) ++end;
    blocks_of<kVectors, false, kFold>(job, job.A + p[begin], step, begin, end - begin);
  }
}

template <int kVectors = kMaxVectors>
void rows_of(const NhwcTile& job) {
  if constexpr (kVectors > 1) {
    if (job.vectors < kVectors) return rows_of<kVectors - 1>(job);
  } else if constexpr (kMaxFold > 1) {
    if (job.fold == 2) return lines_of<1, 2>(job);
    if (job.fold == 4) return lines_of<1, 4>(job);
  }
  if constexpr (takes_lines_together(kVectors)) {
    if (job.pixels != nullptr) return blocks_of<kVectors, true>(job, job.A, 0, 0, job.rows);
  }
  lines_of<kVectors, 1>(job);
}

}  // namespace

void nhwc_tile_here(const NhwcTile& job) { rows_of(job); }

int fold_here(int64_t columns, int64_t length) {
  for (int fold = kMaxFold; fold > 1; fold /= 2) {
    if (columns * fold <= static_cast<int64_t>(hn::Lanes(D())) && length % fold == 0) return fold;
  }
  return 1;
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(nhwc_tile_here);
HWY_EXPORT(fold_here);

int nhwc_fold(int64_t columns, int64_t length) { return HWY_DYNAMIC_DISPATCH(fold_here)(columns, length); }

void nhwc_tile(const NhwcTile& job) {
  if (job.rows > 0) HWY_DYNAMIC_DISPATCH(nhwc_tile_here)(job);
}

}  // namespace treadle::kernels
#endif
