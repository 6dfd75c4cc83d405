// Batches of matrix products as dispatches, whose third dimension has the matrices.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gpu/launch.h"
#include "kernels/gemm/gemm.h"

namespace treadle::gpu {

/// Calls dispatch(offsets of the first matrices, count of products, steps from one A and B to the next) for all products of a batch. The
/// innermost batch dimension is the dispatch's; each index of the others is a dispatch of its own.
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

}  // namespace treadle::gpu
