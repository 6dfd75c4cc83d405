#include "graph/parameters.h"

#include <gtest/gtest.h>

#include "tests/graph/graph_builder.h"

namespace treadle {
namespace {

ValueId parameter(testing::GraphBuilder& b) {
  const ValueId w = b.weights("w", Shape{4});
  b.graph().value(w).kind = Value::Kind::parameter;
  return w;
}

ValueId sum_of_many(testing::GraphBuilder& b, ValueId x, int levels, size_t readings) {
  for (int i = 0; i < levels; ++i) x = b.op("sum" + std::to_string(i), "Sum", std::vector<ValueId>(readings, x));
  return x;
}

TEST(IsStored, WhatFollowsFromAParameterByAFewNodes) {
  testing::GraphBuilder b;
  const ValueId w = parameter(b);
  EXPECT_TRUE(is_stored(b.graph(), w));
  EXPECT_TRUE(is_stored(b.graph(), sum_of_many(b, w, 2, 3)));
  EXPECT_FALSE(is_stored(b.graph(), sum_of_many(b, b.input("x", {4}), 2, 3)));
}

// 1000^8 paths lead from the last sum to the parameter.
TEST(IsStored, NodesThatReadAValueManyTimesEndTheSearch) {
  testing::GraphBuilder b;
  const ValueId w = parameter(b);
  EXPECT_FALSE(is_stored(b.graph(), sum_of_many(b, w, 8, 1000)));
}

}  // namespace
}  // namespace treadle
