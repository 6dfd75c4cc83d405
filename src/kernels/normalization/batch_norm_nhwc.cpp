#include "kernels/normalization/batch_norm_nhwc.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/normalization/batch_norm_nhwc.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>

#include "kernels/partial-inl.h"
#include "kernels/scratch_slots.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

constexpr int kVectors = 4;  // number of vectors of channels that are summed together to hide latency

/// Calls body(c, first lanes) for groups of channels. Its template arguments: kCount, the number of vectors; kCut, true if partial.
template <typename Body>
HWY_INLINE void each_channel(int64_t C, Body body) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t c = 0;
  for (; c + kVectors * lanes <= C; c += kVectors * lanes) body.template operator()<kVectors, false>(c, FirstLanes(d, lanes));
  for (; c + lanes <= C; c += lanes) body.template operator()<1, false>(c, FirstLanes(d, lanes));
  if (c < C) body.template operator()<1, true>(c, FirstLanes(d, C - c));
}

template <bool kCut, class Rest>
HWY_INLINE V load_channels(const float* from, const Rest& rest) {
  const D d;
  if constexpr (kCut) return load_first(d, rest, from);
  return hn::LoadU(d, from);
}
template <bool kCut, class Rest>
HWY_INLINE void store_channels(V v, float* to, const Rest& rest) {
  const D d;
  if constexpr (kCut) {
    store_first(v, d, rest, to);
  } else {
    hn::StoreU(v, d, to);
  }
}
#define TREADLE_EACH _Pragma("GCC unroll 4") for (int v = 0; v < kCount; ++v)

}  // namespace

/// Computes, over a few rows, mean[c] and squares[c], the sum of squared differences from the mean.
void block_moments(int64_t rows, int64_t C, const float* x, float* mean, float* squares) {
  each_channel(C, [&]<int kCount, bool kCut>(int64_t c, const auto& rest) {
    const D d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    V sum[kCount], square[kCount];
    TREADLE_EACH sum[v] = square[v] = hn::Zero(d);
    for (int64_t r = 0; r < rows; ++r) TREADLE_EACH sum[v] = hn::Add(sum[v], load_channels<kCut>(x + r * C + c + v * lanes, rest));
    const V count = hn::Set(d, static_cast<float>(rows));
    TREADLE_EACH sum[v] = hn::Div(sum[v], count);
    for (int64_t r = 0; r < rows; ++r) {
      TREADLE_EACH {
        const V from_mean = hn::Sub(load_channels<kCut>(x + r * C + c + v * lanes, rest), sum[v]);
        square[v] = hn::MulAdd(from_mean, from_mean, square[v]);
      }
    }
    TREADLE_EACH store_channels<kCut>(sum[v], mean + c + v * lanes, rest);
    TREADLE_EACH store_channels<kCut>(square[v], squares + c + v * lanes, rest);
  });
}

using Passes = BatchNormGate::Passes;

/// The parameters of a BatchNormGate for one vector of channels.
template <Passes kPasses>
struct Gate {
  V factor, bias, low, high;

  template <bool kCut, class Rest>
  HWY_INLINE void load(const BatchNormGate& gate, int64_t at, const Rest& rest) {
    if constexpr (kPasses != Passes::always) {
      const D d;
      factor = load_channels<kCut>(gate.factor + at, rest), bias = load_channels<kCut>(gate.bias + at, rest);
      low = hn::Set(d, gate.low), high = hn::Set(d, gate.high);
    }
  }
  /// Returns the gradient where the gate passes it, otherwise 0. y is rounded as by the separate operators.
  HWY_INLINE V of(V gradient, V from_mean) const {
    if constexpr (kPasses == Passes::always) return gradient;
    const V y = hn::Add(hn::Mul(from_mean, factor), bias);
    if constexpr (kPasses == Passes::above) return hn::IfThenElseZero(hn::Gt(y, low), gradient);
    return hn::IfThenZeroElse(hn::Or(hn::Lt(y, low), hn::Gt(y, high)), gradient);
  }
};

