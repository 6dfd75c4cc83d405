#include "kernels/conv/winograd_transform.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/conv/winograd_transform.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/bounds-inl.h"
#include "kernels/movement/transpose_plane.h"
#include "kernels/partial-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

constexpr float kRootHalf = 0.70710678118654752f, kRootTwo = 1.4142135623730950f;

// kOut, the number of outputs along a tile's side, selects F(4x4, 3x3) or F(2x2, 3x3). A tile has kOut + 2 inputs along a side.

// Computes B^T d: evaluates the polynomial of the data at the interpolation points. The points a and -a share their even and odd terms.
template <int kOut>
HWY_INLINE void input_line(D d, const V (&x)[kOut + 2], V (&v)[kOut + 2]) {
  if constexpr (kOut == 2) {
    v[0] = hn::Sub(x[0], x[2]);
    v[1] = hn::Add(x[1], x[2]);
    v[2] = hn::Sub(x[2], x[1]);
    v[3] = hn::Sub(x[1], x[3]);
  } else {
    const V minus_half = hn::Set(d, -0.5f), minus_two = hn::Set(d, -2.0f), minus_five_halves = hn::Set(d, -2.5f);
    const V even1 = hn::MulAdd(x[2], minus_two, x[4]), odd1 = hn::Mul(hn::Set(d, kRootHalf), hn::MulAdd(x[1], minus_two, x[3]));
    const V even2 = hn::MulAdd(x[2], minus_half, x[4]), odd2 = hn::Mul(hn::Set(d, kRootTwo), hn::MulAdd(x[1], minus_half, x[3]));
    v[0] = hn::Add(hn::MulAdd(x[2], minus_five_halves, x[0]), x[4]);
    v[1] = hn::Add(even1, odd1);
    v[2] = hn::Sub(even1, odd1);
    v[3] = hn::Add(even2, odd2);
    v[4] = hn::Sub(even2, odd2);
    v[5] = hn::Add(hn::MulAdd(x[3], minus_five_halves, x[1]), x[5]);
  }
}

// Computes y = A^T m for one line of a tile.
template <int kOut>
HWY_INLINE void output_line(D d, const V (&m)[kOut + 2], V (&y)[kOut]) {
  if constexpr (kOut == 2) {
    y[0] = hn::Add(hn::Add(m[0], m[1]), m[2]);
    y[1] = hn::Sub(hn::Sub(m[1], m[2]), m[3]);
  } else {
    const V sum1 = hn::Add(m[1], m[2]), difference1 = hn::Sub(m[1], m[2]), sum2 = hn::Add(m[3], m[4]), difference2 = hn::Sub(m[3], m[4]);
    y[0] = hn::Add(hn::Add(m[0], sum1), sum2);
    y[1] = hn::MulAdd(difference2, hn::Set(d, kRootTwo), hn::Mul(difference1, hn::Set(d, kRootHalf)));
    y[2] = hn::MulAdd(sum2, hn::Set(d, 2.0f), hn::Mul(sum1, hn::Set(d, 0.5f)));
    y[3] = hn::Add(hn::MulAdd(difference2, hn::Set(d, 2 * kRootTwo), hn::Mul(difference1, hn::Set(d, kRootHalf / 2))), m[5]);
  }
}

// Computes G g: row j of G is 1, a, a^2 at point a, divided by the product of the differences between a and the other finite points.
template <int kOut, class DD, class VD = hn::Vec<DD>>
HWY_INLINE void weight_line(DD d, VD g0, VD g1, VD g2, VD (&u)[kOut + 2]) {
  if constexpr (kOut == 2) {
    const VD half = hn::Set(d, 0.5), even = hn::Mul(half, hn::Add(g0, g2)), odd = hn::Mul(half, g1);
    u[0] = g0;
    u[1] = hn::Add(even, odd);
    u[2] = hn::Sub(even, odd);
    u[3] = g2;
  } else {
    const VD odd1 = hn::Mul(g1, hn::Set(d, 1.4142135623730951 / 3)), odd2 = hn::Mul(g1, hn::Set(d, 1.4142135623730951 / 6));
    const VD even1 = hn::NegMulAdd(g2, hn::Set(d, 1.0 / 3), hn::Mul(g0, hn::Set(d, -2.0 / 3)));
    const VD even2 = hn::MulAdd(g2, hn::Set(d, 1.0 / 3), hn::Mul(g0, hn::Set(d, 1.0 / 6)));
    u[0] = g0;
    u[1] = hn::Sub(even1, odd1);
    u[2] = hn::Add(even1, odd1);
    u[3] = hn::Add(even2, odd2);
    u[4] = hn::Sub(even2, odd2);
    u[5] = g2;
  }
}

