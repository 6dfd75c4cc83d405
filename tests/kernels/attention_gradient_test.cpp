#include "kernels/attention/attention_gradient.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "treadle/tensor.h"

namespace treadle::kernels {
namespace {

std::vector<float> random_numbers(int64_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> made(static_cast<size_t>(count));
  for (float& x : made) x = normal(generator);
  return made;
}

HeadStrides rows_first(int64_t heads, int64_t length, int64_t size) { return {heads * length * size, size, heads * size}; }

/// The expected gradients, computed element by element in double. All arrays are [batch, length, heads, size].
struct Plain {
  const AttentionParams& p;
  std::vector<double> dq, dk, dv;

  Plain(const AttentionParams& params, const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
        const std::vector<float>& bias, const std::vector<float>& dy)
      : p(params), dq(q.size()), dk(k.size()), dv(v.size()) {
    for (int64_t b = 0; b < p.batch; ++b)
      for (int64_t h = 0; h < p.q_heads; ++h)
        for (int64_t row = 0; row < p.q_length; ++row) one(q, k, v, bias, dy, b, h, row);
  }
  static size_t at(const HeadStrides& s, int64_t b, int64_t h, int64_t row, int64_t i) {
    return static_cast<size_t>(b * s.batch + h * s.head + row * s.row + i);
  }
  void one(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v, const std::vector<float>& bias,
           const std::vector<float>& dy, int64_t b, int64_t h, int64_t row) {
    const int64_t kv = h / (p.q_heads / p.kv_heads);
    std::vector<double> probability(static_cast<size_t>(p.kv_length)), flow(probability.size());
    double sum = 0, dot = 0;
    for (int64_t j = 0; j < p.kv_length; ++j) {
      double score = 0;
      for (int64_t i = 0; i < p.head_size; ++i) score += double{q[at(p.q, b, h, row, i)]} * double{k[at(p.k, b, kv, j, i)]};
      sum += probability[static_cast<size_t>(j)] = std::exp(p.scale * score + double{bias[static_cast<size_t>(row * p.mask_row + j)]});
    }
    for (int64_t j = 0; j < p.kv_length; ++j) {
      double& share = probability[static_cast<size_t>(j)];
      share /= sum;
      for (int64_t i = 0; i < p.v_head_size; ++i) {
        flow[static_cast<size_t>(j)] += double{dy[at(p.y, b, h, row, i)]} * double{v[at(p.v, b, kv, j, i)]};
        dv[at(p.v, b, kv, j, i)] += share * double{dy[at(p.y, b, h, row, i)]};
      }
      dot += share * flow[static_cast<size_t>(j)];
    }
    for (int64_t j = 0; j < p.kv_length; ++j) {
      const double ds = p.scale * probability[static_cast<size_t>(j)] * (flow[static_cast<size_t>(j)] - dot);
      for (int64_t i = 0; i < p.head_size; ++i) {
        dq[at(p.q, b, h, row, i)] += ds * double{k[at(p.k, b, kv, j, i)]};
        dk[at(p.k, b, kv, j, i)] += ds * double{q[at(p.q, b, h, row, i)]};
      }
    }
  }
};

void expect_near(const std::vector<float>& found, const std::vector<double>& expected, const char* what) {
  double largest = 1;
  for (double x : expected) largest = std::max(largest, std::abs(x));
  for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(double{found[i]}, expected[i], 3e-6 * largest) << what << " at " << i;
}

void check(int64_t queries, int64_t keys, int64_t q_heads, int64_t kv_heads, ThreadPool* pool) {
  constexpr int64_t kBatch = 2, kSize = 20, kValueSize = 12;
  AttentionGradientParams params;
  AttentionParams& p = params.forward;
  p.batch = kBatch, p.q_heads = q_heads, p.kv_heads = kv_heads, p.q_length = queries, p.kv_length = p.mask_length = keys;
  p.head_size = kSize, p.v_head_size = kValueSize, p.scale = 0.3;
  p.q = params.dq = rows_first(q_heads, queries, kSize), p.k = params.dk = rows_first(kv_heads, keys, kSize);
  p.v = params.dv = rows_first(kv_heads, keys, kValueSize), p.y = rows_first(q_heads, queries, kValueSize);
  p.mask_row = keys, p.mask_column = 1;
  const std::vector<float> q = random_numbers(kBatch * q_heads * queries * kSize, 1),
                           k = random_numbers(kBatch * kv_heads * keys * kSize, 2),
                           v = random_numbers(kBatch * kv_heads * keys * kValueSize, 3),
                           dy = random_numbers(kBatch * q_heads * queries * kValueSize, 4), bias = random_numbers(queries * keys, 5);
  std::vector<float> dq(q.size()), dk(k.size()), dv(v.size());
  AttentionGradientData data{.dy = dy.data(), .dq = dq.data(), .dk = dk.data(), .dv = dv.data()};
  data.forward.q = q.data(), data.forward.k = k.data(), data.forward.v = v.data(), data.forward.bias = bias.data();
  const int threads = pool ? pool->num_threads() : 1;
  const auto scratch = Storage::allocate(std::max<size_t>(1, attention_gradient_scratch_bytes(params, threads)));
  attention_gradient(params, data, scratch->data(), threads, pool);
  const Plain plain(p, q, k, v, bias, dy);
  expect_near(dq, plain.dq, "dQ");
  expect_near(dk, plain.dk, "dK");
  expect_near(dv, plain.dv, "dV");
}

TEST(AttentionGradient, IsThatOfThePlainFormula) {
  ThreadPool pool(2);
  for (ThreadPool* threads : {static_cast<ThreadPool*>(nullptr), &pool}) {
    check(7, 13, 2, 2, threads);
    check(33, 1, 1, 1, threads);
    check(19, 40, 4, 2, threads);
  }
}

TEST(AttentionGradient, AddsTheBlocksOfALongSequence) { check(150, 1400, 1, 1, nullptr); }

}  // namespace
}  // namespace treadle::kernels
