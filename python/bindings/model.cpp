// Binds Model, NodeArg and ModelMetadata.
#include "treadle/model.h"

#include "bindings.h"
#include "numpy.h"
#include "ort_api/api.h"
#include "session/model.h"

namespace treadle::python {
namespace {

// Returns for each extent an int, the name of a symbol, or None if the extent is unknown. The list is empty if the rank is unknown.
nb::list shape_to_python(const ValueInfo& info) {
  nb::list shape;
  for (const auto& extent : info.shape) {
    if (auto* size = std::get_if<int64_t>(&extent))
      shape.append(*size);
    else if (std::get<std::string>(extent).empty())
      shape.append(nb::none());
    else
      shape.append(string_to_python(std::get<std::string>(extent)));
  }
  return shape;
}

std::string describe_arg(const ValueInfo& info) {
  nb::object name = string_to_python(info.name);
  return nb::cast<std::string>(nb::str("NodeArg(name={!r}, type={!r}, shape={})").attr("format")(name, info.type, shape_to_python(info)));
}

Model load(const std::function<Model()>& read) {
  try {
    nb::gil_scoped_release release;
    return read();
  } catch (const Error& error) {
    refuse_as_onnxruntime(error, [&] { ort::refuse_model(error); });
    throw;
  }
}

onnx::ReadOptions read_options(const PySessionOptions* options) {
  if (!options) return {};
  onnx::ReadOptions read = reading_options(*options);
  read.external_files = options->external_files;
  read.external_values = options->external_values;
  return read;
}

Model with_values_used(Model model, const onnx::ReadOptions& read) {
  const std::string why = unused_value(model, read.external_values);
  if (!why.empty()) raise_as("Fail", Error(ErrorCode::invalid_argument, why));
  return model;
}

Model load_file(const std::string& path, const PySessionOptions* options) {
  const onnx::ReadOptions read = read_options(options);
  auto read_file = [&] {
    ort::check_model_file(path);
    return load_model(path, read);
  };
  return with_values_used(load(read_file), read);
}

Model load_bytes(nb::bytes bytes, const std::string& folder, const PySessionOptions* options) {
  std::span<const std::byte> span(reinterpret_cast<const std::byte*>(bytes.c_str()), bytes.size());
  const onnx::ReadOptions read = read_options(options);
  auto read_bytes = [&] {
    ort::check_model_bytes(span.size());
    return read_model(span, folder, read);
  };
  return with_values_used(load(read_bytes), read);
}

GraphState state_of(bool optimized) { return optimized ? GraphState::optimized : GraphState::as_read; }

}  // namespace

void register_model(nb::module_& module) {
  nb::class_<ValueInfo>(module, "NodeArg", "An input, an output or an overridable initializer, as the model declares it.")
      .def_prop_ro(
          "name", [](const ValueInfo& info) { return string_to_python(info.name); }, nb::sig("def name(self) -> str"))
      .def_prop_ro(
          "type", [](const ValueInfo& info) { return info.type; }, "For instance \"tensor(float)\" or \"seq(tensor(int64))\".")
      .def_prop_ro(
          "shape", &shape_to_python, nb::sig("def shape(self) -> list[int | str | None]"),
          "Extents: a number, the name of a symbol, or None where the model does not say. Empty for a scalar and for an unknown rank.")
      .def("__repr__", &describe_arg);

  nb::class_<ModelMetadata>(module, "ModelMetadata")
      .def_ro("producer_name", &ModelMetadata::producer_name)
      .def_ro("producer_version", &ModelMetadata::producer_version)
      .def_ro("graph_name", &ModelMetadata::graph_name)
      .def_ro("domain", &ModelMetadata::domain)
      .def_ro("description", &ModelMetadata::description)
      .def_ro("graph_description", &ModelMetadata::graph_description)
      .def_ro("version", &ModelMetadata::version)
      .def_ro("ir_version", &ModelMetadata::ir_version)
      .def_ro("opsets", &ModelMetadata::opsets)
      .def_ro("custom_metadata_map", &ModelMetadata::custom);

  nb::class_<Model>(module, "Model", "A model as read from an ONNX file; sessions, trainers and tools take one in place of a path.")
      .def(nb::new_([](nb::handle model) { return nb::cast<Model>(nb::module_::import_("treadle._models").attr("load_model")(model)); }),
           nb::arg("model"), "Reads a path, the bytes of a file, or an onnx.ModelProto.")
      .def_static("load", &load_file, nb::arg("path"), nb::arg("options").none() = nb::none(),
                  "Reads a file. The options say how files are read. Raises NoSuchFile, InvalidProtobuf or InvalidGraph.")
      .def_static("from_bytes", &load_bytes, nb::arg("data"), nb::arg("model_dir") = "", nb::arg("options").none() = nb::none(),
                  "Reads the bytes of a file. External data is looked for in `model_dir`; empty: there is none.")
      .def_prop_ro("inputs", &Model::inputs, "Name, type and shape of each input that a run needs.")
      .def_prop_ro("outputs", &Model::outputs, "Name, type and shape of each output.")
      .def_prop_ro("overridable_initializers", &Model::overridable_initializers, "Inputs with a default value.")
      .def_prop_ro(
          "metadata", [](const Model& model) { return model.metadata(); }, "Producer, version, opsets, and entries of its own.")
      .def("unsupported", &Model::unsupported, "One line per operator that this build cannot run; empty if it can run the model.")
      .def(
          "to_text", [](const Model& model, bool optimized) { return model.to_text(state_of(optimized)); }, nb::arg("optimized") = false,
          "The graph as text, as read or after the graph optimizer.")
      .def(
          "save",
          [](const Model& model, const std::string& path, bool optimized, int opset) { model.save(path, state_of(optimized), opset); },
          nb::arg("path"), nb::arg("optimized") = false, nb::arg("opset") = 0, nb::call_guard<nb::gil_scoped_release>(),
          "Writes the model, as read or optimized.");
}

}  // namespace treadle::python