template <int kOut>
void weight_tiles(const float* weights, int64_t filter_floats, int64_t channels, int64_t filters, int64_t width, float* packed,
                  int64_t packed_matrix) {
  constexpr int kIn = kOut + 2;
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> narrow;
  using VD = hn::Vec<decltype(d)>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int64_t kBlock = 4;  // number of channels; the taps of so many channels for a wide panel take 9 KB
  constexpr int64_t kMaxWidth = 64;
  HWY_ALIGN float taps[kBlock * 9 * kMaxWidth];
  // Weights in a file may not be aligned for float; such weights are copied first.
  const bool aligned = reinterpret_cast<uintptr_t>(weights) % alignof(float) == 0;
  float copied[kBlock * 9 * kMaxWidth];
  for (int64_t n0 = 0; n0 < width; n0 += kMaxWidth) {
    const int64_t columns = std::min(kMaxWidth, width - n0), count = std::clamp<int64_t>(filters - n0, 0, columns);
    for (int64_t c0 = 0; c0 < channels; c0 += kBlock) {
      const int64_t block = std::min(kBlock, channels - c0);
      const float* from = weights + n0 * filter_floats + c0 * 9;
      for (int64_t n = 0; !aligned && n < count; ++n)
        std::memcpy(copied + n * block * 9, from + n * filter_floats, static_cast<size_t>(block * 9) * sizeof(float));
      transpose_plane(count, block * 9, aligned ? from : copied, aligned ? filter_floats : block * 9, taps, kMaxWidth);
      for (int64_t k = 0; k < block * 9; ++k) std::fill(taps + k * kMaxWidth + count, taps + k * kMaxWidth + columns, 0.0f);
      for (int64_t c = 0; c < block; ++c) {
        for (int64_t n = 0; n < columns; n += lanes) {
          float* to = packed + (c0 + c) * width + n0 + n;
          VD t[kIn][3];
#pragma GCC unroll 3
          for (int j = 0; j < 3; ++j) {
            VD g[3], column[kIn];
#pragma GCC unroll 3
            for (int i = 0; i < 3; ++i) g[i] = hn::PromoteTo(d, hn::LoadU(narrow, taps + (c * 9 + i * 3 + j) * kMaxWidth + n));
            weight_line<kOut>(d, g[0], g[1], g[2], column);
#pragma GCC unroll 6
            for (int i = 0; i < kIn; ++i) t[i][j] = column[i];
          }
#pragma GCC unroll 6
          for (int i = 0; i < kIn; ++i) {
            VD row[kIn];
            weight_line<kOut>(d, t[i][0], t[i][1], t[i][2], row);
#pragma GCC unroll 6
            for (int j = 0; j < kIn; ++j) hn::StoreU(to_float(narrow, row[j]), narrow, to + (i * kIn + j) * packed_matrix);
          }
        }
      }
    }
  }
}

// Transforms one vector of channels of one tile; at(i, j) is its address in row i and column j of the tile.
template <int kOut, bool kCut, class At>
HWY_INLINE void input_vector(D d, [[maybe_unused]] const FirstLanes<D>& first, At at, float* to, int64_t v_matrix) {
  constexpr int kIn = kOut + 2;
  V t[kIn][kIn];  // the tile after the transform of its columns
#pragma GCC unroll 6
  for (int j = 0; j < kIn; ++j) {
    V column[kIn], out[kIn];
#pragma GCC unroll 6
    for (int i = 0; i < kIn; ++i) column[i] = kCut ? load_first(d, first, at(i, j)) : hn::LoadU(d, at(i, j));
    input_line<kOut>(d, column, out);
#pragma GCC unroll 6
    for (int i = 0; i < kIn; ++i) t[i][j] = out[i];
  }
#pragma GCC unroll 6
  for (int i = 0; i < kIn; ++i) {
    V out[kIn];
    input_line<kOut>(d, t[i], out);
#pragma GCC unroll 6
    for (int j = 0; j < kIn; ++j) {
      float* const to_point = to + (i * kIn + j) * v_matrix;
      if constexpr (kCut) {
        store_first(out[j], d, first, to_point);
      } else {
        hn::StoreU(out[j], d, to_point);
      }
    }
  }
}

