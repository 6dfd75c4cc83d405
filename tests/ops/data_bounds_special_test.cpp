// Tests bounds that the table in data_bounds.h cannot express: iterations of a loop, conditions, coordinates and scales, operands with too
// few elements.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/fuzz/fenced.h"
#include "tests/graph/graph_builder.h"
#include "tests/ops/data_bounds.h"
#include "treadle/error.h"

namespace treadle::testing {
namespace {

using fuzz::fenced;
constexpr int64_t kMin = std::numeric_limits<int64_t>::min(), kMax = std::numeric_limits<int64_t>::max();
constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<Tensor> run_in_fences(OpCase test) {
  for (Tensor& input : test.inputs)
    if (input.defined()) input = fenced(input);
  return run_op(test);
}
ErrorCode code_of(const OpCase& test) {
  try {
    run_in_fences(test);
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::ok;
}
Tensor of_floats(const Shape& shape, std::vector<float> x) { return floats(shape, std::move(x)); }

/// Runs a loop whose condition becomes false after `last` iterations. @return the number of iterations that it ran
int64_t iterations(const Tensor& most, int64_t last) {
  GraphBuilder outer;
  const ValueId m = outer.graph().add_input("m", Type::tensor(DType::int64, most.shape()));
  const ValueId zero = outer.constant<int64_t>("zero", Shape{}, {0});
  GraphBuilder inner(outer.graph().symbol_table());
  inner.graph().add_input("i", Type::tensor(DType::int64, Shape{}));
  inner.graph().add_input("condition", Type::tensor(DType::boolean, Shape{}));
  const ValueId count = inner.graph().add_input("count", Type::tensor(DType::int64, Shape{}));
  const ValueId next = inner.op("next", "Add", {count, inner.constant<int64_t>("one", Shape{}, {1})});
  inner.output(inner.op("go_on", "Less", {next, inner.constant<int64_t>("last", Shape{}, {last})}));
  inner.output(next);
  Graph& graph = outer.graph();
  const NodeId loop = graph.add_node({.op_type = "Loop", .inputs = {m, kNoValue, zero}});
  graph.node(loop).bodies.push_back({"body", inner.take(), {}});
  infer_node(graph, loop);
  outer.output(graph.node(loop).outputs[0]);
  return *run_graph(graph, {Datum(fenced(most))})[0].tensor().data<int64_t>();
}

TEST(DataBoundsOf, LoopsAreAsOftenAsMSays) {
  for (const int64_t m : {kMin, -(int64_t{1} << 62), int64_t{-1}, int64_t{0}}) EXPECT_EQ(iterations(Tensor::scalar(m), 5), 0) << m;
  for (const int64_t m : {int64_t{1}, int64_t{4}, int64_t{5}}) EXPECT_EQ(iterations(Tensor::scalar(m), 5), m);
  for (const int64_t m : {int64_t{6}, int64_t{1} << 32, int64_t{1} << 62, kMax}) EXPECT_EQ(iterations(Tensor::scalar(m), 5), 5) << m;
}

TEST(DataBoundsOf, ConditionsOfCompressMayBeShorterOrLongerThanTheAxis) {
  auto compressed = [](std::vector<bool> condition, Attributes attributes) {
    const auto n = static_cast<int64_t>(condition.size());
    return values<float>(run_in_fences({"Compress", 11, {counting({2, 2}).tensor(), tensor<bool>({n}, condition)}, attributes})[0]);
  };
  const Attributes rows{{"axis", int64_t{0}}};
  EXPECT_EQ(compressed({}, rows), (std::vector<float>{}));
  EXPECT_EQ(compressed({true}, rows), (std::vector<float>{1, 2}));
  EXPECT_EQ(compressed({false, true, true, true}, rows), (std::vector<float>{3, 4}));
  EXPECT_EQ(compressed({true, false, false, true, true, true, true}, {}), (std::vector<float>{1, 4}));
}

TEST(DataBoundsOf, ValuesOfOneHotAreTwo) {
  for (const int64_t n : {0, 1, 3}) {
    const Tensor given(DType::float32, Shape{n});
    for (const int64_t depth : {0, 3})
      EXPECT_EQ(code_of({"OneHot", 11, {ints({0}).tensor(), Tensor::scalar(depth), given}}), ErrorCode::invalid_argument) << n;
  }
}

TEST(DataBoundsOf, AnEmptyRingHasNoPlaceToWrite) {
  for (const char* mode : {"linear", "circular"}) {
    OpCase test{"TensorScatter", 24, {Tensor(DType::float32, Shape{1, 0, 2}), Tensor(DType::float32, Shape{1, 0, 2}), ints({0}).tensor()}};
    test.attributes = {{"mode", std::string(mode)}};
    EXPECT_EQ(run_in_fences(test)[0].shape(), (Shape{1, 0, 2})) << mode;
  }
}

TEST(DataBoundsOf, SequencesAreAsManyAsTheBatch) {
  for (const Shape& lengths : {Shape{}, Shape{1}, Shape{2}, Shape{4}, Shape{2, 1}, Shape{0}}) {
    Tensor given(DType::int64, lengths);
    for (int64_t& length : given.span<int64_t>()) length = 1;
    EXPECT_EQ(code_of({"ReverseSequence", 10, {counting({2, 3}).tensor(), given}}), ErrorCode::invalid_argument) << to_string(lengths);
  }
}

TEST(DataBoundsOf, ThresholdsOfBoxesAreNumbers) {
  const Tensor boxes = counting({1, 1, 4}).tensor(), scores = counting({1, 1, 1}).tensor(), none(DType::float32, Shape{0});
  const Tensor one = Tensor::scalar(0.5F), most = Tensor::scalar<int64_t>(1);
  EXPECT_EQ(code_of({"NonMaxSuppression", 11, {boxes, scores, most, one, one}}), ErrorCode::ok);
  EXPECT_EQ(code_of({"NonMaxSuppression", 11, {boxes, scores, most, none, one}}), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of({"NonMaxSuppression", 11, {boxes, scores, most, one, none}}), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of({"NonMaxSuppression", 11, {boxes, scores, Tensor(DType::int64, Shape{0}), one, one}}), ErrorCode::invalid_argument);
}

const std::vector<float> kCoordinates{-kInfinity, -3e38F, -1e19F, -9.3e18F, -2.2e9F, -1.5F, -1,        0,
                                      1,          1.5F,   2.2e9F, 9.3e18F,  1e19F,   3e38F, kInfinity, kNaN};

// Outside of the image, samples are zero. With the padding modes border and reflection, they are elements of the image.
TEST(DataBoundsOf, GridsMayPointAnywhere) {
  for (const char* mode : {"linear", "nearest", "cubic"}) {
    for (const char* padding : {"zeros", "border", "reflection"}) {
      for (const float at : kCoordinates) {
        const Attributes attributes{{"mode", std::string(mode)}, {"padding_mode", std::string(padding)}};
        const OpCase test{"GridSample", 20, {of_floats({1, 1, 2, 2}, {4, 4, 4, 4}), of_floats({1, 1, 2, 2}, {at, 0, 0, at})}, attributes};
        const std::vector<float> y = values<float>(run_in_fences(test)[0]);
        const bool far = !(std::abs(at) < 5), zeros = std::string_view(padding) == "zeros";
        if (std::isfinite(at)) {
          for (const float element : y) EXPECT_NEAR(element, zeros && far ? 0 : element, 1e-5) << mode << ' ' << padding << ' ' << at;
        }
        if (!zeros && std::isfinite(at) && std::abs(at) < 5) {
          for (const float element : y) EXPECT_NEAR(element, 4, 1e-4) << mode << ' ' << padding << ' ' << at;
        }
      }
    }
  }
}

TEST(DataBoundsOf, OffsetsOfDeformableConvolutionsMayPointAnywhere) {
  for (const float at : kCoordinates) {
    const OpCase test{
        "DeformConv",
        19,
        {of_floats({1, 1, 2, 2}, {4, 4, 4, 4}), of_floats({1, 1, 1, 1}, {1}), of_floats({1, 2, 2, 2}, std::vector<float>(8, at))}};
    const std::vector<float> y = values<float>(run_in_fences(test)[0]);
    if (std::isfinite(at) && std::abs(at) >= 2) {
      for (const float element : y) EXPECT_EQ(element, 0) << at;
    }
  }
}

TEST(DataBoundsOf, RegionsMayLieAnywhere) {
  for (const float at : kCoordinates) {
    const Tensor image = of_floats({1, 1, 2, 2}, {4, 4, 4, 4});
    for (const auto& corners : {std::vector<float>{at, at, 1, 1}, {0, 0, at, at}, {at, at, at, at}, {at, 0, 1, at}}) {
      std::vector<float> with_image{0};
      with_image.insert(with_image.end(), corners.begin(), corners.end());
      const Attributes pooled{{"pooled_shape", std::vector<int64_t>{1, 1}}};
      EXPECT_NE(code_of({"MaxRoiPool", 1, {image, of_floats({1, 5}, with_image)}, pooled}), ErrorCode::internal);
      OpCase crop{"CropAndResize", 1, {image, of_floats({1, 4}, corners), tensor<int32_t>({1}, {0}), ints({1, 1}).tensor()}};
      crop.domain = "com.microsoft";
      EXPECT_EQ(code_of(crop), ErrorCode::ok);
      // Huge regions are refused: sampling them would take for ever.
      if (!(std::abs(at) < 1e3F)) {
        EXPECT_NE(code_of({"RoiAlign", 16, {image, of_floats({1, 4}, corners), ints({0}).tensor()}}), ErrorCode::internal);
      }
    }
    // The first number of a region is the index of its image.
    const Attributes pooled{{"pooled_shape", std::vector<int64_t>{1, 1}}};
    const OpCase test{"MaxRoiPool", 1, {of_floats({1, 1, 2, 2}, {4, 4, 4, 4}), of_floats({1, 5}, {at, 0, 0, 1, 1})}, pooled};
    if (at <= -1 || at >= 1) {
      EXPECT_EQ(code_of(test), ErrorCode::invalid_argument) << at;
    }
  }
}

TEST(DataBoundsOf, ScalesArePositiveAndFinite) {
  for (const char* op : {"Resize", "Upsample"}) {
    auto scaled = [&](float scale) {
      OpCase test{op, 10, {of_floats({1, 1, 1, 2}, {4, 4}), of_floats({4}, {1, 1, 1, scale})}};
      if (op == std::string_view("Upsample")) test.opset = 9;
      return test;
    };
    for (const float scale : {1.0F, 1.5F, 2.0F, 3.0F}) EXPECT_EQ(code_of(scaled(scale)), ErrorCode::ok) << op << scale;
    for (const float scale : {0.0F, -1.0F, -kInfinity, kNaN}) EXPECT_EQ(code_of(scaled(scale)), ErrorCode::invalid_argument) << op << scale;
    for (const float scale : {1e19F, 3e38F, kInfinity}) {
      const ErrorCode code = code_of(scaled(scale));
      EXPECT_TRUE(code == ErrorCode::invalid_argument || code == ErrorCode::resource_exhausted) << op << scale;
    }
  }
}

// Positive pads remove columns from the result. Negative ones add columns, which contain the bias.
TEST(DataBoundsOf, PadsOfATransposedConvolutionMayBeNegative) {
  auto convolved = [](int64_t pad) {
    OpCase test{"ConvTransposeWithDynamicPads",
                1,
                {counting({1, 1, 1, 3}).tensor(), of_floats({1, 1, 1, 1}, {1}), ints({0, pad, 0, 0}).tensor(), of_floats({1}, {10})}};
    test.domain = "com.microsoft";
    return test;
  };
  EXPECT_EQ(values<float>(run_in_fences(convolved(-2))[0]), (std::vector<float>{10, 10, 11, 12, 13}));
  EXPECT_EQ(values<float>(run_in_fences(convolved(0))[0]), (std::vector<float>{11, 12, 13}));
  EXPECT_EQ(values<float>(run_in_fences(convolved(2))[0]), (std::vector<float>{13}));
  EXPECT_EQ(values<float>(run_in_fences(convolved(3))[0]), (std::vector<float>{}));
  for (const int64_t pad : {int64_t{4}, int64_t{1} << 62, kMax}) EXPECT_EQ(code_of(convolved(pad)), ErrorCode::invalid_argument) << pad;
  for (const int64_t pad : {kMin + 1, -(int64_t{1} << 62)}) EXPECT_EQ(code_of(convolved(pad)), ErrorCode::resource_exhausted) << pad;
}

// Reflecting and wrapping pads repeat the elements as often as necessary.
TEST(DataBoundsOf, PadsMayBeLongerThanWhatTheyRepeat) {
  const struct {
    const char* mode;
    int64_t (*source)(int64_t);
  } kModes[] = {{"edge", [](int64_t i) { return std::clamp<int64_t>(i, 0, 2); }},
                {"reflect", [](int64_t i) { return std::abs((i + 402) % 4 - 2); }},
                {"wrap", [](int64_t i) { return (i + 300) % 3; }}};
  for (const auto& [mode, source] : kModes) {
    for (const int64_t pad : {0, 1, 2, 3, 7, 20}) {
      const OpCase test{"Pad", 19, {counting({3}).tensor(), ints({pad, 1}).tensor()}, {{"mode", std::string(mode)}}};
      std::vector<float> expected;
      for (int64_t i = -pad; i < 4; ++i) expected.push_back(static_cast<float>(source(i) + 1));
      EXPECT_EQ(values<float>(run_in_fences(test)[0]), expected) << mode << ' ' << pad;
    }
    for (const int64_t pad : {int64_t{1} << 61, int64_t{1} << 62, kMax})
      EXPECT_EQ(code_of({"Pad", 19, {counting({3}).tensor(), ints({pad, 1}).tensor()}, {{"mode", std::string(mode)}}}),
                ErrorCode::resource_exhausted);
  }
}

TEST(DataBoundsOf, RangesHaveSteps) {
  EXPECT_EQ(code_of({"Range", 11, {Tensor::scalar<int64_t>(0), Tensor::scalar<int64_t>(3), Tensor::scalar<int64_t>(0)}}),
            ErrorCode::invalid_argument);
}

// Bits shifted out of the number are lost, however large the shift.
TEST(DataBoundsOf, ShiftsMayBeFartherThanTheNumberIsWide) {
  auto shifted = [](auto x, std::vector<uint64_t> by, const char* direction) {
    using T = decltype(x);
    const auto n = static_cast<int64_t>(by.size());
    Tensor a(dtype_of<T>, Shape{n}), b(dtype_of<T>, Shape{n});
    for (int64_t i = 0; i < n; ++i) a.data<T>()[i] = x, b.data<T>()[i] = static_cast<T>(by[static_cast<size_t>(i)]);
    return values<T>(run_in_fences({"BitShift", 11, {a, b}, {{"direction", std::string(direction)}}})[0]);
  };
  EXPECT_EQ(shifted(uint8_t{0x81}, {0, 1, 7, 8, 9, 255}, "LEFT"), (std::vector<uint8_t>{0x81, 2, 0x80, 0, 0, 0}));
  EXPECT_EQ(shifted(uint8_t{0x81}, {0, 1, 7, 8, 9, 255}, "RIGHT"), (std::vector<uint8_t>{0x81, 0x40, 1, 0, 0, 0}));
  EXPECT_EQ(shifted(uint32_t{3}, {0, 31, 32, 33, 0xFFFF'FFFF}, "LEFT"), (std::vector<uint32_t>{3, 0x8000'0000, 0, 0, 0}));
  EXPECT_EQ(shifted(uint64_t{3}, {1, 63, 64, 65, ~uint64_t{0}}, "RIGHT"), (std::vector<uint64_t>{1, 0, 0, 0, 0}));
}

}  // namespace
}  // namespace treadle::testing
