// Functions for sparse tensors. Operators accept the formats COO and CSR; block-sparse tensors can only be made and read.
#include <cstring>
#include <functional>

#include "ort_api/api.h"

namespace treadle::ort {
namespace {

const SparseTensor& sparse_of(const OrtValue* value) {
  const Datum& datum = required(value, "value").datum;
  if (datum.kind() != Datum::Kind::sparse_tensor) refuse_kind(datum, "a sparse tensor");
  return datum.sparse_tensor();
}

// Returns the sparse tensor of a value. @throws StatusError if the client has not filled in its elements yet
const SparseTensor& populated(const OrtValue* value) {
  const SparseTensor& sparse = sparse_of(value);
  if (value->filled && !value->populated)
    throw StatusError(ORT_FAIL, "Sparse Tensor does not contain sparse data: it has not been filled yet");
  return sparse;
}

const SparseTensor& being_filled(const OrtValue* value) {
  sparse_of(value);
  if (!value->filled || value->populated) throw StatusError(ORT_FAIL, "this tensor already has populated sparse_indices");
  return *value->filled;
}

// Returns the tensor of a value that is being filled. Checks the arguments of functions that copy values and indices into it.
const SparseTensor& to_copy_into(const OrtValue* value, const OrtMemoryInfo* info, const int64_t* dims, size_t rank) {
  const SparseTensor& sparse = being_filled(value);
  for (size_t i = 0; i < rank; ++i)
    if ((&required(dims, "values_shape"))[i] < 0) throw StatusError(ORT_FAIL, "values shape must not have negative dimensions");
  if (info != nullptr && info->device != OrtMemoryInfoDeviceType_CPU)
    throw StatusError(ORT_FAIL, "there is nothing to copy sparse data with from the memory \"" + info->name + "\"");
  return sparse;
}

void show(OrtValue& value) { value.datum = SparseTensor(*value.filled); }

void fill(OrtValue& value, SparseTensor sparse) {
  *value.filled = std::move(sparse);
  value.populated = true;
  show(value);
}

// Returns the dtype of a sparse tensor's elements. @throws StatusError if such elements do not consist of whole bytes
DType dtype_of_elements(ONNXTensorElementDataType type) {
  const DType dtype = dtype_from(type);
  if (bits_of(dtype) % 8 != 0) throw StatusError(ORT_NOT_IMPLEMENTED, "sparse tensor type " + std::to_string(type) + " is not supported");
  return dtype;
}

Tensor copy_of(DType dtype, const Shape& shape, const void* data) {
  Tensor made(dtype, shape);
  if (dtype == DType::string) {
    for (int64_t i = 0; i < made.num_elements(); ++i)
      made.data<std::string>()[i] = chars_of((&required(static_cast<const char* const*>(data), "the data"))[i], "a string");
  } else if (made.size_bytes() > 0) {
    std::memcpy(made.raw(), &required(static_cast<const std::byte*>(data), "the data"), made.size_bytes());
  }
  return made;
}

void check_index(int64_t index, int64_t extent, const std::string& what) {
  if (index < 0 || index >= extent)
    throw Error(ErrorCode::invalid_argument,
                what + " index out of bounds: " + std::to_string(index) + " must be in [0, " + std::to_string(extent) + ")");
}

// Sets the indices of a COO tensor: one (linear) index per element, or one index per element and axis.
void use_coo(SparseTensor& sparse, const int64_t* indices, size_t num_indices, const std::function<Tensor(const Shape&)>& make) {
  const int64_t count = sparse.values.num_elements(), given = static_cast<int64_t>(num_indices);
  const bool is_linear = given == count;
  if (!is_linear && (given != 2 * count || sparse.dense_shape.rank() != 2))
    throw Error(ErrorCode::invalid_argument, "COO indices count must be equal to or twice the values count: " + std::to_string(given) +
                                                 " indices for " + std::to_string(count) + " values");
  if (given > 0) required(indices, "indices");
  for (int64_t i = 0; i < given; ++i)
    check_index(indices[i], is_linear ? sparse.dense_shape.num_elements() : sparse.dense_shape[static_cast<int>(i % 2)],
                is_linear ? "COO linear" : "COO 2-D");
  sparse.indices = make(is_linear ? Shape{count} : Shape{count, 2});
  sparse.format = SparseTensor::Format::coo;
}

void use_csr(SparseTensor& sparse, const Tensor& inner, const Tensor& outer) {
  if (inner.num_elements() != sparse.values.num_elements() || sparse.dense_shape.rank() != 2 ||
      (outer.num_elements() != sparse.dense_shape[0] + 1 && outer.num_elements() != 0))
    throw Error(ErrorCode::invalid_argument, "indices of CSR are one for each value, and one more than rows: not " + describe(inner) +
                                                 " and " + describe(outer) + " for " + describe(sparse.values) + " in " +
                                                 to_string(sparse.dense_shape));
  const int64_t *columns = inner.data<int64_t>(), *ends = outer.data<int64_t>();
  for (int64_t i = 0; i < inner.num_elements(); ++i) check_index(columns[i], sparse.dense_shape[1], "CSR inner");
  for (int64_t row = 0; row < outer.num_elements(); ++row)
    if (ends[row] < (row > 0 ? ends[row - 1] : 0) || (row == 0 && ends[0] != 0))
      throw Error(ErrorCode::invalid_argument,
                  "CSR outer indices begin with 0 and do not fall, not " + std::to_string(ends[row]) + " at " + std::to_string(row));
  if (outer.num_elements() > 0 && ends[outer.num_elements() - 1] != inner.num_elements())
    throw Error(ErrorCode::invalid_argument, "CSR outer index last element must equal inner index count (" +
                                                 std::to_string(inner.num_elements()) +
                                                 "), got: " + std::to_string(ends[outer.num_elements() - 1]));
  sparse.format = SparseTensor::Format::csr;
  sparse.indices = inner;
  sparse.row_offsets = outer;
}

// Returns the shape of the indices of a block-sparse tensor, [2, blocks]. Its values are [blocks, rows, columns, ...].
Shape blocks_shape(const SparseTensor& sparse, const int64_t* dims, size_t rank) {
  for (size_t i = 0; i < rank; ++i)
    if ((&required(dims, "indices_shape"))[i] < 0) throw StatusError(ORT_FAIL, "indices shape must not have negative dimensions");
  const Shape shape = shape_from(dims, rank);
  if (sparse.values.shape().rank() < 3)
    throw StatusError(ORT_FAIL, "Expecting to have at least 3-D shape of block values, not " + to_string(sparse.values.shape()));
  if (shape.rank() != 2 || shape[0] != 2 || shape[1] != sparse.values.shape()[0])
    throw StatusError(ORT_FAIL,
                      "Expecting block indices of shape [2, " + std::to_string(sparse.values.shape()[0]) + "], not " + to_string(shape));
  return shape;
}

Tensor ints_around(int64_t* data, size_t count) {
  return Tensor(DType::int64, Shape{static_cast<int64_t>(count)}, Storage::borrow(data, count * sizeof(int64_t), {}));
}

void add_making_sparse(OrtApi& table) {
  table.CreateSparseTensorAsOrtValue = [](OrtAllocator*, const int64_t* dims, size_t rank, ONNXTensorElementDataType type, OrtValue** out) {
    return guarded([&] {
      auto made = std::make_unique<OrtValue>();
      made->filled = std::make_shared<SparseTensor>();
      made->filled->values = Tensor(dtype_of_elements(type), Shape{0});
      made->filled->dense_shape = shape_from(dims, rank);
      made->filled->indices = Tensor(DType::int64, Shape{0});
      show(*made);
      required(out, "out") = made.release();
    });
  };
  table.CreateSparseTensorWithValuesAsOrtValue = [](const OrtMemoryInfo*, void* data, const int64_t* dims, size_t rank,
                                                    const int64_t* values_dims, size_t values_rank, ONNXTensorElementDataType type,
                                                    OrtValue** out) {
    return guarded([&] {
      auto made = std::make_unique<OrtValue>();
      made->filled = std::make_shared<SparseTensor>();
      const DType dtype = dtype_of_elements(type);
      if (dtype == DType::string)
        throw Error(ErrorCode::invalid_argument, "Can not use strings in pre-allocated memory. Use CreateSparseTensorAsOrtValue()");
      made->filled->dense_shape = shape_from(dims, rank);
      const Shape shape = shape_from(values_dims, values_rank);
      made->filled->indices = Tensor(DType::int64, Shape{0});
      made->filled->values = Tensor(dtype, shape, Storage::borrow(data, size_bytes(dtype, shape.num_elements()), {}));
      show(*made);
      required(out, "out") = made.release();
    });
  };
  table.FillSparseTensorCoo = [](OrtValue* value, const OrtMemoryInfo* info, const int64_t* dims, size_t rank, const void* data,
                                 const int64_t* indices, size_t count) {
    return guarded([&] {
      SparseTensor sparse = to_copy_into(value, info, dims, rank);
      sparse.values = copy_of(sparse.values.dtype(), shape_from(dims, rank), data);
      use_coo(sparse, indices, count, [&](const Shape& shape) { return copy_of(DType::int64, shape, indices); });
      fill(*value, std::move(sparse));
    });
  };
  table.FillSparseTensorCsr = [](OrtValue* value, const OrtMemoryInfo* info, const int64_t* dims, size_t rank, const void* data,
                                 const int64_t* inner, size_t num_inner, const int64_t* outer, size_t num_outer) {
    return guarded([&] {
      SparseTensor sparse = to_copy_into(value, info, dims, rank);
      sparse.values = copy_of(sparse.values.dtype(), shape_from(dims, rank), data);
      use_csr(sparse, copy_of(DType::int64, Shape{static_cast<int64_t>(num_inner)}, inner),
              copy_of(DType::int64, Shape{static_cast<int64_t>(num_outer)}, outer));
      fill(*value, std::move(sparse));
    });
  };
  table.UseCooIndices = [](OrtValue* value, int64_t* indices, size_t count) {
    return guarded([&] {
      SparseTensor sparse = being_filled(value);
      use_coo(sparse, indices, count, [&](const Shape& shape) { return ints_around(indices, count).reshaped(shape); });
      fill(*value, std::move(sparse));
    });
  };
  table.UseCsrIndices = [](OrtValue* value, int64_t* inner, size_t num_inner, int64_t* outer, size_t num_outer) {
    return guarded([&] {
      SparseTensor sparse = being_filled(value);
      use_csr(sparse, ints_around(inner, num_inner), ints_around(outer, num_outer));
      fill(*value, std::move(sparse));
    });
  };
}

const Tensor& indices_of(const OrtValue* value, OrtSparseIndicesFormat format) {
  const SparseTensor& sparse = populated(value);
  const bool is_csr = sparse.format == SparseTensor::Format::csr;
  if (format == ORT_SPARSE_BLOCK_SPARSE_INDICES && value->blocks.defined()) return value->blocks;
  if (format == ORT_SPARSE_COO_INDICES && !is_csr && !value->blocks.defined()) return sparse.indices;
  if (format == ORT_SPARSE_CSR_INNER_INDICES && is_csr) return sparse.indices;
  if (format == ORT_SPARSE_CSR_OUTER_INDICES && is_csr) return sparse.row_offsets;
  throw StatusError(ORT_FAIL, std::string("the sparse tensor is in ") +
                                  (value->blocks.defined() ? "blocks"
                                   : is_csr                ? "CSR"
                                                           : "COO") +
                                  ", it has no such indices");
}

}  // namespace

void add_sparse_tensors(OrtApi& table) {
  add_making_sparse(table);
  table.IsSparseTensor = [](const OrtValue* value, int* out) {
    return guarded([&] { required(out, "out") = required(value, "value").datum.kind() == Datum::Kind::sparse_tensor ? 1 : 0; });
  };
  table.GetSparseTensorFormat = [](const OrtValue* value, OrtSparseFormat* out) {
    return guarded([&] {
      const SparseTensor& sparse = sparse_of(value);
      const bool is_csr = sparse.format == SparseTensor::Format::csr;
      required(out, "out") = value->filled && !value->populated ? ORT_SPARSE_UNDEFINED
                             : value->blocks.defined()          ? ORT_SPARSE_BLOCK_SPARSE
                             : is_csr                           ? ORT_SPARSE_CSRC
                                                                : ORT_SPARSE_COO;
    });
  };
  table.GetSparseTensorValuesTypeAndShape = [](const OrtValue* value, OrtTensorTypeAndShapeInfo** out) {
    return guarded([&] {
      const Tensor& values = populated(value).values;
      required(out, "out") = new OrtTensorTypeAndShapeInfo(tensor_type(values.dtype(), values.shape()));
    });
  };
  table.GetSparseTensorValues = [](const OrtValue* value, const void** out) {
    return guarded([&] {
      if (populated(value).values.dtype() == DType::string)
        throw Error(ErrorCode::invalid_argument, "Use GetStringTensor*() API to retrieve strings");
      required(out, "out") = populated(value).values.raw();
    });
  };
  table.GetSparseTensorIndicesTypeShape = [](const OrtValue* value, OrtSparseIndicesFormat format, OrtTensorTypeAndShapeInfo** out) {
    return guarded([&] {
      const Tensor& indices = indices_of(value, format);
      required(out, "out") = new OrtTensorTypeAndShapeInfo(tensor_type(indices.dtype(), indices.shape()));
    });
  };
  table.GetSparseTensorIndices = [](const OrtValue* value, OrtSparseIndicesFormat format, size_t* count, const void** out) {
    return guarded([&] {
      const Tensor& indices = indices_of(value, format);
      required(count, "num_indices") = static_cast<size_t>(indices.num_elements());
      required(out, "indices") = indices.raw();
    });
  };
  table.FillSparseTensorBlockSparse = [](OrtValue* value, const OrtMemoryInfo* info, const int64_t* dims, size_t rank, const void* data,
                                         const int64_t* indices_dims, size_t indices_rank, const int32_t* indices) {
    return guarded([&] {
      SparseTensor sparse = to_copy_into(value, info, dims, rank);
      sparse.values = copy_of(sparse.values.dtype(), shape_from(dims, rank), data);
      const Shape shape = blocks_shape(sparse, indices_dims, indices_rank);
      value->blocks = copy_of(DType::int32, shape, indices);
      fill(*value, std::move(sparse));
    });
  };
  table.UseBlockSparseIndices = [](OrtValue* value, const int64_t* indices_dims, size_t indices_rank, int32_t* indices) {
    return guarded([&] {
      SparseTensor sparse = being_filled(value);
      const Shape shape = blocks_shape(sparse, indices_dims, indices_rank);
      value->blocks = Tensor(DType::int32, shape, Storage::borrow(indices, size_bytes(DType::int32, shape.num_elements()), {}));
      fill(*value, std::move(sparse));
    });
  };
}

}  // namespace treadle::ort
