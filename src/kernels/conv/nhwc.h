// float32 NHWC convolution with constant weights: x[N, in, C], W[M, C / group, kernel], y[N, out, M].
//
// Depthwise convolutions are computed directly; 3x3 convolutions with enough channels use Winograd's method. All others read the image in
// place with the GEMM's register tile: C channels, or a whole row of the window with all its channels, at a time. A 1x1 convolution is a
// plain product.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "core/threads/thread_pool.h"
#include "kernels/conv/conv.h"

namespace treadle::kernels {

/// The clamp that micro-kernels apply in registers. If `complete` is true, the activation consists only of this clamp.
struct Clamp {
  float low, high;
  bool complete;
};
Clamp clamp_of(const ConvEpilogue& epilogue);
/// Applies the activation in place to `pixels` pixels of `channels` floats each, `step` floats apart.
void activate(const ConvEpilogue& epilogue, float* y, int64_t pixels, int64_t channels, int64_t step, ThreadPool* pool = nullptr);

enum class NhwcMethod : uint8_t { depthwise, winograd4, winograd2, direct };
inline constexpr int kNhwcMethods = 4;
/// Returns true for Winograd's methods, which also read the original weights.
inline bool is_winograd(NhwcMethod method) { return method == NhwcMethod::winograd4 || method == NhwcMethod::winograd2; }
/// Returns the side of a tile in outputs. @pre is_winograd(method)
inline int winograd_side(NhwcMethod method) { return method == NhwcMethod::winograd4 ? 4 : 2; }

/// The throughput of one core, from which the time of each method is estimated. The defaults are those of an AMD Zen 5; `bench_conv
/// --calibrate` measures others. The rates are never measured at run time: the choice affects the last bits of results, so it must not
/// depend on noise.
struct ConvRates {
  float direct = 210e3F, winograd = 220e3F;  ///< floating-point operations per microsecond
  float transforms = 60e3F;                  ///< bytes per microsecond that Winograd's transforms read and write
  float cached = 60e3F, memory = 25e3F;      ///< bytes of weights per microsecond, from L3 and from memory
};
/// Returns the built-in rates for this CPU's vendor. L3 of an Intel core is about as slow as memory.
const ConvRates& built_in_rates();
/// Data for the choice of a method, in addition to the convolution's shapes.
struct ConvChoice {
  ConvRates rates = built_in_rates();
  double max_weight_expansion = std::numeric_limits<double>::infinity();  ///< largest ratio of transformed to original weight bytes
  bool packs_in_run = false;  ///< the weights are computed in the run, so each run also spends the time to pack them
};

/// Returns the method with the least estimated time. It depends on the extents of the image.
NhwcMethod nhwc_method(const ConvParams& params, const ConvChoice& choice = {});

/// Returns all methods that support the convolution.
std::vector<NhwcMethod> nhwc_methods(const ConvParams& params);
std::string_view nhwc_method_name(NhwcMethod method);

/// Returns the size of the packed weights in floats; it does not depend on the image.
int64_t nhwc_packed_size(const ConvParams& params, NhwcMethod method);
/// Packs the weights.
/// @param packed  nhwc_packed_size(params, method) floats, aligned to 64 bytes
/// @param weights  may be unaligned
void nhwc_pack(const ConvParams& params, NhwcMethod method, const float* weights, float* packed, ThreadPool* pool = nullptr);
/// Returns the number of consecutive k that share a row of the weights packed for the direct method (see nhwc_tile.h).
int direct_fold(const ConvParams& params);
/// Restores the weights that nhwc_pack() read. @param method  not a Winograd method, as Winograd's transforms round
void nhwc_unpack(const ConvParams& params, NhwcMethod method, const float* packed, float* weights);

size_t nhwc_scratch_bytes(const ConvParams& params, NhwcMethod method, int max_threads);
/// Computes the convolution.
/// @param weights  the original, unpacked weights
/// @param epilogue  the residual must not be y
void nhwc_conv(const ConvParams& params, NhwcMethod method, const float* x, const float* weights, const float* packed, float* y,
               const ConvEpilogue& epilogue, void* scratch, int max_threads, ThreadPool* pool);

/// Functions for a transposed convolution whose windows do not overlap (stride = kernel, no pads, one group): x[N, in, C], W[C, M, kernel],
/// y[N, in * kernel, M]. `window` is as for conv_transpose(): its input is y.
bool nhwc_transposed_fits(const ConvParams& params);
int64_t nhwc_transposed_packed_size(const ConvParams& params);
void nhwc_transposed_pack(const ConvParams& params, const float* weights, float* packed);
void nhwc_transposed(const ConvParams& params, const float* x, const float* packed, float* y, const ConvEpilogue& epilogue,
                     ThreadPool* pool);

}  // namespace treadle::kernels
