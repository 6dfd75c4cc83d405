#include "kernels/signal/fft.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "tests/kernels/random.h"
#include "treadle/error.h"

namespace treadle::kernels {
namespace {

template <typename T>
using Line = std::vector<std::complex<T>>;

template <typename T>
Line<T> transform(const Line<T>& x, bool inverse) {
  Fft<T> fft(static_cast<int64_t>(x.size()), inverse);
  Line<T> table(static_cast<size_t>(fft.table_size())), work(static_cast<size_t>(fft.work_size())), line = x;
  fft.prepare(table.data(), work.data());
  fft.run(table.data(), line.data(), work.data());
  return line;
}

template <typename T>
Line<T> random_line(test::Random& random, size_t n) {
  Line<T> line;
  for (size_t i = 0; i < n; ++i) {
    auto parts = random.vector<T>(2);
    line.push_back({parts[0], parts[1]});
  }
  return line;
}

template <typename T>
void check(test::Random& random, size_t n, bool inverse, double tolerance) {
  Line<T> x = random_line<T>(random, n), y = transform(x, inverse);
  for (size_t k = 0; k < n; ++k) {
    std::complex<double> sum = 0;
    for (size_t i = 0; i < n; ++i)
      sum += std::complex<double>(x[i]) *
             std::polar(1.0, (inverse ? 2 : -2) * std::numbers::pi * static_cast<double>(i * k % n) / static_cast<double>(n));
    ASSERT_LT(std::abs(std::complex<double>(y[k]) - sum), tolerance * std::sqrt(static_cast<double>(n)))
        << "length " << n << ", frequency " << k;
  }
}

TEST(Fft, OfEveryLengthIsTheSumThatDefinesIt) {
  test::Random random;
  for (size_t n = 1; n <= 130; ++n) {
    check<double>(random, n, n % 2 == 0, 1e-13);
    check<float>(random, n, n % 2 != 0, 3e-6);
  }
  for (size_t n : {256, 400, 480, 1001, 1021, 1024, 1155}) check<float>(random, n, false, 3e-6);  // 1021 is prime
}

TEST(Fft, ForthAndBackScalesByTheLength) {
  test::Random random;
  for (size_t n : {7, 17, 60, 97, 128}) {
    Line<double> x = random_line<double>(random, n), y = transform(transform(x, false), true);
    for (size_t i = 0; i < n; ++i) ASSERT_LT(std::abs(y[i] - static_cast<double>(n) * x[i]), 1e-11);
  }
}

TEST(Fft, RefusesLengthsThatAreNone) {
  EXPECT_THROW(Fft<float>(0, false), Error);
  EXPECT_THROW(Fft<float>(-4, false), Error);
  EXPECT_THROW(Fft<float>(int64_t{1} << 40, false), Error);
}

}  // namespace
}  // namespace treadle::kernels