// Transforms all channels of one tile; at(i, j) is the pixel in row i and column j.
template <int kOut, class At>
HWY_INLINE void input_tile(D d, const WinogradInput& in, float* to, At at) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), whole = in.channels - in.channels % lanes;
  const FirstLanes first(d, in.channels - whole);
  for (int64_t c = 0; c < whole; c += lanes)
    input_vector<kOut, false>(
        d, first, [&](int i, int j) HWY_ATTR { return at(i, j) + c; }, to + c, in.v_matrix);
  if (whole < in.channels)
    input_vector<kOut, true>(
        d, first, [&](int i, int j) HWY_ATTR { return at(i, j) + whole; }, to + whole, in.v_matrix);
}

template <int kOut>
void input_tiles(int64_t begin, int64_t end, const WinogradInput& in) {
  constexpr int kIn = kOut + 2;
  const D d;
  const int64_t x_row = in.columns * in.x_pixel;
  for (int64_t tile = begin; tile < end; ++tile) {
    const int64_t row = in.top + tile / in.tiles_wide * kOut, column = in.left + tile % in.tiles_wide * kOut;
    float* to = in.v + tile * in.v_row;
    if (row >= 0 && column >= 0 && row + kIn <= in.rows && column + kIn <= in.columns) {
      const float* corner = in.x + row * x_row + column * in.x_pixel;
      input_tile<kOut>(d, in, to, [&](int i, int j) HWY_ATTR { return corner + i * x_row + j * in.x_pixel; });
      continue;
    }
    const float* pixels[kIn][kIn];
    for (int i = 0; i < kIn; ++i) {
      for (int j = 0; j < kIn; ++j) {
        const bool inside = row + i >= 0 && row + i < in.rows && column + j >= 0 && column + j < in.columns;
        pixels[i][j] = inside ? in.x + (row + i) * x_row + (column + j) * in.x_pixel : in.zeros;
      }
    }
    input_tile<kOut>(d, in, to, [&](int i, int j) HWY_ATTR { return pixels[i][j]; });
  }
}

template <int kOut>
void output_tiles(int64_t begin, int64_t end, const WinogradOutput& o) {
  constexpr int kIn = kOut + 2;
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const V bottom = hn::Set(d, o.low), top = hn::Set(d, o.high), zero = hn::Zero(d);
  for (int64_t tile = begin; tile < end; ++tile) {
    const float* from = o.m + tile * o.m_row;
    const int64_t row = tile / o.tiles_wide * kOut, column = tile % o.tiles_wide * kOut;
    const int64_t rows = std::min<int64_t>(o.rows - row, kOut), columns = std::min<int64_t>(o.columns - column, kOut);
    const int64_t corner = row * o.columns + column;
    V check = zero;  // sum of 0 * y; it is NaN if any y is not finite
    for (int64_t c = 0; c < o.channels; c += lanes) {
      const bool cut = o.channels - c < lanes;
      const FirstLanes first(d, cut ? o.channels - c : lanes);
      const V shift = o.bias != nullptr ? load_first(d, first, o.bias + c) : zero;
      V t[kOut][kIn];
#pragma GCC unroll 6
      for (int j = 0; j < kIn; ++j) {
        V line[kIn], out[kOut];
#pragma GCC unroll 6
        for (int i = 0; i < kIn; ++i) line[i] = hn::LoadU(d, from + (i * kIn + j) * o.m_matrix + c);
        output_line<kOut>(d, line, out);
#pragma GCC unroll 4
        for (int i = 0; i < kOut; ++i) t[i][j] = out[i];
      }
      V bad = zero;
#pragma GCC unroll 4
      for (int i = 0; i < kOut; ++i) {
        if (i >= rows) break;
        V out[kOut];
        output_line<kOut>(d, t[i], out);
#pragma GCC unroll 4
        for (int j = 0; j < kOut; ++j) {
          if (j >= columns) break;
          bad = hn::MulAdd(out[j], zero, bad);
          const int64_t pixel = corner + i * o.columns + j;
          float* to = o.y + pixel * o.y_pixel + c;
          V y = hn::Add(out[j], shift);
          if (o.residual != nullptr) {
            const float* residual = o.residual + pixel * o.channels + c;
            y = hn::Add(y, cut ? load_first(d, first, residual) : hn::LoadU(d, residual));
          }
          // Clamps, and keeps NaN.
          y = at_most(top, at_least(bottom, y));
          if (cut) {
            store_first(y, d, first, to);
          } else {
            hn::StoreU(y, d, to);
          }
        }
      }
      check = hn::Add(check, hn::IfThenElseZero(first.mask, bad));
    }
    o.finite[tile] = hn::AllTrue(d, hn::Eq(check, zero)) ? 1 : 0;
  }
}

