#include "kernels/conv/nhwc.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "core/base/cpu_info.h"
#include "core/trace/kernel_phases.h"
#include "kernels/conv/depthwise_nhwc.h"
#include "kernels/conv/nhwc_direct.h"
#include "kernels/conv/nhwc_tile.h"
#include "kernels/conv/winograd.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/tile.h"
#include "kernels/movement/transpose_plane.h"
#include "kernels/scratch_slots.h"

namespace treadle::kernels {
namespace {

using namespace direct;  // NOLINT(google-build-using-namespace): this file implements these names

constexpr int64_t kBandFloats = 64 * 1024;  // number of floats of a depthwise output that stay in L2 until the activation
constexpr int64_t kPackedTaps = 64;         // number of taps of each filter that are packed together, so that the written lines stay in L1

/// Divides the work into items: a band of rows by a range of channels. Channels are divided only if there are few bands and several
/// threads. Each output is computed independently, so results do not depend on the division. An item computes blocks of channels one after
/// the other, so that weights and the rows shared by windows stay in L1.
void depthwise(const ConvParams& p, const float* x, const float* packed, float* y, const ConvEpilogue& e, ThreadPool* pool) {
  const Window& w = p.window;
  const Clamp clamp = clamp_of(e);
  const int64_t row = w.out[2] * p.C;
  const int64_t band_rows = std::clamp<int64_t>(kBandFloats / std::max<int64_t>(1, row), 1, w.out[1]),
                bands = divide_up(w.out[1], band_rows);
  const int64_t block = depthwise_nhwc_block(w), blocks = divide_up(p.C, block),
                groups = pool == nullptr ? 1 : std::clamp<int64_t>(kEnoughItems / (p.N * bands), 1, blocks);
  const int64_t macs = band_rows * row * w.kernel_size() / groups;
  const PhaseScope phase(KernelPhase::compute);
  parallel_for(
      pool, p.N * bands * groups, std::max<int64_t>(1, kMinMacsPerItem / std::max<int64_t>(1, macs)), [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item) {
          const int64_t image = item / groups / bands, band = item / groups % bands, group = item % groups;
          const int64_t first = blocks * group / groups * block, last = std::min(p.C, blocks * (group + 1) / groups * block);
          const int64_t first_row = w.out[1] * band / bands, last_row = w.out[1] * (band + 1) / bands;
          const RowRing rows{x + image * w.in_size() * p.x_step(), w.in[1], p.x_step()};
          const int64_t step = p.y_step(), first_pixel = image * w.out_size();
          for (int64_t c = first; c < last; c += block) {
            for (int64_t r = first_row; r < last_row; ++r)
              depthwise_nhwc_row(w, p.C, rows, packed, e.bias, e.residual != nullptr ? e.residual + first_pixel * p.C + r * row : nullptr,
                                 clamp.low, clamp.high, r, c, std::min(last, c + block), y + (first_pixel + r * w.out[2]) * step, step);
          }
          if (clamp.complete) continue;
          activate(e, y + (first_pixel + first_row * w.out[2]) * step + first, (last_row - first_row) * w.out[2], last - first, step);
        }
      });
}

bool is_depthwise(const ConvParams& p) {
  return p.group == p.C && p.group == p.M && p.group > 1 && p.window.kernel[0] == 1 && p.window.in[0] == 1;
}

}  // namespace

Clamp clamp_of(const ConvEpilogue& e) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (e.activation == Unary::relu) return {0, kInfinity, true};
  if (e.activation == Unary::clip) return {e.a, e.b, true};
  return {-kInfinity, kInfinity, e.activation == Unary::none};
}

void activate(const ConvEpilogue& e, float* y, int64_t pixels, int64_t channels, int64_t step, ThreadPool* pool) {
  const PhaseScope phase(KernelPhase::epilogue);
  if (channels == step) return unary_f32(e.activation, e.a, e.b, y, y, pixels * channels, pool);
  const int64_t grain = std::max<int64_t>(1, 16'384 / std::max<int64_t>(1, channels));
  parallel_for(pool, pixels, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) unary_f32(e.activation, e.a, e.b, y + i * step, y + i * step, channels);
  });
}

