// Backward pass of attention (attention.h). Recomputes scores and probabilities for one block of queries at a time, so that the forward
// pass need not store them.
#pragma once

#include <cstddef>

#include "core/threads/thread_pool.h"
#include "kernels/attention/attention.h"

namespace treadle::kernels {

struct AttentionGradientParams {
  AttentionParams forward;  ///< `y` has the strides of dY; no softcap, no past, float32 products
  HeadStrides dq, dk, dv;
};

struct AttentionGradientData {
  AttentionData<float> forward;  ///< only the operands are set
  const float* dy = nullptr;
  float *dq = nullptr, *dk = nullptr, *dv = nullptr;
  float* dscores = nullptr;  ///< gradient of the masked scores, [batch, q_heads, q_length, kv_length]; null: not wanted
};

size_t attention_gradient_scratch_bytes(const AttentionGradientParams& params, int max_threads);

/// Computes the gradients. With P = softmax(scale Q K^T + mask): dV = P^T dY, dS = P (dP - sum(P dP)) for dP = dY V^T, dQ = scale dS K, dK
/// = scale dS^T Q. Keys that a boolean mask excludes get no gradient.
void attention_gradient(const AttentionGradientParams& params, const AttentionGradientData& data, void* scratch, int max_threads,
                        ThreadPool* pool);

}  // namespace treadle::kernels
