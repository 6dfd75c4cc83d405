// Sparse tensors in the formats COO and CSR.
#include <cstring>

#include "ort_api/api.h"

namespace treadle::ort {
namespace {

constexpr const char* kNoBlocks = "sparse tensors of blocks";

const SparseTensor& sparse_of(const OrtValue* value) { return required(value, "value").datum.sparse_tensor(); }

SparseTensor& being_filled(OrtValue* value) {
  if (!required(value, "value").filled) throw Error(ErrorCode::invalid_argument, "the value is no sparse tensor that is being made");
  return *value->filled;
}

void show(OrtValue& value) { value.datum = SparseTensor(*value.filled); }

Tensor copy_of(DType dtype, const Shape& shape, const void* data) {
  Tensor made(dtype, shape);
  if (dtype == DType::string) {
    for (int64_t i = 0; i < made.num_elements(); ++i) made.data<std::string>()[i] = static_cast<const char* const*>(data)[i];
  } else if (made.size_bytes() > 0) {
    std::memcpy(made.raw(), &required(static_cast<const std::byte*>(data), "the data"), made.size_bytes());
  }
  return made;
}

// COO: one index an element, or one for each axis.
Shape coo_shape(const SparseTensor& sparse, size_t num_indices) {
  const int64_t count = sparse.values.num_elements(), given = static_cast<int64_t>(num_indices);
  if (given == count) return Shape{count};
  if (given == 2 * count && sparse.dense_shape.rank() == 2) return Shape{count, 2};
  throw Error(ErrorCode::invalid_argument, std::to_string(given) + " indices for " + std::to_string(count) + " values");
}

void use_csr(SparseTensor& sparse, const Tensor& inner, const Tensor& outer) {
  if (inner.num_elements() != sparse.values.num_elements() || sparse.dense_shape.rank() != 2 ||
      (outer.num_elements() != sparse.dense_shape[0] + 1 && outer.num_elements() != 0))
    throw Error(ErrorCode::invalid_argument, "indices of CSR are one for each value, and one more than rows: not " + describe(inner) +
                                                 " and " + describe(outer) + " for " + describe(sparse.values) + " in " +
                                                 to_string(sparse.dense_shape));
  sparse.format = SparseTensor::Format::csr;
  sparse.indices = inner;
  sparse.row_offsets = outer;
}

Tensor ints_around(int64_t* data, size_t count) {
  return Tensor(DType::int64, Shape{static_cast<int64_t>(count)}, Storage::borrow(data, count * sizeof(int64_t), {}));
}

void add_making_sparse(OrtApi& table) {
  table.CreateSparseTensorAsOrtValue = [](OrtAllocator*, const int64_t* dims, size_t rank, ONNXTensorElementDataType type, OrtValue** out) {
    return guarded([&] {
      auto made = std::make_unique<OrtValue>();
      made->filled = std::make_shared<SparseTensor>();
      made->filled->dense_shape = shape_from(dims, rank);
      made->filled->values = Tensor(dtype_from(type), Shape{0});
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
      made->filled->dense_shape = shape_from(dims, rank);
      const Shape shape = shape_from(values_dims, values_rank);
      const DType dtype = dtype_from(type);
      made->filled->values = Tensor(dtype, shape, Storage::borrow(data, size_bytes(dtype, shape.num_elements()), {}));
      show(*made);
      required(out, "out") = made.release();
    });
  };
  table.FillSparseTensorCoo = [](OrtValue* value, const OrtMemoryInfo*, const int64_t* dims, size_t rank, const void* data,
                                 const int64_t* indices, size_t count) {
    return guarded([&] {
      SparseTensor& sparse = being_filled(value);
      sparse.values = copy_of(sparse.values.dtype(), shape_from(dims, rank), data);
      sparse.indices = copy_of(DType::int64, coo_shape(sparse, count), indices);
      sparse.format = SparseTensor::Format::coo;
      show(*value);
    });
  };
  table.FillSparseTensorCsr = [](OrtValue* value, const OrtMemoryInfo*, const int64_t* dims, size_t rank, const void* data,
                                 const int64_t* inner, size_t num_inner, const int64_t* outer, size_t num_outer) {
    return guarded([&] {
      SparseTensor& sparse = being_filled(value);
      sparse.values = copy_of(sparse.values.dtype(), shape_from(dims, rank), data);
      use_csr(sparse, copy_of(DType::int64, Shape{static_cast<int64_t>(num_inner)}, inner),
              copy_of(DType::int64, Shape{static_cast<int64_t>(num_outer)}, outer));
      show(*value);
    });
  };
  table.UseCooIndices = [](OrtValue* value, int64_t* indices, size_t count) {
    return guarded([&] {
      SparseTensor& sparse = being_filled(value);
      sparse.indices = ints_around(indices, count).reshaped(coo_shape(sparse, count));
      sparse.format = SparseTensor::Format::coo;
      show(*value);
    });
  };
  table.UseCsrIndices = [](OrtValue* value, int64_t* inner, size_t num_inner, int64_t* outer, size_t num_outer) {
    return guarded([&] {
      use_csr(being_filled(value), ints_around(inner, num_inner), ints_around(outer, num_outer));
      show(*value);
    });
  };
}

const Tensor& indices_of(const OrtValue* value, OrtSparseIndicesFormat format) {
  const SparseTensor& sparse = sparse_of(value);
  const bool is_csr = sparse.format == SparseTensor::Format::csr;
  if (format == ORT_SPARSE_COO_INDICES && !is_csr) return sparse.indices;
  if (format == ORT_SPARSE_CSR_INNER_INDICES && is_csr) return sparse.indices;
  if (format == ORT_SPARSE_CSR_OUTER_INDICES && is_csr) return sparse.row_offsets;
  throw Error(ErrorCode::invalid_argument, std::string("the sparse tensor is in ") + (is_csr ? "CSR" : "COO") + ", it has no such indices");
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
      required(out, "out") = is_csr ? ORT_SPARSE_CSRC : sparse.indices.defined() ? ORT_SPARSE_COO : ORT_SPARSE_UNDEFINED;
    });
  };
  table.GetSparseTensorValuesTypeAndShape = [](const OrtValue* value, OrtTensorTypeAndShapeInfo** out) {
    return guarded([&] {
      const Tensor& values = sparse_of(value).values;
      required(out, "out") = new OrtTensorTypeAndShapeInfo(tensor_type(values.dtype(), values.shape()));
    });
  };
  table.GetSparseTensorValues = [](const OrtValue* value, const void** out) {
    return guarded([&] { required(out, "out") = sparse_of(value).values.raw(); });
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
  table.FillSparseTensorBlockSparse = [](OrtValue*, const OrtMemoryInfo*, const int64_t*, size_t, const void*, const int64_t*, size_t,
                                         const int32_t*) { return make_status(ORT_NOT_IMPLEMENTED, kNoBlocks); };
  table.UseBlockSparseIndices = [](OrtValue*, const int64_t*, size_t, int32_t*) { return make_status(ORT_NOT_IMPLEMENTED, kNoBlocks); };
}

}  // namespace treadle::ort
