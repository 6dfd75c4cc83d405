// Makes random graphs, on which all executors must give the same results.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/exec/graphs.h"
#include "treadle/datum.h"

namespace treadle::testing {

/// Makes a random graph of cheap and expensive nodes, views, in-place updates, data-dependent shapes, and several outputs.
/// @param data_dependent  false: all extents are known before the run
inline std::shared_ptr<Graph> random_graph(uint32_t seed, bool data_dependent = true) {
  std::mt19937 random(seed);
  auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  GraphBuilder b;
  constexpr int64_t kSide = 48;
  std::vector<ValueId> values;
  for (int i = 0; i < 3; ++i) values.push_back(b.input("x" + std::to_string(i), DType::float32, {kSide, kSide}));
  ValueId half = b.constant("half", Tensor::scalar(0.5F)), scale = b.constant("scale", Tensor::scalar(0.02F));
  ValueId flat = b.ints("flat", {kSide * kSide}), square = b.ints("square", {kSide, kSide});
  for (int i = 0; i < 40; ++i) {
    ValueId x = values[below(values.size())], y = values[below(values.size())];
    switch (below(data_dependent ? 7 : 6)) {
      case 0: values.push_back(b.node("Mul", {b.node("MatMul", {x, y}), scale})); break;
      case 1: values.push_back(b.node("Add", {x, half})); break;
      case 2: values.push_back(b.node("Sub", {x, y})); break;
      case 3: values.push_back(b.node("Tanh", {x})); break;
      case 4: values.push_back(b.node("Relu", {b.node("Sub", {x, half})})); break;
      case 5: values.push_back(b.node("Reshape", {b.node("Add", {b.node("Reshape", {x, flat}), half}), square})); break;
      default: {  // the node's shape is data-dependent
        ValueId index =
            b.node("Squeeze", {b.node("Slice", {b.node("NonZero", {b.node("Reshape", {x, flat})}), b.ints("s" + std::to_string(i), {0}),
                                                b.ints("e" + std::to_string(i), {1}), b.ints("a" + std::to_string(i), {1})}),
                               b.ints("z" + std::to_string(i), {0})});
        values.push_back(
            b.node("Add", {y, b.node("ReduceSum", {b.node("Cast", {index}, {{"to", int64_t{1}}})}, {{"keepdims", int64_t{0}}})}));
        values.back() = b.node("Sub", {values.back(), values.back()});
        break;
      }
    }
  }
  std::set<ValueId> outputs{values.back()};
  for (int i = 0; i < 4; ++i) outputs.insert(values[3 + below(values.size() - 3)]);
  for (ValueId value : outputs) b.output(value, "o" + std::to_string(index_of(value)));
  return b.finish();
}

inline std::vector<Datum> random_feeds(uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<Datum> feeds;
  for (int i = 0; i < 3; ++i) {
    Tensor x(DType::float32, {48, 48});
    for (int64_t k = 0; k < x.num_elements(); ++k) x.data<float>()[k] = uniform(random);
    feeds.emplace_back(x);
  }
  return feeds;
}

inline void expect_same_bits(const std::vector<Datum>& a, const std::vector<Datum>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].tensor().shape(), b[i].tensor().shape());
    EXPECT_EQ(std::memcmp(a[i].tensor().raw(), b[i].tensor().raw(), a[i].tensor().size_bytes()), 0) << "output " << i;
  }
}

}  // namespace treadle::testing
