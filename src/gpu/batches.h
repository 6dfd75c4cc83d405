// Dispatches batches of matrix products, and convolutions of several images. The third dimension of a dispatch is the batch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gpu/launch.h"
#include "kernels/conv/conv.h"
#include "kernels/gemm/gemm.h"

namespace treadle::gpu {

/// Divides a batch of products into dispatches. For each one, calls dispatch(offsets of the first matrices, number of products, distance
/// from one A to the next, and from one B to the next). The third dimension of a dispatch is the innermost batch dimension. Every index of
/// the other batch dimensions has a dispatch of its own.
template <typename Dispatch>
void for_each_batch(const kernels::GemmShape& shape, const kernels::BatchStrides& batch, Dispatch&& dispatch) {
  const int inner = batch.rank - 1;
  const int64_t in_one = batch.rank == 0 ? 1 : batch.dims[inner], most = stream().features().max_groups[2];
  if (in_one == 0) return;
  for (int64_t first = 0; first < shape.batch; first += in_one)
    for (int64_t i = 0; i < in_one; i += most) {
      const kernels::BatchOffsets at = batch.rank == 0 ? kernels::BatchOffsets{} : kernels::offsets_of(batch, first + i);
      dispatch(at, std::min(most, in_one - i), batch.rank == 0 ? 0 : batch.a[inner], batch.rank == 0 ? 0 : batch.b[inner]);
    }
}

/// Divides the images of a convolution into dispatches, and calls dispatch(first image, number of images) for each. The third dimension of
/// a dispatch has one index per image and channel group.
template <typename Dispatch>
void for_each_images(const kernels::ConvParams& params, Dispatch&& dispatch) {
  const int64_t most = std::max<int64_t>(1, stream().features().max_groups[2] / params.group);
  for (int64_t n = 0; n < params.N; n += most) dispatch(n, std::min(most, params.N - n));
}

}  // namespace treadle::gpu
