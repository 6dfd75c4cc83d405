#include "kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "core/trace/kernel_phases.h"
#include "kernels/attention/rows.h"
#include "kernels/elementwise/unary_f32.h"
#include "kernels/gemm/gemm.h"
#include "kernels/scratch_slots.h"

namespace treadle::kernels {
namespace {

// A thread computes one tile of queries at a time, and packs keys and values once per tile. It computes the scores in blocks of rows that
// fit L1: this needs less memory than all scores of a tile, and is as fast.
constexpr int64_t kTileElements = 256 * 1024, kBlockElements = 6 * 1024, kLeastBlock = 12;
constexpr int64_t kWholeTileElements = 64 * 1024;  // with bfloat16: a tile is then one block, as each product packs its operands itself
constexpr int64_t kFewRows = 4;                    // with at most this many query rows, packing keys and values does not pay

int64_t tile_rows(const AttentionParams& p) {
  const int64_t elements = p.bf16 ? kWholeTileElements : kTileElements, most = p.row_heads > 1 ? kFewRows : p.q_length;
  return std::clamp<int64_t>(elements / std::max<int64_t>(1, p.kv_length), 1,
                             std::clamp<int64_t>(p.q_length, 1, std::max<int64_t>(1, most)));
}
int64_t block_rows(const AttentionParams& p) {
  if (p.bf16) return tile_rows(p);
  const int64_t fit = kBlockElements / std::max<int64_t>(1, scores_row(p)) / kLeastBlock * kLeastBlock;
  return std::min(tile_rows(p), std::max(kLeastBlock, fit));
}
bool packs(const AttentionParams& p, int64_t rows) { return !p.bf16 && rows > kFewRows; }
int64_t num_tiles(const AttentionParams& p) { return (p.q_length + tile_rows(p) - 1) / tile_rows(p); }

GemmShape scores_shape(const AttentionParams& p, int64_t rows, int64_t keys) {
  GemmShape s;
  s.M = rows, s.N = keys, s.K = p.head_size;
  s.a_row = p.q.row, s.ldb = p.k.row, s.b_transposed = true, s.ldc = scores_row(p);
  return s;
}
GemmShape values_shape(const AttentionParams& p, int64_t rows, int64_t keys) {
  GemmShape s;
  s.M = rows, s.N = p.v_head_size, s.K = keys;
  s.a_row = scores_row(p), s.ldb = p.v.row, s.ldc = p.y.row;
  return s;
}

/// Returns the scratch bytes of a product that packs its operands itself: in bfloat16 every product, otherwise a product of a few rows.
template <typename T>
size_t product_bytes(GemmShape s, const std::optional<Bf16Form>& bf16) {
  const size_t rounded = bf16 ? gemm_bf16_unpacked_scratch_bytes(s, *bf16) : 0;
  s.M = std::min(s.M, kFewRows);  // the last tile may have only a few rows
  return std::max(rounded, gemm_scratch_bytes<T>(s, 1));
}

/// Multiplies A by the keys or values B, or by their packed copy `packed` if there is one.
template <typename T>
void multiply(const AttentionParams& p, const GemmShape& s, const T* A, const T* B, const PackedB<T>& packed, T* C,
              const Epilogue<T>& epilogue, void* work) {
  if (packed.data != nullptr) return gemm<T>(s.M, {A, s.a_row, 1}, packed, C, s.ldc, epilogue, nullptr);
  if constexpr (std::is_same_v<T, float>) {
    if (p.bf16 && s.M > kFewRows) return gemm_bf16_unpacked(s, A, B, C, epilogue, *p.bf16, work);
  }
  gemm_batched<T>(s, {}, A, B, C, epilogue, work, 1, nullptr);
}

/// The layout of the working memory of one tile; the scores come first.
template <typename T>
struct Slot {
  size_t factors, keys, values, work, bytes;  // offsets in bytes, and the total size