const ConvRates& built_in_rates() {
  // Intel's values were measured on a 2023 Xeon by bench_conv --calibrate, except `cached`: models find less of their weights in L3.
  static const ConvRates rates =
      cpu_info().model_name.starts_with("Intel")
          ? ConvRates{.direct = 164e3F, .winograd = 183e3F, .transforms = 28e3F, .cached = 15.7e3F, .memory = 15.7e3F}
          : ConvRates{};
  return rates;
}

NhwcMethod nhwc_method(const ConvParams& p, const ConvChoice& choice) {
  if (p.x_planes) return NhwcMethod::direct;
  if (is_depthwise(p)) return NhwcMethod::depthwise;
  const int out = winograd_choice(p, choice);
  return out == 4 ? NhwcMethod::winograd4 : out == 2 ? NhwcMethod::winograd2 : NhwcMethod::direct;
}

std::vector<NhwcMethod> nhwc_methods(const ConvParams& p) {
  std::vector<NhwcMethod> methods{NhwcMethod::direct};
  if (p.x_planes) return methods;
  if (is_depthwise(p)) methods.push_back(NhwcMethod::depthwise);
  if (winograd_applies(p)) methods.insert(methods.end(), {NhwcMethod::winograd4, NhwcMethod::winograd2});
  return methods;
}

int direct_fold(const ConvParams& p) { return nhwc_fold(p.M / p.group, p.C / p.group); }

std::string_view nhwc_method_name(NhwcMethod method) {
  switch (method) {
    case NhwcMethod::depthwise: return "depthwise";
    case NhwcMethod::winograd4: return "F(4,3)";
    case NhwcMethod::winograd2: return "F(2,3)";
    case NhwcMethod::direct: return "direct";
  }
  return "";
}

int64_t nhwc_packed_size(const ConvParams& p, NhwcMethod method) {
  switch (method) {
    case NhwcMethod::depthwise: return p.C * p.window.kernel_size();
    case NhwcMethod::winograd4: return winograd_weights_size(p, 4);
    case NhwcMethod::winograd2: return winograd_weights_size(p, 2);
    case NhwcMethod::direct: return p.group * packed_b_size<float>(depth_of(p), p.M / p.group);
  }
  return 0;
}

namespace {

/// A block of a direct convolution's weights: `columns` filters with the taps of channels [c0, c1). In the source, the first filter is at
/// `from`, and filters are `depth` apart. Packed, the order is [tap][channel][filter], in rows of `width` elements that begin at `to`.
struct PackedBlock {
  int64_t from, to, depth, columns, width, channels, c0, c1, taps;
};

int64_t num_items(const ConvParams& p) { return p.group * Panels(p.M / p.group, panel_shape<float>()).count; }

/// Visits the blocks of the items [first_item, last_item); an item is one panel of one group.
template <typename Visit>
void each_block(const ConvParams& p, int64_t first_item, int64_t last_item, Visit visit) {
  const int64_t taps = p.window.kernel_size(), channels = p.C / p.group, filters = p.M / p.group, K = depth_of(p);
  const Panels panels(filters, panel_shape<float>());
  const int64_t group_floats = packed_b_size<float>(K, filters), block = std::max<int64_t>(8, kPackedTaps / taps / 8 * 8);
  for (int64_t item = first_item; item < last_item; ++item) {
    const int64_t group = item / panels.count, panel = item % panels.count;
    const int64_t first = panels.first_column(panel), width = panels.width_vectors(panel) * panels.lanes;
    const int64_t from = (group * filters + first) * K, to = group * group_floats + first * K;
    for (int64_t c0 = 0; c0 < channels; c0 += block)
      visit(PackedBlock{from, to, K, std::min(width, filters - first), width, channels, c0, std::min(channels, c0 + block), taps});
  }
}

/// Calls visit(index in the original weights, index in the packed ones) for each weight of a direct or depthwise convolution.
template <typename Visit>
void each_packed(const ConvParams& p, NhwcMethod method, Visit visit) {
  if (method == NhwcMethod::depthwise) {
    const int64_t taps = p.window.kernel_size();
    for (int64_t c = 0; c < p.C; ++c) {
      for (int64_t t = 0; t < taps; ++t) visit(c * taps + t, t * p.C + c);
    }
    return;
  }
  const int64_t fold = direct_fold(p);
  each_block(p, 0, num_items(p), [&](const PackedBlock& b) {
    for (int64_t n = 0; n < b.columns; ++n) {
      int64_t at = b.from + n * b.depth + b.c0 * b.taps;
      for (int64_t c = b.c0; c < b.c1; ++c) {
        for (int64_t t = 0; t < b.taps; ++t) {
          const int64_t k = t * b.channels + c;
          visit(at++, b.to + k / fold * b.width + n * fold + k % fold);
        }
      }
    }
  });
}

}  // namespace

