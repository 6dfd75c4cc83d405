// Tests cases that ONNX's own tests of operators that move elements leave out. Expected values are NumPy's or PyTorch's.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <numeric>

#include "core/values/float_types.h"
#include "tests/exec/host_program.h"
#include "tests/graph/graph_builder.h"
#include "tests/ops/run_op.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using testing::floats;
using testing::GraphBuilder;
using testing::OpCase;
using testing::run_op;
using testing::tensor;
using testing::values;

Tensor ints(const std::vector<int64_t>& x) { return Tensor::vector<int64_t>(x); }
Tensor counting(const Shape& shape) {
  std::vector<float> x(static_cast<size_t>(shape.num_elements()));
  std::iota(x.begin(), x.end(), 0.0F);
  return floats(shape, std::move(x));
}
Tensor strings(const Shape& shape, std::vector<std::string> x) { return Tensor::strings(shape, x); }
std::string error_of(const OpCase& test) {
  try {
    run_op(test);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

TEST(Slice, BackwardsAndFarEndsOnSeveralAxes) {
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min(), kMax = std::numeric_limits<int64_t>::max();
  // The expected result is x[1:0:-1, -1:-4:-2, 3::-3] of x = arange(24).reshape(2, 3, 4).
  auto y = run_op({"Slice", 13, {counting({2, 3, 4}), ints({1, kMax, 3}), ints({0, -4, kMin}), ints({0, 1, 2}), ints({-1, -2, -3})}})[0];
  EXPECT_EQ(y.shape(), (Shape{1, 2, 2}));
  EXPECT_EQ(values<float>(y), (std::vector<float>{23, 20, 15, 12}));
  auto all = run_op({"Slice", 13, {counting({5}), ints({kMin}), ints({kMax}), ints({-1}), ints({kMax})}})[0];
  EXPECT_EQ(values<float>(all), (std::vector<float>{0}));
  EXPECT_EQ(run_op({"Slice", 13, {counting({5}), ints({4}), ints({2})}})[0].shape(), Shape{0});
}

TEST(Slice, OfOpset1HasItsRangesAsAttributes) {
  Attributes ranges{{"starts", std::vector<int64_t>{1}}, {"ends", std::vector<int64_t>{-1}}, {"axes", std::vector<int64_t>{1}}};
  auto y = run_op({"Slice", 1, {counting({2, 4})}, ranges})[0];
  EXPECT_EQ(values<float>(y), (std::vector<float>{1, 2, 5, 6}));
}

TEST(Slice, OfStringsAndAStepOfZero) {
  auto y = run_op({"Slice", 13, {strings({3}, {"a", "b", "c"}), ints({2}), ints({-4}), ints({0}), ints({-2})}})[0];
  EXPECT_EQ(values<std::string>(y), (std::vector<std::string>{"c", "a"}));
  EXPECT_EQ(error_of({"Slice", 13, {counting({3}), ints({0}), ints({1}), ints({0}), ints({0})}}), "a step of 0");
}

TEST(Reshape, OfOpset1AndItsErrors) {
  auto y = run_op({"Reshape", 1, {counting({2, 3})}, {{"shape", std::vector<int64_t>{3, -1}}}})[0];
  EXPECT_EQ(y.shape(), (Shape{3, 2}));
  EXPECT_NE(error_of({"Reshape", 14, {counting({2, 3}), ints({4, -1})}}).find("6 elements"), std::string::npos);
  EXPECT_NE(error_of({"Reshape", 14, {counting({2, 3}), ints({-1, -1})}}).find("both -1"), std::string::npos);
}

TEST(Squeeze, OfOpset1HasItsAxesAsAttribute) {
  EXPECT_EQ(run_op({"Squeeze", 1, {counting({1, 2, 1})}, {{"axes", std::vector<int64_t>{0}}}})[0].shape(), (Shape{2, 1}));
  EXPECT_EQ(run_op({"Unsqueeze", 11, {counting({2})}, {{"axes", std::vector<int64_t>{-1, 0}}}})[0].shape(), (Shape{1, 2, 1}));
  EXPECT_NE(error_of({"Squeeze", 13, {counting({1, 2}), ints({1})}}).find("not 1"), std::string::npos);
}

TEST(Concat, OfOpset1JoinsAlongAxis1) {
  auto y = run_op({"Concat", 1, {counting({2, 1}), counting({2, 2})}})[0];
  EXPECT_EQ(values<float>(y), (std::vector<float>{0, 0, 1, 1, 2, 3}));
}

// Inference assumed that two symbols are equal, so the output has memory for three rows of five at most.
TEST(Concat, ExtentsBesideTheAxisThatDifferInTheRunAreAnError) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n"), b.symbol("a")}), y = b.input("y", {b.symbol("m"), b.symbol("b")});
  b.output(b.op("joined", "Concat", {x, y}, {{"axis", int64_t{0}}}));
  const std::shared_ptr<Graph> graph = b.take();
  const testing::HostProgram program(graph);
  std::vector<Datum> outputs(1);
  for (auto [columns_x, columns_y] : {std::pair<int64_t, int64_t>{2, 5}, {5, 2}}) {
    const std::vector<Datum> feeds{counting({2, columns_x}), counting({1, columns_y})};
    EXPECT_THROW(program.run(feeds, outputs, {}), Error);
  }
  const std::vector<Datum> feeds{counting({2, 3}), counting({1, 3})};
  program.run(feeds, outputs, {});
  EXPECT_EQ(outputs[0].tensor().shape(), (Shape{3, 3}));
}

TEST(Concat, JoinsHundredsOfInputsAndStrings) {
  std::vector<Tensor> parts;
  for (int i = 0; i < 300; ++i) parts.push_back(floats({1}, {static_cast<float>(i)}));
  EXPECT_EQ(values<float>(run_op({"Concat", 13, parts, {{"axis", int64_t{0}}}})[0]), values<float>(counting({300})));
  auto y = run_op({"Concat", 13, {strings({2, 1}, {"a", "b"}), strings({2, 1}, {"c", "d"})}, {{"axis", int64_t{-1}}}})[0];
  EXPECT_EQ(values<std::string>(y), (std::vector<std::string>{"a", "c", "b", "d"}));
}

TEST(Split, OfOldOpsets) {
  auto named = run_op({"Split", 2, {counting({5})}, {{"split", std::vector<int64_t>{2, 3}}}, 2});
  EXPECT_EQ(values<float>(named[1]), (std::vector<float>{2, 3, 4}));
  auto equal = run_op({"Split", 13, {counting({2, 4})}, {{"axis", int64_t{-1}}}, 2});
  EXPECT_EQ(values<float>(equal[1]), (std::vector<float>{2, 3, 6, 7}));
}

TEST(Gather, TakesStringsAndRefusesAnIndexOutsideTheAxis) {
  auto y = run_op({"Gather", 13, {strings({3}, {"a", "b", "c"}), tensor<int32_t>({2}, {-1, 0})}})[0];
  EXPECT_EQ(values<std::string>(y), (std::vector<std::string>{"c", "a"}));
  EXPECT_EQ(error_of({"Gather", 13, {counting({3}), ints({3})}}), "index 3 is out of bounds for an axis of 3");
  EXPECT_EQ(error_of({"GatherND", 13, {counting({3}), tensor<int64_t>({1, 1}, {-4})}}), "index -4 is out of bounds for an axis of 3");
}

TEST(ScatterElements, ReducesNarrowFloatsAndWrapsIntegers) {
  std::vector<Float16> half = {Float16(1.0F), Float16(2.0F)};
  auto y = run_op({"ScatterElements",
                   18,
                   {tensor<Float16>({2}, half), ints({1, 1, 0}), tensor<Float16>({3}, {half[1], half[1], half[0]})},
                   {{"reduction", std::string("mul")}}})[0];
  EXPECT_EQ(static_cast<float>(values<Float16>(y)[1]), 8.0F);
  auto wrapped = run_op(
      {"ScatterElements", 18, {tensor<int8_t>({1}, {127}), ints({0}), tensor<int8_t>({1}, {2})}, {{"reduction", std::string("add")}}})[0];
  EXPECT_EQ(values<int8_t>(wrapped)[0], -127);
}

TEST(Scatter, IsTheOldNameOfScatterElements) {
  auto y =
      run_op({"Scatter", 9, {floats({1, 3}, {1, 2, 3}), tensor<int64_t>({1, 1}, {-1}), floats({1, 1}, {9})}, {{"axis", int64_t{1}}}})[0];
  EXPECT_EQ(values<float>(y), (std::vector<float>{1, 2, 9}));
}

TEST(ScatterNd, OfStringsReplacesSlices) {
  auto y = run_op({"ScatterND", 18, {strings({3}, {"a", "b", "c"}), tensor<int64_t>({1, 1}, {1}), strings({1}, {"x"})}})[0];
  EXPECT_EQ(values<std::string>(y), (std::vector<std::string>{"a", "x", "c"}));
}

TEST(TensorScatter, RefusesToWriteBeyondALinearCache) {
  OpCase test{"TensorScatter", 24, {counting({1, 3, 1}), floats({1, 2, 1}, {8, 9}), ints({2})}};
  EXPECT_NE(error_of(test).find("leave a cache of 3"), std::string::npos);
  test.attributes.set("mode", std::string("circular"));
  EXPECT_EQ(values<float>(run_op(test)[0]), (std::vector<float>{9, 1, 8}));
}

TEST(Pad, RepeatsReflectionsAndTiles) {
  Tensor x = floats({2, 3}, {1, 2, 3, 4, 5, 6});
  auto reflected = run_op({"Pad", 19, {x, ints({1, 4, 2, 1})}, {{"mode", std::string("reflect")}}})[0];
  const std::vector<float> low = {4, 5, 6, 5, 4, 5, 6, 5}, high = {1, 2, 3, 2, 1, 2, 3, 2};
  std::vector<float> expected;
  for (const auto& row : {low, high, low, high, low}) expected.insert(expected.end(), row.begin(), row.end());
  EXPECT_EQ(values<float>(reflected), expected);
  auto wrapped = run_op({"Pad", 19, {x, ints({4, 5}), Tensor(), ints({-1})}, {{"mode", std::string("wrap")}}})[0];
  EXPECT_EQ(values<float>(wrapped), (std::vector<float>{3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 6, 4, 5, 6, 4, 5, 6, 4, 5, 6, 4, 5}));
}

// As in PyTorch's circular padding, elements that a negative pad removes do not return on the other side.
TEST(Pad, RepeatsNothingThatANegativePadHasRemoved) {
  auto padded = [](const char* mode, int64_t before, int64_t after) {
    return values<float>(run_op({"Pad", 19, {counting({5}), ints({before, after})}, {{"mode", std::string(mode)}}})[0]);
  };
  EXPECT_EQ(padded("wrap", -2, 1), (std::vector<float>{2, 3, 4, 2}));
  EXPECT_EQ(padded("wrap", 2, -3), (std::vector<float>{0, 1, 0, 1}));
  EXPECT_EQ(padded("wrap", -2, -1), (std::vector<float>{2, 3}));
  EXPECT_EQ(padded("reflect", -2, 3), (std::vector<float>{2, 3, 4, 3, 2, 3}));
  EXPECT_EQ(padded("edge", -2, 1), (std::vector<float>{2, 3, 4, 4}));
  EXPECT_NE(error_of({"Pad", 19, {counting({2}), ints({-2, 1})}, {{"mode", std::string("wrap")}}}).find("repeated"), std::string::npos);
}

TEST(Pad, OfAnAxisThatIsNamedTwiceIsAnError) {
  EXPECT_EQ(error_of({"Pad", 19, {counting({2, 3}), ints({1, 1, 0, 0}), Tensor(), ints({1, -1})}}), "axes names axis -1 twice");
}

TEST(Pad, OfStringsAndPackedIntegers) {
  auto y = run_op({"Pad", 19, {strings({2}, {"a", "b"}), ints({1, -1}), strings({}, {"-"})}})[0];
  EXPECT_EQ(values<std::string>(y), (std::vector<std::string>{"-", "a"}));
  Tensor packed(DType::int4, Shape{3});
  for (int i = 0; i < 3; ++i) Int4::set_packed(packed.raw(), i, static_cast<int8_t>(i - 2));
  auto z = run_op({"Pad", 21, {packed, ints({1, 1})}, {{"mode", std::string("edge")}}})[0];
  std::vector<int> got;
  for (int i = 0; i < 5; ++i) got.push_back(Int4::get_packed(z.raw(), i));
  EXPECT_EQ(got, (std::vector<int>{-2, -2, -1, 0, 0}));
}

TEST(Pad, OfOldOpsetsHasItsNumbersAsAttributes) {
  auto y = run_op({"Pad", 2, {counting({2})}, {{"pads", std::vector<int64_t>{1, 1}}, {"value", 7.0F}}})[0];
  EXPECT_EQ(values<float>(y), (std::vector<float>{7, 0, 1, 7}));
  auto half = run_op({"Pad", 2, {tensor<Float16>({1}, {Float16(1.0F)})}, {{"pads", std::vector<int64_t>{0, 1}}, {"value", 2.0F}}})[0];
  EXPECT_EQ(static_cast<float>(values<Float16>(half)[1]), 2.0F);
  auto oldest = run_op({"Pad", 1, {counting({1})}, {{"paddings", std::vector<int64_t>{1, 0}}}})[0];
  EXPECT_EQ(values<float>(oldest), (std::vector<float>{0, 0}));
}

TEST(Tile, OfOpset6AndOfStrings) {
  auto y = run_op({"Tile", 6, {strings({1, 2}, {"a", "b"}), ints({2, 2})}})[0];
  EXPECT_EQ(values<std::string>(y), (std::vector<std::string>{"a", "b", "a", "b", "a", "b", "a", "b"}));
}

TEST(Transpose, OfPackedIntegersAndStrings) {
  Tensor packed(DType::uint4, Shape{2, 3});
  for (int i = 0; i < 6; ++i) UInt4::set_packed(packed.raw(), i, static_cast<uint8_t>(i));
  auto y = run_op({"Transpose", 21, {packed}})[0];
  std::vector<int> got;
  for (int i = 0; i < 6; ++i) got.push_back(UInt4::get_packed(y.raw(), i));
  EXPECT_EQ(got, (std::vector<int>{0, 3, 1, 4, 2, 5}));
  auto z = run_op({"Transpose", 13, {strings({2, 2}, {"a", "b", "c", "d"})}})[0];
  EXPECT_EQ(values<std::string>(z), (std::vector<std::string>{"a", "c", "b", "d"}));
  EXPECT_NE(error_of({"Transpose", 13, {counting({2, 2})}, {{"perm", std::vector<int64_t>{0, 0}}}}).find("given twice"), std::string::npos);
}

// The product of these repeats overflows 64 bits, but the output is empty. Without a zero extent the overflow is an error.
TEST(Tile, OfNothingAsOftenAsYouLike) {
  const int64_t huge = int64_t{1} << 62;
  EXPECT_EQ(run_op({"Tile", 13, {counting({0, 8, 0}), ints({huge, 1, huge})}})[0].shape(), (Shape{0, 8, 0}));
  EXPECT_NE(error_of({"Tile", 13, {counting({0, 2, 3}), ints({1, huge, 1})}}).find("overflow"), std::string::npos);
}

TEST(ConstantOfShape, FillsPackedIntegers) {
  Tensor value(DType::int4, Shape{1});
  Int4::set_packed(value.raw(), 0, -3);
  auto y = run_op({"ConstantOfShape", 21, {ints({3})}, {{"value", Datum(value)}}})[0];
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Int4::get_packed(y.raw(), i), -3);
}

