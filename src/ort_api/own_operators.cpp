// Finds the nodes of a model that use custom operators of the client, checks them, and decides whether they replace built-in operators.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "onnx/node_sorting.h"
#include "ort_api/custom_operator.h"
#include "session/model.h"

namespace treadle::ort {
namespace {

using onnx::NodeDef;
using Opsets = std::vector<onnx::OpsetImport>;

std::string normalized(const std::string& domain) { return domain == "ai.onnx" ? "" : domain; }

// Returns true if a node's operands have a number that the operator allows, and no required operand is omitted.
bool fit(const std::vector<std::string>& names, const OperandKinds& said) {
  if (names.size() < said.least || names.size() > said.most) return false;
  for (size_t i = 0; i < names.size() && i < said.kinds.size(); ++i)
    if (said.kinds[i] == kRequired && names[i].empty()) return false;
  return true;
}

// Applies the custom operators in a session's options to its model. Operators of other sessions do not matter.
class OwnOperators {
 public:
  explicit OwnOperators(const OperatorDomains& domains) {
    for (const auto& domain : domains) {
      if (!domain->self) continue;  // the client has released the domain, which register_operators() rejects
      for (const OrtCustomOp* op : domain->operators) by_name_[{normalized(domain->name), op->GetName(op)}].push_back(op);
    }
  }
  bool empty() const { return by_name_.empty(); }

  void apply(onnx::ModelDef& def) const {
    apply(def.graph.nodes, def.opset_imports);
    add_domains(def.opset_imports);
    for (onnx::FunctionDef& function : def.functions) {
      apply(function.nodes, function.opset_imports);
      add_domains(function.opset_imports);
    }
  }

 private:
  void apply(std::vector<NodeDef>& nodes, const Opsets& opsets) const {
    for (NodeDef& node : nodes) {
      for (onnx::AttributeDef& attribute : node.attributes) {
        if (attribute.g) apply(attribute.g->nodes, opsets);
        for (onnx::GraphDef& body : attribute.graphs) apply(body.nodes, opsets);
      }
      const auto found = by_name_.find({normalized(node.domain), node.op_type});
      if (found == by_name_.end()) continue;
      const std::string& domain = found->first.first;
      const std::string within = found_in(domain, node.op_type);
      const int64_t version = version_of(domain, opsets);
      if (check(found->second, node, version, within != domain)) node.domain = within;
    }
  }
  // Checks a node. @return true if a custom operator accepts the node; false if all custom operators are for later opsets and there is a
  // built-in operator. @throws StatusError otherwise
  static bool check(const std::vector<const OrtCustomOp*>& operators, const NodeDef& node, int64_t version, bool is_built_in) {
    bool has_begun = false;
    for (const OrtCustomOp* op : operators) {
      if (start_of(*op) > version) continue;
      if (fit(node.inputs, inputs_of(*op)) && fit(node.outputs, outputs_of(*op))) return true;
      has_begun = true;
    }
    if (!has_begun && is_built_in) return false;
    if (!has_begun)
      throw StatusError(ORT_FAIL, fmt::format("Fatal error: {}:{} is not a registered function/op of version {} of its domain", node.domain,
                                              node.op_type, version));
    throw StatusError(ORT_INVALID_GRAPH,
                      fmt::format("This is an invalid model. The {} has {} inputs and {} outputs; the custom operator of "
                                  "this name takes other counts, or one that is left out is required",
                                  onnx::describe_def(node), node.inputs.size(), node.outputs.size()));
  }
  static int64_t version_of(const std::string& domain, const Opsets& opsets) {
    for (const onnx::OpsetImport& opset : opsets)
      if (normalized(opset.domain) == domain) return opset.version;
    return 1;
  }
  // Imports the separate domains of found_in() into the model. Each gets the version of the domain for which it stands.
  void add_domains(Opsets& opsets) const {
    std::map<std::string, int64_t> added;
    for (const auto& [name, operators] : by_name_)
      if (const std::string within = found_in(name.first, name.second); within != name.first)
        added[within] = version_of(name.first, opsets);
    for (const auto& [domain, version] : added) opsets.push_back({domain, version});
  }

  std::map<std::pair<std::string, std::string>, std::vector<const OrtCustomOp*>> by_name_;
};

}  // namespace

Model with_own_operators(const Model& model, const OperatorDomains& domains) {
  const OwnOperators own(domains);
  if (own.empty() || model.impl().compiled) return model;
  onnx::ModelDef def = model.impl().def;
  own.apply(def);
  return make_model(std::move(def), model.impl().path, /*as_read=*/false, model.impl().load);
}

}  // namespace treadle::ort
