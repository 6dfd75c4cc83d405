#include "kernels/movement/gather.h"

namespace treadle::kernels {

ElementsPlan plan_elements(std::span<const int64_t> data_dims, std::span<const int64_t> index_dims, int64_t axis) {
  if (data_dims.size() != index_dims.size() || data_dims.size() > static_cast<size_t>(kMaxRank)) {
    throw Error(ErrorCode::invalid_argument,
                "indices of rank " + std::to_string(index_dims.size()) + " do not fit data of rank " + std::to_string(data_dims.size()));
  }
  ElementsPlan plan;
  int64_t strides[kMaxRank], stride = 1;
  for (size_t i = data_dims.size(); i-- > 0;) {
    const bool along = static_cast<int64_t>(i) == axis;
    if (!along && index_dims[i] > data_dims[i]) {
      throw Error(ErrorCode::invalid_argument, "indices have " + std::to_string(index_dims[i]) + " elements along axis " +
                                                   std::to_string(i) + ", the data only " + std::to_string(data_dims[i]));
    }
    if (along) {
      plan.axis_extent = data_dims[i];
      plan.axis_stride = stride;
    }
    strides[i] = along ? 0 : stride;
    stride *= data_dims[i];
  }
  plan.loop = collapse<1>(index_dims, {std::span<const int64_t>(strides, data_dims.size())});
  return plan;
}

TuplePlan plan_tuples(std::span<const int64_t> data_dims, std::span<const int64_t> index_dims, int64_t batch_dims) {
  const int64_t rank = static_cast<int64_t>(data_dims.size()), index_rank = static_cast<int64_t>(index_dims.size());
  if (index_rank < 1 || batch_dims < 0 || batch_dims >= index_rank || batch_dims > rank || rank > kMaxRank) {
    throw Error(ErrorCode::invalid_argument, "data of rank " + std::to_string(rank) + " and indices of rank " + std::to_string(index_rank) +
                                                 " cannot share " + std::to_string(batch_dims) + " batch axes");
  }
  const int64_t depth = index_dims[static_cast<size_t>(index_rank - 1)];
  if (depth < 0 || batch_dims + depth > rank) {
    throw Error(ErrorCode::invalid_argument, "index tuples of " + std::to_string(depth) + " for data of rank " + std::to_string(rank) +
                                                 " with " + std::to_string(batch_dims) + " batch axes");
  }
  TuplePlan plan;
  plan.depth = static_cast<int>(depth);
  for (int64_t i = 0; i < batch_dims; ++i) {
    const int64_t data = data_dims[static_cast<size_t>(i)], index = index_dims[static_cast<size_t>(i)];
    if (data != index) {
      throw Error(ErrorCode::invalid_argument, "batch axis " + std::to_string(i) + " has " + std::to_string(data) +
                                                   " elements in the data and " + std::to_string(index) + " in the indices");
    }
    plan.batch *= data;
  }
  plan.tuples = 1;
  for (int64_t i = batch_dims; i + 1 < index_rank; ++i) plan.tuples *= index_dims[static_cast<size_t>(i)];
  for (int64_t i = depth; i-- > 0;) {
    plan.extents[i] = data_dims[static_cast<size_t>(batch_dims + i)];
    plan.strides[i] = plan.slices;
    plan.slices *= plan.extents[i];
  }
  for (int64_t i = batch_dims + depth; i < rank; ++i) plan.slice *= data_dims[static_cast<size_t>(i)];
  return plan;
}

}  // namespace treadle::kernels
