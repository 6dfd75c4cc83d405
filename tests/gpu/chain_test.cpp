// Tests which elementwise steps shaders can compute, because compiled models read such steps from files.
#include "gpu/chain.h"

#include <gtest/gtest.h>

#include "treadle/dtype.h"

namespace treadle::gpu {
namespace {

bool knows(std::vector<std::string> texts, std::vector<DType> inputs, DType output) {
  std::vector<ElementwiseStep> steps;
  for (const std::string& text : texts) steps.push_back(ElementwiseStep::parse(text));
  return chain_formula(steps, std::move(inputs), output).has_value();
}

constexpr DType f32 = DType::float32, f16 = DType::float16, i64 = DType::int64, u8 = DType::uint8, truth = DType::boolean;

TEST(GpuChain, KnowsStepsOfTheTypesThatTheirOperatorsTake) {
  EXPECT_TRUE(knows({"Add 0 1", "Relu 2"}, {f32, f32}, f32));
  EXPECT_TRUE(knows({"Add 0 1", "Gelu 2", "Mul 3 3"}, {f16, f16}, f16));
  EXPECT_TRUE(knows({"Add 0 1", "Less 2 0", "Where 3 2 1"}, {i64, i64}, i64));
  EXPECT_TRUE(knows({"Cast 0 to=10", "Clip 1 max=6"}, {f32}, f16));
  EXPECT_TRUE(knows({"DequantizeLinear 0 1 2", "QuantizeLinear 3 1 2 low=-128 high=127"}, {u8, f32, u8}, DType::int8));
  EXPECT_TRUE(knows({"IsNaN 0", "Not 1", "And 2 1"}, {f32}, truth));
  EXPECT_TRUE(knows({"Max 0 1 2"}, {f32, f32, f32}, f32));
}

TEST(GpuChain, DoesNotKnowOthers) {
  EXPECT_FALSE(knows({}, {f32}, f32));
  EXPECT_FALSE(knows({"Sort 0"}, {f32}, f32)) << "it is no step";
  EXPECT_FALSE(knows({"Add 0 2"}, {f32, f32}, f32)) << "the operand is the step itself";
  EXPECT_FALSE(knows({"Add 0 1"}, {f32, f16}, f32)) << "operands differ";
  EXPECT_FALSE(knows({"Add 0 1"}, {f32, f32}, f16)) << "the result is of another type";
  EXPECT_FALSE(knows({"Add 0 1"}, {truth, truth}, truth));
  EXPECT_FALSE(knows({"Floor 0"}, {truth}, truth));
  EXPECT_FALSE(knows({"Exp 0"}, {i64}, i64));
  EXPECT_FALSE(knows({"Exp 0 1"}, {f32, f32}, f32));
  EXPECT_FALSE(knows({"Div 0 1"}, {i64, i64}, i64)) << "the host reports a division by zero";
  EXPECT_FALSE(knows({"Where 0 1 2"}, {f32, f32, f32}, f32));
  EXPECT_FALSE(knows({"Where 0 1"}, {truth, f32}, f32));
  EXPECT_FALSE(knows({"BitwiseAnd 0 1"}, {f32, f32}, f32));
  EXPECT_FALSE(knows({"QuantizeLinear 0"}, {f32}, u8));
  EXPECT_FALSE(knows({"DequantizeLinear 0 1"}, {u8, f32}, f32));
  EXPECT_FALSE(knows({"Pow 0"}, {f32}, f32));
  for (const char* cast : {"Cast 0", "Cast 0 to=300", "Cast 0 to=-1", "Cast 0 to=nan", "Cast 0 to=8"})
    EXPECT_FALSE(knows({cast}, {f32}, f16)) << cast;
}

}  // namespace
}  // namespace treadle::gpu
