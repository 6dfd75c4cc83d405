// Packed weights: how they are stored in blocks in compiled files, and in which order runs read them.
#pragma once

#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "graph/kernel.h"
#include "kernels/gemm/gemm.h"

namespace treadle::ops {

/// Returns a block of packed weights for a compiled file. Its `count` elements are in `storage`.
template <typename T>
PackedPart packed_part(int32_t id, const T* data, int64_t count, const std::shared_ptr<Storage>& storage) {
  const auto offset = static_cast<size_t>(reinterpret_cast<const std::byte*>(data) - storage->data());
  return {id, Tensor(dtype_of<T>, Shape{count}, storage, offset)};
}

/// Returns the block with the number `id`; null if it has another dtype or is not aligned for vector loads.
inline const Tensor* find_part(std::span<const PackedPart> parts, int32_t id, DType dtype) {
  for (const PackedPart& part : parts)
    if (part.id == id && part.tensor.dtype() == dtype && part.tensor.is_contiguous() &&
        reinterpret_cast<uintptr_t>(part.tensor.raw()) % Storage::kAlignment == 0)
      return &part.tensor;
  return nullptr;
}

/// Restores the result of pack_b() for a K x N matrix from a block of a compiled file. Empty if the block has another size.
template <typename T>
kernels::OwnedPackedB<T> packed_b_of(std::span<const PackedPart> parts, int32_t id, int64_t K, int64_t N) {
  const Tensor* found = find_part(parts, id, dtype_of<T>);
  if (!found || found->num_elements() != kernels::packed_b_size<T>(K, N)) return {};
  return {{K, N, found->data<T>()}, found->storage()};
}

/// Packed 8-bit weights, and the sum of the weights of each column or filter. Empty if the weights are not constant.
struct BytesWithSums final : PackedState {
  Tensor weights, sums;

  bool empty() const { return !weights.defined(); }
  size_t size_bytes() const override { return empty() ? 0 : weights.size_bytes() + sums.size_bytes(); }
  std::vector<PackedPart> parts() const override {
    return empty() ? std::vector<PackedPart>{} : std::vector<PackedPart>{{0, weights}, {1, sums}};
  }
  /// Allocates zeroed memory, since the packing functions do not write every byte.
  void allocate(int64_t num_bytes, int64_t num_sums) {
    weights = Tensor(DType::int8, Shape{num_bytes});
    std::memset(weights.raw(), 0, weights.size_bytes());
    sums = Tensor(DType::int32, Shape{num_sums});
  }
  static std::unique_ptr<PackedState> restore(std::span<const PackedPart> parts, int64_t num_bytes, int64_t num_sums) {
    const Tensor *bytes = find_part(parts, 0, DType::int8), *found = find_part(parts, 1, DType::int32);
    if (!bytes || !found || bytes->num_elements() != num_bytes || found->num_elements() != num_sums) return nullptr;
    auto state = std::make_unique<BytesWithSums>();
    state->weights = *bytes, state->sums = *found;
    return state;
  }
};

/// Returns a packed matrix with the order in which this run reads it. On one thread, every other run of a session reads the columns
/// backwards, so that it begins with those that the previous run read last. If the weights are slightly larger than L2, about half of them
/// are still cached.
template <typename T>
kernels::PackedB<T> in_turn(kernels::PackedB<T> b, const RunContext& c) {
  b.backwards = c.run_id % 2 != 0 && (!c.pool() || c.pool()->num_threads() == 1);
  return b;
}

}  // namespace treadle::ops
