#include "kernels/conv/nhwc_tile.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/conv/nhwc_tile.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// Accumulators, one row of B and a broadcast of A fit the registers. Panels are as wide as the GEMM's, which packs them.
#if HWY_MAX_BYTES >= 64 || HWY_ARCH_ARM_A64
constexpr int kMaxVectors = 4;
constexpr int max_rows(int vectors) { return vectors == 4 ? 6 : vectors == 3 ? 8 : 12; }
#elif HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
constexpr int kMaxVectors = 2;
constexpr int max_rows(int) { return 2; }
#else
constexpr int kMaxVectors = 3;
constexpr int max_rows(int vectors) { return vectors == 3 ? 4 : vectors == 2 ? 6 : 8; }
#endif

#define TREADLE_EACH_ROW _Pragma("GCC unroll 12") for (int r = 0; r < kRows; ++r)
#define TREADLE_EACH_VECTOR _Pragma("GCC unroll 4") for (int v = 0; v < kVectors; ++v)

template <int kRows, int kVectors>
HWY_NOINLINE void tile(const NhwcTile& job, int64_t row) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  V sum[kRows][kVectors];
  TREADLE_EACH_ROW TREADLE_EACH_VECTOR sum[r][v] = hn::Zero(d);
  const float* HWY_RESTRICT b = job.B;
  const int64_t a_row = job.a_row;
  for (int64_t s = 0; s < job.num_segments; ++s) {
    const float* HWY_RESTRICT a = job.A + row * a_row + job.segments[s];
    for (int64_t k = job.length; k > 0; --k) {
      V bv[kVectors];
      TREADLE_EACH_VECTOR bv[v] = hn::LoadU(d, b + v * lanes);
      TREADLE_EACH_ROW {
        const V av = hn::Set(d, a[r * a_row]);
        TREADLE_EACH_VECTOR sum[r][v] = hn::MulAdd(av, bv[v], sum[r][v]);
      }
      ++a;
      b += kVectors * lanes;
    }
  }

  const int64_t last = job.columns - (kVectors - 1) * lanes;
  const bool cut = last < lanes;
  const auto mask = hn::FirstN(d, static_cast<size_t>(std::min(last, lanes)));
  auto load = [&](const float* from, int v) {
    return v == kVectors - 1 && cut ? hn::MaskedLoad(mask, d, from + v * lanes) : hn::LoadU(d, from + v * lanes);
  };
  if (job.bias != nullptr) {
    TREADLE_EACH_VECTOR {
      const V bias = load(job.bias, v);
      TREADLE_EACH_ROW sum[r][v] = hn::Add(sum[r][v], bias);
    }
  }
  if (job.residual != nullptr) {
    const float* residual = job.residual + row * job.ldc;
    TREADLE_EACH_ROW TREADLE_EACH_VECTOR sum[r][v] = hn::Add(sum[r][v], load(residual + r * job.ldc, v));
  }
  const V low = hn::Set(d, job.low), high = hn::Set(d, job.high);
  float* c = job.C + row * job.ldc;
  TREADLE_EACH_ROW {
    TREADLE_EACH_VECTOR {
      // Max and Min return their second operand if one is NaN, so NaN stays.
      const V y = hn::Min(high, hn::Max(low, sum[r][v]));
      float* to = c + r * job.ldc + v * lanes;
      if (v == kVectors - 1 && cut) {
        hn::BlendedStore(y, mask, d, to);
      } else {
        hn::StoreU(y, d, to);
      }
    }
  }
}
#undef TREADLE_EACH_ROW
#undef TREADLE_EACH_VECTOR

template <int kVectors, int kRows = max_rows(kVectors)>
HWY_INLINE void tile_of(int64_t rows, const NhwcTile& job, int64_t row) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return tile_of<kVectors, kRows - 1>(rows, job, row);
  }
  tile<kRows, kVectors>(job, row);
}

// Even blocks: 7 rows are 4 + 3, never 6 + 1.
template <int kVectors = kMaxVectors>
void rows_of(const NhwcTile& job) {
  if constexpr (kVectors > 1) {
    if (job.vectors < kVectors) return rows_of<kVectors - 1>(job);
  }
  const int64_t blocks = (job.rows + max_rows(kVectors) - 1) / max_rows(kVectors);
  const int64_t low = job.rows / blocks, extra = job.rows % blocks;
  int64_t row = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t count = low + (block < extra ? 1 : 0);
    tile_of<kVectors>(count, job, row);
    row += count;
  }
}

}  // namespace

void nhwc_tile_here(const NhwcTile& job) { rows_of(job); }

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(nhwc_tile_here);

void nhwc_tile(const NhwcTile& job) {
  if (job.rows > 0) HWY_DYNAMIC_DISPATCH(nhwc_tile_here)(job);
}

}  // namespace treadle::kernels
#endif
