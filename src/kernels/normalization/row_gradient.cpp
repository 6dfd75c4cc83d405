#include "kernels/normalization/row_gradient.h"

#include <algorithm>
#include <cmath>

#include "kernels/normalization/row.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/normalization/row_gradient.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/partial-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Calls fn(j, load, store) for each vector of a row, where j is its first index; the last vector may be partial.
template <class D, class Fn>
HWY_INLINE void for_vectors(D d, int64_t n, Fn&& fn) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  using T = hn::TFromD<D>;
  int64_t j = 0;
  for (; j + lanes <= n; j += lanes)
    fn(
        j, [d](const T* p) HWY_ATTR { return hn::LoadU(d, p); }, [d](hn::Vec<D> v, T* p) HWY_ATTR { hn::StoreU(v, d, p); });
  if (j == n) return;
  const FirstLanes some(d, n - j);
  fn(
      j, [&](const T* p) HWY_ATTR { return load_first(d, some, p); }, [&](hn::Vec<D> v, T* p) HWY_ATTR { store_first(v, d, some, p); });
}

// Processes kRows rows, beginning with `row`. Adds to `dscale` and `dbias`, which must not be null.
//   d = dy scale, dx = (d - mean(d) - xhat mean(d xhat)) / std; the term mean(d) exists only if `centered`
template <int kRows, typename T>
void norm_rows_back(const NormGradient<T>& job, int64_t row, T* dscale, T* dbias) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  const int64_t n = job.length;
  const T *dy = job.dy + row * n, *x = job.x + row * n;
  V mean[kRows], inverse[kRows], flow[kRows], slope[kRows];
  for (int r = 0; r < kRows; ++r) {
    const RowStatistics s = row_statistics(x + r * n, n);
    // RMS normalization divides by the mean square instead of the variance.
    const double squares = job.centered ? s.variance : s.variance + s.mean * s.mean;
    mean[r] = hn::Set(d, job.centered ? static_cast<T>(s.mean) : T{0});
    inverse[r] = hn::Set(d, static_cast<T>(1 / std::sqrt(squares + job.epsilon)));
    flow[r] = slope[r] = hn::Zero(d);
  }
  for_vectors(d, n, [&](int64_t j, auto load, auto store) HWY_ATTR {
    const V scale = load(job.scale + j);
    V of_scale = load(dscale + j), of_bias = load(dbias + j);
    for (int r = 0; r < kRows; ++r) {
      const V g = load(dy + r * n + j), xhat = hn::Mul(hn::Sub(load(x + r * n + j), mean[r]), inverse[r]), own = hn::Mul(g, scale);
      of_bias = hn::Add(of_bias, g);
      of_scale = hn::MulAdd(g, xhat, of_scale);
      // In lanes after the row's end, xhat is -mean / std, but `own` is 0.
      flow[r] = hn::Add(flow[r], own);
      slope[r] = hn::MulAdd(own, xhat, slope[r]);
    }
    store(of_scale, dscale + j);
    store(of_bias, dbias + j);
  });
  if (job.dx == nullptr) return;
  const V share = hn::Set(d, static_cast<T>(1 / static_cast<double>(n)));
  for (int r = 0; r < kRows; ++r) {
    flow[r] = job.centered ? hn::Mul(hn::SumOfLanes(d, flow[r]), share) : hn::Zero(d);
    slope[r] = hn::Mul(hn::SumOfLanes(d, slope[r]), share);
  }
  for_vectors(d, n, [&](int64_t j, auto load, auto store) HWY_ATTR {
    const V scale = load(job.scale + j);
    for (int r = 0; r < kRows; ++r) {
      const V xhat = hn::Mul(hn::Sub(load(x + r * n + j), mean[r]), inverse[r]);
      const V own = hn::Sub(hn::Mul(load(dy + r * n + j), scale), flow[r]);
      store(hn::Mul(hn::NegMulAdd(xhat, slope[r], own), inverse[r]), job.dx + (row + r) * n + j);
    }
  });
}

template <typename T>
void norm_back_here(const NormGradient<T>& job, int64_t begin, int64_t end, T* dscale, T* dbias) {
  constexpr int kRows = 4;
  int64_t row = begin;
  for (; row + kRows <= end; row += kRows) norm_rows_back<kRows>(job, row, dscale, dbias);
  for (; row < end; ++row) norm_rows_back<1>(job, row, dscale, dbias);
}

