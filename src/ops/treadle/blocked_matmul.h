// Describes the weights of BlockedMatMul. Kernels of all devices use this.
#pragma once

#include <algorithm>

#include "graph/attributes.h"
#include "kernels/gemm/gemm_blocked.h"
#include "ops/checks.h"
#include "treadle/dtype.h"
#include "treadle/shape.h"

namespace treadle::ops {

enum BlockedInput : int { kActivations, kCodes, kScales, kZeros };

/// The layout of the weights of a BlockedMatMul, from its operands and attributes.
struct BlockedGeometry {
  kernels::BlockedShape shape;
  int64_t inner_axis = 0;  ///< the axis of the codes over which the product sums

  static BlockedGeometry of(const Attributes& attributes, const Shape& codes, DType dtype) {
    BlockedGeometry g;
    g.inner_axis = attributes.get_int("axis", 0);
    g.shape.K = codes[static_cast<int>(g.inner_axis)], g.shape.N = codes[static_cast<int>(1 - g.inner_axis)];
    const int64_t block = attributes.get_int("block_size", 0);
    g.shape.block_size = block > 0 ? block : (std::max<int64_t>(1, g.shape.K) + 7) / 8 * 8;
    g.shape.bits = static_cast<int>(bits_of(dtype));
    return g;
  }
  /// Returns the number of rows of A. @throws Error(invalid_argument) if A has other columns than the weights have rows
  int64_t rows_of(const Shape& a) const {
    check_equal(a.back(), shape.K, "columns of A and rows of the weights");
    return a.product(0, a.rank() - 1);
  }
};

}  // namespace treadle::ops
