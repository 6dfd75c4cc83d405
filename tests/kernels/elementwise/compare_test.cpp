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
  // Values that differ in their upper or their lower halves only, and in their signs.
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

}  // namespace
}  // namespace treadle::kernels
