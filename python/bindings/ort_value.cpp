// Binds OrtValue, which holds a value of any ONNX type in the library's form, without converting it to Python objects.
#include "core/values/writable.h"
#include "datum.h"
#include "dlpack.h"
#include "treadle/dlpack.h"

namespace treadle::python {

void expect_cpu(const std::string& device_type) {
  if (device_type != "cpu" && device_type != "CPU")
    throw Error(ErrorCode::not_implemented, "an address in the memory of \"" + device_type + "\"; bind a value that lies there");
}

std::string device_name(const std::string& device_type, int device_id) {
  if (device_type == "CPU") return "cpu";
  return device_id > 0 && device_type != "cpu" ? device_type + ":" + std::to_string(device_id) : device_type;
}

namespace {

const Tensor& tensor_of(const OrtValue& self) { return self.datum.tensor(); }

// Returns the device's name from a name, or from an OrtDevice, as ONNX Runtime's extension module accepts it.
std::string device_from_python(nb::handle device, int device_id) {
  if (nb::isinstance<nb::str>(device)) return device_name(nb::cast<std::string>(device), device_id);
  constexpr const char* kNames[] = {"cpu", "gpu", "fpga", "npu"};
  const int type = nb::cast<int>(nb::object(device.attr("device_type")()));
  if (type < 0 || type >= static_cast<int>(std::size(kNames)))
    throw Error(ErrorCode::invalid_argument, "a device of type " + std::to_string(type));
  return device_name(kNames[type], nb::cast<int>(nb::object(device.attr("device_id")())));
}

OrtValue from_array(nb::handle array, nb::handle device, int device_id, int) {
  return {to_device(tensor_from_array(array), device_from_python(device, device_id))};
}

// Makes a value whose elements have the array's bits, but another type of the same size, for types that NumPy lacks.
OrtValue reinterpret_array(nb::handle array, int onnx_type) {
  Tensor bits = tensor_from_array(array);
  auto dtype = static_cast<DType>(nb::cast<int>(nb::module_::import_("treadle._dtypes").attr("onnx_dtype")(onnx_type)));
  if (dtype == DType::string || bits.dtype() == DType::string || bits_of(dtype) != bits_of(bits.dtype()))
    throw Error(ErrorCode::invalid_argument,
                "elements of " + std::string(name_of(bits.dtype())) + " are no " + std::string(name_of(dtype)));
  return {Tensor(dtype, bits.shape(), bits.storage(), static_cast<size_t>(bits.raw() - bits.storage()->data()))};
}

OrtValue from_shape(const std::vector<int64_t>& shape, nb::handle element_type, nb::handle device, int device_id, int, nb::handle) {
  return {to_device(Tensor(dtype_from_python(element_type), Shape(shape)), device_from_python(device, device_id))};
}

OrtValue from_shape_on(const std::vector<int64_t>& shape, nb::handle element_type, nb::handle device) {
  return from_shape(shape, element_type, device, 0, -1, nb::none());
}

// Makes a value in the memory that an OrtMemoryInfo describes. The function uses only its name, which is the name of the memory's device.
OrtValue from_shape_in(const std::vector<int64_t>& shape, nb::handle element_type, nb::handle memory_info) {
  std::string name = nb::cast<std::string>(memory_info.attr("name"));
  if (name.starts_with("Cpu") || name == "CPU") name = "cpu";
  return from_shape_on(shape, element_type, nb::cast(name));
}

nb::list shape_in_python(const OrtValue& self) {
  const Shape& shape = self.datum.kind() == Datum::Kind::sparse_tensor ? self.datum.sparse_tensor().dense_shape : tensor_of(self).shape();
  nb::list list;
  for (int64_t extent : shape) list.append(extent);
  return list;
}

int element_type(const OrtValue& self) {
  switch (self.datum.kind()) {
    case Datum::Kind::sparse_tensor: return static_cast<int>(self.datum.sparse_tensor().values.dtype());
    case Datum::Kind::sequence: return static_cast<int>(self.datum.sequence().element_dtype);
    default: return static_cast<int>(tensor_of(self).dtype());
  }
}

// Returns an array that shares the value's memory, as ONNX Runtime does on the CPU; for a sparse tensor, a SparseTensor.
nb::object to_numpy(const OrtValue& self) {
  return self.datum.kind() == Datum::Kind::sparse_tensor ? datum_to_python(self.datum) : array_from_tensor(tensor_of(self));
}

nb::object to_array(const OrtValue& self, nb::object dtype, nb::object copy) {
  bool may_share = copy.is_none() || !nb::cast<bool>(copy);
  nb::object array = array_from_tensor(may_share ? tensor_of(self) : tensor_of(self).clone());
  if (dtype.is_none()) return array;
  return array.attr("astype")(dtype, nb::arg("copy") = nb::bool_(false));
}

void update(OrtValue& self, nb::handle source) {
  Tensor from = nb::isinstance<OrtValue>(source) ? tensor_of(nb::cast<OrtValue&>(source)) : tensor_from_array(source);
  const Tensor& to = tensor_of(self);
  if (from.dtype() != to.dtype() || from.num_elements() != to.num_elements())
    throw Error(ErrorCode::invalid_argument, "update_inplace: the new value is " + describe(from) + ", the old one " + describe(to));
  expect_writable(to, "update_inplace: the value");
  Tensor target = to;
  target.copy_from(from.reshaped(to.shape()));
}

nb::object to_capsule(const OrtValue& self, nb::kwargs options) {
  bool versioned = false;
  if (options.contains("max_version") && !nb::object(options["max_version"]).is_none())
    versioned = nb::cast<int>(nb::object(options["max_version"])[0]) >= 1;
  if (options.contains("dl_device") && !nb::object(options["dl_device"]).is_none() &&
      nb::cast<int>(nb::object(options["dl_device"])[0]) != kDLCPU)
    throw nb::buffer_error("the tensor lies in the memory of the CPU");
  bool copy = options.contains("copy") && !nb::object(options["copy"]).is_none() && nb::cast<bool>(nb::object(options["copy"]));
  const bool on_device = device_of(tensor_of(self)) != "cpu";
  if (on_device && options.contains("copy") && !nb::object(options["copy"]).is_none() && !copy)
    throw nb::buffer_error("the tensor lies on a device, and is to be exchanged without a copy");
  Tensor tensor = copy || on_device ? tensor_of(self).clone() : tensor_of(self);
  return capsule_from_tensor(tensor, versioned);
}

// @param is_bool  true: uint8 elements become bool, because old exporters of DLPack capsules lack bool
OrtValue from_capsule(nb::object data, bool is_bool) {
  nb::object capsule = data;
  if (nb::hasattr(data, "__dlpack__")) {
    try {
      capsule = data.attr("__dlpack__")(nb::arg("max_version") = nb::make_tuple(1, 0));
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_TypeError)) throw;
      capsule = data.attr("__dlpack__")();
    }
  }
  Tensor tensor = tensor_from_capsule(capsule);
  tensor = tensor.contiguous();
  if (is_bool && tensor.dtype() == DType::uint8)
    tensor = Tensor(DType::boolean, tensor.shape(), tensor.storage(), static_cast<size_t>(tensor.raw() - tensor.storage()->data()));
  return {tensor};
}

