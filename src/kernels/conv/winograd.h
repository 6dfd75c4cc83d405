// 3x3 convolutions with channels innermost by Winograd's F(4x4, 3x3): 36 products instead of 144 for a tile of 16 outputs; and by F(2x2,
// 3x3), 16 instead of 36 for 4, whose weights grow less: better where images are small and weights many.
//
// The points are 0, +-1/sqrt 2, +-sqrt 2 and infinity, with which the result is as exact as a plain float32 sum (2e-6 of the largest
// output: sums over channels are cut into parts); with the usual +-1, +-2 it is four times worse. Lavin and Gray 2015, arXiv:1509.09308;
// Barabasz et al. 2018, arXiv:1803.10986.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/conv/nhwc.h"

namespace treadle::kernels {

/// Whether it applies: 3x3, stride 1, no dilation, one group, two axes, some channels.
bool winograd_applies(const ConvParams& params);
/// Microseconds that one core is estimated to take: `out` 4 or 2, or 0 for the direct way.
/// @param from_memory  whether the weights come from there and not from L3
double winograd_estimate(const ConvParams& params, int out, const ConvRates& rates, bool from_memory);
/// The outputs of a tile's side, 4 or 2, with which it is estimated to be the fastest way that the choice allows; 0 if it is not, or does
/// not apply.
int winograd_choice(const ConvParams& params, const ConvChoice& choice = {});

/// `out`, here and below: 4 or 2.
int64_t winograd_weights_size(const ConvParams& params, int out);
/// @param weights  at any address: they are read bytewise
/// @param packed  winograd_weights_size floats, aligned to 64 bytes
void winograd_pack(const ConvParams& params, int out, const float* weights, float* packed, ThreadPool* pool = nullptr);

size_t winograd_scratch_bytes(const ConvParams& params, int out, int max_threads);

/// x[N, high, wide, C], y[N, high, wide, M].
/// @param weights  the original ones [M, C, 3, 3] too, at any address: a tile whose result is not finite is computed again directly, as the
///                 transforms turn an infinity into NaN for its whole neighbourhood.
void winograd(const ConvParams& params, int out, const float* x, const float* weights, const float* packed, float* y,
              const ConvEpilogue& epilogue, void* scratch, int max_threads, ThreadPool* pool);

/// The same for weights that nobody has packed: those of some channels after the others, where images are small, so that little memory is
/// needed for them. Same bits.
size_t winograd_unpacked_scratch_bytes(const ConvParams& params, int out, int max_threads);
void winograd_unpacked(const ConvParams& params, int out, const float* x, const float* weights, float* y, const ConvEpilogue& epilogue,
                       void* scratch, int max_threads, ThreadPool* pool);

}  // namespace treadle::kernels
