// Upgrades a graph to the newest opset, with one small step for each change of an operator.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "graph/contract.h"
#include "graph/custom_ops.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "onnx/import.h"
#include "treadle/error.h"

namespace treadle::onnx {
namespace {

// Returns the operator version that applies in opset `version`; 0 if the operator did not exist yet.
int since_of(const OpDef& op, int version) {
  int result = 0;
  for (int since : op.since)
    if (since <= version) result = std::max(result, since);
  return result;
}

// Returns true if rewrite_once() may replace the node. Most nodes already have the newest form, so their properties need not be saved.
bool may_be_rewritten(const Node& node) {
  const OpDef& op = *node.op;
  const int since = op.since.empty() ? 1 : since_of(op, node.version);
  return op.decompose || std::any_of(op.upgrade.begin(), op.upgrade.end(), [&](const UpgradeStep& step) { return step.from >= since; });
}

// Checks that the upgrade step of a node's operator computes all outputs of the node. Other outputs would be read but never computed.
void check_outputs_made(const Graph& graph, const std::vector<ValueId>& outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i] == kNoValue) continue;
    const Value& value = graph.value(outputs[i]);
    if (value.kind == Value::Kind::computed && value.producer == kNoNode && (!value.uses.empty() || graph.is_output(outputs[i])))
      throw Error(ErrorCode::invalid_model, fmt::format("the operator has no output {}, which the node names \"{}\"", i, value.name));
  }
}

// Applies the next upgrade step that changes the node, or decomposes the node. Returns false if the node is up to date.
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
    // The schema known here is that of the newest version, so this code relies only on what all older versions have in common with it.
    if (!node.has_input(0) && !op.inputs.empty() && op.inputs.front().presence == Presence::required)
      throw Error(ErrorCode::invalid_model, fmt::format("the input 0 ({}) is missing", op.inputs.front().name));
    if (!node.has_output(0)) throw Error(ErrorCode::invalid_model, "the first output is missing");
    const std::vector<ValueId> outputs = node.outputs;
    step->rewrite(graph, id);
    check_outputs_made(graph, outputs);
    return true;
  }
  if (!is_custom_op(op)) node.version = newest;  // custom operators have only one version
  if (!op.decompose) return false;
  check_contract(graph, node);
  const std::vector<ValueId> outputs = node.outputs;
  op.decompose(graph, id);
  check_outputs_made(graph, outputs);
  return !graph.is_alive(id);  // false if the decomposition declined and left the node unchanged
}

enum class Inference : uint8_t {
  kept,       ///< the graph itself: types of inputs are final
  tentative,  ///< a body, for whose inputs the loop may relax the declared types; inferred only as far as rewrites need
};

void upgrade_body(const Graph& graph, const Node& node, Body& body, std::vector<Error>* errors);

// Appends the values that a Gradient node names to the node's inputs, because rewrites may replace these values and their names.
void bind_named_values(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  std::vector<std::string> names = node.attributes.get_strings("xs");
  const std::vector<std::string>& zs = node.attributes.get_strings("zs");
  names.insert(names.end(), zs.begin(), zs.end());
  if (node.inputs.size() != names.size()) return;  // the list is invalid, or has been appended already
  names.emplace_back(node.attributes.get_string("y"));
  std::vector<ValueId> values;
  for (const std::string& name : names) {
    const ValueId value = values.emplace_back(graph.find_value(name));
    bool is_there = value != kNoValue;
    if (is_there && graph.value(value).kind == Value::Kind::computed) {
      NodeId before = graph.previous(id);
      while (before != kNoNode && before != graph.value(value).producer) before = graph.previous(before);
      is_there = before != kNoNode;
    }
    if (!is_there)
      throw Error(ErrorCode::invalid_model, fmt::format("it names the value \"{}\", which is not there in front of it in its graph", name));
  }
  const size_t given = node.inputs.size();
  graph.resize_inputs(id, given + values.size());
  for (size_t i = 0; i < values.size(); ++i) graph.set_input(id, given + i, values[i]);
}

// Sets kind and dtype of the outputs of an inner If, Loop or Scan from its body's declarations, because later rewrites need them.
void take_declared_types(Graph& graph, const Node& node) {
  const Graph& inside = *node.bodies[0].graph;
  const size_t first = node.op->control_flow == ControlFlow::loop ? 1 : 0;  // index of the first state; skips the condition of a Loop
  for (size_t k = 0; k < node.outputs.size() && first + k < inside.declared_outputs.size(); ++k) {
    if (node.outputs[k] == kNoValue || graph.type(node.outputs[k]).kind != Type::Kind::unknown) continue;
    const Type& declared = inside.declared_outputs[first + k];
    graph.value(node.outputs[k]).type = declared.is_tensor() ? Type::tensor(declared.dtype) : declared;
  }
}

