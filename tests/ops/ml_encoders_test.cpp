#include <gtest/gtest.h>

#include "tests/ops/run_op.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using testing::floats;
using testing::run_op;
using testing::tensor;
using testing::values;

TEST(ArrayFeatureExtractor, CountsNegativeIndicesFromTheEnd) {
  // Computes the result as ONNX's reference does: as NumPy's X[..., Y].
  auto extract = [](std::vector<int64_t> indices) {
    const auto count = static_cast<int64_t>(indices.size());
    return values<float>(run_op(
        {"ArrayFeatureExtractor", 1, {floats({2, 3}, {0, 1, 2, 3, 4, 5}), tensor<int64_t>({count}, indices)}, {}, 1, "ai.onnx.ml"})[0]);
  };
  EXPECT_EQ(extract({-1, 0, -3}), (std::vector<float>{2, 0, 0, 5, 3, 3}));
  EXPECT_THROW(extract({-4}), Error);
  EXPECT_THROW(extract({3}), Error);
}

}  // namespace
}  // namespace treadle
