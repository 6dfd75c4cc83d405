// Converts NumPy arrays to tensors and back, without copies if possible.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "treadle/tensor.h"

namespace nb = nanobind;

namespace treadle::python {

/// Keeps the buffers of Python objects alive until the end of a call. The thread must hold the GIL when it makes and when it destroys a
/// scope.
class BufferScope {
 public:
  BufferScope() = default;
  ~BufferScope();
  BufferScope(const BufferScope&) = delete;
  BufferScope& operator=(const BufferScope&) = delete;

 private:
  friend Tensor tensor_from_array(nb::handle array, BufferScope* scope, DType dtype);
  std::vector<std::unique_ptr<Py_buffer>> buffers_;
};

/// Returns a tensor that uses the array's memory. Copies strided, misaligned, byte-swapped and string arrays.
/// @param scope  keeps the memory alive, and must live longer than the tensor; null: the tensor itself keeps the array alive.
/// @param dtype  the element type for an object that is not an array (a list, a number); `undefined`: NumPy chooses the type.
Tensor tensor_from_array(nb::handle array, BufferScope* scope = nullptr, DType dtype = DType::undefined);

/// Returns a tensor whose writes go to the array's own memory.
/// @throws Error(invalid_argument) if the array is read-only, or if only a copy of it could be a tensor, because writes would be lost.
Tensor written_array(nb::handle array, const char* what);

/// Returns read-only memory with the bytes of a bytes-like object. The memory keeps the object alive.
std::shared_ptr<Storage> storage_from_buffer(nb::handle bytes);

/// Returns an array that uses the tensor's memory and keeps it alive; read-only if the memory is. Copies strings and packed elements.
nb::object array_from_tensor(const Tensor& tensor);

/// Returns the NumPy dtype of elements of type `dtype`, from the package ml_dtypes if NumPy has none.
nb::object numpy_dtype(DType dtype);
/// Converts a NumPy dtype, a type such as numpy.float32, or a number of ONNX's enum DataType. Raises ValueError for a type that ONNX lacks.
DType dtype_from_python(nb::handle dtype);

/// Converts a text, which may contain any bytes. Python's error handler "surrogateescape" represents bytes that are not UTF-8.
std::string string_from_python(nb::handle text);
nb::object string_to_python(const std::string& text);

}  // namespace treadle::python
