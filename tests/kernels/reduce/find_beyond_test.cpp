#include "kernels/reduce/find_beyond.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/random.h"

namespace treadle::kernels {
namespace {

template <typename T>
class FindBeyond : public ::testing::Test {};
using Types = ::testing::Types<float, double, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t>;
TYPED_TEST_SUITE(FindBeyond, Types);

TYPED_TEST(FindBeyond, TheFirstOfEveryLength) {
  using T = TypeParam;
  test::Random random(76);
  for (int64_t n = 0; n < 80; ++n)
    for (int round = 0; round < 20; ++round) {
      std::vector<T> x(static_cast<size_t>(n));
      for (T& value : x) value = static_cast<T>(random.integer(0, 4));
      // Adds one value that lies far outside of the bounds and differs from them only in its upper bits.
      if (n > 0 && random.coin())
        x[static_cast<size_t>(random.integer(0, n - 1))] = random.coin() ? std::numeric_limits<T>::max() : std::numeric_limits<T>::lowest();
      if constexpr (std::is_floating_point_v<T>)
        if (n > 0 && random.coin()) x[static_cast<size_t>(random.integer(0, n - 1))] = std::numeric_limits<T>::quiet_NaN();
      const T bound = static_cast<T>(random.integer(0, 5));
      auto first = [&](auto within) {
        int64_t i = 0;
        while (i < n && within(x[static_cast<size_t>(i)])) ++i;
        return i;
      };
      ASSERT_EQ(find_above(x.data(), n, bound), first([&](T value) { return value <= bound; })) << n;
      ASSERT_EQ(find_below(x.data(), n, bound), first([&](T value) { return value >= bound; })) << n;
    }
}

}  // namespace
}  // namespace treadle::kernels