TEST(Constant, MayBeSparse) {
  SparseTensor sparse;
  sparse.dense_shape = Shape{2, 2};
  sparse.values = floats({2}, {5, 6});
  sparse.indices = ints({1, 2});
  EXPECT_EQ(values<float>(run_op({"Constant", 13, {}, {{"sparse_value", Datum(sparse)}}})[0]), (std::vector<float>{0, 5, 6, 0}));
  sparse.indices = tensor<int64_t>({2, 2}, {0, 0, 1, 1});
  EXPECT_EQ(values<float>(run_op({"Constant", 13, {}, {{"sparse_value", Datum(sparse)}}})[0]), (std::vector<float>{5, 0, 0, 6}));
}

TEST(Range, CountsDownAndInNarrowFloats) {
  auto scalar = [](int64_t x) { return tensor<int64_t>({}, {x}); };
  EXPECT_EQ(values<int64_t>(run_op({"Range", 11, {scalar(5), scalar(-1), scalar(-2)}})[0]), (std::vector<int64_t>{5, 3, 1}));
  EXPECT_EQ(run_op({"Range", 11, {scalar(5), scalar(5), scalar(1)}})[0].shape(), Shape{0});
  auto half = [](float x) { return tensor<Float16>({}, {Float16(x)}); };
  auto y = values<Float16>(run_op({"Range", 27, {half(0), half(1), half(0.25F)}})[0]);
  ASSERT_EQ(y.size(), 4U);
  EXPECT_EQ(static_cast<float>(y[3]), 0.75F);
  EXPECT_EQ(error_of({"Range", 11, {scalar(0), scalar(1), scalar(0)}}), "delta = 0");
}