/// Computes, for a few rows, total[c] = sum of dy and dot[c] = sum of dy (x - mean).
template <Passes kPasses>
HWY_INLINE void products(int64_t rows, int64_t C, const float* dy, const BatchNormGate& through, const float* x, const float* mean,
                         float* total, float* dot) {
  each_channel(C, [&]<int kCount, bool kCut>(int64_t c, const auto& rest) {
    const D d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    V sum[kCount], product[kCount], center[kCount];
    Gate<kPasses> gate[kCount];
    TREADLE_EACH {
      sum[v] = product[v] = hn::Zero(d), center[v] = load_channels<kCut>(mean + c + v * lanes, rest);
      gate[v].template load<kCut>(through, c + v * lanes, rest);
    }
    for (int64_t r = 0; r < rows; ++r) {
      TREADLE_EACH {
        const int64_t at = r * C + c + v * lanes;
        const V from_mean = hn::Sub(load_channels<kCut>(x + at, rest), center[v]);
        const V gradient = gate[v].of(load_channels<kCut>(dy + at, rest), from_mean);
        sum[v] = hn::Add(sum[v], gradient);
        product[v] = hn::MulAdd(gradient, from_mean, product[v]);
      }
    }
    TREADLE_EACH store_channels<kCut>(sum[v], total + c + v * lanes, rest);
    TREADLE_EACH store_channels<kCut>(product[v], dot + c + v * lanes, rest);
  });
}

/// Computes dx = factor * (dy - shift - (x - mean) * slope), with per-channel coefficients.
template <Passes kPasses>
HWY_INLINE void gradients(int64_t rows, int64_t C, const float* dy, const BatchNormGate& through, const float* x, const float* mean,
                          const float* factor, const float* shift, const float* slope, float* dx) {
  each_channel(C, [&]<int kCount, bool kCut>(int64_t c, const auto& rest) {
    const D d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    V center[kCount], by[kCount], off[kCount], down[kCount];
    Gate<kPasses> gate[kCount];
    TREADLE_EACH {
      const int64_t at = c + v * lanes;
      center[v] = load_channels<kCut>(mean + at, rest), by[v] = load_channels<kCut>(factor + at, rest);
      off[v] = load_channels<kCut>(shift + at, rest), down[v] = load_channels<kCut>(slope + at, rest);
      gate[v].template load<kCut>(through, at, rest);
    }
    for (int64_t r = 0; r < rows; ++r) {
      TREADLE_EACH {
        const int64_t at = r * C + c + v * lanes;
        const V from_mean = hn::Sub(load_channels<kCut>(x + at, rest), center[v]);
        const V gradient = hn::Sub(gate[v].of(load_channels<kCut>(dy + at, rest), from_mean), off[v]);
        store_channels<kCut>(hn::Mul(by[v], hn::NegMulAdd(from_mean, down[v], gradient)), dx + at, rest);
      }
    }
  });
}

