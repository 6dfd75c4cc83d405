#include "kernels/reduce/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/values/float_types.h"
#include "tests/kernels/index.h"
#include "tests/kernels/random.h"

namespace treadle::kernels {
namespace {

using test::coordinates;
using test::count;
using test::Dims;
using test::Random;

double reference(Reduce op, const std::vector<double>& v) {
  double sum = 0, product = 1, absolute = 0, squares = 0, exponentials = 0, largest = -INFINITY, smallest = INFINITY;
  for (double x : v) {
    sum += x, product *= x, absolute += std::abs(x), squares += x * x, exponentials += std::exp(x);
    largest = std::max(largest, x), smallest = std::min(smallest, x);
  }
  switch (op) {
    case Reduce::sum: return sum;
    case Reduce::mean: return sum / double(v.size());
    case Reduce::max: return largest;
    case Reduce::min: return smallest;
    case Reduce::prod: return product;
    case Reduce::l1: return absolute;
    case Reduce::l2: return std::sqrt(squares);
    case Reduce::log_sum: return std::log(sum);
    case Reduce::log_sum_exp: return std::log(exponentials);
    case Reduce::sum_square: return squares;
  }
  return 0;
}

template <typename T>
void check(Random& random, const Dims& dims, uint32_t axes, double tolerance) {
  Dims kept, reduced;
  for (size_t d = 0; d < dims.size(); ++d) (axes >> d & 1 ? reduced : kept).push_back(dims[d]);
  std::vector<T> x;
  for (float v : random.vector(count(dims), std::is_integral_v<T> ? 1 : 0.5, 3)) x.push_back(static_cast<T>(v));
  const auto plan = plan_reduce(dims, axes);
  ASSERT_EQ(plan.kept.size, count(kept));
  ASSERT_EQ(plan.reduced.size, count(reduced));
  std::vector<std::vector<double>> groups(count(kept));
  for (int64_t i = 0; i < count(dims); ++i) {
    const Dims at = coordinates(dims, i);
    int64_t o = 0;
    for (size_t d = 0; d < dims.size(); ++d) {
      if (!(axes >> d & 1)) o = o * dims[d] + at[d];
    }
    groups[o].push_back(static_cast<double>(static_cast<float>(x[i])));
    if constexpr (std::is_same_v<T, double>) groups[o].back() = x[i];
  }
  for (int op = 0; op <= static_cast<int>(Reduce::sum_square); ++op) {
    if (static_cast<Reduce>(op) == Reduce::prod && count(reduced) > 20) continue;  // the product would overflow
    if (std::is_integral_v<T> && count(reduced) == 0) continue;
    std::vector<T> y(count(kept));
    reduce(static_cast<Reduce>(op), plan, x.data(), y.data(), nullptr);
    std::vector<double> actual, expected;
    for (size_t o = 0; o < y.size(); ++o) {
      actual.push_back(static_cast<double>(static_cast<float>(y[o])));
      if constexpr (std::is_same_v<T, double>) actual.back() = y[o];
      const double e = reference(static_cast<Reduce>(op), groups[o]);
      expected.push_back(std::is_integral_v<T> ? std::trunc(e) : e);
    }
    SCOPED_TRACE(op);
    test::expect_near(actual, expected, tolerance);
  }
}

TEST(Reduce, EveryAxisSetAndType) {
  Random random(51);
  for (int round = 0; round < 150; ++round) {
    Dims dims(static_cast<size_t>(random.integer(0, 5)));
    for (int64_t& d : dims) d = random.integer(0, 30) == 0 ? 0 : random.integer(1, 6);
    if (!dims.empty()) dims[random.integer(0, dims.size() - 1)] *= random.integer(1, 60);
    const auto axes = static_cast<uint32_t>(random.integer(0, (1 << dims.size()) - 1));
    check<float>(random, dims, axes, 3e-6);
    check<double>(random, dims, axes, 1e-12);
    check<int32_t>(random, dims, axes, 0);
    check<int64_t>(random, dims, axes, 0);
    if (count(dims) < 100) {
      check<Float16>(random, dims, axes, 2e-3);
      check<BFloat16>(random, dims, axes, 2e-2);
    }
  }
}

template <typename T>
void check_extremes(Random& random, int64_t rows, int64_t length) {
  std::vector<T> x(static_cast<size_t>(rows * length));
  for (T& v : x) {
    if constexpr (std::is_floating_point_v<T>)
      v = static_cast<T>(random.integer(0, 400) == 0 ? NAN : static_cast<double>(random.integer(-1000, 1000)));
    else
      v = static_cast<T>(random.integer(std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
  }
  for (const uint32_t axes : {2U, 1U}) {  // reduces along the rows, then along the columns
    const int64_t dims[] = {rows, length}, outputs = axes == 2 ? rows : length;
    const auto plan = plan_reduce(dims, axes);
    std::vector<T> largest(static_cast<size_t>(outputs)), smallest(largest);
    reduce(Reduce::max, plan, x.data(), largest.data(), nullptr);
    reduce(Reduce::min, plan, x.data(), smallest.data(), nullptr);
    for (int64_t o = 0; o < outputs; ++o) {
      T high = x[static_cast<size_t>(axes == 2 ? o * length : o)], low = high;
      for (int64_t i = 1; i < (axes == 2 ? length : rows); ++i) {
        const T v = x[static_cast<size_t>(axes == 2 ? o * length + i : i * length + o)];
        high = v > high || v != v ? v : high, low = v < low || v != v ? v : low;
      }
      ASSERT_TRUE(largest[static_cast<size_t>(o)] == high || high != high) << rows << " x " << length;
      ASSERT_TRUE(smallest[static_cast<size_t>(o)] == low || low != low) << rows << " x " << length;
      ASSERT_EQ(high != high, largest[static_cast<size_t>(o)] != largest[static_cast<size_t>(o)]);
      ASSERT_EQ(low != low, smallest[static_cast<size_t>(o)] != smallest[static_cast<size_t>(o)]);
    }
  }
}

TEST(Reduce, ExtremesOfRowsOfEveryLength) {
  Random random(54);
  for (int64_t length = 1; length < 150; ++length) {
    check_extremes<float>(random, 5, length);
    check_extremes<double>(random, 5, length);
    check_extremes<int8_t>(random, 5, length);
    check_extremes<uint8_t>(random, 5, length);
    check_extremes<int16_t>(random, 5, length);
    check_extremes<int32_t>(random, 5, length);
  }
}

TEST(Reduce, RowsOfFewElements) {
  Random random(55);
  for (int64_t length = 1; length <= 6; ++length) {
    for (int64_t rows : {1, 15, 16, 17, 40, 255, 300, 1000}) {
      check<float>(random, {rows, length}, 2, 3e-6);
      check_extremes<float>(random, rows, length);
    }
  }
}

TEST(Reduce, LongFloatSumsKeepSevenDigits) {
  Random random(52);
  const int64_t n = 3'000'001;
  const auto x = random.vector(n, 0, 1);
  double truth = 0;
  for (float v : x) truth += v;
  float y;
  const int64_t dims[] = {n};
  reduce(Reduce::sum, plan_reduce(dims, 1), x.data(), &y, nullptr);
  EXPECT_NEAR(y, truth, 2e-7 * truth);
  const int64_t columns[] = {n / 3, 3};
  float z[3];
  reduce(Reduce::sum, plan_reduce(columns, 1), x.data(), z, nullptr);
  EXPECT_NEAR(double(z[0]) + z[1] + z[2], truth, 3e-7 * truth);
}

TEST(Reduce, IntegersWrapAndKeepTheirSign) {
  const int8_t bytes[] = {-100, -100, 50};
  int8_t y;
  const int64_t dims[] = {3};
  const auto plan = plan_reduce(dims, 1);
  reduce(Reduce::sum, plan, bytes, &y, nullptr);
  EXPECT_EQ(y, static_cast<int8_t>(-150));
  reduce(Reduce::max, plan, bytes, &y, nullptr);
  EXPECT_EQ(y, 50);
  reduce(Reduce::min, plan, bytes, &y, nullptr);
  EXPECT_EQ(y, -100);
  const uint64_t large[] = {1, uint64_t{1} << 63, 2};
  uint64_t z;
  reduce(Reduce::max, plan, large, &z, nullptr);
  EXPECT_EQ(z, uint64_t{1} << 63);
  const int64_t exact[] = {(int64_t{1} << 60) + 1, 1, 1};
  int64_t w;
  reduce(Reduce::sum, plan, exact, &w, nullptr);
  EXPECT_EQ(w, (int64_t{1} << 60) + 3);
}

TEST(Reduce, NaNWinsAndInfinitiesStay) {
  std::vector<float> x(100, 1.0f);
  x[70] = NAN;
  float y;
  const int64_t dims[] = {100};
  const auto plan = plan_reduce(dims, 1);
  for (Reduce op : {Reduce::max, Reduce::min, Reduce::sum, Reduce::log_sum_exp}) {
    reduce(op, plan, x.data(), &y, nullptr);
    EXPECT_TRUE(std::isnan(y)) << int(op);
  }
  std::vector<float> lowest(100, -INFINITY);
  reduce(Reduce::log_sum_exp, plan, lowest.data(), &y, nullptr);
  EXPECT_EQ(y, -INFINITY);
  const float large[] = {1000, 1000};
  const int64_t two[] = {2};
  reduce(Reduce::log_sum_exp, plan_reduce(two, 1), large, &y, nullptr);
  EXPECT_FLOAT_EQ(y, 1000 + std::log(2.0f));
}

TEST(Reduce, TheSamePoolOrNone) {
  Random random(53);
  ThreadPool pool(3);
  for (const Dims& dims : {Dims{400'000}, Dims{7, 30'000}, Dims{3000, 70}, Dims{20, 50, 60}}) {
    const auto x = random.vector(count(dims));
    for (uint32_t axes = 1; axes < 8; ++axes) {
      const auto plan = plan_reduce(dims, axes);
      std::vector<float> one(plan.kept.size), many = one;
      reduce(Reduce::sum, plan, x.data(), one.data(), nullptr);
      reduce(Reduce::sum, plan, x.data(), many.data(), &pool);
      ASSERT_EQ(one, many);
    }
  }
}

TEST(ArgExtreme, FirstOrLastOfEquals) {
  Random random(54);
  for (int round = 0; round < 100; ++round) {
    const int64_t outer = random.integer(1, 4), n = random.integer(1, 20), inner = random.integer(1, 4);
    const auto x = random.integers<int32_t>(outer * n * inner, -3, 3);
    std::vector<float> f(x.begin(), x.end());
    for (bool largest : {true, false}) {
      for (bool last : {true, false}) {
        std::vector<int64_t> y(outer * inner), z = y;
        arg_extreme(largest, last, outer, n, inner, x.data(), y.data(), nullptr);
        arg_extreme(largest, last, outer, n, inner, f.data(), z.data(), nullptr);
        ASSERT_EQ(y, z);
        for (int64_t o = 0; o < outer; ++o) {
          for (int64_t i = 0; i < inner; ++i) {
            int64_t best = 0;
            for (int64_t k = 0; k < n; ++k) {
              const int32_t v = x[(o * n + k) * inner + i], b = x[(o * n + best) * inner + i];
              if (largest ? v > b : v < b) best = k;
              if (v == b && last) best = k;
            }
            ASSERT_EQ(y[o * inner + i], best);
          }
        }
      }
    }
  }
  const float with_nan[] = {1, NAN, 3, NAN};
  int64_t y;
  arg_extreme(true, false, 1, 4, 1, with_nan, &y, nullptr);
  EXPECT_EQ(y, 1);
  arg_extreme(false, true, 1, 4, 1, with_nan, &y, nullptr);
  EXPECT_EQ(y, 3);
  EXPECT_THROW(arg_extreme(true, false, 1, 0, 1, with_nan, &y, nullptr), Error);
}

template <typename T>
void check_places(Random& random, int64_t outer, int64_t n, int64_t inner) {
  auto x = random.integers<T>(outer * n * inner, 0, random.coin() ? 3 : 100);
  auto is_nan = [](T v) { return v != v; };
  if constexpr (std::is_floating_point_v<T>)
    for (int64_t i = random.integer(0, 2); i > 0; --i)
      x[random.integer(0, static_cast<int64_t>(x.size()) - 1)] = std::numeric_limits<T>::quiet_NaN();
  ThreadPool pool(3);
  for (bool largest : {true, false})
    for (bool last : {true, false}) {
      std::vector<int64_t> y(outer * inner), many(outer * inner);
      arg_extreme(largest, last, outer, n, inner, x.data(), y.data(), nullptr);
      arg_extreme(largest, last, outer, n, inner, x.data(), many.data(), &pool);
      ASSERT_EQ(y, many);
      for (int64_t o = 0; o < outer * inner; ++o) {
        const T* column = x.data() + o / inner * n * inner + o % inner;
        int64_t best = 0;
        for (int64_t k = 1; k < n; ++k) {
          const T v = column[k * inner], b = column[best * inner];
          const bool beats = is_nan(b) ? false : is_nan(v) || (largest ? v > b : v < b), equals = v == b || (is_nan(v) && is_nan(b));
          if (beats || (equals && last)) best = k;
        }
        ASSERT_EQ(y[o], best) << outer << "x" << n << "x" << inner << " " << largest << last;
      }
    }
}

TEST(ArgExtreme, EveryTypeAndLength) {
  Random random(55);
  for (int round = 0; round < 60; ++round) {
    const int64_t outer = random.integer(1, 3), n = random.integer(1, random.coin() ? 20 : 200),
                  inner = random.coin() ? 1 : random.integer(1, 150);
    check_places<float>(random, outer, n, inner);
    check_places<double>(random, outer, n, inner);
    check_places<int32_t>(random, outer, n, inner);
    check_places<int64_t>(random, outer, n, inner);
    check_places<uint8_t>(random, outer, n, inner);
  }
}

TEST(Reduce, LogSumExpOfLongRows) {
  Random random(56);
  for (const int64_t n : {1, 15, 16, 17, 63, 2047, 2049, 5000}) {
    const auto x = random.vector(300 * n, -100, 80);
    const int64_t dims[] = {300, n};
    std::vector<float> y(300);
    reduce(Reduce::log_sum_exp, plan_reduce(dims, 2), x.data(), y.data(), nullptr);
    for (int64_t r = 0; r < 300; ++r) {
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += std::exp(double(x[r * n + i]));
      ASSERT_NEAR(y[r], std::log(sum), 1e-5) << n;
    }
  }
}

}  // namespace
}  // namespace treadle::kernels