TEST(OneHot, LeavesRowsOfIndicesOutsideTheDepthOff) {
  auto y = run_op({"OneHot", 11, {ints({3, -1}), floats({1}, {3}), strings({2}, {"off", "on"})}})[0];
  EXPECT_EQ(values<std::string>(y), (std::vector<std::string>{"off", "off", "off", "off", "off", "on"}));
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  y = run_op({"OneHot", 11, {floats({4}, {nan, infinity, -infinity, 1}), ints({2}), ints({0, 1})}})[0];
  EXPECT_EQ(values<int64_t>(y), (std::vector<int64_t>{0, 0, 0, 0, 0, 0, 0, 1}));
}

TEST(TopK, PrefersLowerIndicesAndCountsNanAsLargest) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  auto largest = run_op({"TopK", 11, {floats({5}, {1, 3, nan, 3, 2}), ints({3})}, {}, 2});
  EXPECT_EQ(values<int64_t>(largest[1]), (std::vector<int64_t>{2, 1, 3}));
  auto smallest = run_op({"TopK", 11, {floats({5}, {1, 3, nan, 3, 2}), ints({5})}, {{"largest", int64_t{0}}}, 2});
  EXPECT_EQ(values<int64_t>(smallest[1]), (std::vector<int64_t>{0, 4, 1, 3, 2}));
  auto oldest = run_op({"TopK", 1, {counting({2, 2})}, {{"axis", int64_t{0}}, {"k", int64_t{1}}}, 2});
  EXPECT_EQ(values<float>(oldest[0]), (std::vector<float>{2, 3}));
  EXPECT_NE(error_of({"TopK", 11, {counting({2}), ints({3})}, {}, 2}).find("K = 3"), std::string::npos);
}