bool has_value(const OrtValue& self) {
  return self.datum.kind() == Datum::Kind::optional ? self.datum.optional().value != nullptr : self.datum.defined();
}

}  // namespace

void register_ort_value(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<OrtValue>(module, "OrtValue", "A value of any ONNX type, kept as the library has it.")
      // In ONNX Runtime, the public class OrtValue wraps a value of an inner class and the owner of its memory. Treadle's value owns its
      // memory, so this constructor ignores the owner.
      .def(
          "__init__", [](OrtValue* self, const OrtValue& ortvalue, nb::handle, nb::handle) { new (self) OrtValue(ortvalue); }, "ortvalue"_a,
          "numpy_obj"_a.none() = nb::none(), "session"_a.none() = nb::none(), "The same value: nothing is copied.")
      .def_static("ortvalue_from_numpy", &from_array, "numpy_obj"_a, "device_type"_a = "cpu", "device_id"_a = 0, "vendor_id"_a = -1,
                  "Shares the array's memory while it is contiguous; on a device (\"sim\", a plugin's) a copy lies there, and runs on it "
                  "take it from there.")
      .def_static("ortvalue_from_numpy_with_onnx_type", &reinterpret_array, "data"_a, "onnx_element_type"_a,
                  "The array's bits as elements of another type.")
      .def_static("ortvalue_from_shape_and_type", &from_shape, "shape"_a, "element_type"_a, "device_type"_a = "cpu", "device_id"_a = 0,
                  "vendor_id"_a = -1, "memory_info"_a.none() = nb::none(),
                  "An uninitialised tensor; `element_type` is a NumPy type or a number of ONNX's. A device may be an OrtDevice.")
      .def_static("ortvalue_from_shape_and_onnx_type", &from_shape_on, "shape"_a, "onnx_element_type"_a, "device"_a)
      .def_static("ortvalue_from_shape_and_type_for_memory_info", &from_shape_in, "shape"_a, "element_type"_a, "memory_info"_a)
      .def_static("ortvalue_from_shape_and_onnx_type_for_memory_info", &from_shape_in, "shape"_a, "onnx_element_type"_a, "memory_info"_a)
      .def_static(
          "ort_value_from_sparse_tensor", [](const SparseTensor& sparse) { return OrtValue{sparse}; }, "sparse_tensor"_a)
      .def_static(
          "from_object", [](nb::handle value, const std::string& type) { return OrtValue{datum_from_python(value, type, nullptr)}; },
          "value"_a.none(), "type"_a = "", "Lists become sequences, dicts maps, None an empty optional; `type` as NodeArg.type says it.")
      .def_static("from_dlpack", &from_capsule, "data"_a, "is_bool"_a = false,
                  "Takes a capsule, or an object with __dlpack__; no copy if it is contiguous.")
      .def("as_sparse_tensor", [](const OrtValue& self) { return self.datum.sparse_tensor(); })
      .def(
          "to_object", [](const OrtValue& self) { return datum_to_python(self.datum); }, "As a session's run returns it.")
      .def("data_ptr", [](const OrtValue& self) { return reinterpret_cast<uintptr_t>(tensor_of(self).raw()); })
      .def(
          "device_name", [](const OrtValue& self) { return std::string(self.datum.is_tensor() ? device_of(self.datum.tensor()) : "cpu"); },
          "\"cpu\", or the device whose memory the tensor lies in.")
      .def("_get_c_value", [](nb::object self) { return self; })
      .def_prop_ro("_ortvalue", [](nb::object self) { return self; })
      .def("shape", &shape_in_python, nb::sig("def shape(self) -> list[int]"))
      .def("data_type", [](const OrtValue& self) { return onnx_type_text(self.datum); })
      .def("element_type", &element_type, "The number of the elements' type in ONNX.")
      .def("tensor_size_in_bytes", [](const OrtValue& self) { return tensor_of(self).size_bytes(); })
      .def("has_value", &has_value)
      .def("is_tensor", [](const OrtValue& self) { return self.datum.is_tensor(); })
      .def("is_sparse_tensor", [](const OrtValue& self) { return self.datum.kind() == Datum::Kind::sparse_tensor; })
      .def("is_tensor_sequence", [](const OrtValue& self) { return self.datum.kind() == Datum::Kind::sequence; })
      .def("numpy", &to_numpy, "The tensor as an array that shares its memory; of a device's memory a copy.")
      .def("__array__", &to_array, "dtype"_a.none() = nb::none(), "copy"_a.none() = nb::none())
      .def("__dlpack__", &to_capsule)
      .def(
          "to_dlpack", [](const OrtValue& self) { return to_capsule(self, {}); }, "The tensor as a DLPack capsule that shares its memory.")
      .def("__dlpack_device__", [](const OrtValue&) { return nb::make_tuple(static_cast<int>(kDLCPU), 0); })
      .def("update_inplace", &update, "data"_a, "Copies an array or another value of the same type and size into the memory of this one.")
      .def("__repr__", [](const OrtValue& self) { return "OrtValue(" + describe(self.datum) + ")"; });
}

}  // namespace treadle::python
