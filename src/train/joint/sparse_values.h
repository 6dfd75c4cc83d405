// Helpers for sparse arguments and gradients of executors.
#pragma once

#include <string_view>

#include "treadle/datum.h"

namespace treadle::train {

/// Return the shape and dtype of a dense or sparse tensor. For a sparse tensor, these are the shape of its dense form and the dtype of its
/// stored elements.
const Shape& dense_shape(const Datum& value);
DType element_type(const Datum& value);

/// Converts a sparse tensor to a dense one. @throws Error(invalid_argument) for an index outside of the dense shape.
Tensor to_dense(const SparseTensor& sparse);
/// Returns a sparse tensor without stored elements. @param storage  "csr" (rank 2 only), "coo" or "row_sparse"
SparseTensor empty_sparse(std::string_view storage, DType dtype, const Shape& shape);
/// Adds two row-sparse tensors (float32, COO over the first axis). The result has the rows of both tensors; rows that occur in both are
/// summed.
SparseTensor add_rows(const SparseTensor& a, const SparseTensor& b);

}  // namespace treadle::train