TEST(TopK, OfManyIsASort) {
  std::vector<int32_t> x(1000);
  uint32_t state = 1;
  for (int32_t& value : x) value = static_cast<int32_t>((state = state * 1664525 + 1013904223) >> 20);
  for (int64_t k : {int64_t{3}, int64_t{400}, int64_t{1000}}) {
    auto y = values<int32_t>(run_op({"TopK", 11, {tensor<int32_t>({1000}, x), ints({k})}, {}, 2})[0]);
    auto sorted = x;
    std::sort(sorted.rbegin(), sorted.rend());
    sorted.resize(static_cast<size_t>(k));
    EXPECT_EQ(y, sorted);
  }
}

TEST(NonZero, OfAScalarHasNoRows) {
  EXPECT_EQ(run_op({"NonZero", 13, {floats({}, {2})}})[0].shape(), (Shape{0, 1}));
  EXPECT_EQ(values<int64_t>(run_op({"NonZero", 13, {floats({2, 2}, {0, -0.0F, 3, 4})}})[0]), (std::vector<int64_t>{1, 1, 0, 1}));
}

TEST(Unique, OfRowsAndColumns) {
  Tensor x = tensor<int32_t>({4, 3}, {1, 0, 1, 2, 2, 2, 1, 0, 1, 0, 5, 0});
  auto rows = run_op({"Unique", 11, {x}, {{"axis", int64_t{0}}}, 4});
  EXPECT_EQ(values<int32_t>(rows[0]), (std::vector<int32_t>{0, 5, 0, 1, 0, 1, 2, 2, 2}));
  EXPECT_EQ(values<int64_t>(rows[1]), (std::vector<int64_t>{3, 0, 1}));
  EXPECT_EQ(values<int64_t>(rows[2]), (std::vector<int64_t>{1, 2, 1, 0}));
  EXPECT_EQ(values<int64_t>(rows[3]), (std::vector<int64_t>{1, 2, 1}));
  auto columns = run_op({"Unique", 11, {x}, {{"axis", int64_t{1}}}, 1});
  EXPECT_EQ(values<int32_t>(columns[0]), (std::vector<int32_t>{0, 1, 2, 2, 0, 1, 5, 0}));
  auto texts = run_op({"Unique", 11, {strings({3}, {"b", "a", "b"})}, {{"sorted", int64_t{0}}}, 1});
  EXPECT_EQ(values<std::string>(texts[0]), (std::vector<std::string>{"b", "a"}));
}

