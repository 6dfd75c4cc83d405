#include "passes/channels_last.h"

namespace treadle::passes {

Ints channels_last_order(int rank) {
  Ints order{0};
  for (int i = 2; i < rank; ++i) order.push_back(i);
  order.push_back(1);
  return order;
}

Ints channels_first_order(int rank) {
  Ints order{0, rank - 1};
  for (int i = 1; i + 1 < rank; ++i) order.push_back(i);
  return order;
}

int64_t channels_last_axis(int64_t axis, int rank) {
  if (axis < 0) axis += rank;
  return channels_first_order(rank)[static_cast<size_t>(axis)];
}

Tensor channels_last_constant(const Tensor& constant, int rank) {
  const Tensor dense = constant.contiguous();
  Ints extent(static_cast<size_t>(rank - dense.shape().rank()), 1);
  for (int64_t dim : dense.shape().dims()) extent.push_back(dim);
  Ints stride(static_cast<size_t>(rank), 1);
  for (size_t i = stride.size() - 1; i-- > 0;) stride[i] = stride[i + 1] * extent[i + 1];
  const Ints to = permuted(extent, channels_last_order(rank)), step = permuted(stride, channels_last_order(rank));
  Tensor result(DType::float32, Shape(to));
  Ints at(to.size(), 0);
  for (int64_t i = 0; i < result.num_elements(); ++i) {
    int64_t from = 0;
    for (size_t k = 0; k < at.size(); ++k) from += at[k] * step[k];
    result.data<float>()[i] = dense.data<float>()[from];
    for (size_t k = at.size(); k-- > 0 && ++at[k] == to[k];) at[k] = 0;
  }
  return result;
}

}  // namespace treadle::passes