void block_products(int64_t rows, int64_t C, const float* dy, const BatchNormGate& gate, const float* x, const float* mean, float* total,
                    float* dot) {
  switch (gate.passes) {
    case Passes::always: return products<Passes::always>(rows, C, dy, gate, x, mean, total, dot);
    case Passes::above: return products<Passes::above>(rows, C, dy, gate, x, mean, total, dot);
    case Passes::within: return products<Passes::within>(rows, C, dy, gate, x, mean, total, dot);
  }
}
void gradient_rows(int64_t rows, int64_t C, const float* dy, const BatchNormGate& gate, const float* x, const float* mean,
                   const float* factor, const float* shift, const float* slope, float* dx) {
  switch (gate.passes) {
    case Passes::always: return gradients<Passes::always>(rows, C, dy, gate, x, mean, factor, shift, slope, dx);
    case Passes::above: return gradients<Passes::above>(rows, C, dy, gate, x, mean, factor, shift, slope, dx);
    case Passes::within: return gradients<Passes::within>(rows, C, dy, gate, x, mean, factor, shift, slope, dx);
  }
}
#undef TREADLE_EACH

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace treadle::kernels {
namespace {

HWY_EXPORT(block_moments);
HWY_EXPORT(block_products);
HWY_EXPORT(gradient_rows);

constexpr int64_t kBlockRows = 64;    // number of rows that are summed in float; a block stays in L1 or L2
constexpr int64_t kMostParts = 32;    // maximum number of parts, which threads sum separately
constexpr int64_t kLeastRows = 1024;  // minimum number of rows of a part

/// Divides the rows into parts that depend only on the sizes.
struct RowParts {
  int64_t count, each;
  explicit RowParts(int64_t rows) : count(std::clamp<int64_t>(rows / kLeastRows, 1, kMostParts)), each((rows + count - 1) / count) {}
};

/// Returns the scratch bytes of a part of RowParts: per channel two doubles and two floats.
size_t part_bytes(int64_t C) { return 2 * aligned_bytes<double>(C) + 2 * aligned_bytes<float>(C); }
struct PartSums {
  double *first, *second;
  float *block_first, *block_second;
  PartSums(void* scratch, int64_t part, int64_t C) {
    std::byte* at = static_cast<std::byte*>(scratch) + static_cast<size_t>(part) * part_bytes(C);
    first = reinterpret_cast<double*>(at), second = reinterpret_cast<double*>(at + aligned_bytes<double>(C));
    block_first = reinterpret_cast<float*>(at + 2 * aligned_bytes<double>(C));
    block_second = reinterpret_cast<float*>(at + 2 * aligned_bytes<double>(C) + aligned_bytes<float>(C));
  }
};

/// Merges the mean and sum of squares of `count` numbers with those of `more` numbers (Chan, Golub and LeVeque).
void join(double count, double& mean, double& squares, double more, double other_mean, double other_squares) {
  const double difference = other_mean - mean, all = count + more;
  squares += other_squares + difference * difference * count * more / all;
  mean += difference * more / all;
}

}  // namespace

size_t batch_norm_nhwc_scratch_bytes(int64_t rows, int64_t C) {
  return static_cast<size_t>(RowParts(rows).count) * part_bytes(C) + 3 * aligned_bytes<float>(C);
}

void moments_nhwc(int64_t rows, int64_t C, const float* x, float* mean, float* variance, void* scratch, ThreadPool* pool) {
  const RowParts parts(rows);
  parallel_for(pool, parts.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const PartSums sums(scratch, part, C);
      std::fill_n(sums.first, C, 0.0), std::fill_n(sums.second, C, 0.0);
      const int64_t first = part * parts.each, last = std::min(rows, first + parts.each);
      for (int64_t r = first; r < last; r += kBlockRows) {
        const int64_t count = std::min(kBlockRows, last - r);
        HWY_DYNAMIC_DISPATCH(block_moments)(count, C, x + r * C, sums.block_first, sums.block_second);
        for (int64_t c = 0; c < C; ++c)
          join(static_cast<double>(r - first), sums.first[c], sums.second[c], static_cast<double>(count),
               static_cast<double>(sums.block_first[c]), static_cast<double>(sums.block_second[c]));
      }
    }
  });
  const PartSums all(scratch, 0, C);
  int64_t before = std::min(rows, parts.each);
  for (int64_t part = 1; part < parts.count; ++part) {
    const PartSums sums(scratch, part, C);
    const int64_t count = std::min(rows, (part + 1) * parts.each) - std::min(rows, part * parts.each);
    if (count <= 0) continue;
    for (int64_t c = 0; c < C; ++c)
      join(static_cast<double>(before), all.first[c], all.second[c], static_cast<double>(count), sums.first[c], sums.second[c]);
    before += count;
  }
  for (int64_t c = 0; c < C; ++c) {
    mean[c] = static_cast<float>(all.first[c]);
    variance[c] = static_cast<float>(all.second[c] / static_cast<double>(rows));
  }
}

