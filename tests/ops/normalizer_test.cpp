#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/ops/run_op.h"

namespace treadle {
namespace {

using testing::floats;
using testing::run_op;
using testing::values;

// Rows are longer than the block that is tested for zeros, and have a remainder. Compares with the definition, element by element.
TEST(Normalizer, DividesRowsWithManyZerosAsWrittenInTheSpecification) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
  for (const float special : {3.0F, -0.0F, kNaN, kInfinity})
    for (const std::string norm : {"L1", "L2"}) {
      std::vector<float> x(53, 0.0F);
      x[20] = 4, x[50] = special;
      double divisor = 0;
      for (float v : x) divisor += norm == "L1" ? std::abs(static_cast<double>(v)) : static_cast<double>(v) * static_cast<double>(v);
      if (norm == "L2") divisor = std::sqrt(divisor);
      const auto y = values<float>(run_op({"Normalizer", 1, {floats({1, 53}, x)}, {{"norm", norm}}, 1, "ai.onnx.ml"})[0]);
      for (size_t i = 0; i < x.size(); ++i) {
        const auto expected = static_cast<float>(static_cast<double>(x[i]) / divisor);
        EXPECT_TRUE(y[i] == expected || (std::isnan(y[i]) && std::isnan(expected)))
            << norm << " " << special << " at " << i << ": " << y[i];
      }
    }
}

}  // namespace
}  // namespace treadle
