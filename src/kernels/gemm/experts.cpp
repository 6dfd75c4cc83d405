#include "kernels/gemm/experts.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/trace/kernel_phases.h"
#include "kernels/gemm/gemm.h"

namespace treadle::kernels {
namespace {

constexpr int64_t kRowGrain = 16;

int64_t padded(int64_t elements) { return (elements + 15) / 16 * 16; }

GemmShape row_product(const ExpertLayer& layer) {
  return {.M = 1, .N = layer.N, .K = layer.K, .a_row = layer.K, .ldb = layer.K, .b_transposed = true, .ldc = layer.N};
}

/// Offsets of the working arrays in the scratch, in floats.
struct Layout {
  int64_t x, first, third, inner, y, matrix, work, shares, chosen, rows, row_shares, total;

  Layout(const ExpertsParams& p, int max_threads) {
    int64_t at = 0;
    auto take = [&](int64_t elements) { return std::exchange(at, at + padded(elements)); };
    int64_t matrices = 0, packed = 0;
    for (const ExpertLayer* layer : {&p.first, &p.second, &p.third}) {
      if (layer->N == 0) continue;
      if (layer->bits > 0) matrices = std::max(matrices, layer->N * layer->K);
      packed = std::max({packed, packed_b_size<float>(layer->K, layer->N),
                         static_cast<int64_t>(gemm_scratch_bytes<float>(row_product(*layer), max_threads) / sizeof(float) + 1)});
    }
    x = take(p.tokens * p.first.K), first = take(p.tokens * p.first.N), third = take(p.tokens * p.third.N);
    inner = take(p.tokens * p.inner()), y = take(p.tokens * p.hidden());
    matrix = take(matrices), work = take(packed);
    shares = take(p.tokens * p.k), chosen = take(2 * p.tokens * p.k);  // an int64_t occupies two floats
    row_shares = take(p.tokens), rows = take(2 * p.tokens), total = at;
  }
};

unsigned code_at(const uint8_t* codes, int64_t i, int bits) {
  const int64_t per_byte = 8 / bits;
  return codes[i / per_byte] >> (i % per_byte * bits) & ((1U << bits) - 1U);
}

/// Returns the expert's W [N, K] as floats, decoded into `matrix` if the layer stores codes.
const float* weights_of(const ExpertLayer& layer, int64_t expert, float* matrix, ThreadPool* pool) {
  if (layer.bits == 0) return layer.weights + expert * layer.N * layer.K;
  const int64_t blocks = layer.K / layer.block, row_bytes = layer.K * layer.bits / 8;
  const int64_t zero_codes = layer.zeros_per_row ? blocks : layer.N, zero_bytes = (zero_codes * layer.bits + 7) / 8;
  const float middle = static_cast<float>(1U << static_cast<unsigned>(layer.bits - 1));
  parallel_for(pool, layer.N, std::max<int64_t>(1, 16384 / layer.K), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const uint8_t* codes = layer.codes + (expert * layer.N + n) * row_bytes;
      const uint8_t* zeros = nullptr;
      if (layer.zero_points) zeros = layer.zero_points + (layer.zeros_per_row ? expert * layer.N + n : expert) * zero_bytes;
      for (int64_t b = 0; b < blocks; ++b) {
        const float scale = layer.scales[(expert * layer.N + n) * blocks + b];
        const float zero = zeros ? static_cast<float>(code_at(zeros, layer.zeros_per_row ? b : n, layer.bits)) : middle;
        for (int64_t k = b * layer.block; k < (b + 1) * layer.block; ++k)
          matrix[n * layer.K + k] = (static_cast<float>(code_at(codes, k, layer.bits)) - zero) * scale;
      }
    }
  });
  return matrix;
}

/// Computes y [rows, N] = activation(x W^T + bias).
void apply_layer(const ExpertLayer& layer, int64_t expert, int64_t rows, const float* x, const ExpertActivation& activation, float* y,
                 float* matrix, float* work, int max_threads, ThreadPool* pool) {
  const float* W = weights_of(layer, expert, matrix, pool);
  Epilogue<float> epilogue;
  if (layer.bias) epilogue.bias = layer.bias + expert * layer.N;
  epilogue.activation = activation.code;
  epilogue.a = activation.a, epilogue.b = activation.b;
  if (rows == 1) return gemm_batched<float>(row_product(layer), {}, x, W, y, epilogue, work, max_threads, pool);
  const PackedB<float> packed = pack_b(W, layer.K, layer.N, layer.K, true, work, pool);
  gemm<float>(rows, {x, layer.K, 1}, packed, y, layer.N, epilogue, pool);
}

