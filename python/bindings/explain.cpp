// What the optimiser made of a model, without running it: as `treadle explain`.
#include "cli/explain.h"

#include "bindings.h"

namespace treadle::python {

void register_explain(nb::module_& module) {
  module.def(
      "explain_model",
      [](const Model& model, const PySessionOptions& options, const std::string& name, std::vector<std::string> dimensions,
         std::vector<std::string> shapes, int64_t default_extent) {
        cli::ExplainRequest request{.name = name, .inputs = {}, .session = options};
        request.inputs.dimensions = std::move(dimensions);
        request.inputs.shapes = std::move(shapes);
        request.inputs.default_extent = default_extent;
        request.inputs.setters = "dimensions={NAME: EXTENT} or shapes={INPUT: EXTENTS}";
        nb::gil_scoped_release released;
        return cli::explain_model(model, request);
      },
      nb::arg("model"), nb::arg("options"), nb::arg("name"), nb::arg("dimensions"), nb::arg("shapes"), nb::arg("default_extent"));
  module.def("explain_node", &cli::explain_node, nb::arg("document"), nb::arg("node"));
  module.def("explanation_text", &cli::explanation_text, nb::arg("document"), nb::arg("top"));
  module.def(
      "explanation_file",
      [](const std::string& path, const std::string& document) {
        const std::string text = cli::explanation_file(path, document);
        return nb::bytes(text.data(), text.size());
      },
      nb::arg("path"), nb::arg("document"));
  module.def("node_history_text", &cli::node_history_text, nb::arg("history"));
}

}  // namespace treadle::python
