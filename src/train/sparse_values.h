// Sparse arguments and gradients of executors.
#pragma once

#include <string_view>

#include "treadle/datum.h"

namespace treadle::train {

/// "f32[2,3]" and the like stand for both: of a sparse tensor it is the dense shape, and the dtype of what is stored.
const Shape& dense_shape(const Datum& value);
DType element_type(const Datum& value);

/// @throws Error(invalid_argument) for indices outside of the shape.
Tensor to_dense(const SparseTensor& sparse);
/// Nothing stored. @param storage  "csr" (of rank 2), "coo" or "row_sparse"
SparseTensor empty_sparse(std::string_view storage, DType dtype, const Shape& shape);
/// Of two tensors of rows (COO over the first axis, float32): the rows of both. Rows that both have are added.
SparseTensor add_rows(const SparseTensor& a, const SparseTensor& b);

}  // namespace treadle::train