namespace {

// Transposes one block at a time in registers; if there are several taps, its rows are then moved to the packed order. Weights in a file
// may not be aligned for float; such weights are copied first.
void pack_items(const ConvParams& p, int64_t begin, int64_t end, const float* weights, float* packed) {
  const bool aligned = reinterpret_cast<uintptr_t>(weights) % alignof(float) == 0;
  std::vector<float> copied, transposed;
  each_block(p, begin, end, [&](const PackedBlock& b) {
    const int64_t num_rows = (b.c1 - b.c0) * b.taps;
    const float* src = weights + b.from + b.c0 * b.taps;
    int64_t stride = b.depth;
    if (!aligned) {
      copied.resize(static_cast<size_t>(b.columns * num_rows));
      for (int64_t n = 0; n < b.columns; ++n)
        std::memcpy(copied.data() + n * num_rows, src + n * stride, static_cast<size_t>(num_rows) * sizeof(float));
      src = copied.data(), stride = num_rows;
    }
    for (int64_t t = 0; b.columns < b.width && t < b.taps; ++t) {  // zeros the padding after the filters of a row
      float* first = packed + b.to + (t * b.channels + b.c0) * b.width;
      std::fill(first, first + (b.c1 - b.c0) * b.width, 0.0f);
    }
    if (b.taps == 1) return transpose_plane(b.columns, num_rows, src, stride, packed + b.to + b.c0 * b.width, b.width);
    transposed.resize(static_cast<size_t>(num_rows * b.columns));
    transpose_plane(b.columns, num_rows, src, stride, transposed.data(), b.columns);
    const float* row = transposed.data();
    for (int64_t c = b.c0; c < b.c1; ++c) {
      for (int64_t t = 0; t < b.taps; ++t, row += b.columns)
        std::memcpy(packed + b.to + (t * b.channels + c) * b.width, row, static_cast<size_t>(b.columns) * sizeof(float));
    }
  });
}

}  // namespace

void direct::pack_rows(const ConvParams& p, const float* weights, float* packed, ThreadPool* pool) {
  parallel_for(pool, num_items(p), 1, [&](int64_t begin, int64_t end) { pack_items(p, begin, end, weights, packed); });
}

void nhwc_pack(const ConvParams& p, NhwcMethod method, const float* weights, float* packed, ThreadPool* pool) {
  const PhaseScope phase(KernelPhase::pack);
  switch (method) {
    case NhwcMethod::winograd4: return winograd_pack(p, 4, weights, packed, pool);
    case NhwcMethod::winograd2: return winograd_pack(p, 2, weights, packed, pool);
    case NhwcMethod::direct:
      if (direct_fold(p) == 1) return pack_rows(p, weights, packed, pool);
      std::fill_n(packed, nhwc_packed_size(p, method), 0.0f);  // cleared first, since the weights fill only a few of the elements
      [[fallthrough]];
    case NhwcMethod::depthwise:
      return each_packed(p, method, [&](int64_t from, int64_t to) { std::memcpy(packed + to, weights + from, sizeof(float)); });
  }
}

void nhwc_unpack(const ConvParams& p, NhwcMethod method, const float* packed, float* weights) {
  each_packed(p, method, [&](int64_t to, int64_t from) { weights[to] = packed[from]; });
}

size_t nhwc_scratch_bytes(const ConvParams& p, NhwcMethod method, int max_threads) {
  if (p.N <= 0 || p.window.out_size() <= 0) return 0;
  if (is_winograd(method)) return winograd_scratch_bytes(p, winograd_side(method), max_threads);
  const Source source(p);
  return method == NhwcMethod::direct && source.copied ? aligned_bytes<float>(images_together(p, source) * source.pixels() * p.C) : 0;
}