TEST(NonMaxSuppression, KeepsNothingWithoutALimit) {
  Tensor boxes = floats({1, 2, 4}, {0, 0, 1, 1, 5, 5, 6, 6}), scores = floats({1, 1, 2}, {0.5F, 0.9F});
  EXPECT_EQ(run_op({"NonMaxSuppression", 11, {boxes, scores}})[0].shape(), (Shape{0, 3}));
  auto y = run_op({"NonMaxSuppression", 11, {boxes, scores, ints({9})}})[0];
  EXPECT_EQ(values<int64_t>(y), (std::vector<int64_t>{0, 0, 1, 0, 0, 0}));
}

TEST(Trilu, ClearsInPlaceForAnyDiagonal) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  auto triangle = [](int64_t k, int64_t upper) {
    return values<float>(run_op({"Trilu", 14, {counting({2, 3}), tensor<int64_t>({}, {k})}, {{"upper", upper}}})[0]);
  };
  EXPECT_EQ(triangle(kMax, 1), (std::vector<float>(6, 0)));
  EXPECT_EQ(triangle(-kMax, 1), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(triangle(kMax, 0), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(triangle(0, 0), (std::vector<float>{0, 0, 0, 3, 4, 0}));
}

// Compares with torch.nn.functional.fold(x, (3, 4), (2, 2), dilation=(1, 2), padding=(0, 1), stride=(1, 2)).
TEST(Col2Im, IsTorchFold) {
  std::vector<float> x(32);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7);
  Attributes attributes{
      {"dilations", std::vector<int64_t>{1, 2}}, {"pads", std::vector<int64_t>{0, 1, 0, 1}}, {"strides", std::vector<int64_t>{1, 2}}};
  auto y = run_op({"Col2Im", 18, {floats({1, 8, 4}, x), ints({3, 4}), ints({2, 2})}, attributes})[0];
  EXPECT_EQ(values<float>(y), (std::vector<float>{0, 5, 0, 5, 0, 16, 0, 6, 0, 4, 0, 1, 0, 9, 0, 0, 0, 10, 0, 3, 0, 8, 0, 3}));
}