  explicit Slot(const AttentionParams& p) {
    const bool packed = packs(p, tile_rows(p));
    factors = aligned_bytes<T>(block_rows(p) * scores_row(p));
    keys = factors + aligned_bytes<T>(block_rows(p));
    values = keys + (packed ? aligned_bytes<T>(packed_b_size<T>(p.head_size, p.kv_length)) : 0);
    work = values + (packed ? aligned_bytes<T>(packed_b_size<T>(p.kv_length, p.v_head_size)) : 0);
    const size_t product = std::max(product_bytes<T>(scores_shape(p, block_rows(p), p.kv_length), p.bf16),
                                    product_bytes<T>(values_shape(p, block_rows(p), p.kv_length), p.bf16));
    bytes = work + aligned_bytes<char>(static_cast<int64_t>(product));
  }
};

void tanh_row(float* row, int64_t n) { tanh_f32(row, row, n); }
void tanh_row(double* row, int64_t n) {
  for (int64_t i = 0; i < n; ++i) row[i] = std::tanh(row[i]);
}

/// A range [first, last) of keys, for example those that a query may see under the causal mask, the window and the cache length.
struct Span {
  int64_t first, last;
  int64_t size() const { return last - first; }
};
Span visible(const AttentionParams& p, int64_t row, const int64_t* valid_length) {
  const int64_t offset = valid_length ? *valid_length - p.q_length / p.row_heads : p.past_length, place = offset + row / p.row_heads;
  Span s{0, p.kv_length};
  if (valid_length) s.last = std::min(s.last, *valid_length);
  if (p.causal) s.last = std::min(s.last, place + 1);
  if (p.right_window >= 0) s.last = std::min(s.last, place + p.right_window + 1);
  if (p.left_window >= 0) s.first = std::max(s.first, place - p.left_window);
  if (p.mask_length < p.kv_length) s.last = std::min(s.last, p.mask_length);
  s.last = std::max(s.last, s.first = std::min(s.first, p.kv_length));
  return s;
}

/// Returns the keys whose scores a tile computes: all keys that any of its rows sees, and at least one key, so that every row has a score.
template <typename T>
Span keys_of_tile(const AttentionParams& p, const AttentionData<T>& data, int64_t b, int64_t first, int64_t rows) {
  if (data.scores) return {0, p.kv_length};
  const int64_t* valid_length = data.valid_lengths ? data.valid_lengths + b : nullptr;
  // With each next row, the bounds set by the causal mask and the windows only increase, so the first and the last row determine the range.
  const Span head = visible(p, first, valid_length), tail = visible(p, first + rows - 1, valid_length);
  const int64_t begin = std::clamp<int64_t>(std::min(head.first, tail.first), 0, std::max<int64_t>(0, p.kv_length - 1));
  return {begin, std::max({head.last, tail.last, std::min(begin + 1, p.kv_length)})};
}

/// Masks a row of scores. @param row  the scores of `keys` for one query
template <typename T>
void mask_row(const AttentionParams& p, const AttentionData<T>& data, int64_t b, int64_t h, int64_t query, const Span& keys, T* row) {
  constexpr T kMasked = -std::numeric_limits<T>::infinity();
  const Span all = visible(p, query, data.valid_lengths ? data.valid_lengths + b : nullptr);
  const Span seen{std::clamp(all.first, keys.first, keys.last), std::clamp(all.last, keys.first, keys.last)};
  std::fill(row, row + (seen.first - keys.first), kMasked);
  std::fill(row + (seen.last - keys.first), row + keys.size(), kMasked);
  const int64_t mask = b * p.mask_batch + h * p.mask_head + query * p.mask_row;
  row += seen.first - keys.first;
  if constexpr (std::is_same_v<T, float>) {
    if (p.mask_column == 1 && data.bias) return add_bias_row(row, data.bias + mask + seen.first, seen.size());
    if (p.mask_column == 1 && data.keep)
      return mask_row_f32(row, data.keep + mask + seen.first, p.keeps, static_cast<float>(p.masked), seen.size());
  }
  if (data.bias) {
    for (int64_t k = seen.first; k < seen.last; ++k, ++row) {
      const T bias = data.bias[mask + k * p.mask_column];
      *row = bias == kMasked ? kMasked : *row + bias;
    }
  } else if (data.keep) {
    for (int64_t k = seen.first; k < seen.last; ++k, ++row)
      if (data.keep[mask + k * p.mask_column] != p.keeps) *row = static_cast<T>(p.masked);
  }
}

}  // namespace

template <typename T>
void mask_scores(const AttentionParams& p, const AttentionData<T>& data, int64_t b, int64_t h, int64_t query, T* row) {
  mask_row(p, data, b, h, query, {0, p.kv_length}, row);
}

namespace {

float softmax_row(float* row, int64_t n, EmptyRows empty) { return softmax_scores(row, n, empty); }
double softmax_row(double* row, int64_t n, EmptyRows empty) {
  constexpr double kLowest = -std::numeric_limits<double>::infinity();
  if (n == 0) return 1;
  double largest = kLowest, sum = 0;
  for (int64_t i = 0; i < n; ++i) largest = row[i] > largest || row[i] != row[i] ? row[i] : largest;
  for (int64_t i = 0; i < n; ++i) sum += row[i] = std::exp(row[i] - largest);
  if (sum != sum && (empty == EmptyRows::zero_for_nan || (empty == EmptyRows::zero && largest == kLowest))) {
    std::fill_n(row, n, 0.0);
    return 1;
  }
  return 1 / sum;
}
void scale_row(float* row, float factor, int64_t n) { scale_row_f32(row, factor, n); }
void scale_row(double* row, double factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) row[i] *= factor;
}

template <typename T>
void attention_tile(const AttentionParams& p, const AttentionData<T>& data, int64_t b, int64_t h, int64_t first, int64_t rows,
                    std::byte* scratch) {
  const Slot<T> slot(p);
  T *scores = reinterpret_cast<T*>(scratch), *factors = reinterpret_cast<T*>(scratch + slot.factors);
  void* work = scratch + slot.work;
  const int64_t kv_head = h / (p.q_heads / p.kv_heads), stride = scores_row(p);
  const Span seen = keys_of_tile(p, data, b, first, rows);
  const int64_t n = seen.size();
  const T* k = data.k + b * p.k.batch + kv_head * p.k.head + seen.first * p.k.row;
  const T* v = data.v + b * p.v.batch + kv_head * p.v.head + seen.first * p.v.row;
  PackedB<T> keys, values;
  if (packs(p, rows)) {
    keys = pack_b(k, p.head_size, n, p.k.row, true, reinterpret_cast<T*>(scratch + slot.keys));
    values = pack_b(v, n, p.v_head_size, p.v.row, false, reinterpret_cast<T*>(scratch + slot.values));
  }
  Epilogue<T> scaled;
  scaled.alpha = static_cast<T>(p.scale);
  const int64_t blocks = (rows + block_rows(p) - 1) / block_rows(p);
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t begin = first + rows * block / blocks, count = first + rows * (block + 1) / blocks - begin;
    PhaseScope phase(KernelPhase::scores);
    multiply<T>(p, scores_shape(p, count, n), data.q + b * p.q.batch + h * p.q.head + begin * p.q.row, k, keys, scores, scaled, work);
    phase.next(KernelPhase::softmax);
    T* shown = data.scores ? data.scores + ((b * p.q_heads + h) * p.q_length + begin) * n : nullptr;
    for (int64_t r = 0; r < count; ++r) {
      T* row = scores + r * stride;
      auto show = [&](AttentionScores kind) {
        if (shown && data.scores_kind == kind) std::copy_n(row, n, shown + r * n);
      };
      show(AttentionScores::raw);
      if (p.softcap > 0) {
        const T cap = static_cast<T>(p.softcap);
        for (int64_t i = 0; i < n; ++i) row[i] /= cap;
        tanh_row(row, n);
        for (int64_t i = 0; i < n; ++i) row[i] *= cap;
      }
      show(AttentionScores::capped);
      mask_row(p, data, b, h, begin + r, seen, row);
      show(AttentionScores::biased);
      factors[r] = softmax_row(row, n, p.empty_rows);
      if (shown && data.scores_kind == AttentionScores::probabilities) {
        scale_row(row, factors[r], n);
        factors[r] = 1;
      }
      show(AttentionScores::probabilities);
    }
    phase.next(KernelPhase::values);
    T* y = data.y + b * p.y.batch + h * p.y.head + begin * p.y.row;
    multiply<T>(p, values_shape(p, count, n), scores, v, values, y, {}, work);
    phase.next(KernelPhase::epilogue);
    for (int64_t r = 0; r < count; ++r) scale_row(y + r * p.y.row, factors[r], p.v_head_size);
  }
}