void nhwc_conv(const ConvParams& p, NhwcMethod method, const float* x, const float* weights, const float* packed, float* y,
               const ConvEpilogue& epilogue, void* scratch, int max_threads, ThreadPool* pool) {
  if (p.N <= 0 || p.M <= 0 || p.window.out_size() <= 0) return;
  switch (method) {
    case NhwcMethod::depthwise: return depthwise(p, x, packed, y, epilogue, pool);
    case NhwcMethod::winograd4: return winograd(p, 4, x, weights, packed, y, epilogue, scratch, max_threads, pool);
    case NhwcMethod::winograd2: return winograd(p, 2, x, weights, packed, y, epilogue, scratch, max_threads, pool);
    case NhwcMethod::direct: return convolve_directly(p, x, packed, y, epilogue, static_cast<float*>(scratch), pool);
  }
}

bool nhwc_transposed_fits(const ConvParams& p) {
  const Window& w = p.window;
  for (int i = 0; i < 3; ++i) {
    if (w.kernel[i] != w.stride[i] || w.dilation[i] != 1 || w.pad_begin[i] != 0 || w.in[i] != w.out[i] * w.kernel[i]) return false;
  }
  return p.group == 1 && w.kernel[0] == 1;
}

// A transposed convolution computes one product for each tap: a row of pixels times the tap's weights. It writes the result to every
// kernel[2]-th pixel of a row of y.
int64_t nhwc_transposed_packed_size(const ConvParams& p) { return p.window.kernel_size() * packed_b_size<float>(p.C, p.M); }

void nhwc_transposed_pack(const ConvParams& p, const float* weights, float* packed) {
  const int64_t taps = p.window.kernel_size();
  std::vector<float> matrix(static_cast<size_t>(p.C * p.M));
  for (int64_t t = 0; t < taps; ++t) {
    for (int64_t i = 0; i < p.C * p.M; ++i) matrix[static_cast<size_t>(i)] = weights[i * taps + t];
    pack_b(matrix.data(), p.C, p.M, p.M, false, packed + t * packed_b_size<float>(p.C, p.M));
  }
}

void nhwc_transposed(const ConvParams& p, const float* x, const float* packed, float* y, const ConvEpilogue& e, ThreadPool* pool) {
  const Window& w = p.window;
  const Panels panels(p.M, panel_shape<float>());
  const Clamp clamp = clamp_of(e);
  const int64_t tap_floats = packed_b_size<float>(p.C, p.M), origin = 0;
  const int64_t macs = w.out[2] * p.C * p.M * w.kernel_size();
  const PhaseScope phase(KernelPhase::compute);
  parallel_for(pool, p.N * w.out[1], std::max<int64_t>(1, kMinMacsPerItem / std::max<int64_t>(1, macs)), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* rows = y + r * w.kernel[1] * w.in[2] * p.y_step();
      for (int64_t t = 0; t < w.kernel_size(); ++t) {
        for (int64_t panel = 0; panel < panels.count; ++panel) {
          const int64_t column = panels.first_column(panel), vectors = panels.width_vectors(panel);
          nhwc_tile({.A = x + r * w.out[2] * p.x_step(),
                     .a_row = p.x_step(),
                     .pixels = nullptr,
                     .segments = &origin,
                     .num_segments = 1,
                     .length = p.C,
                     .B = packed + t * tap_floats + p.C * column,
                     .vectors = vectors,
                     .C = rows + (t / w.kernel[2] * w.in[2] + t % w.kernel[2]) * p.y_step() + column,
                     .ldc = w.kernel[2] * p.y_step(),
                     .rows = w.out[2],
                     .columns = std::min(vectors * panels.lanes, p.M - column),
                     .bias = e.bias != nullptr ? e.bias + column : nullptr,
                     .residual = nullptr,
                     .residual_row = 0,
                     .low = clamp.low,
                     .high = clamp.high});
        }
      }
      if (!clamp.complete) activate(e, rows, w.kernel[1] * w.in[2], p.M, p.y_step());
    }
  });
}

}  // namespace treadle::kernels
