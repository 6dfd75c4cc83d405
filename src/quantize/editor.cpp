#include "quantize/editor.h"

#include <fmt/format.h>

#include <algorithm>

namespace treadle::quantization {
namespace {

/// Calls fn for every name that the graph or its subgraphs (bodies) read. Subgraphs also read names of the graphs around them.
template <typename Fn>
void visit_uses(const onnx::GraphDef& graph, Fn&& fn) {
  for (const onnx::NodeDef& node : graph.nodes) {
    for (const std::string& input : node.inputs) fn(input);
    for (const onnx::AttributeDef& attribute : node.attributes) {
      if (attribute.g) visit_uses(*attribute.g, fn);
      for (const onnx::GraphDef& body : attribute.graphs) visit_uses(body, fn);
    }
  }
  for (const onnx::ValueInfoDef& output : graph.outputs) fn(output.name);
}

bool is_constant_node(const onnx::NodeDef& node) {
  return node.op_type == "Constant" && node.domain.empty() && node.outputs.size() == 1 && node.attributes.size() == 1 &&
         node.attributes[0].name == "value" && node.attributes[0].t;
}

bool same_domain(std::string_view a, std::string_view b) {
  return a == b || (a.empty() && b == "ai.onnx") || (b.empty() && a == "ai.onnx");
}

}  // namespace

onnx::NodeDef make_node(std::string op_type, std::vector<std::string> inputs, std::vector<std::string> outputs, std::string name,
                        std::string domain) {
  onnx::NodeDef node;
  node.op_type = std::move(op_type), node.inputs = std::move(inputs), node.outputs = std::move(outputs), node.name = std::move(name);
  node.domain = std::move(domain);
  return node;
}

void set_attribute(onnx::NodeDef& node, std::string name, int64_t value) {
  onnx::AttributeDef attribute;
  attribute.name = std::move(name), attribute.type = onnx::AttributeType::i, attribute.i = value;
  node.attributes.push_back(std::move(attribute));
}

int64_t int_attribute(const onnx::NodeDef& node, std::string_view name, int64_t otherwise) {
  for (const onnx::AttributeDef& attribute : node.attributes)
    if (attribute.name == name) return attribute.i;
  return otherwise;
}

float float_attribute(const onnx::NodeDef& node, std::string_view name, float otherwise) {
  for (const onnx::AttributeDef& attribute : node.attributes)
    if (attribute.name == name) return attribute.f;
  return otherwise;
}

Editor::Editor(onnx::ModelDef& edited) : model(edited) {
  const onnx::GraphDef& graph = model.graph;
  std::unordered_set<std::string> inputs;
  for (const onnx::ValueInfoDef& input : graph.inputs) inputs.insert(input.name);
  for (const onnx::ValueInfoDef& output : graph.outputs) outputs_.insert(output.name);
  for (const onnx::TensorDef& tensor : graph.initializers) {
    names_.insert(tensor.name);
    // Since IR version 4, an initializer that is also a graph input can be fed, so it is not constant.
    if (tensor.value.defined() && (model.ir_version < 4 || !inputs.contains(tensor.name))) constants_.emplace(tensor.name, tensor.value);
  }
  names_.merge(inputs);
  for (const onnx::SparseTensorDef& tensor : graph.sparse_initializers) names_.insert(tensor.values.name);
  for (const onnx::NodeDef& node : graph.nodes) {
    names_.insert(node.name);
    for (const std::string& output : node.outputs) names_.insert(output);
    if (is_constant_node(node)) constants_.emplace(node.outputs[0], node.attributes[0].t->value);
  }
  visit_uses(graph, [&](const std::string& name) { names_.insert(name); });
  count_uses();
}

void Editor::count_uses() {
  uses_.clear();
  visit_uses(model.graph, [&](const std::string& name) { ++uses_[name]; });
}

const Tensor* Editor::constant(const std::string& name) const {
  auto found = constants_.find(name);
  return found == constants_.end() ? nullptr : &found->second;
}

int64_t Editor::num_uses(const std::string& name) const {
  auto found = uses_.find(name);
  return found == uses_.end() ? 0 : found->second;
}

std::string Editor::unique(const std::string& base) {
  std::string name = base;
  for (int i = 1; !names_.insert(name).second; ++i) name = fmt::format("{}_{}", base, i);
  return name;
}

std::string Editor::add(const std::string& base, Tensor value) {
  onnx::TensorDef tensor;
  tensor.name = unique(base), tensor.dtype = value.dtype(), tensor.shape = value.shape(), tensor.value = value;
  constants_.emplace(tensor.name, std::move(value));
  model.graph.initializers.push_back(std::move(tensor));
  return model.graph.initializers.back().name;
}

void Editor::remove_unused() {
  onnx::GraphDef& graph = model.graph;
  count_uses();
  std::erase_if(graph.nodes, [&](const onnx::NodeDef& node) { return is_constant_node(node) && num_uses(node.outputs[0]) == 0; });
  std::unordered_set<std::string> gone;
  std::erase_if(graph.initializers, [&](const onnx::TensorDef& tensor) {
    const bool unused = num_uses(tensor.name) == 0;
    if (unused) gone.insert(tensor.name);
    return unused;
  });
  // Before IR version 4, initializers are also graph inputs.
  std::erase_if(graph.inputs, [&](const onnx::ValueInfoDef& input) { return gone.contains(input.name); });
  std::unordered_set<std::string> made;
  for (const onnx::NodeDef& node : graph.nodes) made.insert(node.outputs.begin(), node.outputs.end());
  std::erase_if(graph.value_info, [&](const onnx::ValueInfoDef& info) { return !made.contains(info.name); });
}

void Editor::require_opset(const std::string& domain, int64_t version) {
  for (onnx::OpsetImport& import : model.opset_imports) {
    if (!same_domain(import.domain, domain)) continue;
    import.version = std::max(import.version, version);
    return;
  }
  model.opset_imports.push_back({domain, version});
}

int64_t Editor::opset(std::string_view domain) const {
  for (const onnx::OpsetImport& import : model.opset_imports)
    if (same_domain(import.domain, domain)) return import.version;
  return 0;
}

}  // namespace treadle::quantization
