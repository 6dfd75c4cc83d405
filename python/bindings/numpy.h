// Converts tensors from and to NumPy arrays, without copies if possible.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "treadle/tensor.h"

namespace nb = nanobind;

namespace treadle::python {

/// Keeps the buffers of Python objects alive for the duration of a call. The GIL must be held when a scope is made and when it is
/// destroyed.
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

/// Returns a tensor over the array's memory. Strided, misaligned, byte-swapped and string arrays are copied.
/// @param scope  keeps the memory alive, and must outlive the tensor; null: the tensor itself keeps the array alive.
/// @param dtype  for an object that is not an array (a list, a number); `undefined`: NumPy chooses.
Tensor tensor_from_array(nb::handle array, BufferScope* scope = nullptr, DType dtype = DType::undefined);

/// Returns a tensor that writes to the array's own memory.
/// @throws Error(invalid_argument) if the array is read-only, or if it would have to be copied, since the writes would be lost.
Tensor written_array(nb::handle array, const char* what);

/// Returns the read-only bytes of a bytes-like object, and keeps the object alive.
std::shared_ptr<Storage> storage_from_buffer(nb::handle bytes);

/// Returns an array over the tensor's memory, and keeps the memory alive. Read-only if the memory is. Strings and packed types are copied.
nb::object array_from_tensor(const Tensor& tensor);

/// Returns the NumPy dtype for elements of `dtype`, from ml_dtypes if NumPy has none.
nb::object numpy_dtype(DType dtype);
/// Converts a NumPy dtype, a type such as numpy.float32, or a number of ONNX's enum. Raises ValueError for a type that ONNX lacks.
DType dtype_from_python(nb::handle dtype);

/// Converts a name, which may hold any bytes. Python represents bytes that are not UTF-8 by "surrogateescape".
std::string string_from_python(nb::handle text);
nb::object string_to_python(const std::string& text);

}  // namespace treadle::python