size_t batch_norm_gradient_nhwc_scratch_bytes(int64_t rows, int64_t C, bool is_computed) {
  const size_t computed = static_cast<size_t>(RowParts(rows).count) * aligned_bytes<float>(std::min(rows, kBlockRows) * C);
  return batch_norm_nhwc_scratch_bytes(rows, C) + (is_computed ? computed : 0);
}

void batch_norm_gradient_nhwc(int64_t rows, int64_t C, const GradientRows& dy, bool is_computed, const BatchNormGate& gate, const float* x,
                              const float* scale, const float* mean, const float* inverse, float* dx, float* dscale, float* dbias,
                              void* scratch, ThreadPool* pool) {
  const RowParts parts(rows);
  const bool stays_in_dx = is_computed && dx != nullptr && dx != x;  // true: the first pass stores dy in dx, the second reads it
  auto each_block = [&](int64_t part, const auto& body) {
    const int64_t last = std::min(rows, (part + 1) * parts.each);
    for (int64_t r = part * parts.each; r < last; r += kBlockRows) body(r, std::min(kBlockRows, last - r));
  };
  auto rows_of_gradient = [&](int64_t part, int64_t r, int64_t count) {
    float* buffer = reinterpret_cast<float*>(static_cast<std::byte*>(scratch) + batch_norm_nhwc_scratch_bytes(rows, C) +
                                             static_cast<size_t>(part) * aligned_bytes<float>(std::min(rows, kBlockRows) * C));
    return dy.rows(r, count, stays_in_dx ? dx + r * C : buffer);
  };
  parallel_for(pool, parts.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const PartSums sums(scratch, part, C);
      std::fill_n(sums.first, C, 0.0), std::fill_n(sums.second, C, 0.0);
      each_block(part, [&](int64_t r, int64_t count) {
        HWY_DYNAMIC_DISPATCH(block_products)
        (count, C, rows_of_gradient(part, r, count), gate, x + r * C, mean, sums.block_first, sums.block_second);
        for (int64_t c = 0; c < C; ++c)
          sums.first[c] += static_cast<double>(sums.block_first[c]), sums.second[c] += static_cast<double>(sums.block_second[c]);
      });
    }
  });
  auto* factor = reinterpret_cast<float*>(static_cast<std::byte*>(scratch) + static_cast<size_t>(parts.count) * part_bytes(C));
  float *shift = factor + aligned_bytes<float>(C) / sizeof(float), *slope = shift + aligned_bytes<float>(C) / sizeof(float);
  const double count = static_cast<double>(rows);
  for (int64_t c = 0; c < C; ++c) {
    double total = 0, dot = 0;
    for (int64_t part = 0; part < parts.count; ++part)
      total += PartSums(scratch, part, C).first[c], dot += PartSums(scratch, part, C).second[c];
    const double by = static_cast<double>(inverse[c]);
    if (dscale != nullptr) dscale[c] = static_cast<float>(dot * by);
    if (dbias != nullptr) dbias[c] = static_cast<float>(total);
    factor[c] = static_cast<float>(static_cast<double>(scale[c]) * by), shift[c] = static_cast<float>(total / count);
    slope[c] = static_cast<float>(dot * by * by / count);
  }
  if (dx == nullptr) return;
  parallel_for(pool, parts.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part)
      each_block(part, [&](int64_t r, int64_t count_here) {
        const float* gradient = stays_in_dx ? dx + r * C : rows_of_gradient(part, r, count_here);
        HWY_DYNAMIC_DISPATCH(gradient_rows)(count_here, C, gradient, gate, x + r * C, mean, factor, shift, slope, dx + r * C);
      });
  });
}

}  // namespace treadle::kernels
#endif
