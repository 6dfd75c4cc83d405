// Scaled dot product attention, one tile of queries of one head at a time. Scores, mask and softmax stay in cache; the full matrix of
// scores is only written if the caller asks for it. T is float or double.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include "core/threads/thread_pool.h"
#include "kernels/gemm/gemm_bf16.h"

namespace treadle::kernels {

/// Strides, in elements, of a [batch, heads, length, size] array whose last axis is contiguous.
struct HeadStrides {
  int64_t batch = 0, head = 0, row = 0;
};

/// Defines the result of a query that sees no key (all are masked), or whose scores are NaN.
enum class EmptyRows : uint8_t {
  zero,          ///< zeros if the query sees no key; NaN if its scores are NaN
  formula,       ///< NaN in both cases, as softmax's formula gives: without keys, exp(-inf - -inf)
  zero_for_nan,  ///< zeros in both cases
};

struct AttentionParams {
  int64_t batch = 1, q_heads = 1, kv_heads = 1;
  int64_t q_length = 0, kv_length = 0;  ///< kv_length includes past keys
  int64_t head_size = 0, v_head_size = 0;
  HeadStrides q, k, v, y;
  int64_t row_heads = 1;  ///< number of heads that share keys and are treated as rows; q_length counts queries times these heads
  double scale = 1;
  double softcap = 0;  ///< bound of the scores' magnitudes (softcap * tanh(score / softcap)); 0: none
  bool causal = false;
  int64_t left_window = -1, right_window = -1;  ///< keys that a query sees before and after its position; -1: unbounded
  int64_t past_length = 0;                      ///< number of keys before the first query, if valid_lengths is null
  EmptyRows empty_rows = EmptyRows::zero;
  double masked = -std::numeric_limits<double>::infinity();  ///< replaces a score that `keep` masks
  bool keeps = true;                                         ///< value of `keep` for keys that are not masked
  /// If set, the two products of float attention are computed in bfloat16, unless there are only a few queries. The softmax stays in float.
  std::optional<Bf16Form> bf16;
  /// Strides of the mask; they are 0 for broadcast axes. Keys with index mask_length or above are masked.
  int64_t mask_batch = 0, mask_head = 0, mask_row = 0, mask_column = 0, mask_length = 0;
};

/// Returns the row stride of a block of scores, in elements. Rows are aligned to cache lines, as a store that spans two lines takes twice
/// the time.
inline int64_t scores_row(const AttentionParams& params) { return (params.kv_length + 15) / 16 * 16; }

/// The stage of the scores to output, in the order of ONNX's qk_matmul_output_mode.
enum class AttentionScores : uint8_t { raw, capped, biased, probabilities };

template <typename T>
struct AttentionData {
  const T *q = nullptr, *k = nullptr, *v = nullptr;
  const T* bias = nullptr;     ///< bias added to the scores; -infinity masks a key; null: no bias
  const bool* keep = nullptr;  ///< a key is masked if its value is not params.keeps; null: there is no mask
  /// For each batch entry, the number of valid keys in an external cache; null: none. The queries are at the positions of the last keys.
  const int64_t* valid_lengths = nullptr;
  T* y = nullptr;
  T* scores = nullptr;  ///< [batch, q_heads, q_length, kv_length], or null
  AttentionScores scores_kind = AttentionScores::raw;
};

/// Masks the row of scores of one query. A masked score becomes -infinity (or params.masked), even if it was NaN.
template <typename T>
void mask_scores(const AttentionParams& params, const AttentionData<T>& data, int64_t batch, int64_t head, int64_t query, T* row);

template <typename T>
size_t attention_scratch_bytes(const AttentionParams& params, int max_threads);

/// Computes y = softmax(softcap(scale Q K^T) + bias) V. params.empty_rows defines the result of a query that sees no key.
template <typename T>
void attention(const AttentionParams& params, const AttentionData<T>& data, void* scratch, int max_threads, ThreadPool* pool);

}  // namespace treadle::kernels