// The pixel in the middle is 60,000 + 60,000 - 60,000, and its first partial sum overflows 16 bits.
TEST(Col2Im, SumsOf16BitsDoNotOverflowOnTheWay) {
  std::vector<Float16> x(9, Float16(0.0F));
  x[2] = x[4] = Float16(60000.0F), x[6] = Float16(-60000.0F);
  auto y = run_op({"Col2Im", 18, {tensor<Float16>({1, 3, 3}, x), ints({3}), ints({3})}, {{"pads", std::vector<int64_t>{1, 1}}}})[0];
  EXPECT_EQ(static_cast<float>(values<Float16>(y)[0]), 0.0F);
  EXPECT_EQ(static_cast<float>(values<Float16>(y)[1]), static_cast<float>(x[2]));
}

// The square of the block size overflows to 0 in 64 bits.
TEST(DepthToSpace, ABlockWhoseSquareOverflowsIsAnError) {
  for (const char* op : {"DepthToSpace", "SpaceToDepth"})
    for (int64_t block : {int64_t{1} << 62, int64_t{1} << 32, int64_t{0}, int64_t{-2}})
      EXPECT_NE(error_of({op, 13, {counting({1, 4, 2, 2})}, {{"blocksize", block}}}).find("blocksize = " + std::to_string(block)),
                std::string::npos)
          << op;
}

