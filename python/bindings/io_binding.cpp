// Binds the class SessionIOBinding, with which a program sets the inputs and outputs of runs once for many runs.
#include "datum.h"
#include "session.h"

namespace treadle::python {
namespace {

Tensor bound_memory(nb::handle element_type, const std::vector<int64_t>& shape, uintptr_t pointer) {
  DType dtype = dtype_from_python(element_type);
  if (dtype == DType::string) throw Error(ErrorCode::invalid_argument, "strings cannot be bound by address");
  Shape extents(shape);
  size_t size = size_bytes(dtype, extents.num_elements());
  if (pointer == 0 && size > 0) throw Error(ErrorCode::invalid_argument, "the address of a bound buffer is null");
  // The tensor only lends this memory, because its owner is unknown: a run that the caller may abandon at a deadline works on a copy
  // instead.
  return Tensor(dtype, extents, Storage::lend(reinterpret_cast<void*>(pointer), size));  // NOLINT(performance-no-int-to-ptr)
}

nb::list bound_values(const PyIoBinding& binding) {
  nb::list list;
  for (Datum& output : binding.outputs()) {
    bool constant = output.is_tensor() && output.tensor().storage() && !output.tensor().storage()->writable();
    list.append(OrtValue{constant ? Datum(output.tensor().clone()) : output});
  }
  return list;
}

nb::list bound_arrays(const PyIoBinding& binding) {
  nb::list list;
  for (Datum& output : binding.outputs())
    list.append(datum_to_python(output.is_tensor() ? Datum(output.tensor().clone()) : detach(output)));
  return list;
}

}  // namespace

void register_io_binding(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<PyIoBinding>(module, "SessionIOBinding", "Inputs and outputs bound by name ahead of the runs. Of one thread at a time.")
      .def(
          "__init__", [](PyIoBinding* self, const PySession& session) { new (self) PyIoBinding(session); }, "session"_a,
          nb::keep_alive<1, 2>())
      .def(
          "bind_cpu_input",
          [](PyIoBinding& self, const std::string& name, nb::handle array) {
            self.bind_input(name, feed_from_python(name, array, self.owner.type_of(name), nullptr));
          },
          "name"_a, "arr_on_cpu"_a, "Shares the array's memory while it is contiguous.")
      .def(
          "bind_input",
          [](PyIoBinding& self, const std::string& name, const std::string& device, int, nb::handle element_type,
             const std::vector<int64_t>& shape, uintptr_t pointer) {
            expect_cpu(device);
            self.bind_input(name, bound_memory(element_type, shape, pointer));
          },
          "name"_a, "device_type"_a, "device_id"_a, "element_type"_a, "shape"_a, "buffer_ptr"_a,
          "Memory at an address, which must outlive the binding.")
      .def(
          "bind_ortvalue_input",
          [](PyIoBinding& self, const std::string& name, const OrtValue& value) { self.bind_input(name, value.datum); }, "name"_a,
          "ortvalue"_a)
      .def(
          "bind_output",
          [](PyIoBinding& self, const std::string& name, const std::string& device, int device_id, nb::handle element_type,
             const std::optional<std::vector<int64_t>>& shape, std::optional<uintptr_t> pointer) {
            if (!pointer) return self.bind_output_to_device(name, device_name(device, device_id));
            expect_cpu(device);
            if (element_type.is_none() || !shape)
              throw nb::value_error("`element_type` and `shape` are to be provided if pre-allocated memory is provided");
            self.bind_output(name, bound_memory(element_type, *shape, *pointer));
          },
          "name"_a, "device_type"_a = "cpu", "device_id"_a = 0, "element_type"_a.none() = nb::none(), "shape"_a.none() = nb::none(),
          "buffer_ptr"_a.none() = nb::none(),
          "Without an address the session makes the memory at every run; on a device the output stays there.")
      .def(
          "bind_ortvalue_output",
          [](PyIoBinding& self, const std::string& name, const OrtValue& value) { self.bind_output(name, value.datum.tensor()); }, "name"_a,
          "ortvalue"_a)
      .def("synchronize_inputs", [](const PyIoBinding&) {})
      .def("synchronize_outputs", [](const PyIoBinding&) {})
      .def_prop_ro(
          "output_names", [](const PyIoBinding& self) { return self.output_names(); }, "Of bound outputs, in the order of binding.")
      .def("get_outputs", &bound_values, "The last run's outputs, in the order of binding.")
      .def("copy_outputs_to_cpu", &bound_arrays, "Copies of the last run's outputs as arrays.")
      .def("clear_binding_inputs", [](PyIoBinding& self) { self.clear_inputs(); })
      .def("clear_binding_outputs", [](PyIoBinding& self) { self.clear_outputs(); });
}

}  // namespace treadle::python
