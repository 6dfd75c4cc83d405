// Brings a graph to the newest opset, one small step per operator change.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "graph/op_def.h"
#include "onnx/import.h"
#include "treadle/error.h"

namespace treadle::onnx {
namespace {

// The since-version that a node of opset `version` follows; 0 if the operator did not exist yet.
int since_of(const OpDef& op, int version) {
  int result = 0;
  for (int since : op.since)
    if (since <= version) result = std::max(result, since);
  return result;
}

// Applies the next step that changes the node, or its decomposition. Returns false if the node is what it should be.
bool rewrite_once(Graph& graph, NodeId id) {
  Node& node = graph.node(id);
  const OpDef& op = *node.op;
  int since = op.since.empty() ? 1 : since_of(op, node.version);
  if (since == 0)
    throw Error(ErrorCode::invalid_model,
                fmt::format("the operator came with opset {}, the model is of opset {}", op.since.front(), node.version));
  int newest = op.since.empty() ? 1 : op.since.back();
  while (since < newest) {
    auto step = std::find_if(op.upgrade.begin(), op.upgrade.end(), [&](const UpgradeStep& s) { return s.from == since; });
    since = *std::upper_bound(op.since.begin(), op.since.end(), since);
    node.version = since;
    if (step == op.upgrade.end()) continue;
    step->rewrite(graph, id);
    return true;
  }
  node.version = newest;
  if (!op.decompose) return false;
  op.decompose(graph, id);
  return !graph.is_alive(id);  // a decomposition that declines leaves everything as it is
}

void upgrade_graph(Graph& graph, const InferOptions* infer_options) {
  for (NodeId id = graph.first(); id != kNoNode;) {
    Node& node = graph.node(id);
    if (!node.op) throw Error(ErrorCode::not_implemented, "this build has no such operator").add_context(describe(node));
    NodeId previous = graph.previous(id);
    std::vector<std::string> sources = node.sources;
    std::string context = describe(node);
    try {
      if (rewrite_once(graph, id)) {
        // Look at what stands in its place: new nodes stand for the same nodes of the model.
        id = previous == kNoNode ? graph.first() : graph.next(previous);
        for (NodeId made = id; made != kNoNode && graph.node(made).sources.empty(); made = graph.next(made))
          graph.node(made).sources = sources;
        continue;
      }
    } catch (Error& error) {
      throw error.add_context(context + ", during the opset upgrade");
    }
    for (Body& body : graph.node(id).bodies) upgrade_graph(*body.graph, nullptr);
    if (infer_options) infer_node(graph, id, *infer_options);
    id = graph.next(id);
  }
}

void collect_unsupported(const Graph& graph, std::set<std::string>& lines) {
  for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id)) {
    const Node& node = graph.node(id);
    std::string where = fmt::format("{}.{} (opset {})", node.domain.empty() ? "ai.onnx" : node.domain, node.op_type, node.version);
    if (!node.op) lines.insert("operator " + where);
    for (const Body& body : node.bodies) collect_unsupported(*body.graph, lines);
  }
}

}  // namespace

void upgrade(Graph& graph, const InferOptions& options) {
  upgrade_graph(graph, &options);
  graph.opsets[""] = newest_opset("");
}

std::vector<std::string> list_unsupported(const Graph& graph) {
  std::set<std::string> lines;
  collect_unsupported(graph, lines);
  return {lines.begin(), lines.end()};
}

}  // namespace treadle::onnx
