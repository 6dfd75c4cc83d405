#include "kernels/gemm/gemm_int8_weights.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gemm/gemm_int8_weights.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/trace/kernel_phases.h"
#include "kernels/gemm/tile.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Computes dst(k, n) = scales(n) * src(k, n) for rows of `width` elements, a multiple of the vector length.
void expand_rows(const int8_t* src, int64_t rows, int64_t width, const float* scales, float* dst) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> d32;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t n = 0; n < width; n += lanes) {
    const auto scale = hn::LoadU(d, scales + n);
    for (int64_t k = 0; k < rows; ++k) {
      const auto q = hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, src + k * width + n)));
      hn::StoreU(hn::Mul(q, scale), d, dst + k * width + n);
    }
  }
}

// Multiplies a few rows of A by a panel of bytes: sums(m, n) = scales(n) * sum over k of A(m, k) B(k, n).
template <int kRows, int kVectors>
HWY_NOINLINE void multiply_rows(const float* A, int64_t lda, const int8_t* B, int64_t K, const float* scales, float* sums) {
  using D = hn::ScalableTag<float>;
  using V = hn::Vec<D>;
  const D d;
  const hn::RebindToSigned<D> d32;
  const hn::Rebind<int8_t, D> d8;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int kSets = kRows == 1 ? 2 : 1;  // a single row needs two sets of accumulators to hide the latency
  V sum[kSets * kRows][kVectors];
#define TREADLE_EACH_VECTOR _Pragma("GCC unroll 4") for (int v = 0; v < kVectors; ++v)
#define TREADLE_EACH_ROW _Pragma("GCC unroll 4") for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
  for (int r = 0; r < kSets * kRows; ++r) TREADLE_EACH_VECTOR sum[r][v] = hn::Zero(d);
  const auto* HWY_RESTRICT b = B;
  auto widened = [&](int v) HWY_ATTR { return hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, b + v * lanes))); };
  int64_t k = 0;
  for (; k + kSets <= K; k += kSets) {
#pragma GCC unroll 2
    for (int set = 0; set < kSets; ++set, b += kVectors * lanes) {
      TREADLE_EACH_VECTOR {
        const V bv = widened(v);
        TREADLE_EACH_ROW sum[set * kRows + r][v] = hn::MulAdd(hn::Set(d, A[r * lda + k + set]), bv, sum[set * kRows + r][v]);
      }
    }
  }
  if (k < K) TREADLE_EACH_VECTOR sum[0][v] = hn::MulAdd(hn::Set(d, A[k]), widened(v), sum[0][v]);
  TREADLE_EACH_ROW TREADLE_EACH_VECTOR {
    const V total = kSets == 2 ? hn::Add(sum[0][v], sum[kSets - 1][v]) : sum[r][v];
    hn::StoreU(hn::Mul(total, hn::LoadU(d, scales + v * lanes)), d, sums + (r * kVectors + v) * lanes);
  }
#undef TREADLE_EACH_ROW
#undef TREADLE_EACH_VECTOR
}

template <int kRows>
void multiply_panel(int64_t vectors, const float* A, int64_t lda, const int8_t* B, int64_t K, const float* scales, float* sums) {
  switch (vectors) {
    case 1: return multiply_rows<kRows, 1>(A, lda, B, K, scales, sums);
    case 2: return multiply_rows<kRows, 2>(A, lda, B, K, scales, sums);
    case 3: return multiply_rows<kRows, 3>(A, lda, B, K, scales, sums);
    default: return multiply_rows<kRows, 4>(A, lda, B, K, scales, sums);
  }
}

void multiply_few_rows(int64_t rows, int64_t vectors, const float* A, int64_t lda, const int8_t* B, int64_t K, const float* scales,
                       float* sums) {
  switch (rows) {
    case 1: return multiply_panel<1>(vectors, A, lda, B, K, scales, sums);
    case 2: return multiply_panel<2>(vectors, A, lda, B, K, scales, sums);
    case 3: return multiply_panel<3>(vectors, A, lda, B, K, scales, sums);
    default: return multiply_panel<4>(vectors, A, lda, B, K, scales, sums);
  }
}

