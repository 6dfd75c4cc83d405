// Convolution in float32 with channels innermost and constant weights: x[N, in, C], W[M, C / group, kernel], y[N, out, M].
//
// Depthwise ones are direct; 3x3 ones with enough channels go by Winograd; all others read the image in place, a run of C channels (or of a
// whole row of the window) at a time, with the GEMM's register tile: a 1x1 convolution is a plain product.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "core/thread_pool.h"
#include "kernels/conv/conv.h"

namespace treadle::kernels {

/// What an epilogue asks of the registers: bounds, and whether they are all its activation is.
struct Clamp {
  float low, high;
  bool complete;
};
Clamp clamp_of(const ConvEpilogue& epilogue);
/// The activation, in place, of `pixels` runs of `channels` floats that begin `step` apart.
void activate(const ConvEpilogue& epilogue, float* y, int64_t pixels, int64_t channels, int64_t step, ThreadPool* pool = nullptr);

enum class NhwcMethod : uint8_t { depthwise, winograd4, winograd2, direct };
inline constexpr int kNhwcMethods = 4;
/// Whether the original weights are read, too.
inline bool is_winograd(NhwcMethod method) { return method == NhwcMethod::winograd4 || method == NhwcMethod::winograd2; }
/// Outputs of a tile's side. @pre is_winograd(method)
inline int winograd_side(NhwcMethod method) { return method == NhwcMethod::winograd4 ? 4 : 2; }

/// What one core reaches, for the estimates behind a choice. The numbers here are those of one machine (AMD Zen 5); `bench_conv
/// --calibrate` measures another's. They are given and never measured in passing: which way a convolution goes, and so its last bits, must
/// not depend on noise.
struct ConvRates {
  float direct = 210e3F, winograd = 220e3F;  ///< floating-point operations a microsecond
  float transforms = 60e3F;                  ///< bytes a microsecond that Winograd's transforms read and write
  float cached = 60e3F, memory = 25e3F;      ///< bytes of weights a microsecond: from L3, from memory
};
/// What is built in for the maker of this machine's processor: an Intel core's L3 is about as far away as memory.
const ConvRates& built_in_rates();
/// What the choice rests on, besides the shapes.
struct ConvChoice {
  ConvRates rates = built_in_rates();
  double max_weight_expansion = std::numeric_limits<double>::infinity();  ///< bytes of transformed weights over those of the weights
  bool packs_in_run = false;  ///< weights are computed, so that packing them is part of the time
};

/// The way that is estimated to be the fastest; depends on the extents of the image.
NhwcMethod nhwc_method(const ConvParams& params, const ConvChoice& choice = {});

/// All ways that can take it.
std::vector<NhwcMethod> nhwc_methods(const ConvParams& params);
std::string_view nhwc_method_name(NhwcMethod method);

/// Floats of the packed weights; does not depend on the image.
int64_t nhwc_packed_size(const ConvParams& params, NhwcMethod method);
/// @param packed  nhwc_packed_size(params, method) floats, aligned to 64 bytes
/// @param weights  at any address: they are read bytewise
void nhwc_pack(const ConvParams& params, NhwcMethod method, const float* weights, float* packed, ThreadPool* pool = nullptr);
/// How many k's share a row of the weights packed for the direct way (nhwc_tile.h).
int direct_fold(const ConvParams& params);
/// The weights that nhwc_pack read. @param method  none of winograd's, whose transforms round.
void nhwc_unpack(const ConvParams& params, NhwcMethod method, const float* packed, float* weights);

size_t nhwc_scratch_bytes(const ConvParams& params, NhwcMethod method, int max_threads);
/// @param weights  the original ones
/// @param epilogue  its residual must not be y
void nhwc_conv(const ConvParams& params, NhwcMethod method, const float* x, const float* weights, const float* packed, float* y,
               const ConvEpilogue& epilogue, void* scratch, int max_threads, ThreadPool* pool);

/// The transposed convolution whose windows do not overlap (stride = kernel, no pads, one group): x[N, in, C], W[C, M, kernel],
/// y[N, in * kernel, M]. `window` is as for conv_transpose: its input is y.
bool nhwc_transposed_fits(const ConvParams& params);
int64_t nhwc_transposed_packed_size(const ConvParams& params);
void nhwc_transposed_pack(const ConvParams& params, const float* weights, float* packed);
void nhwc_transposed(const ConvParams& params, const float* x, const float* packed, float* y, const ConvEpilogue& epilogue,
                     ThreadPool* pool);

}  // namespace treadle::kernels
