#include "kernels/normalization/norm.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/normalization/row.h"
#include "kernels/reduce/fold.h"

namespace treadle::kernels {
namespace {

int64_t row_grain(int64_t length) { return std::max<int64_t>(1, 16'384 / std::max<int64_t>(1, length)); }

}  // namespace

template <typename T>
void layer_norm(int64_t rows, int64_t length, const T* x, const T* scale, const T* bias, T epsilon, T* y, T* mean, T* inverse_deviation,
                ThreadPool* pool) {
  parallel_for(pool, rows, row_grain(length), [&](int64_t begin, int64_t end) {
    layer_norm_rows(end - begin, length, x + begin * length, scale, bias, static_cast<double>(epsilon), y + begin * length,
                    mean ? mean + begin : nullptr, inverse_deviation ? inverse_deviation + begin : nullptr);
  });
}

template <typename T>
void rms_norm(int64_t rows, int64_t length, const T* x, const T* scale, T epsilon, T* y, ThreadPool* pool) {
  parallel_for(pool, rows, row_grain(length), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const double mean_square = fold_run(Fold::sum_square, x + r * length, length, 1, 0.0) / static_cast<double>(length);
      const T inverse = static_cast<T>(1 / std::sqrt(mean_square + static_cast<double>(epsilon)));
      row_normalize(x + r * length, length, T{0}, inverse, scale, static_cast<const T*>(nullptr), y + r * length);
    }
  });
}

template <typename T>
void batch_norm(int64_t N, int64_t C, int64_t inner, const T* x, const T* scale, const T* bias, const T* mean, const T* variance, T epsilon,
                T* y, ThreadPool* pool) {
  parallel_for(pool, N * C, row_grain(inner), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t c = i % C;
      const T multiplier = static_cast<T>(scale[c] / std::sqrt(variance[c] + epsilon));
      row_affine(x + i * inner, inner, mean[c], multiplier, bias[c], y + i * inner);
    }
  });
}

template <typename T>
void group_norm(int64_t N, int64_t C, int64_t groups, int64_t inner, const T* x, const T* scale, const T* bias, T epsilon, T* y,
                ThreadPool* pool) {
  if (groups <= 0 || inner <= 0) return;
  const int64_t channels = C / groups, length = channels * inner;
  parallel_for(pool, N * groups, row_grain(length), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const RowStatistics s = row_statistics(x + r * length, length);
      const double inverse = 1 / std::sqrt(s.variance + static_cast<double>(epsilon));
      for (int64_t j = 0; j < channels; ++j) {
        const int64_t c = r % groups * channels + j, offset = r * length + j * inner;
        const double multiplier = inverse * static_cast<double>(scale[c]);
        // `rest` is the part of the mean that is lost in rounding to T; the addend corrects for it. The mean is subtracted from x first, as
        // both may be far larger than their difference.
        const T mean = static_cast<T>(s.mean);
        const double rest = s.mean - static_cast<double>(mean);
        row_affine(x + offset, inner, mean, static_cast<T>(multiplier), static_cast<T>(static_cast<double>(bias[c]) - rest * multiplier),
                   y + offset);
      }
    }
  });
}

template <typename T>
void lrn(int64_t N, int64_t C, int64_t inner, int64_t size, T alpha, T beta, T bias, const T* x, T* y, ThreadPool* pool) {
  parallel_for(pool, N * C, row_grain(inner * 8), [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t n = item / C, c = item % C;
      const int64_t first = std::max<int64_t>(0, c - (size - 1) / 2), last = std::min(C, c + size / 2 + 1);
      T* out = y + item * inner;
      std::fill(out, out + inner, T{0});
      for (int64_t j = first; j < last; ++j) {
        const T* in = x + (n * C + j) * inner;
        for (int64_t i = 0; i < inner; ++i) out[i] += in[i] * in[i];
      }
      const T* in = x + item * inner;
      for (int64_t i = 0; i < inner; ++i) out[i] = in[i] / std::pow(bias + alpha / static_cast<T>(size) * out[i], beta);
    }
  });
}