// Computes, for each column of a panel, the smallest nonzero magnitude and the largest magnitude. If a column has a number that is not
// finite, its largest magnitude is infinity.
void panel_ranges(const float* rows, int64_t K, int64_t width, float* least, float* most) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto infinite = hn::Set(d, std::numeric_limits<float>::infinity());
  for (int64_t n = 0; n < width; n += lanes) {
    auto low = infinite, high = hn::Zero(d);
    for (int64_t k = 0; k < K; ++k) {
      const auto size = hn::Abs(hn::LoadU(d, rows + k * width + n));
      low = hn::Min(low, hn::IfThenElse(hn::Gt(size, hn::Zero(d)), size, infinite));
      high = hn::Max(high, hn::IfThenElse(hn::IsFinite(size), size, infinite));
    }
    hn::StoreU(low, d, least + n);
    hn::StoreU(high, d, most + n);
  }
}

// Sets wrong(n) to 0 if all elements of column n are -128 to 127 times scales(n), up to rounding. inverses(n) is 1 / scales(n), or 0.
void panel_fits(const float* rows, int64_t K, int64_t width, const float* scales, const float* inverses, float* wrong) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto one = hn::Set(d, 1.0F), near = hn::Set(d, 0x1p-21F), lowest = hn::Set(d, -128.0F), highest = hn::Set(d, 127.0F);
  for (int64_t n = 0; n < width; n += lanes) {
    const auto scale = hn::LoadU(d, scales + n), inverse = hn::LoadU(d, inverses + n);
    auto bad = hn::Zero(d);
    for (int64_t k = 0; k < K; ++k) {
      const auto value = hn::LoadU(d, rows + k * width + n), q = hn::Round(hn::Mul(value, inverse));
      const auto off = hn::Abs(hn::Sub(hn::Mul(q, scale), value));
      bad = hn::IfThenElse(hn::Le(off, hn::Mul(hn::Abs(value), near)), bad, one);
      bad = hn::IfThenElse(hn::Lt(q, lowest), one, bad);
      bad = hn::IfThenElse(hn::Gt(q, highest), one, bad);
    }
    hn::StoreU(bad, d, wrong + n);
  }
}

// Computes to(k, n) = rows(k, n) / scales(n) rounded to the nearest integer from -128 to 127; 0 if the quotient is NaN.
void round_panel(const float* rows, int64_t K, int64_t width, const float* scales, int8_t* to) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto lowest = hn::Set(d, -128.0F), highest = hn::Set(d, 127.0F);
  for (int64_t k = 0; k < K; ++k, rows += width, to += width)
    for (int64_t n = 0; n < width; n += lanes) {
      const auto q = hn::Div(hn::LoadU(d, rows + n), hn::LoadU(d, scales + n));
      const auto inside = hn::IfThenZeroElse(hn::IsNaN(q), hn::Min(highest, hn::Max(lowest, q)));
      hn::StoreU(hn::DemoteTo(d8, hn::NearestInt(inside)), d8, to + n);
    }
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(expand_rows);
HWY_EXPORT(multiply_few_rows);
HWY_EXPORT(panel_ranges);
HWY_EXPORT(panel_fits);
HWY_EXPORT(round_panel);

namespace {

constexpr int64_t kRowsPerChunk = 96;          // number of rows, as in gemm.cpp: the block of C stays in L1
constexpr int64_t kMinMacsPerChunk = 100'000;  // minimum number of multiplications per chunk: about 2 us
constexpr int64_t kBlockFloats = 96 * 64;      // number of floats in a block of expanded weights, which stays in L1
constexpr int64_t kFewRows = 4, kMaxPanel = 64;
constexpr float kMostSteps = 128.5F;  // maximum of the largest magnitude in steps, with a tolerance of half a step
constexpr float kLargest = 127, kNan = std::numeric_limits<float>::quiet_NaN();

// Returns a candidate for a column's quantization step: `least` is `times` steps, and `most` a whole number of steps. Returns 0 if `most`
// is too many steps. The step is derived from `most`, whose relative rounding error is the smallest.
float step_of(float least, float most, float times) {
  if (most == 0 || !std::isfinite(most) || !(times * most <= kMostSteps * least)) return 0;
  return most / std::nearbyint(times * most / least);
}

bool is_multiple(float value, float step) {
  const float q = std::nearbyint(value / step);
  return q >= -128 && q <= kLargest && std::abs(q * step - value) <= std::abs(value) * 0x1p-21F;
}

// A panel of B, copied to contiguous rows, with a scale for each column.
class PanelScales {
 public:
  PanelScales(const float* B, int64_t K, int64_t ldb, bool transposed, const Panels& panels, int64_t panel)
      : K_(K), width_(panels.width_vectors(panel) * panels.lanes), rows_(static_cast<size_t>(K * width_)) {
    const int64_t n0 = panels.first_column(panel), columns = std::min(width_, panels.N - n0);
    pack_b(B + n0 * (transposed ? ldb : 1), K, columns, ldb, transposed, rows_.data());
    HWY_DYNAMIC_DISPATCH(panel_ranges)(rows_.data(), K_, width_, least_, most_);
    for (int64_t n = 0; n < width_; ++n) set(n, step_of(least_[n], most_[n], 1));
    HWY_DYNAMIC_DISPATCH(panel_fits)(rows_.data(), K_, width_, scales_, inverses_, wrong_);
    for (int64_t n = 0; n < width_; ++n) {
      float step = 0;
      for (float times = 2; wrong_[n] != 0 && (step = step_of(least_[n], most_[n], times)) > 0; ++times) {
        set(n, step);
        wrong_[n] = fits(n) ? 0 : 1;
      }
    }
  }

