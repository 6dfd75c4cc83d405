// Scaled dot product attention, one tile of queries of one head at a time: scores, mask and softmax stay in the cache, and the full matrix
// of scores exists only if somebody asks for it. T is float or double.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include "core/thread_pool.h"
#include "kernels/gemm/gemm_bf16.h"

namespace treadle::kernels {

/// A [batch, heads, length, size] array with a stride for each axis but the last, which is contiguous.
struct HeadStrides {
  int64_t batch = 0, head = 0, row = 0;
};

/// What a query gets that sees no key, or whose scores are NaN.
enum class EmptyRows : uint8_t {
  zero,          ///< zeros for no key; a NaN stays
  formula,       ///< NaN in both cases, as exp(-inf - -inf) is
  zero_for_nan,  ///< zeros in both cases
};

struct AttentionParams {
  int64_t batch = 1, q_heads = 1, kv_heads = 1;
  int64_t q_length = 0, kv_length = 0;  ///< kv_length: past and present
  int64_t head_size = 0, v_head_size = 0;
  HeadStrides q, k, v, y;
  int64_t row_heads = 1;  ///< of a query, as many of its heads, which share keys, are rows that follow each other: q_length counts them
  double scale = 1;
  double softcap = 0;  ///< 0: none
  bool causal = false;
  int64_t left_window = -1, right_window = -1;  ///< -1: unbounded
  int64_t past_length = 0;                      ///< keys before the first query, where valid_lengths is null
  // The mask's strides; 0 where it is broadcast. Keys from mask_length on are masked.
  EmptyRows empty_rows = EmptyRows::zero;
  double masked = -std::numeric_limits<double>::infinity();  ///< a score that `keep` masks
  bool keeps = true;                                         ///< what `keep` says of a key that counts
  /// The two products are computed in bfloat16, for float and more than a few queries; the softmax is not.
  std::optional<Bf16Form> bf16;
  int64_t mask_batch = 0, mask_head = 0, mask_row = 0, mask_column = 0, mask_length = 0;
};

/// Elements from one row of a block of scores to the next: rows begin where vectors do, as stores across two lines of the cache take twice
/// the time.
inline int64_t scores_row(const AttentionParams& params) { return (params.kv_length + 15) / 16 * 16; }

/// What `scores` receives, in the order of ONNX's qk_matmul_output_mode.
enum class AttentionScores : uint8_t { raw, capped, biased, probabilities };

template <typename T>
struct AttentionData {
  const T *q = nullptr, *k = nullptr, *v = nullptr;
  const T* bias = nullptr;     ///< added to the scores; -infinity masks; null for none
  const bool* keep = nullptr;  ///< masks where it is not params.keeps; null for none
  /// Valid keys of each batch in a cache kept outside, or null. Queries are then the last of them.
  const int64_t* valid_lengths = nullptr;
  T* y = nullptr;
  T* scores = nullptr;  ///< [batch, q_heads, q_length, kv_length], or null
  AttentionScores scores_kind = AttentionScores::raw;
};

/// Masks a query's row of scores by selection: a masked score is -infinity (or params.masked), whatever it was.
template <typename T>
void mask_scores(const AttentionParams& params, const AttentionData<T>& data, int64_t batch, int64_t head, int64_t query, T* row);

template <typename T>
size_t attention_scratch_bytes(const AttentionParams& params, int max_threads);

/// y = softmax(softcap(scale Q K^T) + bias) V. A query that may see no key gives zeros.
template <typename T>
void attention(const AttentionParams& params, const AttentionData<T>& data, void* scratch, int max_threads, ThreadPool* pool);

}  // namespace treadle::kernels
