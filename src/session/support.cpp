#include "session/support.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "graph/op_def.h"
#include "onnx/import.h"
#include "treadle/error.h"

namespace treadle {
namespace {

void collect_operators(const Graph& graph, std::map<std::string, std::vector<std::string>>& nodes_of) {
  for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id)) {
    const Node& node = graph.node(id);
    if (!node.op)
      nodes_of[fmt::format("operator {}.{} (opset {})", node.domain.empty() ? "ai.onnx" : node.domain, node.op_type, node.version)]
          .push_back(node.name);
    for (const Body& body : node.bodies) collect_operators(*body.graph, nodes_of);
  }
}

// Returns false for a node that follows a faulty one. The types of its operands are then unknown, which is no fault of this node.
bool types_are_known(const Graph& graph, const Node& node) {
  return std::none_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) {
    if (id == kNoValue) return false;
    const Type& type = graph.type(id);
    return type.kind == Type::Kind::unknown || (type.is_tensor() && type.dtype == DType::undefined);
  });
}

void collect_kernels(const Graph& graph, std::vector<std::string>& lines) {
  for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id)) {
    const Node& node = graph.node(id);
    for (const Body& body : node.bodies) collect_kernels(*body.graph, lines);
    if (!node.op || node.op->control_flow != ControlFlow::none || node.op->barrier || !types_are_known(graph, node)) continue;
    const std::string named = describe(node);
    // Skips a node that has been reported already.
    if (std::any_of(lines.begin(), lines.end(), [&](const std::string& line) { return line.starts_with(named); })) continue;
    try {
      select_kernel(graph, node);
    } catch (Error& error) {
      lines.emplace_back(error.add_context(describe(node), describe_operands(graph, node)).what());
    }
  }
}

}  // namespace

std::vector<std::string> find_unsupported(const Model::Impl& model) {
  if (model.compiled) return {};  // a session was made of everything in it, by this version for this processor
  std::unique_ptr<Graph> graph = model.import();
  std::map<std::string, std::vector<std::string>> nodes_of;
  collect_operators(*graph, nodes_of);
  std::vector<std::string> lines;
  for (const auto& [line, nodes] : nodes_of) {
    constexpr size_t kMaxNamed = 5;
    lines.push_back(fmt::format("{}: {} node{}, \"{}\"{}", line, nodes.size(), nodes.size() == 1 ? "" : "s",
                                fmt::join(nodes.begin(), nodes.begin() + static_cast<int64_t>(std::min(nodes.size(), kMaxNamed)), "\", \""),
                                nodes.size() > kMaxNamed ? " ..." : ""));
  }
  for (const Error& error : onnx::upgrade_noting_errors(*graph)) {
    std::string text = error.what();
    if (text.find("this build has no operator") == std::string::npos) lines.push_back(std::move(text));
  }
  collect_kernels(*graph, lines);
  return lines;
}

}  // namespace treadle
