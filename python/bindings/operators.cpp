// Binds the function that lists the library's operators with their types and attributes.
#include <algorithm>

#include "bindings.h"
#include "datum.h"
#include "graph/internal_attributes.h"
#include "graph/op_def.h"

namespace treadle::python {
namespace {

constexpr int kNoBound = 2147483647;  // stands for "no maximum" in ONNX's operator schemas

// Returns ONNX's number for the type of the attribute's default; 0 if the definition has no such default.
int type_of(const AttributeDef& attribute) {
  if (std::holds_alternative<float>(attribute.value)) return 1;
  if (std::holds_alternative<int64_t>(attribute.value)) return 2;
  return std::holds_alternative<std::string_view>(attribute.value) ? 3 : 0;
}

nb::object default_of(const AttributeDef& attribute) {
  if (const auto* number = std::get_if<float>(&attribute.value)) return nb::cast(*number);
  if (const auto* integer = std::get_if<int64_t>(&attribute.value)) return nb::cast(*integer);
  if (const auto* text = std::get_if<std::string_view>(&attribute.value)) return nb::cast(std::string(*text));
  return nb::none();
}

// Returns the types' names in the form of NodeArg.type, such as "tensor(float)".
std::vector<std::string> types_of(const TypeSet& types) {
  std::vector<std::string> names;
  for (int number = 1; number < kNumDTypes; ++number) {
    const auto dtype = static_cast<DType>(number);
    if (types.has(dtype)) names.push_back(onnx_type_text(Datum(Tensor(dtype, Shape{0}))));
  }
  return names;
}

nb::list ports_of(const std::vector<Port>& ports) {
  nb::list list;
  for (const Port& port : ports)
    list.append(nb::make_tuple(std::string(port.name), std::string(port.type_name), types_of(port.types), static_cast<int>(port.presence)));
  return list;
}

// Returns the smallest and the largest number of inputs or outputs of an operator that declares these ports.
nb::tuple count_of(const std::vector<Port>& ports) {
  int least = 0, place = 0;
  bool open = false;
  for (const Port& port : ports) {
    ++place;
    if (port.presence == Presence::required) least = place;
    open = open || port.presence == Presence::variadic;
  }
  // As in ONNX's schemas, a variadic port may be empty if other ports precede it, and makes all of these required.
  if (open) least = ports.size() == 1 ? 1 : std::max(least, place - 1);
  return nb::make_tuple(least, open ? kNoBound : place);
}

nb::list operators() {
  nb::list list;
  for (const OpDef& op : all_ops()) {
    if (op.domain == "treadle") continue;
    nb::list attributes;
    for (const AttributeDef& attribute : op.attributes) {
      if (is_internal_attribute(op.domain, attribute.name)) continue;
      attributes.append(nb::make_tuple(std::string(attribute.name), type_of(attribute), default_of(attribute),
                                       std::holds_alternative<AttributeDef::Required>(attribute.value)));
    }
    nb::dict entry;
    entry["name"] = std::string(op.name);
    entry["domain"] = std::string(op.domain);
    entry["since"] = op.since;
    entry["inputs"] = ports_of(op.inputs);
    entry["outputs"] = ports_of(op.outputs);
    entry["num_inputs"] = count_of(op.inputs);
    entry["num_outputs"] = count_of(op.outputs);
    entry["attributes"] = attributes;
    list.append(entry);
  }
  return list;
}

}  // namespace

void register_operators(nb::module_& module) {
  module.def("operators", &operators, "The registry, one dict for each operator of ONNX's domains and com.microsoft.");
}

}  // namespace treadle::python
