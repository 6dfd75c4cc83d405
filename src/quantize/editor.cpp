#include "quantize/editor.h"

#include <fmt/format.h>

#include <algorithm>

namespace treadle::quantization {
namespace {

onnx::TypeDef copied(const onnx::TypeDef& type) {
  onnx::TypeDef copy;
  copy.kind = type.kind, copy.elem_type = type.elem_type, copy.shape = type.shape, copy.key_type = type.key_type;
  if (type.elem) copy.elem = std::make_unique<onnx::TypeDef>(copied(*type.elem));
  copy.opaque = type.opaque, copy.denotation = type.denotation;
  return copy;
}

std::vector<onnx::ValueInfoDef> copied(const std::vector<onnx::ValueInfoDef>& infos) {
  std::vector<onnx::ValueInfoDef> copies;
  for (const onnx::ValueInfoDef& info : infos) copies.push_back({info.name, copied(info.type), info.doc_string, info.metadata_props});
  return copies;
}

onnx::GraphDef copied(const onnx::GraphDef& graph);

onnx::AttributeDef copied(const onnx::AttributeDef& from) {
  onnx::AttributeDef to;
  to.name = from.name, to.ref_attr_name = from.ref_attr_name, to.doc_string = from.doc_string, to.type = from.type;
  to.f = from.f, to.i = from.i, to.s = from.s;
  if (from.t) to.t = std::make_unique<onnx::TensorDef>(*from.t);
  if (from.g) to.g = std::make_unique<onnx::GraphDef>(copied(*from.g));
  if (from.sparse_tensor) to.sparse_tensor = std::make_unique<onnx::SparseTensorDef>(*from.sparse_tensor);
  if (from.tp) to.tp = std::make_unique<onnx::TypeDef>(copied(*from.tp));
  to.floats = from.floats, to.ints = from.ints, to.strings = from.strings, to.tensors = from.tensors;
  for (const onnx::GraphDef& graph : from.graphs) to.graphs.push_back(copied(graph));
  to.sparse_tensors = from.sparse_tensors;
  for (const onnx::TypeDef& type : from.type_protos) to.type_protos.push_back(copied(type));
  return to;
}

std::vector<onnx::AttributeDef> copied(const std::vector<onnx::AttributeDef>& attributes) {
  std::vector<onnx::AttributeDef> copies;
  for (const onnx::AttributeDef& attribute : attributes) copies.push_back(copied(attribute));
  return copies;
}

std::vector<onnx::NodeDef> copied(const std::vector<onnx::NodeDef>& nodes) {
  std::vector<onnx::NodeDef> copies;
  for (const onnx::NodeDef& node : nodes)
    copies.push_back({node.inputs, node.outputs, node.name, node.op_type, node.domain, node.overload, copied(node.attributes),
                      node.doc_string, node.metadata_props, node.device_configurations});
  return copies;
}

onnx::GraphDef copied(const onnx::GraphDef& graph) {
  return {graph.name,           copied(graph.nodes),   graph.initializers,       graph.sparse_initializers,
          copied(graph.inputs), copied(graph.outputs), copied(graph.value_info), graph.quantization_annotation,
          graph.doc_string,     graph.metadata_props};
}

/// Every name that the graph mentions: of bodies too, whose captures are names of the graphs around them.
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

onnx::ModelDef copy_of(const onnx::ModelDef& model) {
  onnx::ModelDef copy;
  copy.ir_version = model.ir_version, copy.opset_imports = model.opset_imports, copy.producer_name = model.producer_name;
  copy.producer_version = model.producer_version, copy.domain = model.domain, copy.model_version = model.model_version;
  copy.doc_string = model.doc_string, copy.graph = copied(model.graph), copy.metadata_props = model.metadata_props;
  for (const onnx::FunctionDef& f : model.functions)
    copy.functions.push_back({f.name, f.domain, f.overload, f.inputs, f.outputs, f.attributes, copied(f.attribute_protos), copied(f.nodes),
                              f.opset_imports, copied(f.value_info), f.doc_string, f.metadata_props});
  copy.training_info = model.training_info, copy.configuration = model.configuration;
  return copy;
}

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
    // From IR 4 on an initializer that is an input as well can be fed.
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
  // Before IR 4 initializers are inputs as well.
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
