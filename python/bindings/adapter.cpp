// Binds LoraAdapter and AdapterFormat: parameters in a file of their own, which adjust a model.
#include "treadle/adapter.h"

#include "datum.h"
#include "session.h"

namespace treadle::python {
namespace {

using Values = std::map<std::string, OrtValue>;

void set_parameters(Adapter& self, const Values& values) {
  self.parameters.clear();
  for (const auto& [name, value] : values) {
    if (!value.datum.is_tensor()) throw Error(ErrorCode::invalid_argument, "the parameter \"" + name + "\" is no dense tensor");
    self.parameters.emplace(name, value.datum.tensor());
  }
}

Values get_parameters(const Adapter& self) {
  Values values;
  for (const auto& [name, tensor] : self.parameters) values.emplace(name, OrtValue{tensor});
  return values;
}

}  // namespace

void register_adapter(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<LoraAdapter>(module, "LoraAdapter", "A LoRA adapter, for `RunOptions.add_active_adapter`.")
      .def(nb::init<>())
      .def(
          "Load", [](LoraAdapter& self, const std::string& path) { self.adapter = std::make_shared<const Adapter>(Adapter::load(path)); },
          "adapter_path"_a, nb::call_guard<nb::gil_scoped_release>(), "Reads an .onnx_adapter file.");
  nb::class_<Adapter>(module, "AdapterFormat", "The contents of an .onnx_adapter file: named tensors and two version numbers.")
      .def(nb::init<>())
      .def_static("read_adapter", &Adapter::load, "file_path"_a, nb::call_guard<nb::gil_scoped_release>(), "Reads a file.")
      .def("export_adapter", &Adapter::save, "file_path"_a, nb::call_guard<nb::gil_scoped_release>(), "Writes a file, in one step.")
      .def(
          "get_format_version", [](const Adapter&) { return Adapter::kFormatVersion; }, "Version of the file format.")
      .def(
          "get_adapter_version", [](const Adapter& self) { return self.adapter_version; }, "The adapter's own version.")
      .def(
          "set_adapter_version", [](Adapter& self, int version) { self.adapter_version = version; }, "adapter_version"_a)
      .def(
          "get_model_version", [](const Adapter& self) { return self.model_version; }, "Version of the model that it adjusts.")
      .def(
          "set_model_version", [](Adapter& self, int version) { self.model_version = version; }, "model_version"_a)
      .def("get_parameters", &get_parameters, "The tensors by the names of the model's inputs.")
      .def("set_parameters", &set_parameters, "params"_a, "Replaces the tensors: OrtValues by the names of the model's inputs.");
}

}  // namespace treadle::python
