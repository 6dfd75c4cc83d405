// Helpers shared by the tests of jobs.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "tests/session/models.h"
#include "treadle/treadle.hpp"

namespace treadle::testing {

/// Polls until the condition is true. Returns false after 30 seconds.
inline bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 30'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return condition();
}

/// Returns a model of `depth` products of a 64 x n matrix with fixed weights, which the optimiser cannot merge.
inline ModelBuilder chain(int depth, int64_t extent = 96) {
  ModelBuilder b;
  b.input("x", {64, extent}).output("y", {64, extent});
  Tensor weights(DType::float32, Shape{extent, extent});
  float* w = weights.data<float>();
  for (int64_t i = 0; i < extent * extent; ++i) w[i] = static_cast<float>((i * 7 + 3) % 19 - 9) / 64.0F;
  b.constant("w", weights);
  std::string last = "x";
  for (int i = 0; i < depth; ++i) {
    const std::string next = i + 1 < depth ? "h" + std::to_string(i) : "y", product = "p" + std::to_string(i);
    b.node("MatMul", {last, "w"}, {product}).node("Tanh", {product}, {next});
    last = next;
  }
  return b;
}

inline Tensor chain_input(int64_t extent = 96) {
  Tensor x(DType::float32, Shape{64, extent});
  float* data = x.data<float>();
  for (int64_t i = 0; i < 64 * extent; ++i) data[i] = static_cast<float>(i % 31 - 15) / 16.0F;
  return x;
}

}  // namespace treadle::testing
