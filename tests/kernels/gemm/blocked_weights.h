// Random weights in blocks, and the product with them in double.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/gemm/gemm_blocked.h"

namespace treadle::test {

/// Returns a shape that is no multiple of any tile.
inline kernels::BlockedShape random_blocked_shape(std::mt19937& generator, int bits) {
  kernels::BlockedShape s;
  s.bits = bits;
  s.K = 1 + generator() % 150, s.N = 1 + generator() % 150, s.block_size = int64_t{8} << (generator() % 5);
  s.has_zeros = generator() % 2;
  return s;
}

struct BlockedWeights {
  kernels::BlockedShape shape;
  std::vector<uint32_t> words;
  std::vector<float> scales, zeros;
  std::vector<double> weights;  // what the codes stand for

  BlockedWeights(const kernels::BlockedShape& s, std::mt19937& generator)
      : shape(s),
        words(kernels::blocked_code_words(s)),
        scales(kernels::blocked_scale_count(s)),
        zeros(scales.size()),
        weights(static_cast<size_t>(s.K * s.N)) {
    std::normal_distribution<float> normal;
    const int half = 1 << (s.bits - 1);
    for (int64_t n = 0; n < s.N; ++n)
      for (int64_t b = 0; b < s.blocks(); ++b) {
        const auto at = static_cast<size_t>(kernels::blocked_scale_place(s, b, n));
        scales[at] = 0.01F * normal(generator);
        zeros[at] = s.has_zeros ? static_cast<float>(static_cast<int>(generator() % (2 * half)) - half) : 0.0F;
        for (int64_t k = b * s.block_size; k < std::min(s.K, (b + 1) * s.block_size); ++k) {
          const int code = static_cast<int>(generator() % (2 * half)) - half;
          kernels::pack_blocked_code(s, k, n, code, words.data());
          weights[static_cast<size_t>(k * s.N + n)] = (code - double{zeros[at]}) * scales[at];
        }
      }
  }
  kernels::PackedBlocked packed() const { return {shape, words.data(), scales.data(), shape.has_zeros ? zeros.data() : nullptr}; }

  /// Compares y with the product of `a`, of M rows, and the weights.
  template <typename T>
  void expect_product(int64_t M, const std::vector<T>& a, const std::vector<float>& y) const {
    for (int64_t m = 0; m < M; ++m)
      for (int64_t n = 0; n < shape.N; ++n) {
        double sum = 0, magnitude = 0;
        for (int64_t k = 0; k < shape.K; ++k) {
          const double term = a[static_cast<size_t>(m * shape.K + k)] * weights[static_cast<size_t>(k * shape.N + n)];
          sum += term, magnitude += std::fabs(term);
        }
        ASSERT_NEAR(y[static_cast<size_t>(m * shape.N + n)], sum, 1e-5 * magnitude + 1e-6)
            << M << " " << shape.K << " " << shape.N << " " << shape.bits;
      }
  }
};

}  // namespace treadle::test