/// If there is a single query per head, makes the heads that share keys rows of one head, so that all of them read keys and values once.
AttentionParams with_heads_as_rows(AttentionParams p) {
  const int64_t group = p.q_length == 1 && p.kv_heads > 0 ? p.q_heads / p.kv_heads : 1;
  if (group < 2) return p;
  p.q_heads = p.kv_heads, p.q_length = p.row_heads = group;
  p.q.row = p.q.head, p.q.head *= group;
  p.y.row = p.y.head, p.y.head *= group;
  p.mask_row = p.mask_head, p.mask_head *= group;
  return p;
}

}  // namespace

template <typename T>
size_t attention_scratch_bytes(const AttentionParams& params, int max_threads) {
  const AttentionParams p = with_heads_as_rows(params);
  return Slot<T>(p).bytes * static_cast<size_t>(ScratchSlots::count(max_threads, p.batch * p.q_heads * num_tiles(p)));
}

template <typename T>
void attention(const AttentionParams& params, const AttentionData<T>& data, void* scratch, int max_threads, ThreadPool* pool) {
  const AttentionParams p = with_heads_as_rows(params);
  const int64_t tiles = num_tiles(p), step = tile_rows(p), work = p.batch * p.q_heads * tiles;
  ScratchSlots slots(scratch, Slot<T>(p).bytes, ScratchSlots::count(max_threads, work));
  // Several small tiles form one chunk of parallel work.
  const int64_t cost = 2 * step * p.kv_length * (p.head_size + p.v_head_size);
  parallel_for(pool, work, std::clamp<int64_t>(100'000 / std::max<int64_t>(1, cost), 1, std::max<int64_t>(1, work)),
               [&](int64_t begin, int64_t end) {
                 ScratchSlots::Lease slot(slots);
                 for (int64_t i = begin; i < end; ++i) {
                   const int64_t first = i % tiles * step, h = i / tiles % p.q_heads, b = i / tiles / p.q_heads;
                   attention_tile(p, data, b, h, first, std::min(step, p.q_length - first), slot.data());
                 }
               });
}

template void mask_scores(const AttentionParams&, const AttentionData<float>&, int64_t, int64_t, int64_t, float*);
template void mask_scores(const AttentionParams&, const AttentionData<double>&, int64_t, int64_t, int64_t, double*);
template size_t attention_scratch_bytes<float>(const AttentionParams&, int);
template size_t attention_scratch_bytes<double>(const AttentionParams&, int);
template void attention(const AttentionParams&, const AttentionData<float>&, void*, int, ThreadPool*);
template void attention(const AttentionParams&, const AttentionData<double>&, void*, int, ThreadPool*);

}  // namespace treadle::kernels
