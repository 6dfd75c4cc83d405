// 3x3 NHWC convolutions by Winograd's method: F(4x4, 3x3) takes 36 products instead of 144 for a tile of 16 outputs; F(2x2, 3x3) takes 16
// instead of 36 for 4 outputs and expands the weights less, which suits small images with many weights.
//
// The interpolation points are 0, +-1/sqrt 2, +-sqrt 2 and infinity. With them, and sums over channels cut into parts, the result is as
// exact as a plain float32 sum (2e-6 of the largest output); the usual +-1, +-2 are four times worse. Lavin and Gray 2015,
// arXiv:1509.09308; Barabasz et al. 2018, arXiv:1803.10986.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/conv/nhwc.h"

namespace treadle::kernels {

/// Returns true for 3x3 windows with stride 1, no dilation, one group, two axes, and at least 16 channels in and out.
bool winograd_applies(const ConvParams& params);
/// Returns the estimated time on one core in microseconds.
/// @param out  4 or 2, or 0 for the direct method
/// @param from_memory  weights are loaded from memory rather than L3
double winograd_estimate(const ConvParams& params, int out, const ConvRates& rates, bool from_memory);
/// Returns the tile side in outputs, 4 or 2, if Winograd is estimated to be the fastest method within the choice's limits; otherwise 0.
int winograd_choice(const ConvParams& params, const ConvChoice& choice = {});

/// For one of the two methods: here, `out` is the tile side in outputs, 4 or 2.
int64_t winograd_weights_size(const ConvParams& params, int out);
/// Packs the weights.
/// @param weights  may be unaligned
/// @param packed  winograd_weights_size floats, aligned to 64 bytes
void winograd_pack(const ConvParams& params, int out, const float* weights, float* packed, ThreadPool* pool = nullptr);

size_t winograd_scratch_bytes(const ConvParams& params, int out, int max_threads);

/// Computes y[N, high, wide, M] from x[N, high, wide, C].
/// @param weights  the original weights [M, C, 3, 3]; may be unaligned. A tile with a result that is not finite is recomputed directly from
///     these weights, as the transforms turn one infinity into NaN in other outputs too.
void winograd(const ConvParams& params, int out, const float* x, const float* weights, const float* packed, float* y,
              const ConvEpilogue& epilogue, void* scratch, int max_threads, ThreadPool* pool);

/// Like winograd() with unpacked weights, bit for bit. For small images, it packs a few panels at a time, which needs little memory.
size_t winograd_unpacked_scratch_bytes(const ConvParams& params, int out, int max_threads);
void winograd_unpacked(const ConvParams& params, int out, const float* x, const float* weights, float* y, const ConvEpilogue& epilogue,
                       void* scratch, int max_threads, ThreadPool* pool);

}  // namespace treadle::kernels
