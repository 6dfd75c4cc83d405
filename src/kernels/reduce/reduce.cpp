#include "kernels/reduce/reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reduce/fold.h"
#include "kernels/reduce/log_sum_exp.h"

namespace treadle::kernels {
namespace {

constexpr int64_t kGrain = 32 * 1024;
constexpr int64_t kSplitBlock = 64 * 1024;  // number of inputs in one piece of a split reduction
constexpr int64_t kMaxPieces = 64;

Fold fold_of(Reduce op) {
  switch (op) {
    case Reduce::max: return Fold::max;
    case Reduce::min: return Fold::min;
    case Reduce::prod: return Fold::prod;
    case Reduce::l1: return Fold::sum_abs;
    case Reduce::l2:
    case Reduce::sum_square: return Fold::sum_square;
    default: return Fold::sum;
  }
}

template <typename T>
FoldTotal<T> identity_of(Fold fold) {
  using Total = FoldTotal<T>;
  constexpr bool real = std::is_floating_point_v<Total>;
  switch (fold) {
    case Fold::prod: return Total{1};
    case Fold::max:
      if constexpr (real)
        return -std::numeric_limits<Total>::infinity();
      else
        return static_cast<Total>(std::numeric_limits<T>::lowest());
    case Fold::min:
      if constexpr (real)
        return std::numeric_limits<Total>::infinity();
      else
        return static_cast<Total>(std::numeric_limits<T>::max());
    default: return Total{0};
  }
}

// Truncates to an integer. Numbers out of range are saturated, as a C++ conversion of them would be undefined.
template <typename T>
T store(double value) {
  if constexpr (std::is_integral_v<T>) {
    if (value != value) return T{0};
    if (value <= static_cast<double>(std::numeric_limits<T>::lowest())) return std::numeric_limits<T>::lowest();
    if (value >= static_cast<double>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
    return static_cast<T>(value);
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(value);
  } else {
    return T(value);
  }
}

// Sets y[i] to the result for i in [0, n), where totals[i] is the fold of `count` elements.
template <typename T>
void finish(Reduce op, const FoldTotal<T>* totals, int64_t n, int64_t count, T* y) {
  auto each = [&](auto&& fn) {
    for (int64_t i = 0; i < n; ++i) y[i] = fn(totals[i]);
  };
  if constexpr (std::is_integral_v<T>) {
    if (op == Reduce::mean) return each([&](auto t) { return count == 0 ? T{0} : static_cast<T>(t / static_cast<FoldTotal<T>>(count)); });
    if (op == Reduce::l2) return each([](auto t) { return store<T>(std::sqrt(static_cast<double>(t))); });
    if (op == Reduce::log_sum) return each([](auto t) { return store<T>(std::log(static_cast<double>(t))); });
    each([](auto t) { return static_cast<T>(t); });
  } else {
    if (op == Reduce::mean) {
      if constexpr (std::is_same_v<T, double>) return each([&](double t) { return t / static_cast<double>(count); });
      // For these narrow types, a mean that is computed in double is precise enough.
      return each([share = 1 / static_cast<double>(count)](double t) { return store<T>(t * share); });
    }
    if (op == Reduce::l2) return each([](double t) { return store<T>(std::sqrt(t)); });
    if (op == Reduce::log_sum) return each([](double t) { return store<T>(std::log(t)); });
    each([](double t) { return store<T>(t); });
  }
}

template <typename T>
T log_sum_exp(const StridedLoop<1>& loop, const T* x) {
  auto value = [&](int64_t at) { return static_cast<double>(static_cast<FoldChain<T>>(x[at])); };
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  const int64_t stride = loop.inner_stride(0);
  for_each_run(loop, 0, loop.size, [&](int64_t, int64_t n, const int64_t* at) {
    for (int64_t i = 0; i < n; ++i) {
      const double v = value(at[0] + i * stride);
      largest = v > largest || v != v ? v : largest;
    }
  });
  if (std::isinf(largest)) return store<T>(largest);
  for_each_run(loop, 0, loop.size, [&](int64_t, int64_t n, const int64_t* at) {
    for (int64_t i = 0; i < n; ++i) sum += std::exp(value(at[0] + i * stride) - largest);
  });
  return store<T>(largest + std::log(sum));
}

template <typename T>
FoldTotal<T> fold_elements(Fold fold, const StridedLoop<1>& loop, const T* x, int64_t begin, int64_t end) {
  FoldTotal<T> total = identity_of<T>(fold);
  for_each_run(loop, begin, end,
               [&](int64_t, int64_t n, const int64_t* at) { total = fold_run(fold, x + at[0], n, loop.inner_stride(0), total); });
  return total;
}

template <typename Total>
Total join(Fold fold, Total a, Total b) {
  switch (fold) {
    case Fold::prod: return a * b;
    case Fold::max: return b > a || b != b ? b : a;
    case Fold::min: return b < a || b != b ? b : a;
    default: return a + b;
  }
}

// Splits a long reduction with few outputs into pieces of fixed length, which run in parallel and are combined in order.
template <typename T>
void reduce_split(Reduce op, const ReducePlan& plan, const T* x, T* y, ThreadPool* pool) {
  const Fold fold = fold_of(op);
  const int64_t pieces = std::min(kMaxPieces, (plan.reduced.size + kSplitBlock - 1) / kSplitBlock);
  const int64_t length = (plan.reduced.size + pieces - 1) / pieces;
  for_each_run(plan.kept, 0, plan.kept.size, [&](int64_t first, int64_t n, const int64_t* at) {
    for (int64_t i = 0; i < n; ++i) {
      const T* start = x + at[0] + i * plan.kept.inner_stride(0);
      FoldTotal<T> partial[kMaxPieces];
      parallel_for(pool, pieces, 1, [&](int64_t begin, int64_t end) {
        for (int64_t p = begin; p < end; ++p)
          partial[p] = fold_elements(fold, plan.reduced, start, p * length, std::min(plan.reduced.size, (p + 1) * length));
      });
      FoldTotal<T> total = partial[0];
      for (int64_t p = 1; p < pieces; ++p) total = join(fold, total, partial[p]);
      finish<T>(op, &total, 1, plan.reduced.size, y + first + i);
    }
  });
}

// Handles adjacent outputs with adjacent inputs: reduces whole rows of inputs at once.
template <typename T>
void reduce_columns(Reduce op, const ReducePlan& plan, const T* x, T* y, int64_t begin, int64_t end) {
  const Fold fold = fold_of(op);
  for_each_run(plan.kept, begin, end, [&](int64_t first, int64_t n, const int64_t* at) {
    for (int64_t j = 0; j < n; j += kFoldColumns) {
      const int64_t count = std::min(kFoldColumns, n - j);
      FoldTotal<T> columns[kFoldColumns];
      std::fill(columns, columns + count, identity_of<T>(fold));
      for_each_run(plan.reduced, 0, plan.reduced.size, [&](int64_t, int64_t rows, const int64_t* from) {
        fold_columns(fold, x + at[0] + j + from[0], rows, plan.reduced.inner_stride(0), count, columns);
      });
      finish<T>(op, columns, count, plan.reduced.size, y + first + j);
    }
  });
}

// Reduces the inputs of each output. The inputs are contiguous or follow the strides of plan.reduced.
template <typename T>
void reduce_rows(Reduce op, const ReducePlan& plan, const T* x, T* y, int64_t begin, int64_t end) {
  const Fold fold = fold_of(op);
  const int64_t stride = plan.kept.inner_stride(0);
  const bool contiguous = plan.reduced.rank == 1 && plan.reduced.inner_stride(0) == 1;
  for_each_run(plan.kept, begin, end, [&](int64_t first, int64_t n, const int64_t* at) {
    for (int64_t i = 0; i < n; i += kFoldColumns) {
      const int64_t count = std::min(kFoldColumns, n - i);
      const T* start = x + at[0] + i * stride;
      FoldTotal<T> totals[kFoldColumns];
      std::fill(totals, totals + count, identity_of<T>(fold));
      if (contiguous) {
        fold_rows(fold, start, count, stride, plan.reduced.size, totals);
      } else {
        for (int64_t j = 0; j < count; ++j) totals[j] = fold_elements(fold, plan.reduced, start + j * stride, 0, plan.reduced.size);
      }
      finish<T>(op, totals, count, plan.reduced.size, y + first + i);
    }
  });
}

}  // namespace

ReducePlan plan_reduce(std::span<const int64_t> dims, uint32_t reduce_axis) {
  if (dims.size() > static_cast<size_t>(kMaxRank)) {
    throw Error(ErrorCode::invalid_argument, "rank " + std::to_string(dims.size()) + " is above the limit of " + std::to_string(kMaxRank));
  }
  int64_t kept[kMaxRank], kept_strides[kMaxRank], reduced[kMaxRank], reduced_strides[kMaxRank];
  size_t num_kept = 0, num_reduced = 0;
  int64_t strides[kMaxRank], stride = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= dims[i];
  }
  for (size_t i = 0; i < dims.size(); ++i) {
    if ((reduce_axis >> i & 1) != 0) {
      reduced[num_reduced] = dims[i];
      reduced_strides[num_reduced++] = strides[i];
    } else {
      kept[num_kept] = dims[i];
      kept_strides[num_kept++] = strides[i];
    }
  }
  return {collapse<1>({kept, num_kept}, {std::span<const int64_t>(kept_strides, num_kept)}),
          collapse<1>({reduced, num_reduced}, {std::span<const int64_t>(reduced_strides, num_reduced)})};
}

template <typename T>
void reduce(Reduce op, const ReducePlan& plan, const T* x, T* y, ThreadPool* pool) {
  const int64_t outputs = plan.kept.size, inputs = plan.reduced.size;
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, inputs));
  if (inputs == 0) {  // in this case x may be null
    T empty{};
    const FoldTotal<T> total = identity_of<T>(fold_of(op));
    if (op == Reduce::log_sum_exp)
      empty = log_sum_exp(plan.reduced, x);
    else
      finish<T>(op, &total, 1, 0, &empty);
    std::fill_n(y, outputs, empty);
    return;
  }
  if (op == Reduce::log_sum_exp) {
    return parallel_for(pool, outputs, std::max<int64_t>(1, grain / 8), [&](int64_t begin, int64_t end) {
      for_each_run(plan.kept, begin, end, [&](int64_t first, int64_t n, const int64_t* at) {
        if constexpr (std::is_same_v<T, float>) {
          const int64_t stride = plan.kept.inner_stride(0);
          if (plan.reduced.rank == 1 && plan.reduced.inner_stride(0) == 1) {
            for (int64_t i = 0; i < n; i += kFoldColumns)
              log_sum_exp_rows(x + at[0] + i * stride, std::min(kFoldColumns, n - i), stride, inputs, y + first + i);
            return;
          }
        }
        for (int64_t i = 0; i < n; ++i) y[first + i] = log_sum_exp(plan.reduced, x + at[0] + i * plan.kept.inner_stride(0));
      });
    });
  }
  if (plan.kept.inner_stride(0) == 1 && plan.kept.inner() > 1) {
    // If there are enough columns, each thread gets more than one cache line of each row.
    constexpr int64_t kLine = 16, kStrip = 128;
    return parallel_for(pool, outputs, std::max<int64_t>(outputs >= 3 * kStrip ? kStrip : kLine, grain),
                        [&](int64_t begin, int64_t end) { reduce_columns(op, plan, x, y, begin, end); });
  }
  if (outputs < 8 && inputs >= 2 * kSplitBlock) return reduce_split(op, plan, x, y, pool);
  parallel_for(pool, outputs, grain, [&](int64_t begin, int64_t end) { reduce_rows(op, plan, x, y, begin, end); });
}

#define TREADLE_INSTANTIATE(T) template void reduce(Reduce, const ReducePlan&, const T*, T*, ThreadPool*);
TREADLE_FOR_NUMBERS(TREADLE_INSTANTIATE)
#undef TREADLE_INSTANTIATE

}  // namespace treadle::kernels