  /// Returns true if each column has a step such that all its elements are -128 to 127 steps.
  bool all_fit() const {
    return std::all_of(wrong_, wrong_ + width_, [](float wrong) { return wrong == 0; });
  }
  /// Rounds the panel and writes each column's scale: the step of which all elements are multiples; if there is no such step, the largest
  /// magnitude / 127; NaN if the column has an infinite or NaN element.
  void pack(int8_t* data, float* scales) {
    for (int64_t n = 0; n < width_; ++n) {
      if (wrong_[n] != 0) set(n, std::isinf(most_[n]) ? kNan : most_[n] / kLargest);
      scales[n] = scales_[n];
    }
    HWY_DYNAMIC_DISPATCH(round_panel)(rows_.data(), K_, width_, scales_, data);
  }

 private:
  void set(int64_t n, float scale) { scales_[n] = scale, inverses_[n] = scale > 0 ? 1 / scale : 0; }
  bool fits(int64_t n) const {
    for (int64_t k = 0; k < K_; ++k)
      if (!is_multiple(rows_[static_cast<size_t>(k * width_ + n)], scales_[n])) return false;
    return true;
  }

  int64_t K_, width_;
  std::vector<float> rows_;
  float least_[kMaxPanel], most_[kMaxPanel], scales_[kMaxPanel], inverses_[kMaxPanel];
  float wrong_[kMaxPanel];  // nonzero for a column whose elements are not multiples of its scale
};

// Returns true if 16 elements of the first column show that the weights cannot be 8-bit numbers. This rejects nearly all other weights, and
// reads only a small part of a memory-mapped file.
bool first_numbers_cannot_fit(const float* B, int64_t K, int64_t step) {
  float first[16], least = std::numeric_limits<float>::infinity(), most = 0;
  const int64_t count = std::min<int64_t>(16, K);
  for (int64_t k = 0; k < count; ++k) {
    std::memcpy(first + k, reinterpret_cast<const std::byte*>(B) + k * step * static_cast<int64_t>(sizeof(float)), sizeof(float));
    const float size = std::abs(first[k]);
    if (!std::isfinite(size)) return true;
    if (size > 0) least = std::min(least, size);
    most = std::max(most, size);
  }
  if (most == 0) return false;
  float scale = 0;
  for (float times = 1; (scale = step_of(least, most, times)) > 0; ++times)
    if (std::all_of(first, first + count, [&](float value) { return is_multiple(value, scale); })) return false;
  return true;
}

// Multiplies one panel by at most kFewRows rows, reading the panel once.
void panel_few_rows(int64_t M, const float* A, int64_t lda, const PackedInt8Weights& B, const Panels& panels, int64_t panel, float* C,
                    int64_t ldc, const Epilogue<float>& e) {
  alignas(64) float sums[kFewRows * kMaxPanel];
  const int64_t n0 = panels.first_column(panel), vectors = panels.width_vectors(panel), width = vectors * panels.lanes;
  HWY_DYNAMIC_DISPATCH(multiply_few_rows)(M, vectors, A, lda, B.data + B.K * n0, B.K, B.scales + n0, sums);
  const int64_t columns = std::min(width, B.N - n0);
  for (int64_t m = 0; m < M; ++m) {
    float* c = C + m * ldc + n0;
    for (int64_t n = 0; n < columns; ++n) {
      float value = sums[m * width + n];
      if (e.bias != nullptr) value += e.beta * e.bias[m * e.bias_row + (n0 + n) * e.bias_col];
      if (e.residual != nullptr) value += e.residual[m * e.residual_row + n0 + n];
      c[n] = value;
    }
    if (e.activation != Unary::none) unary_f32(e.activation, e.a, e.b, c, c, columns);
  }
}

// Multiplies rows [begin, end) of A by one panel, one block of K at a time; C contains the partial sum.
void panel_rows(int64_t begin, int64_t end, const float* A, int64_t lda, const PackedInt8Weights& B, const Panels& panels, int64_t panel,
                float* C, int64_t ldc, const Epilogue<float>& e) {
  alignas(64) float block[kBlockFloats];
  const int64_t n0 = panels.first_column(panel), vectors = panels.width_vectors(panel), width = vectors * panels.lanes;
  const int64_t depth = std::max<int64_t>(1, kBlockFloats / width), blocks = std::max<int64_t>(1, (B.K + depth - 1) / depth);
  Epilogue<float> own = e;
  own.bias = nullptr;
  own.activation = Unary::none;
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t k0 = B.K * i / blocks, k1 = B.K * (i + 1) / blocks;
    if (k1 > k0) HWY_DYNAMIC_DISPATCH(expand_rows)(B.data + B.K * n0 + k0 * width, k1 - k0, width, B.scales + n0, block);
    if (i + 1 == blocks) own.bias = e.bias, own.activation = e.activation;
    run_tile<float>({.A = A + k0,
                     .a_row = lda,
                     .a_col = 1,
                     .B = block,
                     .b_row = width,
                     .vectors = vectors,
                     .C = C + n0,
                     .ldc = ldc,
                     .K = k1 - k0,
                     .row_begin = begin,
                     .row_end = end,
                     .first_column = n0,
                     .columns = std::min(width, B.N - n0),
                     .epilogue = &own});
    own.residual = C;
    own.residual_row = ldc;
  }
}

}  // namespace