template <typename T>
void lp_normalize(int64_t outer, int64_t length, int64_t inner, int p, const T* x, T* y, ThreadPool* pool) {
  parallel_for(pool, outer * inner, row_grain(length), [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      const int64_t offset = c / inner * length * inner + c % inner;
      const double sum = fold_run(p == 1 ? Fold::sum_abs : Fold::sum_square, x + offset, length, inner, 0.0);
      const T norm = static_cast<T>(p == 1 ? sum : std::sqrt(sum));
      if (inner == 1 && norm > std::numeric_limits<T>::min()) {  // true if the reciprocal of the norm is finite
        row_normalize(x + offset, length, T{0}, T{1} / norm, static_cast<const T*>(nullptr), static_cast<const T*>(nullptr), y + offset);
        continue;
      }
      for (int64_t i = 0; i < length; ++i) y[offset + i * inner] = norm == T{0} ? T{0} : x[offset + i * inner] / norm;
    }
  });
}

// Normalizes one group of mean_variance_normalize(). The group's elements are contiguous runs, the first of which begins at x.
template <typename T>
void normalize_runs(const StridedLoop<1>& runs, const T* x, T* y) {
  const double count = static_cast<double>(runs.size);
  double sum = 0, squares = 0;
  for_each_run(runs, 0, runs.size, [&](int64_t, int64_t n, const int64_t* at) { sum = fold_run(Fold::sum, x + at[0], n, 1, sum); });
  const double mean = sum / count;
  for_each_run(runs, 0, runs.size, [&](int64_t, int64_t n, const int64_t* at) {
    const RowStatistics s = row_statistics(x + at[0], n);
    squares += static_cast<double>(n) * (s.variance + (s.mean - mean) * (s.mean - mean));
  });
  const T inverse = static_cast<T>(1 / (std::sqrt(squares / count) + 1e-9));
  constexpr const T* kNone = nullptr;
  for_each_run(runs, 0, runs.size, [&](int64_t, int64_t n, const int64_t* at) {
    row_normalize(x + at[0], n, static_cast<T>(mean), inverse, kNone, kNone, y + at[0]);
  });
}

template <typename T>
void mean_variance_normalize(const ReducePlan& plan, const T* x, T* y, ThreadPool* pool) {
  const StridedLoop<1>& loop = plan.reduced;
  const int64_t stride = loop.inner_stride(0);
  parallel_for(pool, plan.kept.size, row_grain(loop.size), [&](int64_t begin, int64_t end) {
    for_each_run(plan.kept, begin, end, [&](int64_t, int64_t n, const int64_t* start) {
      for (int64_t i = 0; i < n; ++i) {
        const int64_t base = start[0] + i * plan.kept.inner_stride(0);
        if (stride == 1) {
          normalize_runs(loop, x + base, y + base);
          continue;
        }
        double sum = 0, squares = 0;
        for_each_run(loop, 0, loop.size,
                     [&](int64_t, int64_t m, const int64_t* at) { sum = fold_run(Fold::sum, x + base + at[0], m, stride, sum); });
        const double mean = sum / static_cast<double>(loop.size);
        for_each_run(loop, 0, loop.size, [&](int64_t, int64_t m, const int64_t* at) {
          for (int64_t j = 0; j < m; ++j) {
            const double v = static_cast<double>(x[base + at[0] + j * stride]) - mean;
            squares += v * v;
          }
        });
        const double inverse = 1 / (std::sqrt(squares / static_cast<double>(loop.size)) + 1e-9);
        for_each_run(loop, 0, loop.size, [&](int64_t, int64_t m, const int64_t* at) {
          for (int64_t j = 0; j < m; ++j) {
            const int64_t place = base + at[0] + j * stride;
            y[place] = static_cast<T>((static_cast<double>(x[place]) - mean) * inverse);
          }
        });
      }
    });
  });
}

#define TREADLE_INSTANTIATE(T)                                                                                               \
  template void layer_norm(int64_t, int64_t, const T*, const T*, const T*, T, T*, T*, T*, ThreadPool*);                      \
  template void rms_norm(int64_t, int64_t, const T*, const T*, T, T*, ThreadPool*);                                          \
  template void batch_norm(int64_t, int64_t, int64_t, const T*, const T*, const T*, const T*, const T*, T, T*, ThreadPool*); \
  template void group_norm(int64_t, int64_t, int64_t, int64_t, const T*, const T*, const T*, T, T*, ThreadPool*);            \
  template void lrn(int64_t, int64_t, int64_t, int64_t, T, T, T, const T*, T*, ThreadPool*);                                 \
  template void lp_normalize(int64_t, int64_t, int64_t, int, const T*, T*, ThreadPool*);                                     \
  template void mean_variance_normalize(const ReducePlan&, const T*, T*, ThreadPool*);
TREADLE_INSTANTIATE(float)
TREADLE_INSTANTIATE(double)
#undef TREADLE_INSTANTIATE

}  // namespace treadle::kernels
