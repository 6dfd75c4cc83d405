#include "numpy.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "core/values/writable.h"
#include "treadle/error.h"
#include "treadle/session.h"

namespace treadle::python {
namespace {

nb::object helper(const char* name) { return nb::module_::import_("treadle._dtypes").attr(name); }

// Tests first if `value` is a NumPy array, because reading __array_interface__ makes a dict of strings, which takes a microsecond.
bool has_array_interface(nb::handle value) {
  static PyObject* const ndarray = nb::object(nb::module_::import_("numpy").attr("ndarray")).release().ptr();  // never released
  return PyObject_IsInstance(value.ptr(), ndarray) == 1 || nb::hasattr(value, "__array_interface__");
}

// Returns the dtype for a buffer's format (PEP 3118) in native byte order; `undefined` for other formats, which Python code converts.
DType dtype_of_format(const char* format, Py_ssize_t item_bytes) {
  if (!format) return DType::uint8;
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  bool complex = *format == 'Z';
  if (complex) ++format;
  if (format[0] == 0 || format[1] != 0) return DType::undefined;
  switch (*format) {
    case '?': return DType::boolean;
    case 'e': return DType::float16;
    case 'f': return complex ? DType::complex64 : DType::float32;
    case 'd': return complex ? DType::complex128 : DType::float64;
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q': return item_bytes == 1 ? DType::int8 : item_bytes == 2 ? DType::int16 : item_bytes == 4 ? DType::int32 : DType::int64;
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q': return item_bytes == 1 ? DType::uint8 : item_bytes == 2 ? DType::uint16 : item_bytes == 4 ? DType::uint32 : DType::uint64;
    default: return DType::undefined;
  }
}

Shape shape_of(const Py_buffer& buffer) {
  Shape shape;
  for (int axis = 0; axis < buffer.ndim; ++axis) shape.push_back(buffer.shape[axis]);
  return shape;
}

// Returns a deleter for a tensor's memory. The deleter keeps the buffer alive until the last user of the memory is gone, on any thread.
std::function<void()> keep_buffer(std::shared_ptr<Py_buffer> buffer) {
  return [buffer] {
    if (!Py_IsInitialized()) return;
    nb::gil_scoped_acquire gil;
    PyBuffer_Release(buffer.get());
  };
}

Tensor strings_from_array(nb::handle array) {
  nb::object shape_tuple = array.attr("shape");
  Shape shape;
  for (nb::handle extent : shape_tuple) shape.push_back(nb::cast<int64_t>(extent));
  Tensor tensor(DType::string, shape);
  nb::object elements = array.attr("ravel")().attr("tolist")();
  std::string* next = tensor.data<std::string>();
  for (nb::handle element : elements) *next++ = string_from_python(element);
  return tensor;
}

// Packs elements that take one byte each: several elements to a byte, as ONNX stores them, the first element in the low bits.
Tensor pack(const Tensor& bytes, DType dtype) {
  Tensor packed(dtype, bytes.shape());
  const size_t bits = bits_of(dtype);
  std::memset(packed.raw(), 0, packed.size_bytes());
  auto* source = reinterpret_cast<const uint8_t*>(bytes.raw());
  auto* target = reinterpret_cast<uint8_t*>(packed.raw());
  for (int64_t i = 0; i < bytes.num_elements(); ++i) {
    size_t bit = static_cast<size_t>(i) * bits, shift = bit % 8;
    auto value = static_cast<unsigned>(source[i] & ((1u << bits) - 1)) << shift;
    target[bit / 8] = static_cast<uint8_t>(target[bit / 8] | value);
    if (shift + bits > 8) target[bit / 8 + 1] = static_cast<uint8_t>(target[bit / 8 + 1] | (value >> 8));
  }
  return packed;
}

Tensor unpack(const Tensor& packed) {
  const DType dtype = packed.dtype();
  const size_t bits = bits_of(dtype);
  Tensor bytes(DType::uint8, packed.shape());
  auto* source = reinterpret_cast<const uint8_t*>(packed.raw());
  auto* target = reinterpret_cast<uint8_t*>(bytes.raw());
  const unsigned mask = (1u << bits) - 1, sign = is_signed_integer(dtype) ? 1u << (bits - 1) : 0;
  for (int64_t i = 0; i < packed.num_elements(); ++i) {
    size_t bit = static_cast<size_t>(i) * bits, shift = bit % 8;
    unsigned value = source[bit / 8];
    if (shift + bits > 8) value |= static_cast<unsigned>(source[bit / 8 + 1]) << 8;
    value = (value >> shift) & mask;
    target[i] = static_cast<uint8_t>((value ^ sign) - sign);
  }
  return bytes;
}

nb::dlpack::dtype buffer_dtype(DType dtype) {
  switch (dtype) {
    case DType::boolean: return nb::dtype<bool>();
    case DType::float16: return {static_cast<uint8_t>(nb::dlpack::dtype_code::Float), 16, 1};
    case DType::float32: return nb::dtype<float>();
    case DType::float64: return nb::dtype<double>();
    case DType::complex64: return {static_cast<uint8_t>(nb::dlpack::dtype_code::Complex), 64, 1};
    case DType::complex128: return {static_cast<uint8_t>(nb::dlpack::dtype_code::Complex), 128, 1};
    default: break;
  }
  auto code = is_signed_integer(dtype) ? nb::dlpack::dtype_code::Int : nb::dlpack::dtype_code::UInt;
  return {static_cast<uint8_t>(code), static_cast<uint8_t>(bits_of(dtype)), 1};  // floats below 8 bits become integers with their bits
}

nb::object strings_to_array(const Tensor& tensor) {
  nb::object numpy = nb::module_::import_("numpy");
  nb::list shape;
  for (int64_t extent : tensor.shape()) shape.append(extent);
  nb::object array = numpy.attr("empty")(nb::int_(tensor.num_elements()), nb::arg("dtype") = nb::str("O"));
  // This code writes the references in the object array directly, because setting the elements one by one takes three times as long.
  Py_buffer buffer;
  if (PyObject_GetBuffer(array.ptr(), &buffer, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) throw nb::python_error();
  const std::unique_ptr<Py_buffer, decltype(&PyBuffer_Release)> release(&buffer, PyBuffer_Release);
  auto** references = static_cast<PyObject**>(buffer.buf);
  const std::string* next = tensor.data<std::string>();
  for (int64_t i = 0; i < tensor.num_elements(); ++i) Py_XDECREF(std::exchange(references[i], string_to_python(*next++).release().ptr()));
  return array.attr("reshape")(nb::tuple(shape));
}

}  // namespace

BufferScope::~BufferScope() {
  for (auto& buffer : buffers_) PyBuffer_Release(buffer.get());
}

std::string string_from_python(nb::handle text) {
  if (PyBytes_Check(text.ptr())) return {PyBytes_AsString(text.ptr()), static_cast<size_t>(PyBytes_Size(text.ptr()))};
  nb::object held = nb::borrow(text);
  if (!PyUnicode_Check(text.ptr())) held = nb::str(text);
  Py_ssize_t size = 0;
  if (const char* data = PyUnicode_AsUTF8AndSize(held.ptr(), &size)) return {data, static_cast<size_t>(size)};
  PyErr_Clear();
  nb::object bytes = nb::steal(PyUnicode_AsEncodedString(held.ptr(), "utf-8", "surrogateescape"));
  if (!bytes.is_valid()) throw nb::python_error();
  return {PyBytes_AsString(bytes.ptr()), static_cast<size_t>(PyBytes_Size(bytes.ptr()))};
}

nb::object string_to_python(const std::string& text) {
  nb::object made = nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape"));
  if (!made.is_valid()) throw nb::python_error();
  return made;
}

nb::object numpy_dtype(DType dtype) { return helper("numpy_dtype")(static_cast<int>(dtype)); }
DType dtype_from_python(nb::handle dtype) { return static_cast<DType>(nb::cast<int>(helper("onnx_dtype")(dtype))); }

Tensor tensor_from_array(nb::handle array, BufferScope* scope, DType dtype) {
  auto buffer = std::make_unique<Py_buffer>();
  // The tensor uses the memory of a plain array directly. Python code below converts other arrays and objects to plain arrays.
  if (has_array_interface(array) && PyObject_GetBuffer(array.ptr(), buffer.get(), PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) == 0) {
    DType found = dtype_of_format(buffer->format, buffer->itemsize);
    size_t alignment = found == DType::complex64    ? 4
                       : found == DType::complex128 ? 8
                                                    : static_cast<size_t>(std::max<Py_ssize_t>(buffer->itemsize, 1));
    bool aligned = reinterpret_cast<uintptr_t>(buffer->buf) % alignment == 0;
    if (found != DType::undefined && aligned) {
      Shape shape = shape_of(*buffer);
      auto size = static_cast<size_t>(buffer->len);
      if (scope) {
        scope->buffers_.push_back(std::move(buffer));
        return Tensor(found, shape, Storage::lend(scope->buffers_.back()->buf, size));
      }
      const bool writable = !buffer->readonly;
      void* data = buffer->buf;
      auto release = keep_buffer(std::move(buffer));
      return Tensor(found, shape,
                    writable ? Storage::borrow(data, size, std::move(release)) : Storage::borrow_read_only(data, size, std::move(release)));
    }
    PyBuffer_Release(buffer.get());
  }
  PyErr_Clear();
  // normalize() returns ONNX's number of the element type, and an array. The array is contiguous and in native byte order, and holds
  // elements of that type, objects for the type string, or integers with the same bits as elements of a type that NumPy lacks.
  nb::tuple normalized = nb::cast<nb::tuple>(helper("normalize")(array, static_cast<int>(dtype)));
  auto kind = static_cast<DType>(nb::cast<int>(normalized[0]));
  nb::object plain = normalized[1];
  if (kind == DType::string) return strings_from_array(plain);
  Tensor tensor = tensor_from_array(plain, nullptr);
  if (kind == tensor.dtype()) return tensor;
  if (is_sub_byte(kind)) return pack(tensor, kind);
  return Tensor(kind, tensor.shape(), tensor.storage());
}

Tensor written_array(nb::handle array, const char* what) {
  Tensor tensor = tensor_from_array(array);
  const bool is_array = nb::hasattr(array, "ctypes");
  if (!is_array || nb::cast<uintptr_t>(array.attr("ctypes").attr("data")) != reinterpret_cast<uintptr_t>(tensor.raw()))
    throw Error(ErrorCode::invalid_argument, std::string(what) + " has to be a contiguous array that may be written to");
  expect_writable(tensor, what);
  return tensor;
}

std::shared_ptr<Storage> storage_from_buffer(nb::handle bytes) {
  auto buffer = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(bytes.ptr(), buffer.get(), PyBUF_SIMPLE) != 0) throw nb::python_error();
  void* data = buffer->buf;
  auto size = static_cast<size_t>(buffer->len);
  return Storage::borrow_read_only(data, size, keep_buffer(std::move(buffer)));
}

nb::object array_from_tensor(const Tensor& source) {
  if (source.dtype() == DType::string) return strings_to_array(source.contiguous());
  Tensor tensor = device_of(source) == "cpu" ? source.contiguous() : source.clone();
  const DType dtype = source.dtype();
  if (is_sub_byte(dtype)) tensor = unpack(tensor);
  size_t shape[kMaxRank];
  for (int axis = 0; axis < tensor.shape().rank(); ++axis) shape[axis] = static_cast<size_t>(tensor.shape()[axis]);
  auto* kept = new Tensor(tensor);
  nb::capsule owner(kept, [](void* pointer) noexcept { delete static_cast<Tensor*>(pointer); });
  static const std::byte nothing{};
  const void* data = tensor.num_elements() > 0 ? tensor.raw() : &nothing;
  auto rank = static_cast<size_t>(tensor.shape().rank());
  nb::object array =
      tensor.storage() && tensor.storage()->writable()
          ? nb::cast(nb::ndarray<nb::numpy>(const_cast<void*>(data), rank, shape, owner, nullptr, buffer_dtype(tensor.dtype())))
          : nb::cast(nb::ndarray<nb::numpy, nb::ro>(data, rank, shape, owner, nullptr, buffer_dtype(tensor.dtype())));
  bool exotic = is_sub_byte(dtype) || (is_float(dtype) && dtype != DType::float16 && dtype != DType::float32 && dtype != DType::float64);
  return exotic ? helper("view")(array, static_cast<int>(dtype)) : array;
}

}  // namespace treadle::python