// Upgrades a graph. Appends errors to `errors`; if `errors` is null, the first error ends the upgrade.
void upgrade_graph(Graph& graph, const InferOptions& infer_options, Inference inference, std::vector<Error>* errors) {
  auto failed = [&](const Error& error) {
    if (!errors) throw error;
    errors->push_back(error);
  };
  for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id)) {
    if (!graph.node(id).is("Gradient", "ai.onnx.preview.training")) continue;
    try {
      bind_named_values(graph, id);
    } catch (Error& error) {
      failed(error.add_context(describe(graph.node(id))));
    }
  }
  for (NodeId id = graph.first(); id != kNoNode;) {
    Node& node = graph.node(id);
    if (!node.op) {
      Error missing(ErrorCode::not_implemented,
                    fmt::format("this build has no operator {}.{}", node.domain.empty() ? "ai.onnx" : node.domain, node.op_type));
      failed(missing.add_context(describe(node)));
      id = graph.next(id);
      continue;
    }
    const NodeId previous = graph.previous(id);
    const bool may_go = may_be_rewritten(node);
    const std::vector<std::string> sources = may_go ? node.sources : std::vector<std::string>();
    const Properties metadata = node.metadata;
    const std::string context = may_go ? describe(node) : std::string();
    try {
      if (rewrite_once(graph, id)) {
        // Continues with the nodes that replace the old node. They inherit its sources and metadata.
        id = previous == kNoNode ? graph.first() : graph.next(previous);
        for (NodeId made = id; made != kNoNode && graph.node(made).sources.empty(); made = graph.next(made)) {
          graph.node(made).sources = sources;
          if (graph.node(made).metadata.empty()) graph.node(made).metadata = metadata;
        }
        continue;
      }
    } catch (Error& error) {
      error.add_context((may_go ? context : describe(graph.node(id))) + ", during the opset upgrade");
      if (!errors) throw;  // rethrows the exception with its original type
      errors->push_back(error);
      id = graph.next(id);
      continue;
    }
    const size_t failures = errors ? errors->size() : 0;
    for (Body& body : graph.node(id).bodies) upgrade_body(graph, graph.node(id), body, errors);
    if (inference == Inference::tentative && !graph.node(id).bodies.empty()) take_declared_types(graph, graph.node(id));
    const bool infers = inference == Inference::kept || graph.node(id).bodies.empty();
    if (infers && (!errors || errors->size() == failures)) {
      try {
        infer_node(graph, id, infer_options);
      } catch (const Error& error) {
        if (inference == Inference::kept && !errors) throw;
        if (inference == Inference::kept) errors->push_back(error);
      }
    }
    id = graph.next(id);
  }
}

void upgrade_body(const Graph& graph, const Node& node, Body& body, std::vector<Error>* errors) {
  Graph& inside = *body.graph;
  std::vector<Type> declared;
  for (size_t i = 0; i < inside.num_values(); ++i) declared.push_back(inside.type(ValueId{static_cast<uint32_t>(i)}));
  for (const auto& [value, operand] : body.captures) {
    const ValueId outer = node.inputs[static_cast<size_t>(node.num_formal_inputs + operand)];
    if (outer != kNoValue) inside.value(value).type = merge(graph.type(outer), inside.type(value));
  }
  upgrade_graph(inside, {}, Inference::tentative, errors);
  for (size_t i = 0; i < inside.num_values(); ++i) {
    Value& value = inside.value(ValueId{static_cast<uint32_t>(i)});
    if (value.is_constant() && i >= declared.size()) continue;  // constants added by rewrites keep their types
    value.type = i < declared.size() ? declared[i] : Type{};
    if (value.kind == Value::Kind::computed) value.known.reset();
  }
}

void collect_unsupported(const Graph& graph, std::set<std::string>& lines) {
  for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id)) {
    const Node& node = graph.node(id);
    if (!node.op)
      lines.insert(fmt::format("operator {}.{} (opset {})", node.domain.empty() ? "ai.onnx" : node.domain, node.op_type, node.version));
    for (const Body& body : node.bodies) collect_unsupported(*body.graph, lines);
  }
}

}  // namespace

void upgrade(Graph& graph, const InferOptions& options) {
  upgrade_graph(graph, options, Inference::kept, nullptr);
  graph.opsets[""] = newest_opset("");
}

std::vector<Error> upgrade_noting_errors(Graph& graph) {
  std::vector<Error> errors;
  InferOptions options;
  upgrade_graph(graph, options, Inference::kept, &errors);
  return errors;
}

std::vector<std::string> list_unsupported(const Graph& graph) {
  std::set<std::string> lines;
  collect_unsupported(graph, lines);
  return {lines.begin(), lines.end()};
}

}  // namespace treadle::onnx
