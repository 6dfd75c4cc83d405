// A wrong feed gives an error that names the input, what was fed and what was expected. The session stays usable.
#include <gtest/gtest.h>

#include "tests/session/model_bytes.h"
#include "treadle/error.h"
#include "treadle/session.h"

namespace treadle::testing {
namespace {

Tensor floats(const Shape& shape) {
  Tensor tensor(DType::float32, shape);
  for (float& value : tensor.span<float>()) value = 1;
  return tensor;
}

/// Makes a model that computes sum = a + b. Both operands have the same symbols as extents.
Session two_inputs(const SessionOptions& options = {}) {
  std::string bytes =
      model(graph({.nodes = {node("ReduceSum", {"a"}, {"ra"}, {int_attribute("keepdims", 0)}),
                             node("ReduceSum", {"b"}, {"rb"}, {int_attribute("keepdims", 0)}), node("Add", {"ra", "rb"}, {"sum"})},
                   .inputs = {value_info("a", kFloat, {"batch", 3}), value_info("b", kFloat, {"batch"})},
                   .outputs = {value_info("sum", kFloat, {})}}));
  return Session(Model::from_bytes(onnx::test::bytes_of(bytes)), options);
}

class BadFeed : public ::testing::Test {
 protected:
  void expect_error(const std::map<std::string, Datum>& feeds, const std::vector<std::string>& words,
                    const std::vector<std::string>& outputs = {}) {
    try {
      session_.run(feeds, outputs);
      ADD_FAILURE() << "it ran";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      std::string text = error.what();
      for (const std::string& word : words) EXPECT_NE(text.find(word), std::string::npos) << word << " in: " << text;
    }
    // The session must still be usable.
    EXPECT_EQ(session_.run({{"a", floats({2, 3})}, {"b", floats({2})}})[0].tensor().data<float>()[0], 8);
  }

  Session session_ = two_inputs();
};

TEST_F(BadFeed, AMissingInputIsNamed) {
  expect_error({{"a", floats({2, 3})}}, {"\"b\""});
  expect_error({}, {"\"a\"", "a, b"});
}

TEST_F(BadFeed, AnUnknownNameIsNamed) {
  expect_error({{"a", floats({2, 3})}, {"b", floats({2})}, {"c", floats({2})}}, {"\"c\""});
  expect_error({{"a", floats({2, 3})}, {"b", floats({2})}}, {"\"nowhere\""}, {"nowhere"});
}

TEST_F(BadFeed, AWrongDtypeIsNamedWithTheRightOne) {
  expect_error({{"a", Tensor(DType::float64, {2, 3})}, {"b", floats({2})}}, {"\"a\"", "f64", "f32"});
  expect_error({{"a", Tensor::strings({1, 3}, std::vector<std::string>{"x", "y", "z"})}, {"b", floats({1})}}, {"\"a\"", "str", "f32"});
}

TEST_F(BadFeed, AWrongShapeIsNamedWithTheRightOne) {
  expect_error({{"a", floats({2, 4})}, {"b", floats({2})}}, {"\"a\"", "[2,4]", "3"});
  expect_error({{"a", floats({2})}, {"b", floats({2})}}, {"\"a\"", "rank"});
}

TEST_F(BadFeed, AValueThatIsNoTensorIsNamed) {
  expect_error({{"a", Datum()}, {"b", floats({2})}}, {"\"a\""});
  expect_error({{"a", Datum(Sequence{DType::float32, {floats({2, 3})}})}, {"b", floats({2})}}, {"\"a\"", "seq"});
}

class BadFeedOfStrictSymbols : public BadFeed {
 protected:
  static SessionOptions strict() {
    SessionOptions options;
    options.strict_symbols = true;
    return options;
  }
  BadFeedOfStrictSymbols() { session_ = two_inputs(strict()); }
};

TEST_F(BadFeedOfStrictSymbols, InputsThatDisagreeAreNamedWithBothValues) {
  expect_error({{"a", floats({2, 3})}, {"b", floats({5})}}, {"batch", "2", "5"});
}

TEST_F(BadFeed, ASizeThatNoMemoryHoldsIsAnErrorOfTheRun) {
  std::string bytes = model(graph({.nodes = {node("ConstantOfShape", {"s"}, {"y"})},
                                   .inputs = {value_info("s", kInt64, {"rank"})},
                                   .outputs = {value_info("y", kFloat, {"p", "q"})}}));
  Session session(Model::from_bytes(onnx::test::bytes_of(bytes)));
  auto run = [&](std::vector<int64_t> extents) {
    Tensor s(DType::int64, {static_cast<int64_t>(extents.size())});
    std::copy(extents.begin(), extents.end(), s.data<int64_t>());
    return session.run({{"s", s}});
  };
  for (std::vector<int64_t> extents :
       std::vector<std::vector<int64_t>>{{int64_t{1} << 62, 1}, {int64_t{1} << 62, int64_t{1} << 62}, {-1, 2}, {1 << 25, 1 << 25}}) {
    try {
      run(extents);
      ADD_FAILURE() << "it ran";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("make_y"), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(run({2, 3})[0].tensor().num_elements(), 6);
}

}  // namespace
}  // namespace treadle::testing