int64_t packed_int8_scales(int64_t N) { return Panels(N, panel_shape<float>()).padded_columns(); }
int64_t packed_int8_size(int64_t K, int64_t N) { return K * packed_int8_scales(N); }

PackedInt8Weights pack_int8_weights(const float* B, int64_t K, int64_t N, int64_t ldb, bool transposed, int8_t* data, float* scales) {
  if (K == 0) {
    std::fill_n(scales, packed_int8_scales(N), 0.0F);
    return {K, N, data, scales};
  }
  const Panels panels(N, panel_shape<float>());
  for (int64_t panel = 0; panel < panels.count; ++panel) {
    const int64_t n0 = panels.first_column(panel);
    PanelScales(B, K, ldb, transposed, panels, panel).pack(data + K * n0, scales + n0);
  }
  return {K, N, data, scales};
}

bool are_int8_weights(const float* B, int64_t K, int64_t N, int64_t ldb, bool transposed) {
  if (K == 0 || N == 0) return true;
  if (first_numbers_cannot_fit(B, K, transposed ? 1 : ldb)) return false;
  const Panels panels(N, panel_shape<float>());
  for (int64_t panel = 0; panel < panels.count; ++panel)
    if (!PanelScales(B, K, ldb, transposed, panels, panel).all_fit()) return false;
  return true;
}

void gemm_int8_weights(int64_t M, const float* A, int64_t lda, const PackedInt8Weights& B, float* C, int64_t ldc,
                       const Epilogue<float>& epilogue, ThreadPool* pool) {
  if (M <= 0 || B.N <= 0) return;
  const PhaseScope phase(KernelPhase::compute);
  const Panels panels(B.N, panel_shape<float>());
  const int64_t chunks = (M + kRowsPerChunk - 1) / kRowsPerChunk;
  const int64_t macs = std::max<int64_t>(1, B.K * std::min(M, kRowsPerChunk) * (panels.vectors + 1) * panels.lanes);
  parallel_for(pool, panels.count * chunks, std::max<int64_t>(1, kMinMacsPerChunk / macs), [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item)
      if (M <= kFewRows) {
        panel_few_rows(M, A, lda, B, panels, item, C, ldc, epilogue);
      } else {
        panel_rows(M * (item % chunks) / chunks, M * (item % chunks + 1) / chunks, A, lda, B, panels, item / chunks, C, ldc, epilogue);
      }
  });
}

}  // namespace treadle::kernels
#endif
