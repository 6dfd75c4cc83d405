#include "train/joint/sparse_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "treadle/error.h"

namespace treadle::train {
namespace {

void check_index(int64_t index, int64_t extent) {
  if (index < 0 || index >= extent)
    throw Error(ErrorCode::invalid_argument, fmt::format("a sparse tensor has the index {}, where there are {}", index, extent));
}

int64_t elements_from(const Shape& shape, int axis) { return shape.product(axis, shape.rank()); }

}  // namespace

const Shape& dense_shape(const Datum& value) {
  return value.kind() == Datum::Kind::sparse_tensor ? value.sparse_tensor().dense_shape : value.tensor().shape();
}

DType element_type(const Datum& value) {
  return value.kind() == Datum::Kind::sparse_tensor ? value.sparse_tensor().values.dtype() : value.tensor().dtype();
}

Tensor to_dense(const SparseTensor& sparse) {
  const Shape& shape = sparse.dense_shape;
  Tensor dense(sparse.values.dtype(), shape);
  std::memset(dense.raw(), 0, dense.size_bytes());
  const Tensor values = sparse.values.contiguous(), indices = sparse.indices.contiguous();
  const auto at = indices.span<int64_t>();
  const size_t element = size_bytes(dense.dtype(), 1);
  auto put = [&](int64_t to, size_t stored, size_t count) {
    std::memcpy(dense.raw() + static_cast<size_t>(to) * element * count, values.raw() + stored * element * count, element * count);
  };
  if (sparse.format == SparseTensor::Format::csr) {
    const Tensor row_offsets = sparse.row_offsets.contiguous();
    const auto offsets = row_offsets.span<int64_t>();
    for (int64_t row = 0; row < shape[0]; ++row)
      for (int64_t k = offsets[static_cast<size_t>(row)]; k < offsets[static_cast<size_t>(row) + 1]; ++k) {
        check_index(at[static_cast<size_t>(k)], shape[1]);
        put(row * shape[1] + at[static_cast<size_t>(k)], static_cast<size_t>(k), 1);
      }
  } else if (indices.shape().rank() > 1) {
    const auto rank = static_cast<size_t>(shape.rank());
    for (size_t k = 0; k < at.size() / std::max<size_t>(rank, 1); ++k) {
      int64_t place = 0;
      for (size_t axis = 0; axis < rank; ++axis) {
        check_index(at[k * rank + axis], shape[static_cast<int>(axis)]);
        place = place * shape[static_cast<int>(axis)] + at[k * rank + axis];
      }
      put(place, k, 1);
    }
  } else {  // one index per entry: its position in the flattened tensor, or a whole row
    const bool has_rows = values.shape().rank() == shape.rank() && shape.rank() > 1;
    const int64_t extent = has_rows ? shape[0] : dense.num_elements();
    for (size_t k = 0; k < at.size(); ++k) {
      check_index(at[k], extent);
      put(at[k], k, has_rows ? static_cast<size_t>(elements_from(shape, 1)) : 1);
    }
  }
  return dense;
}

SparseTensor empty_sparse(std::string_view storage, DType dtype, const Shape& shape) {
  SparseTensor made{.dense_shape = shape, .values = Tensor(dtype, {0}), .indices = Tensor(DType::int64, {0})};
  if (storage == "csr") {
    if (shape.rank() != 2) throw Error(ErrorCode::invalid_argument, fmt::format("a CSR tensor has rank 2, not {}", to_string(shape)));
    made.format = SparseTensor::Format::csr;
    made.row_offsets = Tensor(DType::int64, {shape[0] + 1});
    std::memset(made.row_offsets.raw(), 0, made.row_offsets.size_bytes());
  } else if (storage == "row_sparse") {
    Shape rows = shape;
    if (rows.rank() > 0) rows[0] = 0;
    made.values = Tensor(dtype, rows);
  }
  return made;
}

SparseTensor add_rows(const SparseTensor& a, const SparseTensor& b) {
  const auto width = static_cast<size_t>(elements_from(a.dense_shape, 1));
  std::vector<int64_t> places;
  for (const SparseTensor* each : {&a, &b}) {
    const auto own = each->indices.span<int64_t>();
    places.insert(places.end(), own.begin(), own.end());
  }
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  Shape shape = a.dense_shape;
  shape[0] = static_cast<int64_t>(places.size());
  Tensor sum(DType::float32, shape);
  std::fill_n(sum.data<float>(), sum.num_elements(), 0.0F);
  for (const SparseTensor* each : {&a, &b}) {
    const Tensor values = each->values.contiguous();
    const auto own = each->indices.span<int64_t>();
    for (size_t k = 0; k < own.size(); ++k) {
      const auto row = static_cast<size_t>(std::lower_bound(places.begin(), places.end(), own[k]) - places.begin());
      const float* from = values.data<float>() + k * width;
      std::transform(from, from + width, sum.data<float>() + row * width, sum.data<float>() + row * width, std::plus<>());
    }
  }
  return {.dense_shape = a.dense_shape, .values = sum, .indices = Tensor::vector<int64_t>(places)};
}

}  // namespace treadle::train