/// Computes inner[i] = f(gate) * (linear + beta). ExpertsParams::gate says where in `first` and `third` the two factors are.
void apply_gate(const ExpertsParams& p, int64_t rows, const float* first, const float* third, float* inner, ThreadPool* pool) {
  const int64_t columns = p.inner();
  const PhaseScope phase(KernelPhase::epilogue);
  parallel_for(pool, rows, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float *own = first + row * p.first.N, *other = third + row * p.third.N;
      for (int64_t i = 0; i < columns; ++i) {
        float gate = p.gate == ExpertGate::interleaved ? own[2 * i] : own[i];
        float linear = p.gate == ExpertGate::interleaved ? own[2 * i + 1] : p.gate == ExpertGate::halves ? own[columns + i] : other[i];
        if (p.swiglu) {
          if (!p.limits_activated) gate = std::min(gate, p.limit);
          linear = std::clamp(linear, -p.limit, p.limit) + p.beta;
          gate /= 1 + std::exp(-p.alpha * gate);
          if (p.limits_activated) gate = std::min(gate, p.limit);
        }
        inner[row * columns + i] = gate * linear;
      }
    }
  });
}

/// Selects the k experts with the largest scores for a token (ties: the lower index) and computes the weights (shares) of their results.
void choose_experts(const ExpertsParams& p, const float* scores, const float* weights, int64_t* chosen, float* shares) {
  const float largest = *std::max_element(scores, scores + p.experts);
  float sum = 0, part = 0;
  for (int64_t e = 0; e < p.experts; ++e) sum += std::exp(scores[e] - largest);
  for (int64_t i = 0; i < p.k; ++i) {
    int64_t best = -1;
    for (int64_t e = 0; e < p.experts; ++e) {
      if (std::find(chosen, chosen + i, e) != chosen + i) continue;
      if (best < 0 || scores[e] > scores[best]) best = e;
    }
    chosen[i] = best;
    shares[i] = weights ? weights[best] : std::exp(scores[best] - largest) / sum;
    part += shares[i];
  }
  if (p.normalize && part != 0)
    for (int64_t i = 0; i < p.k; ++i) shares[i] /= part;
}

}  // namespace

size_t experts_scratch_bytes(const ExpertsParams& params, int max_threads) {
  return static_cast<size_t>(Layout(params, max_threads).total) * sizeof(float);
}

void run_experts(const ExpertsParams& p, const float* x, const float* scores, const float* weights, float* y, void* scratch,
                 int max_threads, ThreadPool* pool) {
  const Layout layout(p, max_threads);
  auto* base = static_cast<float*>(scratch);
  float* shares = base + layout.shares;
  auto* chosen = reinterpret_cast<int64_t*>(base + layout.chosen);
  const int64_t K = p.first.K, hidden = p.hidden();
  parallel_for(pool, p.tokens, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      choose_experts(p, scores + t * p.experts, weights ? weights + t * p.experts : nullptr, chosen + t * p.k, shares + t * p.k);
  });
  std::fill_n(y, p.tokens * hidden, 0.0F);
  auto* rows = reinterpret_cast<int64_t*>(base + layout.rows);
  float *row_shares = base + layout.row_shares, *own_x = base + layout.x, *own_y = base + layout.y;
  float *first = base + layout.first, *third = base + layout.third, *inner = base + layout.inner;
  auto apply = [&](const ExpertLayer& layer, int64_t expert, int64_t count, const float* from, const ExpertActivation& activation,
                   float* to) {
    apply_layer(layer, expert, count, from, activation, to, base + layout.matrix, base + layout.work, max_threads, pool);
  };
  constexpr ExpertActivation kNone{.code = Unary::none};
  for (int64_t expert = 0; expert < p.experts; ++expert) {
    int64_t count = 0;
    for (int64_t i = 0; i < p.tokens * p.k; ++i)
      if (chosen[i] == expert) rows[count] = i / p.k, row_shares[count++] = shares[i];
    if (count == 0) continue;
    for (int64_t i = 0; i < count; ++i) std::copy_n(x + rows[i] * K, K, own_x + i * K);
    if (p.gate == ExpertGate::none) {
      apply(p.first, expert, count, own_x, p.activation, inner);
    } else {
      apply(p.first, expert, count, own_x, p.activation, first);
      if (p.gate == ExpertGate::third_layer) apply(p.third, expert, count, own_x, kNone, third);
      apply_gate(p, count, first, third, inner, pool);
    }
    apply(p.second, expert, count, inner, kNone, own_y);
    parallel_for(pool, count, kRowGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        for (int64_t h = 0; h < hidden; ++h) y[rows[i] * hidden + h] += row_shares[i] * own_y[i * hidden + h];
    });
  }
}

}  // namespace treadle::kernels
