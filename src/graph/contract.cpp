#include "graph/contract.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>
#include <utility>
#include <variant>

#include "core/base/fault.h"
#include "graph/custom_ops.h"
#include "graph/type_text.h"
#include "treadle/error.h"

namespace treadle {
namespace {

[[noreturn]] void fail(std::string text, ErrorCode code = ErrorCode::invalid_model, std::string words = {}) {
  throw Fault(Fault::Kind::schema, code, std::move(text), std::move(words));
}

[[noreturn]] void fail_type(std::string text, ErrorCode code = ErrorCode::invalid_model, std::string words = {}) {
  throw Fault(Fault::Kind::operand_type, code, std::move(text), std::move(words));
}

bool is_variadic(const std::vector<Port>& ports) { return !ports.empty() && ports.back().presence == Presence::variadic; }

const Port& port_at(const std::vector<Port>& ports, size_t i) { return ports[std::min(i, ports.size() - 1)]; }

void check_presence(const Node& node) {
  const OpDef& op = *node.op;
  const auto num_inputs = static_cast<size_t>(node.num_formal_inputs);
  if (!is_variadic(op.inputs) && num_inputs > op.inputs.size())
    fail(fmt::format("{} inputs given, at most {} expected", num_inputs, op.inputs.size()));
  if (!is_variadic(op.outputs) && node.outputs.size() > op.outputs.size())
    fail(fmt::format("{} outputs named, at most {} exist", node.outputs.size(), op.outputs.size()));
  for (size_t i = 0; i < std::max(op.inputs.size(), num_inputs); ++i) {
    if (node.has_input(i)) continue;
    const Port& port = port_at(op.inputs, i);
    // A variadic list of operands has no gaps. An operator with a variadic input needs at least one operand there.
    const bool wanted = port.presence == Presence::variadic && (i == 0 || i < num_inputs);
    if (wanted || port.presence == Presence::required) fail(fmt::format("the input {} ({}) is missing", i, port.name));
  }
  for (size_t i = 0; i < std::max(op.outputs.size(), node.outputs.size()); ++i) {
    if (node.has_output(i)) continue;
    const Port& port = port_at(op.outputs, i);
    const bool wanted = port.presence == Presence::variadic && i < node.outputs.size();
    if (wanted || port.presence == Presence::required) fail(fmt::format("the output {} ({}) is missing", i, port.name));
  }
}

void check_type(const Node& node, const Port& port, const Type& type, std::string_view what, ErrorCode code) {
  if (!port.types.accepts(type))
    fail(fmt::format("the {} {} is {}; allowed: {}", what, port.name, to_string(type), port.types.to_string()), code,
         fmt::format("Type Error: Type '{}' of {} parameter ({}) of operator ({}) in node ({}) is invalid.", type_text(type), what,
                     port.name, node.op_type, node.name));
  if (!type.is_tensor() || !type.has_rank() || (type.rank() >= port.ranks.least && type.rank() <= port.ranks.most)) return;
  std::string expected = fmt::format("{}", port.ranks.least);
  if (port.ranks.most == INT_MAX)
    expected += " or more";
  else if (port.ranks.most > port.ranks.least)
    expected += fmt::format(" to {}", port.ranks.most);
  fail_type(fmt::format("the {} {} is {}; {} axes expected", what, port.name, to_string(type), expected), code);
}

// Returns the integers of an integer or integer list attribute.
std::span<const int64_t> integers_of(const Attribute& attribute) {
  if (const auto* number = std::get_if<int64_t>(&attribute)) return {number, 1};
  if (const auto* numbers = std::get_if<std::vector<int64_t>>(&attribute)) return *numbers;
  return {};
}

bool is_one_of(std::string_view text, std::string_view words) {
  while (true) {
    const size_t end = words.find('|');
    if (words.substr(0, end) == text) return true;
    if (end == std::string_view::npos) return false;
    words.remove_prefix(end + 1);
  }
}

void check_bounds(const AttributeDef& def, const Attribute& attribute) {
  const Allowed& allowed = def.allowed;
  for (const int64_t number : integers_of(attribute)) {
    const bool names_dtype = allowed.dtypes != TypeSet{};
    if (names_dtype && (number < 0 || number >= kNumDTypes || !allowed.dtypes.has(static_cast<DType>(number))))
      fail(fmt::format("the attribute {} is {}, which names no dtype among {}", def.name, number, allowed.dtypes.to_string()));
    if (number >= allowed.least && number <= allowed.most) continue;
    if (allowed.most == INT64_MAX) fail(fmt::format("the attribute {} is {}; at least {} expected", def.name, number, allowed.least));
    fail(fmt::format("the attribute {} is {}; {} to {} expected", def.name, number, allowed.least, allowed.most));
  }
  const auto* text = std::get_if<std::string>(&attribute);
  if (text && !allowed.words.empty() && !is_one_of(*text, allowed.words))
    fail(fmt::format("the attribute {} is \"{}\"; one of {} expected", def.name, *text, allowed.words));
}

void check_attribute(const AttributeDef& def, const Attribute& attribute) {
  const bool has_its_type = std::visit(
      [&](const auto& otherwise) {
        using Default = std::decay_t<decltype(otherwise)>;
        if constexpr (std::is_same_v<Default, std::string_view>)
          return std::holds_alternative<std::string>(attribute);
        else if constexpr (std::is_arithmetic_v<Default>)
          return std::holds_alternative<Default>(attribute);
        else
          return true;
      },
      def.value);
  if (!has_its_type) fail(fmt::format("attribute \"{}\" has another type than the operator's: {}", def.name, to_string(attribute)));
  if (!def.allowed.any()) check_bounds(def, attribute);
}

void check_attributes(const Node& node) {
  const std::vector<AttributeDef>& defs = node.op->attributes;
  auto find = [&](std::string_view name) {
    return std::find_if(defs.begin(), defs.end(), [&](const AttributeDef& def) { return def.name == name || def.name == kAnyAttribute; });
  };
  for (const AttributeDef& def : defs)
    if (std::holds_alternative<AttributeDef::Required>(def.value) && !node.attributes.has(def.name) && !node.body(def.name))
      fail(fmt::format("the attribute \"{}\" is required", def.name));
  auto unknown = [&](std::string_view name) {
    fail(fmt::format("the attribute \"{}\" is not one of the operator's", name), ErrorCode::not_implemented,
         fmt::format("Unrecognized attribute: {} for operator {}:", name, node.op_type));
  };
  for (const auto& [name, attribute] : node.attributes) {
    const auto def = find(name);
    if (def == defs.end()) unknown(name);
    check_attribute(*def, attribute);
  }
  for (const Body& body : node.bodies)
    if (find(body.attribute) == defs.end()) unknown(body.attribute);
}

bool has_dtype(const Type* type) { return type && type->is_tensor() && type->dtype != DType::undefined; }

// Inputs whose ports have the same type_name must have the dtype of the first such input. `type_at(i)` is null for an absent input.
template <typename TypeAt>
void check_types(const Node& node, size_t count, TypeAt type_at, ErrorCode code) {
  const OpDef& op = *node.op;
  const size_t last = op.inputs.empty() ? 0 : op.inputs.size() - 1;
  const Type* first_of_list = nullptr;
  for (size_t i = 0; i < count; ++i) {
    const Type* type = type_at(i);
    if (!type) continue;
    const Port& port = port_at(op.inputs, i);
    check_type(node, port, *type, "input", code);
    if (port.type_name.empty() || !has_dtype(type)) continue;
    const Port* other = &port;
    const Type* decides = nullptr;
    for (size_t k = 0; k < std::min(i, last) && !decides; ++k) {
      other = &op.inputs[k];
      if (other->type_name == port.type_name && has_dtype(type_at(k))) decides = type_at(k);
    }
    if (!decides) decides = first_of_list, other = &port;
    if (!decides && i >= last) first_of_list = type;
    if (decides && decides->dtype != type->dtype)
      fail_type(fmt::format("the inputs {} and {} must have one type, they are {} and {}", other->name, port.name, name_of(decides->dtype),
                            name_of(type->dtype)),
                code,
                fmt::format("Type parameter ({}) of Optype ({}) bound to different types ({} and {} in node ({}):", port.type_name,
                            node.op_type, type_text(*decides), type_text(*type), node.name));
  }
}

}  // namespace

void check_input_types(const Node& node, std::span<const Type* const> types, ErrorCode code) {
  check_types(
      node, types.size(), [&](size_t i) { return types[i]; }, code);
}

void check_contract(const Graph& graph, const Node& node) {
  check_presence(node);
  auto type_at = [&](size_t i) { return node.has_input(i) ? &graph.type(node.inputs[i]) : nullptr; };
  check_types(node, static_cast<size_t>(node.num_formal_inputs), type_at, ErrorCode::invalid_model);
  check_attributes(node);
}

void check_output_type(const Graph& graph, const Node& node, size_t output, const Type& type) {
  const Port& port = port_at(node.op->outputs, output);
  check_type(node, port, type, "output", ErrorCode::invalid_model);
  if (port.type_name.empty() || port.presence == Presence::variadic || !type.is_tensor() || type.dtype == DType::undefined) return;
  for (size_t i = 0; i < node.op->inputs.size(); ++i) {
    const Port& other = node.op->inputs[i];
    if (other.type_name != port.type_name || other.presence == Presence::variadic || !node.has_input(i)) continue;
    const Type& given = graph.type(node.inputs[i]);
    if (given.is_tensor() && given.dtype != DType::undefined && given.dtype != type.dtype)
      fail_type(fmt::format("the output {} and the input {} must have one type, they are {} and {}", port.name, other.name,
                            name_of(type.dtype), name_of(given.dtype)));
  }
}

void complete_outputs(Graph& graph, NodeId id) {
  const OpDef* op = graph.node(id).op;
  if (!op) return;
  size_t needed = graph.node(id).outputs.size();
  for (size_t i = needed; i < op->outputs.size(); ++i)
    if (op->outputs[i].presence == Presence::required) needed = i + 1;
  for (size_t i = 0; i < needed; ++i) {
    if (graph.node(id).has_output(i)) continue;
    if (i < op->outputs.size() && op->outputs[i].presence == Presence::optional) continue;
    graph.add_output(id, i, graph.add_value(graph.unique_name(graph.node(id).name + "_unread")));
  }
}

}  // namespace treadle
