// Tests extents that a graph declares and a run contradicts, and extents that inference assumed to be equal.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "exec/run/frame.h"
#include "graph/infer.h"
#include "tests/exec/graphs.h"
#include "tests/exec/host_program.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

Tensor floats(const Shape& shape) {
  Tensor made(DType::float32, shape);
  for (int64_t i = 0; i < made.num_elements(); ++i) made.data<float>()[i] = static_cast<float>(i + 1);
  return made;
}

Tensor extents(std::vector<int64_t> values) { return Tensor::vector<int64_t>(values); }

void declare(GraphBuilder& b, ValueId value, SymbolicShape shape) {
  b.graph().value(value).type = Type::tensor(DType::float32, std::move(shape));
}

Tensor run(const testing::HostProgram& program, std::vector<Datum> feeds) {
  std::vector<Datum> outputs(1);
  program.run(feeds, outputs, {});
  return outputs[0].tensor();
}

std::string error_of(const testing::HostProgram& program, std::vector<Datum> feeds) {
  try {
    run(program, std::move(feeds));
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

// Extents that follow from the symbols of the feeds take precedence over extents that a file declares, since files most often declare a
// batch of 1.
TEST(DeclaredExtents, AreNotBelievedWhereTheFeedsDetermineThem) {
  GraphBuilder b;
  const ValueId y = b.node("Neg", {b.input("x", DType::float32, {b.symbol("N")})});
  declare(b, y, {3});
  infer(b.graph());
  b.output(b.node("Abs", {y}));
  const testing::HostProgram program(b.finish());
  for (int64_t n : {2, 3, 5}) EXPECT_EQ(run(program, {floats({n})}).shape(), Shape({n}));
}

TEST(DeclaredExtents, ThatBindingContradictsAreAnErrorNamingBoth) {
  GraphBuilder b;
  const ValueId y = b.node("Neg", {b.input("x", DType::float32, {b.symbol("N")})});
  declare(b, y, {3});  // a declaration that a pass might make
  b.output(b.node("Abs", {y}));
  const testing::HostProgram program(b.finish());
  EXPECT_EQ(run(program, {floats({3})}).shape(), Shape({3}));
  for (int64_t n : {0, 2, 5, 5000}) {
    const std::string error = error_of(program, {floats({n})});
    EXPECT_NE(error.find("inferred and declared: N = " + std::to_string(n) + " and 3 differ"), std::string::npos) << error;
  }
  EXPECT_EQ(run(program, {floats({3})}).shape(), Shape({3}));
}

TEST(DeclaredExtents, OfDataDependentShapesAreCompared) {
  GraphBuilder b;
  const ValueId y = b.node("Reshape", {b.input("x", DType::float32, {6}), b.input("shape", DType::int64, {2})});
  declare(b, y, {2, 3});
  b.output(b.node("Neg", {y}));
  const testing::HostProgram program(b.finish());
  EXPECT_EQ(run(program, {floats({6}), extents({2, 3})}).shape(), Shape({2, 3}));
  const std::string error = error_of(program, {floats({6}), extents({3, 2})});
  EXPECT_NE(error.find("has the shape [3,2], inferred was [2,3]"), std::string::npos) << error;
}

// Squeeze without axes has no static rank. The declared rank is used, and the node is bound during the run.
TEST(DeclaredExtents, OfASqueezeThatRemovesLessAreCompared) {
  GraphBuilder b;
  const ValueId y = b.node("Squeeze", {b.input("x", DType::float32, {b.symbol("N"), 3})});
  declare(b, y, {3});
  b.output(b.node("Neg", {y}));
  const testing::HostProgram program(b.finish());
  EXPECT_EQ(run(program, {floats({1, 3})}).shape(), Shape({3}));
  EXPECT_NE(error_of(program, {floats({2, 3})}).find("[2,3]"), std::string::npos);
}

TEST(DeclaredExtents, ASqueezedAxisThatIsNotOneIsAnError) {
  GraphBuilder b;
  const ValueId x = b.input("x", DType::float32, {b.symbol("N"), 3});
  b.output(b.node("Neg", {b.node("Squeeze", {x, b.ints("axes", {0})})}));
  const testing::HostProgram program(b.finish());
  EXPECT_EQ(run(program, {floats({1, 3})}).shape(), Shape({3}));
  EXPECT_NE(error_of(program, {floats({2, 3})}), "none");
  EXPECT_NE(error_of(program, {floats({0, 3})}), "none");
}

// An integer outside the range of its dtype counts as unknown, because a run computes, for example, 0 - 5 in uint8 as 251.
TEST(KnownIntegers, EndWhereTheirDTypeDoes) {
  GraphBuilder b;
  Tensor zeros(DType::uint8, {2}), fives(DType::uint8, {2});
  std::fill_n(zeros.data<uint8_t>(), 2, uint8_t{0});
  std::fill_n(fives.data<uint8_t>(), 2, uint8_t{5});
  const ValueId negative = b.node("Sub", {b.constant("zeros", zeros), b.constant("fives", fives)});
  EXPECT_FALSE(b.graph().value(negative).known);
  const ValueId large = b.node("Cast", {b.ints("large", {int64_t{1} << 40})}, {{"to", int64_t{6}}});
  EXPECT_FALSE(b.graph().value(large).known);
}

TEST(KnownIntegers, AreOnlyOfValuesWhoseExtentsAreIntegers) {
  GraphBuilder b;
  const ValueId shape = b.node("Shape", {b.input("n", DType::float32, {b.symbol("N")})});
  const ValueId spread = b.node("Reshape", {b.ints("five", {5}), shape});
  EXPECT_FALSE(b.graph().value(spread).known);
}

}  // namespace
}  // namespace treadle