template <typename T>
void softmax_back_here(int64_t rows, int64_t n, const T* y, const T* dy, T* dx) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  for (int64_t row = 0; row < rows; ++row, y += n, dy += n, dx += n) {
    V sum = hn::Zero(d);
    for_vectors(d, n, [&](int64_t j, auto load, auto) HWY_ATTR { sum = hn::MulAdd(load(y + j), load(dy + j), sum); });
    const V dot = hn::SumOfLanes(d, sum);
    for_vectors(d, n, [&](int64_t j, auto load, auto store) HWY_ATTR { store(hn::Mul(load(y + j), hn::Sub(load(dy + j), dot)), dx + j); });
  }
}

}  // namespace

void norm_back_f32(const NormGradient<float>& job, int64_t begin, int64_t end, float* dscale, float* dbias) {
  norm_back_here(job, begin, end, dscale, dbias);
}
void norm_back_f64(const NormGradient<double>& job, int64_t begin, int64_t end, double* dscale, double* dbias) {
  norm_back_here(job, begin, end, dscale, dbias);
}
void softmax_back_f32(int64_t rows, int64_t n, const float* y, const float* dy, float* dx) { softmax_back_here(rows, n, y, dy, dx); }
void softmax_back_f64(int64_t rows, int64_t n, const double* y, const double* dy, double* dx) { softmax_back_here(rows, n, y, dy, dx); }

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(norm_back_f32);
HWY_EXPORT(norm_back_f64);
HWY_EXPORT(softmax_back_f32);
HWY_EXPORT(softmax_back_f64);

namespace {

constexpr int64_t kMostBlocks = 64, kLeastRowsOfBlock = 32, kRowElements = 8192;

int64_t rows_of_block(int64_t rows) { return std::max(kLeastRowsOfBlock, (rows + kMostBlocks - 1) / kMostBlocks); }
int64_t num_blocks(int64_t rows) { return (rows + rows_of_block(rows) - 1) / rows_of_block(rows); }

void norm_back(const NormGradient<float>& job, int64_t begin, int64_t end, float* dscale, float* dbias) {
  HWY_DYNAMIC_DISPATCH(norm_back_f32)(job, begin, end, dscale, dbias);
}
void norm_back(const NormGradient<double>& job, int64_t begin, int64_t end, double* dscale, double* dbias) {
  HWY_DYNAMIC_DISPATCH(norm_back_f64)(job, begin, end, dscale, dbias);
}
void softmax_back(int64_t rows, int64_t n, const float* y, const float* dy, float* dx) {
  HWY_DYNAMIC_DISPATCH(softmax_back_f32)(rows, n, y, dy, dx);
}
void softmax_back(int64_t rows, int64_t n, const double* y, const double* dy, double* dx) {
  HWY_DYNAMIC_DISPATCH(softmax_back_f64)(rows, n, y, dy, dx);
}

}  // namespace

size_t norm_gradient_scratch_bytes(int64_t rows, int64_t length, size_t element_bytes) {
  return static_cast<size_t>(2 * num_blocks(rows) * length) * element_bytes;
}

template <typename T>
void norm_gradient(const NormGradient<T>& job, void* scratch, ThreadPool* pool) {
  const int64_t n = job.length, per_block = rows_of_block(job.rows), blocks = num_blocks(job.rows);
  T* sums = static_cast<T*>(scratch);
  parallel_for(pool, blocks, std::max<int64_t>(1, kRowElements / std::max<int64_t>(1, per_block * n)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T* own = sums + 2 * i * n;
      std::fill_n(own, 2 * n, T{0});
      norm_back(job, i * per_block, std::min(job.rows, (i + 1) * per_block), own, own + n);
    }
  });
  auto join = [&](T* to, int64_t first) {
    if (to == nullptr) return;
    std::fill_n(to, n, T{0});
    for (int64_t i = 0; i < blocks; ++i)
      for (int64_t j = 0; j < n; ++j) to[j] += sums[2 * i * n + first + j];
  };
  join(job.dscale, 0);
  join(job.dbias, n);
}

template <typename T>
void softmax_gradient(int64_t rows, int64_t length, const T* y, const T* dy, T* dx, ThreadPool* pool) {
  parallel_for(pool, rows, std::max<int64_t>(1, kRowElements / std::max<int64_t>(1, length)), [&](int64_t begin, int64_t end) {
    softmax_back(end - begin, length, y + begin * length, dy + begin * length, dx + begin * length);
  });
}

template void norm_gradient(const NormGradient<float>&, void*, ThreadPool*);
template void norm_gradient(const NormGradient<double>&, void*, ThreadPool*);
template void softmax_gradient(int64_t, int64_t, const float*, const float*, float*, ThreadPool*);
template void softmax_gradient(int64_t, int64_t, const double*, const double*, double*, ThreadPool*);

}  // namespace treadle::kernels
#endif