// Computes z = A y; A is the transpose of the matrix in output_line().
template <int kOut>
HWY_INLINE void output_gradient_line(D d, const V (&y)[kOut], V (&z)[kOut + 2]) {
  if constexpr (kOut == 2) {
    z[0] = y[0];
    z[1] = hn::Add(y[0], y[1]);
    z[2] = hn::Sub(y[0], y[1]);
    z[3] = hn::Neg(y[1]);
  } else {
    const V half = hn::Set(d, 0.5f), two = hn::Set(d, 2.0f);
    const V even1 = hn::MulAdd(y[2], half, y[0]), odd1 = hn::Mul(hn::Set(d, kRootHalf), hn::MulAdd(y[3], half, y[1]));
    const V even2 = hn::MulAdd(y[2], two, y[0]), odd2 = hn::Mul(hn::Set(d, kRootTwo), hn::MulAdd(y[3], two, y[1]));
    z[0] = y[0];
    z[1] = hn::Add(even1, odd1);
    z[2] = hn::Sub(even1, odd1);
    z[3] = hn::Add(even2, odd2);
    z[4] = hn::Sub(even2, odd2);
    z[5] = y[3];
  }
}

template <int kOut>
void output_gradient_tiles(int64_t begin, int64_t end, const WinogradOutputGradient& g) {
  constexpr int kIn = kOut + 2;
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t tile = begin; tile < end; ++tile) {
    const int64_t row = tile / g.tiles_wide * kOut, column = tile % g.tiles_wide * kOut;
    const int64_t rows = std::min<int64_t>(g.rows - row, kOut), columns = std::min<int64_t>(g.columns - column, kOut);
    const float* corner = g.dy + (row * g.columns + column) * g.channels;
    for (int64_t c = 0; c < g.channels; c += lanes) {
      const bool cut = g.channels - c < lanes;
      const FirstLanes first(d, cut ? g.channels - c : lanes);
      float* to = g.z + tile * g.z_row + c;
      V t[kIn][kOut];  // the tile after the transform of its columns
#pragma GCC unroll 4
      for (int j = 0; j < kOut; ++j) {
        V y[kOut], z[kIn];
#pragma GCC unroll 4
        for (int i = 0; i < kOut; ++i) {
          const float* from = corner + (i * g.columns + j) * g.channels + c;
          y[i] = i >= rows || j >= columns ? hn::Zero(d) : cut ? load_first(d, first, from) : hn::LoadU(d, from);
        }
        output_gradient_line<kOut>(d, y, z);
#pragma GCC unroll 6
        for (int i = 0; i < kIn; ++i) t[i][j] = z[i];
      }
#pragma GCC unroll 6
      for (int i = 0; i < kIn; ++i) {
        V z[kIn];
        output_gradient_line<kOut>(d, t[i], z);
#pragma GCC unroll 6
        for (int j = 0; j < kIn; ++j) {
          float* const to_point = to + (i * kIn + j) * g.z_matrix;
          if (cut) {
            store_first(z[j], d, first, to_point);
          } else {
            hn::StoreU(z[j], d, to_point);
          }
        }
      }
    }
  }
}

// Computes g = G^T u, the transpose of weight_line().
template <int kOut>
HWY_INLINE void weight_gradient_line(D d, const V (&u)[kOut + 2], V (&g)[3]) {
  if constexpr (kOut == 2) {
    const V half = hn::Set(d, 0.5f), even = hn::Mul(half, hn::Add(u[1], u[2]));
    g[0] = hn::Add(u[0], even);
    g[1] = hn::Mul(half, hn::Sub(u[1], u[2]));
    g[2] = hn::Add(u[3], even);
  } else {
    const V sum1 = hn::Add(u[1], u[2]), difference1 = hn::Sub(u[2], u[1]), sum2 = hn::Add(u[3], u[4]), difference2 = hn::Sub(u[3], u[4]);
    const V third = hn::Set(d, 1.0f / 3);
    g[0] = hn::MulAdd(sum2, hn::Set(d, 1.0f / 6), hn::NegMulAdd(sum1, hn::Set(d, 2.0f / 3), u[0]));
    g[1] = hn::MulAdd(difference2, hn::Set(d, kRootTwo / 6), hn::Mul(difference1, hn::Set(d, kRootTwo / 3)));
    g[2] = hn::MulAdd(hn::Sub(sum2, sum1), third, u[5]);
  }
}

