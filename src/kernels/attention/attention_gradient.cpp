#include "kernels/attention/attention_gradient.h"

#include <algorithm>

#include "core/trace/kernel_phases.h"
#include "kernels/attention/rows.h"
#include "kernels/gemm/gemm.h"
#include "kernels/normalization/row_gradient.h"
#include "kernels/scratch_slots.h"

namespace treadle::kernels {
namespace {

// A block's probabilities and their gradients stay in L2. Blocks have at least kLeastRows queries, as products over few queries are slow.
constexpr int64_t kBlockElements = 64 * 1024, kLeastRows = 48;

int64_t block_rows(const AttentionParams& p) {
  const int64_t fit = std::max(kLeastRows, kBlockElements / std::max<int64_t>(1, scores_row(p)));
  return std::min(fit, p.q_length);
}

/// The layout of the working memory of one head of keys and values: offsets in floats.
struct Slot {
  int64_t dscores, keys_turned, values_turned, keys, rows, size;

  explicit Slot(const AttentionParams& p) {
    auto aligned = [](int64_t elements) { return static_cast<int64_t>(aligned_bytes<float>(elements) / sizeof(float)); };
    const int64_t scores = aligned(block_rows(p) * scores_row(p));
    dscores = scores;
    keys_turned = dscores + scores;
    values_turned = keys_turned + aligned(packed_b_size<float>(p.head_size, p.kv_length));
    keys = values_turned + aligned(packed_b_size<float>(p.v_head_size, p.kv_length));
    rows = keys + aligned(packed_b_size<float>(p.kv_length, p.head_size));
    size = rows + aligned(packed_b_size<float>(block_rows(p), std::max(p.head_size, p.v_head_size)));
  }
};

/// Handles all queries that share one head of keys and values, so that only one thread adds to the gradients of this head.
class Head {
 public:
  Head(const AttentionGradientParams& params, const AttentionGradientData& data, int64_t b, int64_t kv_head, float* scratch)
      : params_(params), p_(params.forward), data_(data), b_(b), kv_head_(kv_head), slot_(p_), scratch_(scratch) {
    const float *k = data.forward.k + b * p_.k.batch + kv_head * p_.k.head, *v = data.forward.v + b * p_.v.batch + kv_head * p_.v.head;
    keys_turned_ = pack_b(k, p_.head_size, p_.kv_length, p_.k.row, /*transposed=*/true, scratch + slot_.keys_turned);
    values_turned_ = pack_b(v, p_.v_head_size, p_.kv_length, p_.v.row, /*transposed=*/true, scratch + slot_.values_turned);
    keys_ = pack_b(k, p_.kv_length, p_.head_size, p_.k.row, /*transposed=*/false, scratch + slot_.keys);
    dk_ = data.dk + b * params.dk.batch + kv_head * params.dk.head;
    dv_ = data.dv + b * params.dv.batch + kv_head * params.dv.head;
  }

  void run() {
    const int64_t shared = p_.q_heads / p_.kv_heads;
    if (shared * p_.q_length == 0) {
      set_zero(dk_, params_.dk.row, p_.head_size);
      set_zero(dv_, params_.dv.row, p_.v_head_size);
      return;
    }
    const int64_t blocks = (p_.q_length + block_rows(p_) - 1) / block_rows(p_);
    for (int64_t h = kv_head_ * shared; h < (kv_head_ + 1) * shared; ++h)
      for (int64_t block = 0; block < blocks; ++block) run_block(h, p_.q_length * block / blocks, p_.q_length * (block + 1) / blocks);
  }

 private:
  void set_zero(float* x, int64_t row, int64_t size) const {
    for (int64_t k = 0; k < p_.kv_length; ++k) std::fill_n(x + k * row, size, 0.0F);
  }

