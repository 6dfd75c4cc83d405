// A mixture of experts: each token passes through the k experts that its router's scores choose, and their results are added up, weighted.
// An expert is two layers with an activation between them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/thread_pool.h"

namespace treadle::kernels {

enum class Unary : uint8_t;  // kernels/elementwise/unary_f32.h

/// One layer of all experts: y = x W^T + bias. Each W [N, K] is floats, or rows of codes of 2, 4 or 8 bits with a scale for each block.
struct ExpertLayer {
  int64_t N = 0, K = 0;
  const float* weights = nullptr;  ///< [experts, N, K]; null if there are codes
  const float* bias = nullptr;     ///< [experts, N]; null for none

  int bits = 0;                          ///< 0: floats
  int64_t block = 0;                     ///< codes of a row that share a scale
  const uint8_t* codes = nullptr;        ///< [experts, N, K * bits / 8], the first code in the lowest bits
  const float* scales = nullptr;         ///< [experts, N, K / block]
  const uint8_t* zero_points = nullptr;  ///< codes as well, see zeros_per_row; null: the middle of the codes
  /// Codes of zero points that share padding to whole bytes: those of a row, or (false) the one code of each row of an expert.
  bool zeros_per_row = false;
};

struct ExpertActivation {
  Unary code{};
  float a = 0, b = 0;  ///< its parameters
};
/// Where the factor of a gated activation comes from: nowhere, from every other column of the first layer, from its second half, or from a
/// third layer.
enum class ExpertGate : uint8_t { none, interleaved, halves, third_layer };

struct ExpertsParams {
  int64_t tokens = 0, experts = 0, k = 1;
  ExpertLayer first, second, third;
  ExpertActivation activation;  ///< of the first layer
  bool swiglu = false;          ///< behind it
  ExpertGate gate = ExpertGate::none;
  bool normalise = false;  ///< a token's weights add up to 1
  float alpha = 1, beta = 0;
  float limit = 0;                ///< of SwiGLU's operands; infinity for none
  bool limits_activated = false;  ///< it holds for the gate behind its activation

  int64_t hidden() const { return second.N; }
  int64_t inner() const { return second.K; }
};

size_t experts_scratch_bytes(const ExpertsParams& params, int max_threads);

/// y [tokens, hidden] from x [tokens, hidden].
/// @param scores   [tokens, experts]: the softmax of a token's row gives the experts' weights
/// @param weights  the same; if not null, they weight the results, and the scores only choose
void run_experts(const ExpertsParams& params, const float* x, const float* scores, const float* weights, float* y, void* scratch,
                 int max_threads, ThreadPool* pool);

}  // namespace treadle::kernels
