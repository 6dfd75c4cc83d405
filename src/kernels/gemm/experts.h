// Mixture of experts: the router's scores choose k experts for each token, and the experts' results are summed with weights. An expert is
// two linear layers with an activation in between.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/threads/thread_pool.h"

namespace treadle::kernels {

enum class Unary : uint8_t;  // defined in kernels/elementwise/unary_f32.h

/// One linear layer of all experts: y = x W^T + bias. W [N, K] is stored as floats, or as codes of 2, 4 or 8 bits with one scale per block.
struct ExpertLayer {
  int64_t N = 0, K = 0;
  const float* weights = nullptr;  ///< [experts, N, K]; null if `codes` is used
  const float* bias = nullptr;     ///< [experts, N]; null: no bias

  int bits = 0;                          ///< number of bits of a code; 0: weights are floats
  int64_t block = 0;                     ///< number of elements of a row that share a scale
  const uint8_t* codes = nullptr;        ///< [experts, N, K * bits / 8], the first code in the lowest bits
  const float* scales = nullptr;         ///< [experts, N, K / block]
  const uint8_t* zero_points = nullptr;  ///< packed like the codes, see zeros_per_row; null: the middle of the code range
  /// True: each row's zero points are padded to whole bytes. False: there is one zero point per row, and an expert's are packed together.
  bool zeros_per_row = false;
};

struct ExpertActivation {
  Unary code{};
  float a = 0, b = 0;  ///< parameters of the activation
};
/// Says which columns are the linear factor of a gated activation: none (there is no gate), the odd columns of the first layer's output,
/// its second half, or the output of a third layer.
enum class ExpertGate : uint8_t { none, interleaved, halves, third_layer };

struct ExpertsParams {
  int64_t tokens = 0, experts = 0, k = 1;
  ExpertLayer first, second, third;
  ExpertActivation activation;  ///< applied after the first layer
  bool swiglu = false;          ///< the gate is activated by SwiGLU with alpha, beta and limit
  ExpertGate gate = ExpertGate::none;
  bool normalize = false;  ///< divide the k weights of a token by their sum
  float alpha = 1, beta = 0;
  float limit = 0;                ///< magnitude to which SwiGLU's operands are clamped; infinity: no clamp
  bool limits_activated = false;  ///< clamp the gate after its activation, not before

  int64_t hidden() const { return second.N; }
  int64_t inner() const { return second.K; }
};

size_t experts_scratch_bytes(const ExpertsParams& params, int max_threads);

/// Computes y [tokens, hidden] from x [tokens, hidden].
/// @param scores   [tokens, experts]: the router's scores; if `weights` is null, their softmax also weights the results
/// @param weights  [tokens, experts]: weights of the experts' results, or null
void run_experts(const ExpertsParams& params, const float* x, const float* scores, const float* weights, float* y, void* scratch,
                 int max_threads, ThreadPool* pool);

}  // namespace treadle::kernels