  void run_block(int64_t h, int64_t begin, int64_t end) {
    const int64_t rows = end - begin, stride = scores_row(p_);
    float *P = scratch_, *dS = scratch_ + slot_.dscores;
    const float* q = data_.forward.q + b_ * p_.q.batch + h * p_.q.head + begin * p_.q.row;
    const float* dy = data_.dy + b_ * p_.y.batch + h * p_.y.head + begin * p_.y.row;
    Epilogue<float> scaled;
    scaled.alpha = static_cast<float>(p_.scale);
    PhaseScope phase(KernelPhase::scores);
    gemm<float>(rows, {q, p_.q.row, 1}, keys_turned_, P, stride, scaled, nullptr);
    phase.next(KernelPhase::softmax);
    for (int64_t r = 0; r < rows; ++r) {
      float* row = P + r * stride;
      mask_scores(p_, data_.forward, b_, h, begin + r, row);
      scale_row_f32(row, softmax_scores(row, p_.kv_length, p_.empty_rows), p_.kv_length);
    }
    phase.next(KernelPhase::none);
    gemm<float>(rows, {dy, p_.y.row, 1}, values_turned_, dS, stride, {}, nullptr);
    add_turned(P, dy, p_.y.row, rows, p_.v_head_size, 1, dv_, params_.dv.row);
    phase.next(KernelPhase::softmax);
    for (int64_t r = 0; r < rows; ++r) {
      float* row = dS + r * stride;
      softmax_gradient<float>(1, p_.kv_length, P + r * stride, row, row, nullptr);
      if (data_.forward.keep) drop_masked(h, begin + r, row);
      if (data_.dscores) std::copy_n(row, p_.kv_length, data_.dscores + ((b_ * p_.q_heads + h) * p_.q_length + begin + r) * p_.kv_length);
    }
    phase.next(KernelPhase::none);
    float* dq = data_.dq + b_ * params_.dq.batch + h * params_.dq.head + begin * params_.dq.row;
    gemm<float>(rows, {dS, stride, 1}, keys_, dq, params_.dq.row, scaled, nullptr);
    add_turned(dS, q, p_.q.row, rows, p_.head_size, scaled.alpha, dk_, params_.dk.row);
    is_first_ = false;
  }

  /// Adds alpha * scores^T * x, summed over the queries of a block, to `sum`. The first block overwrites `sum`.
  void add_turned(const float* scores, const float* x, int64_t x_row, int64_t rows, int64_t columns, float alpha, float* sum,
                  int64_t sum_row) {
    const PackedB<float> packed = pack_b(x, rows, columns, x_row, /*transposed=*/false, scratch_ + slot_.rows);
    Epilogue<float> epilogue;
    epilogue.alpha = alpha;
    if (!is_first_) epilogue.residual = sum, epilogue.residual_row = sum_row;
    gemm<float>(p_.kv_length, {scores, 1, scores_row(p_)}, packed, sum, sum_row, epilogue, nullptr);
  }

  // Sets the gradients of masked scores to 0, as these scores are constants. Their probabilities need not be 0: `masked` may be finite.
  void drop_masked(int64_t h, int64_t query, float* row) const {
    const bool* keep = data_.forward.keep + b_ * p_.mask_batch + h * p_.mask_head + query * p_.mask_row;
    if (p_.mask_column == 1) return mask_row_f32(row, keep, p_.keeps, 0, p_.kv_length);
    for (int64_t k = 0; k < p_.kv_length; ++k)
      if (keep[k * p_.mask_column] != p_.keeps) row[k] = 0;
  }

  const AttentionGradientParams& params_;
  const AttentionParams& p_;
  const AttentionGradientData& data_;
  const int64_t b_, kv_head_;
  const Slot slot_;
  float* const scratch_;
  PackedB<float> keys_turned_, values_turned_, keys_;
  float *dk_ = nullptr, *dv_ = nullptr;
  bool is_first_ = true;
};

}  // namespace

size_t attention_gradient_scratch_bytes(const AttentionGradientParams& params, int max_threads) {
  const AttentionParams& p = params.forward;
  return static_cast<size_t>(Slot(p).size) * sizeof(float) * static_cast<size_t>(ScratchSlots::count(max_threads, p.batch * p.kv_heads));
}

void attention_gradient(const AttentionGradientParams& params, const AttentionGradientData& data, void* scratch, int max_threads,
                        ThreadPool* pool) {
  const AttentionParams& p = params.forward;
  const int64_t heads = p.batch * p.kv_heads;
  ScratchSlots slots(scratch, static_cast<size_t>(Slot(p).size) * sizeof(float), ScratchSlots::count(max_threads, heads));
  const int64_t cost = 5 * p.q_heads / p.kv_heads * p.q_length * p.kv_length * (p.head_size + p.v_head_size);
  parallel_for(pool, heads, std::clamp<int64_t>(100'000 / std::max<int64_t>(1, cost), 1, std::max<int64_t>(1, heads)),
               [&](int64_t begin, int64_t end) {
                 ScratchSlots::Lease slot(slots);
                 for (int64_t i = begin; i < end; ++i)
                   Head(params, data, i / p.kv_heads, i % p.kv_heads, reinterpret_cast<float*>(slot.data())).run();
               });
}

}  // namespace treadle::kernels
