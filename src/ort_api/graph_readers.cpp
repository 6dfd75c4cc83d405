// Functions by which clients read graphs that they have made with the model editor. Graphs of sessions cannot be read: only a client's own
// execution providers would need this, and these are not supported (ort_api/refused_tables.cpp).
#include <algorithm>
#include <set>

#include "graph/op_def.h"
#include "ort_api/editor_api.h"

void OrtGraph::add_node(std::unique_ptr<OrtNode> node) {
  node->graph = this;
  node->id = nodes.size();
  for (const std::vector<std::string>* names : {&node->inputs, &node->outputs})
    for (const std::string& name : *names)
      if (!name.empty() && !inner[name])
        inner[name] = std::make_unique<OrtValueInfo>(OrtValueInfo{.name = name, .type = {}, .graph = this});
  nodes.push_back(std::move(node));
}

void OrtGraph::add_initializer(const std::string& name, std::unique_ptr<OrtValue> value) {
  std::unique_ptr<OrtValueInfo>& info = inner[name];
  if (!info) info = std::make_unique<OrtValueInfo>(OrtValueInfo{.name = name, .type = {}, .graph = this});
  info->type = treadle::ort::type_of(value->datum);
  initializers.emplace_back(name, std::move(value));
}

void OrtGraph::set(std::optional<Values>& to, Values values) {
  for (const auto& value : values) value->graph = this;
  to = std::move(values);
}

