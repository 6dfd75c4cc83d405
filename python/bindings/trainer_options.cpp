// Binds TrainerOptions, a class with an attribute for each row of the table of options.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>

#include "bindings.h"
#include "core/base/nearest.h"
#include "option_attributes.h"
#include "train/graph/initialization.h"
#include "train/options/options.h"
#include "treadle/error.h"

namespace treadle::python {
namespace {

using train::Initialization;
using train::ParameterGroup;
using train::TrainerOptions;

constexpr const char* kParameters = "parameters";

template <typename T>
T given_as(nb::handle value, const std::string& what) {
  try {
    return nb::cast<T>(value);
  } catch (const nb::cast_error&) {
    throw nb::type_error((what + " is " + nb::cast<std::string>(nb::repr(value)) + ", which is of another type").c_str());
  }
}

void set_in_group(ParameterGroup& group, const std::string& name, nb::handle value) {
  if (name == kParameters) {
    group.parameters = given_as<std::vector<std::string>>(value, "a group's parameters");
    return;
  }
  std::string known = kParameters;
  for (const Option<ParameterGroup>& row : train::group_table().rows()) {
    known += ", " + std::string(row.name);
    if (row.name != name) continue;
    std::visit([&](auto member) { value_in(group, member) = given_as<ValueOf<decltype(member)>>(value, "a group's " + name); }, row.member);
    row.check_member(group);
    return;
  }
  throw nb::value_error(("a group has no setting '" + name + "'; it has " + known).c_str());
}

void set_groups(TrainerOptions& options, const std::vector<std::map<std::string, nb::object>>& groups) {
  std::vector<ParameterGroup> made;
  for (const auto& settings : groups) {
    ParameterGroup& group = made.emplace_back();
    for (const auto& [name, value] : settings) set_in_group(group, name, value);
  }
  options.groups = std::move(made);
}

nb::list groups_of(const TrainerOptions& options) {
  nb::list groups;
  for (const ParameterGroup& group : options.groups) {
    nb::dict settings;
    settings[kParameters] = group.parameters;
    for (const Option<ParameterGroup>& row : train::group_table().rows())
      std::visit([&](auto member) { settings[nb::str(row.name.data(), row.name.size())] = value_in(group, member); }, row.member);
    groups.append(settings);
  }
  return groups;
}

// Sets the initializers of parameters. Keeps the dict's order, because a parameter uses the first pattern that matches its name.
void set_initialization(TrainerOptions& options, const nb::dict& given) {
  std::vector<Initialization> made;
  for (auto [pattern, value] : given) {
    const bool has_scale = !nb::isinstance<nb::str>(value);
    const auto [name, scale] = has_scale ? given_as<std::pair<std::string, double>>(value, "an initializer")
                                         : std::pair(nb::cast<std::string>(value), Initialization().scale);
    made.push_back({{given_as<std::string>(pattern, "a pattern of initialize")}, train::initializer_named(name), scale});
    train::initialization_table().check(made.back());
  }
  options.initialization = std::move(made);
}

nb::dict initialization_of(const TrainerOptions& options) {
  nb::dict made;
  for (const Initialization& entry : options.initialization)
    for (const std::string& pattern : entry.parameters)
      if (nb::str key(pattern.c_str()); !made.contains(key))
        made[key] = nb::make_tuple(std::string(train::name_of(entry.initializer)), entry.scale);
  return made;
}

}  // namespace

void register_trainer_options(nb::module_& module) {
  nb::class_<TrainerOptions> options(module, "TrainerOptions");
  Attributes<TrainerOptions, TrainerOptions> attributes(options, train::trainer_option_table());
  options.def(nb::init<>())
      .def("set_loss_model",
           [](TrainerOptions& self, const Model& model) {
             self.loss = train::Loss::graph;
             self.loss_model = model;
           })
      .def_prop_rw("groups", &groups_of, &set_groups, nb::for_getter(nb::sig("def groups(self) -> list[dict[str, typing.Any]]")),
                   attributes.doc("group").c_str())
      .def_prop_rw("initialize", &initialization_of, &set_initialization,
                   nb::for_getter(nb::sig("def initialize(self) -> dict[str, tuple[str, float]]")),
                   nb::for_setter(nb::sig(setter_signature("initialize", "dict[str, str | tuple[str, float]]").c_str())),
                   attributes.doc("initialize").c_str())
      .def_rw("communicator", &TrainerOptions::communicator, nb::arg().none(), attributes.doc("communicator").c_str());
  attributes.add_rows();
  module.def("trainer_options", [] { return list_options(train::trainer_option_table()); });
  module.def("nearest_names", [](const std::string& name, const std::vector<std::string>& names) { return nearest_names(name, names); });
}

}  // namespace treadle::python
