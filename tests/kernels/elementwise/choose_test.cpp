#include "kernels/elementwise/choose.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/kernels/random.h"

namespace treadle::kernels {
namespace {

TEST(Choose, EveryLengthAndStep) {
  test::Random random(74);
  for (int64_t n = 0; n < 70; ++n)
    for (const int64_t step_x : {0, 1})
      for (const int64_t step_y : {0, 1}) {
        const auto x = random.integers<uint32_t>(n + 1, 0, 1000), y = random.integers<uint32_t>(n + 1, 2000, 3000);
        const auto condition = std::make_unique<bool[]>(static_cast<size_t>(n));
        for (int64_t i = 0; i < n; ++i) condition[static_cast<size_t>(i)] = random.coin();
        std::vector<uint32_t> dst(static_cast<size_t>(n + 1), 7);
        choose(condition.get(), x.data(), step_x, y.data(), step_y, dst.data(), n);
        for (int64_t i = 0; i < n; ++i) ASSERT_EQ(dst[i], condition[static_cast<size_t>(i)] ? x[i * step_x] : y[i * step_y]);
        ASSERT_EQ(dst[n], 7u);
      }
}

}  // namespace
}  // namespace treadle::kernels