namespace treadle::ort {
namespace {

const OrtValueInfo* named(const std::optional<OrtGraph::Values>& values, const std::string& name) {
  if (!values) return nullptr;
  const auto found = std::find_if(values->begin(), values->end(), [&](const auto& value) { return value->name == name; });
  return found != values->end() ? found->get() : nullptr;
}

// Returns the value with this name. Declared inputs and outputs take precedence over inner values.
const OrtValueInfo* value_named(const OrtGraph& graph, const std::string& name) {
  if (name.empty()) return nullptr;
  if (const OrtValueInfo* input = named(graph.inputs, name)) return input;
  if (const OrtValueInfo* output = named(graph.outputs, name)) return output;
  const auto found = graph.inner.find(name);
  return found != graph.inner.end() ? found->second.get() : nullptr;
}

const OrtValue* initializer_named(const OrtGraph& graph, const std::string& name) {
  for (const auto& [key, value] : graph.initializers)
    if (key == name) return value.get();
  return nullptr;
}

const OrtGraph& graph_of(const OrtValueInfo* value) {
  if (required(value, "value_info").graph == nullptr)
    throw Error(ErrorCode::invalid_argument, "the value \"" + value->name + "\" is in no graph yet");
  return *value->graph;
}
const OrtGraph& graph_of(const OrtNode* node) {
  if (required(node, "node").graph == nullptr)
    throw Error(ErrorCode::invalid_argument, "the node \"" + node->name + "\" is in no graph yet");
  return *node->graph;
}
const OrtModel& model_of(const OrtGraph* graph) {
  if (required(graph, "graph").model == nullptr)
    throw Error(ErrorCode::invalid_argument, "the graph is in no model yet: AddGraphToModel says its opsets");
  return *graph->model;
}

// Fills a client's array by get(i). @throws Error(invalid_argument) if the array is too small
template <typename T, typename Get>
void give(const T** out, size_t room, size_t count, Get&& get) {
  if (room < count)
    throw Error(ErrorCode::invalid_argument, std::to_string(count) + " elements, there is room for " + std::to_string(room));
  if (count > 0) required(out, "out");
  for (size_t i = 0; i < count; ++i) out[i] = get(i);
}

size_t size_of(const std::optional<OrtGraph::Values>& values) { return values ? values->size() : 0; }

// Returns the nodes that read a value, in order, each with the index of the input. ONNX Runtime has the index -1 for values that a node's
// subgraph reads, but nodes of the editor have no subgraphs.
std::vector<std::pair<const OrtNode*, int64_t>> consumers_of(const OrtValueInfo* value) {
  std::vector<std::pair<const OrtNode*, int64_t>> found;
  for (const auto& node : graph_of(value).nodes)
    for (size_t i = 0; i < node->inputs.size(); ++i)
      if (node->inputs[i] == value->name) found.emplace_back(node.get(), static_cast<int64_t>(i));
  return found;
}

template <typename Ask>
OrtStatus* ask(const OrtValueInfo* value, bool* out, Ask&& question) {
  return guarded([&] { required(out, "out") = question(graph_of(value), value->name); });
}

void add_values(OrtApi& table) {
  table.ValueInfo_GetValueProducer = [](const OrtValueInfo* value, const OrtNode** producer, size_t* index) {
    return guarded([&] {
      required(producer, "producer_node") = nullptr;
      if (index != nullptr) *index = 0;
      for (const auto& node : graph_of(value).nodes) {
        const auto found = std::find(node->outputs.begin(), node->outputs.end(), value->name);
        if (found == node->outputs.end()) continue;
        *producer = node.get();
        if (index != nullptr) *index = static_cast<size_t>(found - node->outputs.begin());
      }
    });
  };
  table.ValueInfo_GetValueNumConsumers = [](const OrtValueInfo* value, size_t* out) {
    return guarded([&] { required(out, "num_consumers") = consumers_of(value).size(); });
  };
  table.ValueInfo_GetValueConsumers = [](const OrtValueInfo* value, const OrtNode** nodes, int64_t* indices, size_t room) {
    return guarded([&] {
      const auto found = consumers_of(value);
      give(nodes, room, found.size(), [&](size_t i) { return found[i].first; });
      for (size_t i = 0; i < found.size(); ++i) (&required(indices, "input_indices"))[i] = found[i].second;
    });
  };
  table.ValueInfo_GetInitializerValue = [](const OrtValueInfo* value, const OrtValue** out) {
    return guarded([&] { required(out, "initializer_value") = initializer_named(graph_of(value), value->name); });
  };
  // Returns null, because initializers of the model editor are always in memory.
  table.ValueInfo_GetExternalInitializerInfo = [](const OrtValueInfo* value, OrtExternalInitializerInfo** out) {
    return guarded([&] {
      graph_of(value);
      required(out, "info") = nullptr;
    });
  };
  table.ValueInfo_IsRequiredGraphInput = [](const OrtValueInfo* value, bool* out) {
    return ask(value, out, [](const OrtGraph& graph, const std::string& name) {
      return named(graph.inputs, name) != nullptr && initializer_named(graph, name) == nullptr;
    });
  };
  table.ValueInfo_IsOptionalGraphInput = [](const OrtValueInfo* value, bool* out) {
    return ask(value, out, [](const OrtGraph& graph, const std::string& name) {
      return named(graph.inputs, name) != nullptr && initializer_named(graph, name) != nullptr;
    });
  };
  table.ValueInfo_IsGraphOutput = [](const OrtValueInfo* value, bool* out) {
    return ask(value, out, [](const OrtGraph& graph, const std::string& name) { return named(graph.outputs, name) != nullptr; });
  };
  table.ValueInfo_IsConstantInitializer = [](const OrtValueInfo* value, bool* out) {
    return ask(value, out, [](const OrtGraph& graph, const std::string& name) {
      return named(graph.inputs, name) == nullptr && initializer_named(graph, name) != nullptr;
    });
  };
  table.ValueInfo_IsFromOuterScope = [](const OrtValueInfo* value, bool* out) {
    return ask(value, out, [](const OrtGraph&, const std::string&) { return false; });
  };
}

void add_description(OrtApi& table) {
  table.Graph_GetName = [](const OrtGraph* graph, const char** out) {
    return guarded([&] {
      required(graph, "graph");
      required(out, "graph_name") = kGraphName;
    });
  };
  table.Graph_GetModelPath = [](const OrtGraph* graph, const char** out) {
    return guarded([&] {
      required(graph, "graph");
      required(out, "model_path") = "";
    });
  };
  table.Graph_GetOnnxIRVersion = [](const OrtGraph* graph, int64_t* out) {
    return guarded([&] {
      required(graph, "graph");
      required(out, "onnx_ir_version") = onnx::kMaxIrVersion;
    });
  };
  table.Graph_GetNumOperatorSets = [](const OrtGraph* graph, size_t* out) {
    return guarded([&] { required(out, "num_operator_sets") = model_of(graph).opsets.size(); });
  };
  table.Graph_GetOperatorSets = [](const OrtGraph* graph, const char** domains, int64_t* versions, size_t room) {
    return guarded([&] {
      const auto& opsets = model_of(graph).opsets;
      give(domains, room, opsets.size(), [&](size_t i) { return opsets[i].domain.c_str(); });
      for (size_t i = 0; i < opsets.size(); ++i) (&required(versions, "opset_versions"))[i] = opsets[i].version;
    });
  };
  table.Graph_GetModelMetadata = [](const OrtGraph* graph, OrtModelMetadata** out) {
    return guarded([&] {
      OrtModelMetadata made;
      made.metadata.graph_name = kGraphName, made.metadata.ir_version = onnx::kMaxIrVersion;
      for (const onnx::OpsetImport& opset : model_of(graph).opsets) made.metadata.opsets[opset.domain] = static_cast<int>(opset.version);
      required(out, "out") = new OrtModelMetadata(std::move(made));
    });
  };
  table.Graph_GetParentNode = [](const OrtGraph* graph, const OrtNode** out) {
    return guarded([&] {
      required(graph, "graph");
      required(out, "node") = nullptr;  // the graph is no node's subgraph
    });
  };
}

// Adds a copy of a value to the inputs or outputs of a view (see below).
void copy_to(OrtGraph::Values& to, const OrtGraph& graph, const std::string& name) {
  if (std::any_of(to.begin(), to.end(), [&](const auto& value) { return value->name == name; })) return;
  const OrtValueInfo* value = value_named(graph, name);
  auto type = value != nullptr && value->type ? std::make_unique<OrtTypeInfo>(*value->type) : nullptr;
  to.push_back(std::make_unique<OrtValueInfo>(OrtValueInfo{.name = name, .type = std::move(type)}));
}

// Makes a graph of some nodes of another graph. Its inputs are values that these nodes read but do not compute. Its outputs are values that
// these nodes compute for other nodes or as outputs.
std::unique_ptr<OrtGraph> view(const OrtGraph& graph, const OrtNode** nodes, size_t count) {
  std::vector<bool> taken(graph.nodes.size(), false);
  for (size_t i = 0; i < count; ++i) {
    if (&graph_of(nodes[i]) != &graph) throw Error(ErrorCode::invalid_argument, "the node \"" + nodes[i]->name + "\" is of another graph");
    taken[nodes[i]->id] = true;
  }
  auto made = std::make_unique<OrtGraph>();
  made->model = graph.model;
  std::set<std::string> made_inside;
  for (const auto& node : graph.nodes) {
    if (!taken[node->id]) continue;
    made->add_node(std::make_unique<OrtNode>(*node));
    made_inside.insert(node->outputs.begin(), node->outputs.end());
  }
  OrtGraph::Values inputs, outputs;
  for (const auto& node : graph.nodes)
    for (const std::string& name : node->inputs) {
      if (name.empty()) continue;
      const bool inside = made_inside.contains(name);
      const OrtValue* initializer = initializer_named(graph, name);
      if (!taken[node->id] && inside) copy_to(outputs, graph, name);
      if (!taken[node->id] || inside) continue;
      if (initializer == nullptr)
        copy_to(inputs, graph, name);
      else if (initializer_named(*made, name) == nullptr)
        made->add_initializer(name, std::make_unique<OrtValue>(*initializer));
    }
  if (graph.outputs)
    for (const auto& output : *graph.outputs)
      if (made_inside.contains(output->name)) copy_to(outputs, graph, output->name);
  made->set(made->inputs, std::move(inputs));
  made->set(made->outputs, std::move(outputs));
  return made;
}

void add_parts(OrtApi& table) {
  table.Graph_GetNumInputs = [](const OrtGraph* graph, size_t* out) {
    return guarded([&] { required(out, "num_inputs") = size_of(required(graph, "graph").inputs); });
  };
  table.Graph_GetInputs = [](const OrtGraph* graph, const OrtValueInfo** out, size_t room) {
    return guarded([&] { give(out, room, size_of(required(graph, "graph").inputs), [&](size_t i) { return (*graph->inputs)[i].get(); }); });
  };
  table.Graph_GetNumOutputs = [](const OrtGraph* graph, size_t* out) {
    return guarded([&] { required(out, "num_outputs") = size_of(required(graph, "graph").outputs); });
  };
  table.Graph_GetOutputs = [](const OrtGraph* graph, const OrtValueInfo** out, size_t room) {
    return guarded(
        [&] { give(out, room, size_of(required(graph, "graph").outputs), [&](size_t i) { return (*graph->outputs)[i].get(); }); });
  };
  table.Graph_GetNumInitializers = [](const OrtGraph* graph, size_t* out) {
    return guarded([&] { required(out, "num_initializers") = required(graph, "graph").initializers.size(); });
  };
  table.Graph_GetInitializers = [](const OrtGraph* graph, const OrtValueInfo** out, size_t room) {
    return guarded([&] {
      const auto& all = required(graph, "graph").initializers;
      give(out, room, all.size(), [&](size_t i) { return value_named(*graph, all[i].first); });
    });
  };
  table.Graph_GetNumNodes = [](const OrtGraph* graph, size_t* out) {
    return guarded([&] { required(out, "num_nodes") = required(graph, "graph").nodes.size(); });
  };
  table.Graph_GetNodes = [](const OrtGraph* graph, const OrtNode** out, size_t room) {
    return guarded([&] { give(out, room, required(graph, "graph").nodes.size(), [&](size_t i) { return graph->nodes[i].get(); }); });
  };
  table.Graph_GetGraphView = [](const OrtGraph* graph, const OrtNode** nodes, size_t count, OrtGraph** out) {
    return guarded([&] {
      if (count == 0) throw Error(ErrorCode::invalid_argument, "'num_nodes' argument should be > 0");
      required(nodes, "nodes");
      required(out, "dst_graph") = view(required(graph, "graph"), nodes, count).release();
    });
  };
}

template <std::string OrtNode::*text>
OrtStatus* node_text(const OrtNode* node, const char** out) {
  return guarded([&] { required(out, "out") = (required(node, "node").*text).c_str(); });
}
template <std::vector<std::string> OrtNode::*names>
OrtStatus* num_operands(const OrtNode* node, size_t* out) {
  return guarded([&] { required(out, "out") = (required(node, "node").*names).size(); });
}
template <std::vector<std::string> OrtNode::*names>
OrtStatus* operands(const OrtNode* node, const OrtValueInfo** out, size_t room) {
  return guarded([&] {
    const OrtGraph& graph = graph_of(node);
    give(out, room, (node->*names).size(), [&](size_t i) { return value_named(graph, (node->*names)[i]); });
  });
}

// Returns the opset version that introduced the form of the operator which the model's opset has (ONNX's "since version").
int since_version(const OrtNode& node) {
  const std::string domain = node.domain == "ai.onnx" ? "" : node.domain;
  const OpDef* op = find_op(domain, node.op_type);
  if (op == nullptr) throw Error(ErrorCode::not_implemented, "there is no operator " + node.op_type + " in the domain \"" + domain + "\"");
  for (const onnx::OpsetImport& opset : model_of(&graph_of(&node)).opsets) {
    if ((opset.domain == "ai.onnx" ? "" : opset.domain) != domain) continue;
    int version = 1;
    for (const int since : op->since)
      if (since <= opset.version) version = since;
    return version;
  }
  throw Error(ErrorCode::invalid_argument, "the model imports no opset of the domain \"" + domain + "\"");
}

void add_nodes(OrtApi& table) {
  table.Node_GetId = [](const OrtNode* node, size_t* out) {
    return guarded([&] {
      graph_of(node);
      required(out, "node_id") = node->id;
    });
  };
  table.Node_GetName = node_text<&OrtNode::name>;
  table.Node_GetOperatorType = node_text<&OrtNode::op_type>;
  table.Node_GetDomain = node_text<&OrtNode::domain>;
  table.Node_GetSinceVersion = [](const OrtNode* node, int* out) {
    return guarded([&] { required(out, "since_version") = since_version(required(node, "node")); });
  };
  table.Node_GetNumInputs = num_operands<&OrtNode::inputs>;
  table.Node_GetInputs = operands<&OrtNode::inputs>;
  table.Node_GetNumOutputs = num_operands<&OrtNode::outputs>;
  table.Node_GetOutputs = operands<&OrtNode::outputs>;
  // Returns 0, because nodes of the editor have no subgraphs, and so no implicit inputs either.
  table.Node_GetNumImplicitInputs = table.Node_GetNumSubgraphs = [](const OrtNode* node, size_t* out) {
    return guarded([&] {
      required(node, "node");
      required(out, "out") = 0;
    });
  };
  table.Node_GetImplicitInputs = [](const OrtNode* node, const OrtValueInfo**, size_t) { return guarded([&] { required(node, "node"); }); };
  table.Node_GetSubgraphs = [](const OrtNode* node, const OrtGraph**, size_t, const char**) {
    return guarded([&] { required(node, "node"); });
  };
  table.Node_GetNumAttributes = [](const OrtNode* node, size_t* out) {
    return guarded([&] { required(out, "num_attributes") = required(node, "node").attributes.size(); });
  };
  table.Node_GetAttributes = [](const OrtNode* node, const OrtOpAttr** out, size_t room) {
    return guarded([&] { give(out, room, required(node, "node").attributes.size(), [&](size_t i) { return &node->attributes[i]; }); });
  };
  table.Node_GetAttributeByName = [](const OrtNode* node, const char* name, const OrtOpAttr** out) {
    return guarded([&] {
      required(out, "attribute") = nullptr;
      for (const OrtOpAttr& attribute : required(node, "node").attributes)
        if (attribute.name == chars_of(name, "attribute_name")) *out = &attribute;
    });
  };
  table.Node_GetGraph = [](const OrtNode* node, const OrtGraph** out) {
    return guarded([&] { required(out, "graph") = required(node, "node").graph; });
  };
  table.Node_GetEpName = [](const OrtNode* node, const char** out) {
    return guarded([&] {
      required(node, "node");
      required(out, "out") = nullptr;  // providers are assigned only in sessions
    });
  };
}

OrtOpAttrType type_of_attribute(const Attribute& value) {
  struct Kinds {
    OrtOpAttrType operator()(int64_t) const { return ORT_OP_ATTR_INT; }
    OrtOpAttrType operator()(float) const { return ORT_OP_ATTR_FLOAT; }
    OrtOpAttrType operator()(const std::string&) const { return ORT_OP_ATTR_STRING; }
    OrtOpAttrType operator()(const Datum&) const { return ORT_OP_ATTR_TENSOR; }
    OrtOpAttrType operator()(const std::vector<int64_t>&) const { return ORT_OP_ATTR_INTS; }
    OrtOpAttrType operator()(const std::vector<float>&) const { return ORT_OP_ATTR_FLOATS; }
    OrtOpAttrType operator()(const std::vector<std::string>&) const { return ORT_OP_ATTR_STRINGS; }
    OrtOpAttrType operator()(const Type&) const { return ORT_OP_ATTR_UNDEFINED; }
    OrtOpAttrType operator()(const std::vector<Datum>&) const { return ORT_OP_ATTR_UNDEFINED; }
    OrtOpAttrType operator()(const std::vector<Type>&) const { return ORT_OP_ATTR_UNDEFINED; }
  };
  return std::visit(Kinds{}, value);
}

void add_attribute_readers(OrtApi& table) {
  table.OpAttr_GetType = [](const OrtOpAttr* attribute, OrtOpAttrType* out) {
    return guarded([&] { required(out, "type") = type_of_attribute(required(attribute, "attribute").value); });
  };
  table.OpAttr_GetTensorAttributeAsOrtValue = [](const OrtOpAttr* attribute, OrtValue** out) {
    return guarded([&] {
      const auto* datum = std::get_if<Datum>(&required(attribute, "attribute").value);
      if (datum == nullptr || !datum->is_tensor())
        throw Error(ErrorCode::invalid_argument, "the attribute " + attribute->name + " is no tensor");
      required(out, "attr_tensor") = new_value(datum->tensor().clone());
    });
  };
}

void add_external(OrtApi& table) {
  table.CreateExternalInitializerInfo = [](const char* path, int64_t offset, size_t size_bytes, OrtExternalInitializerInfo** out) {
    return guarded([&] { required(out, "out") = new OrtExternalInitializerInfo{chars_of(path, "filepath"), offset, size_bytes}; });
  };
  table.ReleaseExternalInitializerInfo = [](OrtExternalInitializerInfo* info) { delete info; };
  table.ExternalInitializerInfo_GetFilePath = [](const OrtExternalInitializerInfo* info) { return info->file_path.c_str(); };
  table.ExternalInitializerInfo_GetFileOffset = [](const OrtExternalInitializerInfo* info) { return info->file_offset; };
  table.ExternalInitializerInfo_GetByteSize = [](const OrtExternalInitializerInfo* info) { return info->size_bytes; };
}

}  // namespace

void add_graph_readers(OrtApi& table) {
  add_values(table);
  add_description(table);
  add_parts(table);
  add_nodes(table);
  add_attribute_readers(table);
  add_external(table);
}

}  // namespace treadle::ort