// With a new axis, all elements must have the shape of the first element.
TEST(ConcatFromSequence, ElementsOfAnotherRankAreErrors) {
  for (int64_t new_axis : {0, 1})
    for (const SymbolicShape& other : {SymbolicShape{3, 2}, SymbolicShape{1, 2}, SymbolicShape{}}) {
      GraphBuilder b;
      const ValueId elements = b.op("s", "SequenceConstruct", {b.input("x", {2}), b.input("y", other)});
      b.output(b.op("joined", "ConcatFromSequence", {elements}, {{"axis", int64_t{0}}, {"new_axis", new_axis}}));
      try {
        testing::run_graph(b.graph(), testing::random_feeds(b.graph()));
        ADD_FAILURE() << "new_axis = " << new_axis << ", y " << to_string(other);
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("cannot be joined along axis 0"), std::string::npos) << error.what();
      }
    }
}

TEST(Scatter, SumsAndProductsOfBooleansAreOrAndAnd) {
  // Compares with NumPy's add, multiply, maximum and minimum of booleans.
  auto scattered = [](std::string_view reduction, std::string_view op, Tensor indices) {
    return values<bool>(run_op({std::string(op),
                                18,
                                {tensor<bool>({4}, {false, false, true, true}), indices, tensor<bool>({4}, {false, true, false, true})},
                                {{"reduction", std::string(reduction)}}})[0]);
  };
  for (std::string_view op : {"ScatterElements", "ScatterND"}) {
    const Tensor indices = op == "ScatterND" ? tensor<int64_t>({4, 1}, {0, 1, 2, 3}) : tensor<int64_t>({4}, {0, 1, 2, 3});
    EXPECT_EQ(scattered("add", op, indices), (std::vector<bool>{false, true, true, true}));
    EXPECT_EQ(scattered("mul", op, indices), (std::vector<bool>{false, false, false, true}));
    EXPECT_EQ(scattered("max", op, indices), (std::vector<bool>{false, true, true, true}));
    EXPECT_EQ(scattered("min", op, indices), (std::vector<bool>{false, false, false, true}));
  }
}

}  // namespace
}  // namespace treadle
