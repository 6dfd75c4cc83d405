// Readable text of nodes and graphs, for users, errors and tests.
#include <fmt/format.h>

#include "core/base/utf8.h"
#include "core/values/elements_text.h"
#include "graph/graph.h"
#include "graph/op_def.h"

namespace treadle {
namespace {

std::string quoted_name(const Graph& graph, ValueId id) { return id == kNoValue ? "-" : "%" + graph.value(id).name; }

std::string constant_text(const Value& value) {
  constexpr int64_t kMaxPrinted = 8;
  if (!value.constant.defined()) return to_string(value.type) + " {packed}";
  if (!value.constant.is_tensor()) return describe(value.constant);
  const Tensor& tensor = value.constant.tensor();
  std::string text = describe(tensor);
  if (tensor.num_elements() > kMaxPrinted) return text + " {...}";
  const std::string elements = elements_text(tensor);
  return text + (elements.empty() && tensor.num_elements() > 0 ? " {...}" : " {" + elements + "}");
}

void print_graph(const Graph& graph, std::string& out, int indent) {
  std::string pad(static_cast<size_t>(indent), ' ');
  out += pad + "graph " + graph.name + "(";
  for (size_t i = 0; i < graph.inputs.size(); ++i)
    out += fmt::format("{}{} {}", i ? ", " : "", quoted_name(graph, graph.inputs[i]), to_string(graph.type(graph.inputs[i])));
  out += ") {\n";
  for (size_t i = 0; i < graph.num_values(); ++i) {
    ValueId id{static_cast<uint32_t>(i)};
    const Value& value = graph.value(id);
    bool stored = value.kind == Value::Kind::constant || value.kind == Value::Kind::parameter;
    if (!stored || (value.uses.empty() && !graph.is_output(id))) continue;
    out +=
        fmt::format("{}  {} = {} {}\n", pad, quoted_name(graph, id), value.is_constant() ? "constant" : "parameter", constant_text(value));
  }
  for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id)) {
    const Node& node = graph.node(id);
    out += pad + "  ";
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      out += (i ? ", " : "") + quoted_name(graph, node.outputs[i]);
      if (node.outputs[i] != kNoValue) out += " " + to_string(graph.type(node.outputs[i]));
    }
    out += " = " + (node.domain.empty() ? "" : node.domain + ".") + node.op_type + "(";
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      bool captured = i >= static_cast<size_t>(node.num_formal_inputs);
      out += fmt::format("{}{}{}", i ? ", " : "", captured ? "capture " : "", quoted_name(graph, node.inputs[i]));
    }
    out += ")";
    bool any = false;
    for (const auto& [key, value] : node.attributes) {
      out += fmt::format("{}{}={}", any ? ", " : " {", key, to_string(value));
      any = true;
    }
    out += any ? "}\n" : "\n";
    for (const Body& body : node.bodies) {
      out += pad + "    " + body.attribute + ":\n";
      print_graph(*body.graph, out, indent + 6);
    }
  }
  out += pad + "  return ";
  for (size_t i = 0; i < graph.outputs.size(); ++i) out += (i ? ", " : "") + quoted_name(graph, graph.outputs[i]);
  out += "\n" + pad + "}\n";
}

}  // namespace

std::string describe(const Node& node) {
  return fmt::format("{} node \"{}\" ({}, opset {})", node.op_type, node.name, node.domain.empty() ? "ai.onnx" : node.domain, node.version);
}

std::string describe_operands(const Graph& graph, const Node& node) {
  constexpr size_t kMost = 2000;  // limits the text of nodes with thousands of operands or long lists
  std::string text;
  for (size_t i = 0; i < static_cast<size_t>(node.num_formal_inputs) && text.size() <= kMost; ++i) {
    if (node.inputs[i] == kNoValue) continue;
    std::string port = fmt::format("input {}", i);
    if (node.op && i < node.op->inputs.size() && node.op->inputs[i].presence != Presence::variadic) port = node.op->inputs[i].name;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", port, to_string(graph.type(node.inputs[i])));
  }
  std::string attributes;
  for (const auto& [key, value] : node.attributes)
    if (attributes.size() <= kMost) attributes += fmt::format("{}{}={}", attributes.empty() ? "" : ", ", key, to_string(value));
  if (!attributes.empty()) text += "; " + attributes;
  if (text.size() > 2 * kMost) text = text.substr(0, 2 * kMost) + "...";
  return text;
}

std::string print(const Graph& graph) {
  std::string out;
  print_graph(graph, out, 0);
  return printable(std::move(out));  // names come from files and may contain control characters
}

}  // namespace treadle
