// Binds the function that explains how the graph optimizer changes a model, like the command `treadle explain`. The model does not run.
#include "cli/explain.h"

#include "bindings.h"

namespace treadle::python {

namespace {

template <typename Item, typename Name>
std::vector<std::string> names_of(const std::vector<Item>& items, Name name) {
  std::vector<std::string> names;
  for (const Item& item : items) names.push_back(item.*name);
  return names;
}

}  // namespace

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
  nb::class_<profile::Explanation>(module, "NativeExplanation")
      .def_prop_ro("json", &profile::explanation_to_json)
      .def_prop_ro("assumed_extents", [](const profile::Explanation& self) { return self.plan.assumed_extents; })
      .def_prop_ro("passes", [](const profile::Explanation& self) { return names_of(self.passes, &profile::PassReport::pass); })
      .def_prop_ro("nodes", [](const profile::Explanation& self) { return names_of(self.plan.nodes, &NodeReport::name); })
      .def("node", &cli::explain_node, nb::arg("name"))
      .def("table", &cli::explanation_text, nb::arg("top"))
      .def(
          "contents",
          [](const profile::Explanation& self, const std::string& path) {
            const std::string text = cli::explanation_file(path, self);
            return nb::bytes(text.data(), text.size());
          },
          nb::arg("path"));
  nb::class_<profile::NodeHistory>(module, "NativeNodeHistory")
      .def_prop_ro("json", &profile::history_to_json)
      .def_prop_ro("text", &cli::node_history_text);
}

}  // namespace treadle::python
