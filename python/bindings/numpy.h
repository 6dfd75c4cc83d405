// Tensors from NumPy arrays and back, without copies where the memory allows it.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "treadle/tensor.h"

namespace nb = nanobind;

namespace treadle::python {

/// Buffers of Python objects, held for the length of a call. Made and destroyed with the GIL held.
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

/// A tensor over the array's memory; strided, misaligned, byte-swapped and string arrays are copied.
/// @param scope  holds the memory, and the tensor must not outlive it; null: the tensor itself keeps the array alive.
/// @param dtype  what to make of an object that is no array (a list, a number); `undefined`: as NumPy sees it.
Tensor tensor_from_array(nb::handle array, BufferScope* scope = nullptr, DType dtype = DType::undefined);

/// An array that is written to where it lies: a copy of it would swallow what is written.
/// @throws Error(invalid_argument) if it would have to be copied, or is read-only.
Tensor written_array(nb::handle array, const char* what);

/// The bytes of a bytes-like object, which they keep alive; read-only.
std::shared_ptr<Storage> storage_from_buffer(nb::handle bytes);

/// An array over the tensor's memory, which it keeps alive; read-only if the memory is. Strings and packed types are copied.
nb::object array_from_tensor(const Tensor& tensor);

/// The NumPy dtype that holds elements of `dtype`, from ml_dtypes where NumPy has none.
nb::object numpy_dtype(DType dtype);
/// Of a NumPy dtype, a type such as numpy.float32, or a number of ONNX's. Raises ValueError for one that ONNX lacks.
DType dtype_from_python(nb::handle dtype);

/// Names may hold any bytes: Python's "surrogateescape" carries those that are not UTF-8.
std::string string_from_python(nb::handle text);
nb::object string_to_python(const std::string& text);

}  // namespace treadle::python
