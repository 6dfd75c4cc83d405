// Functions that make tensors, in memory of the client or of this library, and functions that access their elements.
#include <algorithm>
#include <cstring>

#include "ort_api/api.h"

namespace treadle::ort {
namespace {

const Tensor& tensor_of(const OrtValue* value) {
  const Datum& datum = required(value, "value").datum;
  if (!datum.is_tensor()) refuse_kind(datum, "a tensor");
  return datum.tensor();
}

[[noreturn]] void refuse_tensor(const std::string& what) { throw StatusError(ORT_FAIL, what); }

std::span<std::string> strings_in(const Tensor& tensor) {
  if (tensor.dtype() != DType::string) refuse_tensor("Tensor type mismatch: a tensor of strings was expected, this is " + describe(tensor));
  return tensor.span<std::string>();
}

// Returns the strings that a dense or sparse tensor contains.
std::span<std::string> strings_of(const OrtValue* value) {
  const Datum& datum = required(value, "value").datum;
  if (value->filled && !value->populated) throw Error(ErrorCode::invalid_argument, "Sparse Tensor does not contain sparse data");
  if (datum.kind() == Datum::Kind::sparse_tensor) return strings_in(datum.sparse_tensor().values);
  if (!datum.is_tensor()) throw StatusError(ORT_NOT_IMPLEMENTED, "This API supports Tensors or SparseTensors, not " + describe(datum));
  return strings_in(datum.tensor());
}

std::string& string_at(const std::span<std::string>& strings, size_t index) {
  if (index >= strings.size())
    throw Error(ErrorCode::invalid_argument,
                "element index is out of bounds: " + std::to_string(index) + " of " + std::to_string(strings.size()));
  return strings[index];
}

// Makes a tensor around memory, without taking ownership of it yet, so that the client keeps the memory if this fails.
Tensor tensor_around(void* data, size_t length, const Shape& shape, DType dtype) {
  if (dtype == DType::string) throw Error(ErrorCode::invalid_argument, "a tensor of strings cannot be made around memory");
  if (data == nullptr && shape.num_elements() > 0) throw Error(ErrorCode::invalid_argument, "the data is null");
  return Tensor(dtype, shape, Storage::borrow(data, length, {}));
}

// Allocates memory from the client's allocator. The memory is freed with the last tensor that uses it.
std::shared_ptr<Storage> storage_of(OrtAllocator& allocator, size_t size_bytes) {
  void* data = allocate(&allocator, std::max<size_t>(size_bytes, 1));
  return Storage::borrow(data, size_bytes, [kept = keep(allocator), data] { kept->Free(kept.get(), data); });
}

void add_making(OrtApi& table) {
  table.CreateTensorAsOrtValue = [](OrtAllocator* allocator, const int64_t* dims, size_t rank, ONNXTensorElementDataType type,
                                    OrtValue** out) {
    return guarded([&] {
      const DType dtype = dtype_from(type);
      for (size_t i = 0; i < rank; ++i)
        if ((&required(dims, "shape"))[i] < 0) refuse_tensor("Tensor shape cannot contain any negative value: " + std::to_string(dims[i]));
      const Shape shape = shape_from(dims, rank);
      const bool is_ours = &required(allocator, "allocator") == &default_allocator() || dtype == DType::string;
      Tensor tensor =
          is_ours ? Tensor(dtype, shape) : Tensor(dtype, shape, storage_of(*allocator, size_bytes(dtype, shape.num_elements())));
      required(out, "out") = new_value(std::move(tensor), allocator->Info(allocator));
    });
  };
  table.CreateTensorWithDataAsOrtValue = [](const OrtMemoryInfo* info, void* data, size_t length, const int64_t* dims, size_t rank,
                                            ONNXTensorElementDataType type, OrtValue** out) {
    return guarded([&] {
      const DType dtype = dtype_from(type);
      expect_cpu(required(info, "info"));
      required(out, "out") = new_value(tensor_around(data, length, shape_from(dims, rank), dtype), info);
    });
  };
  table.CreateTensorWithDataAndDeleterAsOrtValue = [](OrtAllocator* deleter, void* data, size_t length, const int64_t* dims, size_t rank,
                                                      ONNXTensorElementDataType type, OrtValue** out) {
    return guarded([&] {
      const std::shared_ptr<OrtAllocator> kept = keep(required(deleter, "deleter"));
      const DType dtype = dtype_from(type);
      const Tensor view = tensor_around(data, length, shape_from(dims, rank), dtype);
      required(out, "out");
      auto storage = Storage::borrow(data, length, [kept, data] { kept->Free(kept.get(), data); });
      *out = new_value(Tensor(dtype, view.shape(), std::move(storage)), kept->Info(kept.get()));
    });
  };
  table.ReleaseValue = [](OrtValue* value) { delete value; };
}

void add_describing(OrtApi& table) {
  table.GetTensorTypeAndShape = [](const OrtValue* value, OrtTensorTypeAndShapeInfo** out) {
    return guarded([&] {
      const Datum& datum = required(value, "value").datum;
      const bool sparse = datum.kind() == Datum::Kind::sparse_tensor;
      if (!sparse && !datum.is_tensor())
        throw StatusError(datum.defined() ? ORT_FAIL : ORT_INVALID_ARGUMENT, "expected a tensor, got " + describe(datum));
      required(out, "out") =
          new OrtTensorTypeAndShapeInfo(sparse ? tensor_type(datum.sparse_tensor().values.dtype(), datum.sparse_tensor().dense_shape)
                                               : tensor_type(datum.tensor().dtype(), datum.tensor().shape()));
    });
  };
  table.GetTensorElementTypeAndShapeDataReference = [](const OrtValue* value, ONNXTensorElementDataType* type, const int64_t** dims,
                                                       size_t* rank) {
    return guarded([&] {
      const Datum& datum = required(value, "value").datum;
      const bool is_sparse = datum.kind() == Datum::Kind::sparse_tensor;
      const Shape& shape = is_sparse ? datum.sparse_tensor().dense_shape : datum.tensor().shape();
      required(type, "elem_type") = number_of(is_sparse ? datum.sparse_tensor().values.dtype() : datum.tensor().dtype());
      required(dims, "shape_data") = shape.rank() > 0 ? shape.begin() : nullptr;
      required(rank, "shape_data_count") = static_cast<size_t>(shape.rank());
    });
  };
  table.GetTensorMemoryInfo = [](const OrtValue* value, const OrtMemoryInfo** out) {
    return guarded([&] {
      (void)tensor_of(value);
      required(out, "out") = &value->memory;
    });
  };
}

void add_reading(OrtApi& table) {
  table.IsTensor = [](const OrtValue* value, int* out) {
    return guarded([&] { required(out, "out") = required(value, "value").datum.is_tensor() ? 1 : 0; });
  };
  table.HasValue = [](const OrtValue* value, int* out) {
    return guarded([&] {
      const Datum& datum = required(value, "value").datum;
      required(out, "out") = datum.defined() && (datum.kind() != Datum::Kind::optional || datum.optional().value) ? 1 : 0;
    });
  };
  table.GetTensorMutableData = [](OrtValue* value, void** out) { return guarded([&] { required(out, "out") = tensor_of(value).raw(); }); };
  table.GetTensorData = [](const OrtValue* value, const void** out) {
    return guarded([&] { required(out, "out") = tensor_of(value).raw(); });
  };
  table.GetTensorSizeInBytes = [](const OrtValue* value, size_t* size) {
    return guarded([&] {
      const Tensor& tensor = required(value, "value").datum.tensor();
      if (tensor.dtype() == DType::string)
        throw Error(ErrorCode::invalid_argument, "String tensors are not supported by this API: strings have no size in bytes");
      required(size, "size") = tensor.size_bytes();
    });
  };
  table.TensorAt = [](OrtValue* value, const int64_t* location, size_t count, void** out) {
    return guarded([&] {
      const Tensor& tensor = tensor_of(value);
      if (tensor.dtype() == DType::string || bits_of(tensor.dtype()) < 8)
        throw Error(ErrorCode::invalid_argument, "elements of " + describe(tensor) + " have no address");
      if (count != static_cast<size_t>(tensor.shape().rank()))
        throw Error(ErrorCode::invalid_argument, std::to_string(count) + " coordinates in " + describe(tensor));
      size_t at = 0;
      for (size_t d = 0; d < count; ++d) {
        const int64_t extent = tensor.shape()[static_cast<int>(d)];
        if (location[d] < 0 || location[d] >= extent)
          throw Error(ErrorCode::invalid_argument, "coordinate " + std::to_string(location[d]) + " is outside of " + describe(tensor));
        at = at * static_cast<size_t>(extent) + static_cast<size_t>(location[d]);
      }
      required(out, "out") = tensor.raw() + at * bits_of(tensor.dtype()) / 8;
    });
  };
  table.CopyTensors = [](const OrtEnv* environment, const OrtValue* const* from, OrtValue* const* to, OrtSyncStream*, size_t count) {
    return guarded([&] {
      required(environment, "env");
      if (count == 0) throw Error(ErrorCode::invalid_argument, "Invalid arguments provided to CopyTensors: there are no tensors");
      for (size_t i = 0; i < count; ++i) {
        const OrtValue &source = required((&required(from, "src_tensors"))[i], "a source"),
                       &target = required((&required(to, "dst_tensors"))[i], "a target");
        if (!source.datum.is_tensor() || !target.datum.is_tensor())
          throw Error(ErrorCode::invalid_argument,
                      "OrtValue must contain Tensor with data: " + describe(source.datum) + " to " + describe(target.datum));
        Tensor tensor = target.datum.tensor();
        tensor.copy_from(source.datum.tensor());
      }
    });
  };
}

void add_strings(OrtApi& table) {
  table.FillStringTensor = [](OrtValue* value, const char* const* texts, size_t count) {
    return guarded([&] {
      const std::span<std::string> strings = strings_in(tensor_of(value));
      if (count != strings.size())
        throw Error(ErrorCode::invalid_argument,
                    "input array doesn't equal tensor size: " + std::to_string(count) + " strings for " + std::to_string(strings.size()));
      for (size_t i = 0; i < count; ++i) strings[i] = chars_of(texts[i], "a string");
    });
  };
  table.FillStringTensorElement = [](OrtValue* value, const char* text, size_t index) {
    return guarded([&] { string_at(strings_in(tensor_of(value)), index) = chars_of(text, "a string"); });
  };
  table.GetResizedStringTensorElementBuffer = [](OrtValue* value, size_t index, size_t length, char** out) {
    return guarded([&] {
      std::string& text = string_at(strings_in(tensor_of(value)), index);
      text.resize(length);
      required(out, "buffer") = text.data();
    });
  };
  table.GetStringTensorDataLength = [](const OrtValue* value, size_t* out) {
    return guarded([&] {
      size_t length = 0;
      for (const std::string& text : strings_of(value)) length += text.size();
      required(out, "len") = length;
    });
  };
  // Copies the strings into one block without NULs between them, and the offset of each string.
  table.GetStringTensorContent = [](const OrtValue* value, void* to, size_t room, size_t* offsets, size_t count) {
    return guarded([&] {
      const std::span<std::string> strings = strings_of(value);
      if (count != strings.size())
        refuse_tensor("offsets buffer is not equal to tensor size: " + std::to_string(count) + " for " + std::to_string(strings.size()));
      size_t at = 0;
      for (size_t i = 0; i < count; ++i) {
        offsets[i] = at;
        if (strings[i].size() > room - at)
          refuse_tensor("output buffer is too small: the strings take more than " + std::to_string(room) + " bytes");
        std::memcpy(static_cast<char*>(to) + at, strings[i].data(), strings[i].size());
        at += strings[i].size();
      }
    });
  };
  table.GetStringTensorElementLength = [](const OrtValue* value, size_t index, size_t* out) {
    return guarded([&] { required(out, "out") = string_at(strings_of(value), index).size(); });
  };
  table.GetStringTensorElement = [](const OrtValue* value, size_t room, size_t index, void* out) {
    return guarded([&] {
      const std::string& text = string_at(strings_of(value), index);
      if (text.size() > room)
        refuse_tensor("buffer size is too small for string element: it takes " + std::to_string(text.size()) + " bytes, there are " +
                      std::to_string(room));
      std::memcpy(out, text.data(), text.size());
    });
  };
}

}  // namespace

void refuse_kind(const Datum& datum, const std::string& expected) {
  const bool has_maps =
      datum.kind() == Datum::Kind::map || (datum.kind() == Datum::Kind::sequence && datum.sequence().element_dtype == DType::undefined);
  throw StatusError(has_maps || datum.kind() == Datum::Kind::none ? ORT_FAIL : ORT_RUNTIME_EXCEPTION,
                    "expected " + expected + ", got " + describe(datum));
}

OrtValue* new_value(Datum datum, const OrtMemoryInfo* memory) {
  return new OrtValue{std::move(datum), nullptr, memory != nullptr ? *memory : OrtMemoryInfo(), {}, false};
}

Datum owned_by_client(Datum datum) {
  if (!datum.is_tensor()) return datum;
  const Tensor& tensor = datum.tensor();
  // Copies the tensor if its memory is shared, because other owners would see the client's writes, or could reclaim the memory.
  const bool is_alone = tensor.storage().use_count() <= 1 && tensor.storage()->writable() && !tensor.storage()->lent();
  return is_alone && tensor.is_contiguous() ? datum : Datum(tensor.clone());
}

Shape shape_from(const int64_t* dims, size_t rank) {
  if (rank > 0) required(dims, "shape");
  const Shape shape(std::span<const int64_t>(dims, rank));
  try {
    shape.num_elements();  // throws if the number overflows
  } catch (const Error& error) {
    if (error.code() == ErrorCode::resource_exhausted) refuse_tensor(std::string("Integer overflow: ") + error.what());
    throw;
  }
  return shape;
}

// The number of float8e8m0 comes before those of uint2 and int2 in ONNX, but after them in ONNX Runtime.
static_assert(static_cast<int>(DType::float4e2m1) == 23 && static_cast<int>(DType::int2) == 26);
constexpr DType kRenumbered[] = {DType::uint2, DType::int2, DType::float8e8m0};
constexpr int kFirstRenumbered = 24, kNumNumbers = 27;

ONNXTensorElementDataType number_of(DType dtype) {
  const auto found = std::find(std::begin(kRenumbered), std::end(kRenumbered), dtype);
  return found != std::end(kRenumbered) ? kFirstRenumbered + static_cast<int>(found - std::begin(kRenumbered)) : static_cast<int>(dtype);
}

DType dtype_of(ONNXTensorElementDataType type) {
  if (type < 0 || type >= kNumNumbers) throw StatusError(ORT_NOT_IMPLEMENTED, "tensor type " + std::to_string(type) + " is not supported");
  return type < kFirstRenumbered ? static_cast<DType>(type) : kRenumbered[type - kFirstRenumbered];
}

DType dtype_from(ONNXTensorElementDataType type) {
  const DType dtype = dtype_of(type);
  if (dtype == DType::undefined) throw StatusError(ORT_NOT_IMPLEMENTED, "tensor type 0 is not supported");
  return dtype;
}

void add_tensors(OrtApi& table) {
  add_making(table);
  add_describing(table);
  add_reading(table);
  add_strings(table);
}

}  // namespace treadle::ort
