#include "kernels/elementwise/compare.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <vector>

#include "tests/kernels/random.h"

namespace treadle::kernels {
namespace {

TEST(Compare, EveryLength) {
  test::Random random(75);
  // Values that differ only in their upper or lower halves, or only in their signs.
  const std::vector<int64_t> values = {0,
                                       1,
                                       -1,
                                       int64_t{1} << 32,
                                       (int64_t{1} << 32) + 1,
                                       -(int64_t{1} << 32),
                                       0x8000'0000,
                                       std::numeric_limits<int64_t>::max(),
                                       std::numeric_limits<int64_t>::min()};
  auto drawn = [&](int64_t n) {
    std::vector<int64_t> chosen;
    for (int64_t i = 0; i < n; ++i)
      chosen.push_back(values[static_cast<size_t>(random.integer(0, static_cast<int64_t>(values.size()) - 1))]);
    return chosen;
  };
  for (int64_t n = 0; n < 70; ++n) {
    const std::vector<int64_t> a = drawn(n), b = drawn(n);
    const auto found = std::make_unique<bool[]>(static_cast<size_t>(n + 1));
    auto check = [&](auto rows, auto holds) {
      found[static_cast<size_t>(n)] = true;
      rows(a.data(), b.data(), found.get(), n);
      for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(found[i], holds(a[i], b[i])) << a[i] << " and " << b[i];
      ASSERT_TRUE(found[static_cast<size_t>(n)]);
    };
    check(equal, [](int64_t x, int64_t y) { return x == y; });
    check(less, [](int64_t x, int64_t y) { return x < y; });
    check([](const int64_t* x, const int64_t*, bool* dst, int64_t count) { nonzero(x, dst, count); },
          [](int64_t x, int64_t) { return x != 0; });
    check(less_or_equal, [](int64_t x, int64_t y) { return x <= y; });
  }
}

TEST(Compare, FloatsOfEveryKind) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
  const float kinds[] = {0.0F,      -0.0F,      1.5F, -2.0F, std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::max(),
                         kInfinity, -kInfinity, kNaN, -kNaN};
  test::Random random(76);
  for (int64_t n = 0; n < 200; ++n) {
    std::vector<float> x;
    for (int64_t i = 0; i < n; ++i) x.push_back(kinds[random.integer(0, std::ssize(kinds) - 1)]);
    const auto found = std::make_unique<bool[]>(static_cast<size_t>(n + 1));
    auto check = [&](auto holds) {
      for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(found[i], holds(x[i])) << x[i] << " at " << i << " of " << n;
      ASSERT_TRUE(found[static_cast<size_t>(n)]);
    };
    found[static_cast<size_t>(n)] = true;
    nonzero(x.data(), found.get(), n);
    check([](float v) { return v != 0; });
    for (bool negative : {false, true})
      for (bool positive : {false, true}) {
        infinite(x.data(), negative, positive, found.get(), n);
        check([&](float v) { return (positive && v == kInfinity) || (negative && v == -kInfinity); });
      }
  }
}

template <typename T>
void check_shifts() {
  test::Random random(77);
  constexpr int64_t kWidth = sizeof(T) * 8;
  for (int64_t n = 0; n < 40; ++n) {
    std::vector<T> x, by, left(static_cast<size_t>(n)), right(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      x.push_back(static_cast<T>(random.integer(0, 1 << 30)) * T{5});
      by.push_back(random.integer(0, 4) == 0 ? static_cast<T>(~T{0}) : static_cast<T>(random.integer(0, kWidth + 2)));
    }
    shift_left(x.data(), by.data(), left.data(), n);
    shift_right(x.data(), by.data(), right.data(), n);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(left[i], by[i] < kWidth ? x[i] << by[i] : 0) << x[i] << " by " << by[i];
      ASSERT_EQ(right[i], by[i] < kWidth ? x[i] >> by[i] : 0) << x[i] << " by " << by[i];
    }
  }
}

TEST(Compare, ShiftsByTheWidthAndMoreLeaveNothing) {
  check_shifts<uint32_t>();
  check_shifts<uint64_t>();
}

}  // namespace
}  // namespace treadle::kernels