template <int kOut>
bool weights_gradient(const float* s, int64_t s_matrix, int64_t channels, float* dw) {
  constexpr int kIn = kOut + 2;
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int64_t kBlock = 64;  // number of channels whose taps are transposed together
  static_assert(kBlock % hn::MaxLanes(D()) == 0);
  HWY_ALIGN float taps[9 * kBlock];
  V check = hn::Zero(d);  // sum of 0 * dw; it is NaN if any dw is not finite
  for (int64_t c0 = 0; c0 < channels; c0 += kBlock) {
    const int64_t block = std::min(kBlock, channels - c0);
    for (int64_t c = 0; c < block; c += lanes) {
      const FirstLanes first(d, std::min(lanes, block - c));
      V t[3][kIn];
#pragma GCC unroll 6
      for (int j = 0; j < kIn; ++j) {
        V u[kIn], g[3];
#pragma GCC unroll 6
        for (int i = 0; i < kIn; ++i) u[i] = load_first(d, first, s + (i * kIn + j) * s_matrix + c0 + c);
        weight_gradient_line<kOut>(d, u, g);
#pragma GCC unroll 3
        for (int i = 0; i < 3; ++i) t[i][j] = g[i];
      }
#pragma GCC unroll 3
      for (int i = 0; i < 3; ++i) {
        V g[3];
        weight_gradient_line<kOut>(d, t[i], g);
#pragma GCC unroll 3
        for (int j = 0; j < 3; ++j) {
          check = hn::MulAdd(g[j], hn::Zero(d), check);
          hn::Store(g[j], d, taps + (i * 3 + j) * kBlock + c);
        }
      }
    }
    transpose_plane(9, block, taps, kBlock, dw + c0 * 9, 9);
  }
  return hn::AllTrue(d, hn::Eq(check, hn::Zero(d)));
}

}  // namespace

void weights_here(int out, const float* weights, int64_t filter_floats, int64_t channels, int64_t filters, int64_t width, float* packed,
                  int64_t packed_matrix) {
  (out == 2 ? weight_tiles<2> : weight_tiles<4>)(weights, filter_floats, channels, filters, width, packed, packed_matrix);
}
void input_here(int out, int64_t begin, int64_t end, const WinogradInput& input) {
  (out == 2 ? input_tiles<2> : input_tiles<4>)(begin, end, input);
}
void output_here(int out, int64_t begin, int64_t end, const WinogradOutput& o) {
  (out == 2 ? output_tiles<2> : output_tiles<4>)(begin, end, o);
}

void output_gradient_here(int out, int64_t begin, int64_t end, const WinogradOutputGradient& gradient) {
  (out == 2 ? output_gradient_tiles<2> : output_gradient_tiles<4>)(begin, end, gradient);
}
bool weights_gradient_here(int out, const float* s, int64_t s_matrix, int64_t channels, float* dw) {
  return (out == 2 ? weights_gradient<2> : weights_gradient<4>)(s, s_matrix, channels, dw);
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(weights_here);
HWY_EXPORT(input_here);
HWY_EXPORT(output_here);
HWY_EXPORT(output_gradient_here);
HWY_EXPORT(weights_gradient_here);

void winograd_weights(int out, const float* weights, int64_t filter_floats, int64_t channels, int64_t filters, int64_t width, float* packed,
                      int64_t packed_matrix) {
  HWY_DYNAMIC_DISPATCH(weights_here)(out, weights, filter_floats, channels, filters, width, packed, packed_matrix);
}
void winograd_input(int out, int64_t begin, int64_t end, const WinogradInput& input) {
  HWY_DYNAMIC_DISPATCH(input_here)(out, begin, end, input);
}
void winograd_output(int out, int64_t begin, int64_t end, const WinogradOutput& output) {
  HWY_DYNAMIC_DISPATCH(output_here)(out, begin, end, output);
}
void winograd_output_gradient(int out, int64_t begin, int64_t end, const WinogradOutputGradient& gradient) {
  HWY_DYNAMIC_DISPATCH(output_gradient_here)(out, begin, end, gradient);
}
bool winograd_weights_gradient(int out, const float* s, int64_t s_matrix, int64_t channels, float* dw) {
  return HWY_DYNAMIC_DISPATCH(weights_gradient_here)(out, s, s_matrix, channels, dw);
}

}  // namespace treadle::kernels
#endif
