#include <algorithm>
#include <string>

#include "kernels/gemm/gemm.h"
#include "treadle/error.h"

namespace treadle::kernels {

BatchStrides broadcast_batches(std::span<const int64_t> a_dims, std::span<const int64_t> b_dims, int64_t a_size, int64_t b_size,
                               int64_t c_size) {
  const size_t rank = std::max(a_dims.size(), b_dims.size());
  // Starts with the innermost batch dimension. Merges a dimension into its inner neighbor if A, B and C are contiguous across both.
  BatchStrides reversed;
  int64_t a_stride = a_size, b_stride = b_size, c_stride = c_size;
  for (size_t i = 0; i < rank; ++i) {
    const int64_t a = i < a_dims.size() ? a_dims[a_dims.size() - 1 - i] : 1;
    const int64_t b = i < b_dims.size() ? b_dims[b_dims.size() - 1 - i] : 1;
    if (a != b && a != 1 && b != 1) {
      throw Error(ErrorCode::invalid_argument, "batch dimensions " + std::to_string(a) + " and " + std::to_string(b) +
                                                   " do not broadcast (" + std::to_string(i + 3) + " from the end)");
    }
    const int64_t n = a == 1 ? b : a;
    const int64_t sa = a == 1 ? 0 : a_stride, sb = b == 1 ? 0 : b_stride;
    a_stride *= a;
    b_stride *= b;
    if (n == 1) continue;
    const int last = reversed.rank - 1;
    if (last >= 0 && sa == reversed.a[last] * reversed.dims[last] && sb == reversed.b[last] * reversed.dims[last]) {
      reversed.dims[last] *= n;
    } else {
      if (reversed.rank == BatchStrides::kMaxDims) {
        throw Error(ErrorCode::not_implemented,
                    "a product of batches that broadcast in more than " + std::to_string(BatchStrides::kMaxDims) + " groups");
      }
      const int at = reversed.rank++;
      reversed.dims[at] = n;
      reversed.a[at] = sa;
      reversed.b[at] = sb;
      reversed.c[at] = c_stride;
    }
    c_stride *= n;
  }
  BatchStrides batch;
  batch.rank = reversed.rank;
  for (int i = 0; i < batch.rank; ++i) {
    const int from = batch.rank - 1 - i;
    batch.dims[i] = reversed.dims[from];
    batch.a[i] = reversed.a[from];
    batch.b[i] = reversed.b[from];
    batch.c[i] = reversed.c[from];
  }
  return batch;
}

int64_t num_products(const BatchStrides& batch) {
  int64_t n = 1;
  for (int i = 0; i < batch.rank; ++i) n *= batch.dims[i];
  return n;
}

BatchOffsets offsets_of(const BatchStrides& batch, int64_t product) {
  BatchOffsets o;
  for (int i = batch.rank - 1; i >= 0; --i) {
    const int64_t at = product % batch.dims[i];
    product /= batch.dims[i];
    o.a += at * batch.a[i];
    o.b += at * batch.b[i];
    o.c += at * batch.c[i];
  }
  return o;
}

}  // namespace treadle::kernels
