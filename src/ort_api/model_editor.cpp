// Functions by which clients assemble models, from nothing or by adding to an existing model.
#include <algorithm>
#include <set>

#include "onnx/export.h"
#include "onnx/parse.h"
#include "ort_api/editor_api.h"
#include "session/model.h"

namespace treadle::ort {
namespace {

onnx::TypeDef type_def(const OrtTypeInfo& info) {
  using Kind = onnx::TypeDef::Kind;
  onnx::TypeDef made;
  made.denotation = info.denotation;
  auto set_element = [&] {
    if (info.element) made.elem = std::make_unique<onnx::TypeDef>(type_def(*info.element));
  };
  switch (info.type) {
    case ONNX_TYPE_TENSOR:
    case ONNX_TYPE_SPARSETENSOR:
      made.kind = info.type == ONNX_TYPE_TENSOR ? Kind::tensor : Kind::sparse_tensor;
      made.elem_type = dtype_from(info.tensor.dtype);
      if (!info.tensor.has_shape) break;
      made.shape.emplace();
      for (size_t i = 0; i < info.tensor.dims.size(); ++i) {
        onnx::DimDef& dim = made.shape->emplace_back();
        const std::string symbol = i < info.tensor.symbols.size() ? info.tensor.symbols[i] : std::string();
        if (info.tensor.dims[i] >= 0)
          dim.kind = onnx::DimDef::Kind::value, dim.value = info.tensor.dims[i];
        else if (!symbol.empty())
          dim.kind = onnx::DimDef::Kind::param, dim.param = symbol;
      }
      break;
    case ONNX_TYPE_SEQUENCE: made.kind = Kind::sequence, set_element(); break;
    case ONNX_TYPE_OPTIONAL: made.kind = Kind::optional, set_element(); break;
    case ONNX_TYPE_MAP: made.kind = Kind::map, made.key_type = dtype_from(info.key_type), set_element(); break;
    default: throw Error(ErrorCode::invalid_argument, "a type that the model editor does not make");
  }
  return made;
}

onnx::ValueInfoDef value_def(const OrtValueInfo& info) {
  onnx::ValueInfoDef made;
  made.name = info.name;
  made.type = type_def(*info.type);
  return made;
}

onnx::NodeDef node_def(const OrtNode& node) {
  onnx::NodeDef made;
  made.op_type = node.op_type, made.domain = node.domain, made.name = node.name;
  made.inputs = node.inputs, made.outputs = node.outputs;
  for (const OrtOpAttr& attribute : node.attributes) made.attributes.push_back(onnx::attribute_def(attribute.name, attribute.value));
  return made;
}

// Appends the nodes and initializers of `graph` to `to`. If `graph` declares inputs or outputs, these replace those of `to`.
void add_graph(onnx::GraphDef& to, const OrtGraph& graph) {
  for (const auto& node : graph.nodes) to.nodes.push_back(node_def(*node));
  for (const auto& [name, value] : graph.initializers) {
    onnx::TensorDef& made = to.initializers.emplace_back();
    made.name = name;
    made.value = value->datum.tensor();
    made.dtype = made.value.dtype();
    made.shape = made.value.shape();
  }
  auto replace = [](std::vector<onnx::ValueInfoDef>& values, const auto& given) {
    if (!given) return;
    values.clear();
    for (const auto& value : *given) values.push_back(value_def(*value));
  };
  replace(to.inputs, graph.inputs);
  replace(to.outputs, graph.outputs);
}

std::string canonical(const std::string& domain) { return domain == "ai.onnx" ? std::string() : domain; }

// Adds opsets to the list `to`. If it already has a domain, the versions must agree, since a model has one opset version per domain.
void add_opsets(std::vector<onnx::OpsetImport>& to, const std::vector<onnx::OpsetImport>& given) {
  for (const onnx::OpsetImport& opset : given) {
    const auto found =
        std::find_if(to.begin(), to.end(), [&](const auto& other) { return canonical(other.domain) == canonical(opset.domain); });
    if (found == to.end())
      to.push_back(opset);
    else if (found->version != opset.version)
      throw Error(ErrorCode::invalid_argument, "Domain version can not be changed for '" + opset.domain +
                                                   "'. Current version: " + std::to_string(found->version) + "; of version " +
                                                   std::to_string(opset.version) + " in what is added");
  }
}

const OrtGraph& graph_of(const OrtModel& model) {
  if (!model.graph) throw Error(ErrorCode::invalid_argument, "the model has no graph: AddGraphToModel gives it one");
  return *model.graph;
}

// Sets the inputs and outputs of a session, whose model is being edited, to those of this model.
void describe(OrtSession& session) {
  const onnx::GraphDef& graph = session.editing->graph;
  session.inputs.clear(), session.outputs.clear(), session.overridable.clear();
  auto is_initializer = [&](const std::string& name) {
    return std::any_of(graph.initializers.begin(), graph.initializers.end(), [&](const auto& other) { return other.name == name; });
  };
  for (const auto& input : graph.inputs)
    (is_initializer(input.name) ? session.overridable : session.inputs).push_back(to_value_info(input));
  for (const auto& output : graph.outputs) session.outputs.push_back(to_value_info(output));
}

OrtSession* new_editing(onnx::ModelDef def, const OrtSessionOptions* options) {
  auto made = std::make_unique<OrtSession>();
  made->editing = std::make_shared<onnx::ModelDef>(std::move(def));
  made->editing_options = std::make_shared<const OrtSessionOptions>(options != nullptr ? *options : default_session_options());
  check_severity(made->editing_options->log_severity_level, "session_log_severity_level");
  made->tells_assignment = tells_assignment(*made->editing_options);
  describe(*made);
  return made.release();
}

template <typename Read>
onnx::ModelDef readable(Read&& read) {
  try {
    return read();
  } catch (const Error& error) {
    refuse_model(error);
  }
}

onnx::ModelDef& edited(OrtSession* session) {
  if (!required(session, "session").editing)
    throw StatusError(ORT_MODEL_LOADED, "This session has already been initialized: it is no model editor's, or it has been finalised");
  return *session->editing;
}

// Returns element `i` of a client's array. Throws if the array is null, which clients may pass only for empty arrays.
template <typename T>
T& element(T* array, size_t i, const char* what) {
  return (&required(array, what))[i];
}

OrtGraph::Values taken(OrtValueInfo** values, size_t count) {
  std::set<const OrtValueInfo*> different;
  for (size_t i = 0; i < count; ++i) {
    const OrtValueInfo& value = required(element(values, i, "values"), "a value");
    if (value.graph != nullptr || !different.insert(&value).second)
      throw Error(ErrorCode::invalid_argument, "the value \"" + value.name + "\" belongs to a graph already");
  }
  OrtGraph::Values made;
  for (size_t i = 0; i < count; ++i) made.emplace_back(values[i]);
  return made;
}

OrtStatus* type_around(ONNXType type, const OrtTypeInfo* element, OrtTypeInfo** out, ONNXTensorElementDataType key_type = 0) {
  return guarded([&] {
    auto made = std::make_unique<OrtTypeInfo>();
    made->type = type;
    made->key_type = key_type;
    made->element = std::make_shared<const OrtTypeInfo>(required(element, "the element's type"));
    required(out, "type_info") = made.release();
  });
}

OrtStatus* tensor_type_info(ONNXType type, const OrtTensorTypeAndShapeInfo* tensor, OrtTypeInfo** out) {
  return guarded([&] {
    auto made = std::make_unique<OrtTypeInfo>();
    made->type = type;
    made->tensor = required(tensor, "tensor_info");
    required(out, "type_info") = made.release();
  });
}

void add_editor_types(OrtModelEditorApi& table) {
  table.CreateTensorTypeInfo = [](const OrtTensorTypeAndShapeInfo* tensor, OrtTypeInfo** out) {
    return tensor_type_info(ONNX_TYPE_TENSOR, tensor, out);
  };
  table.CreateSparseTensorTypeInfo = [](const OrtTensorTypeAndShapeInfo* tensor, OrtTypeInfo** out) {
    return tensor_type_info(ONNX_TYPE_SPARSETENSOR, tensor, out);
  };
  table.CreateMapTypeInfo = [](ONNXTensorElementDataType key_type, const OrtTypeInfo* value_type, OrtTypeInfo** out) {
    return type_around(ONNX_TYPE_MAP, value_type, out, key_type);
  };
  table.CreateSequenceTypeInfo = [](const OrtTypeInfo* element, OrtTypeInfo** out) {
    return type_around(ONNX_TYPE_SEQUENCE, element, out);
  };
  table.CreateOptionalTypeInfo = [](const OrtTypeInfo* element, OrtTypeInfo** out) {
    return type_around(ONNX_TYPE_OPTIONAL, element, out);
  };
  table.CreateValueInfo = [](const char* name, const OrtTypeInfo* type, OrtValueInfo** out) {
    return guarded([&] {
      if (name == nullptr || *name == '\0') throw Error(ErrorCode::invalid_argument, "name cannot be null or empty string");
      if (type == nullptr) throw Error(ErrorCode::invalid_argument, "type_info cannot be null");
      required(out, "value_info") = new OrtValueInfo{.name = name, .type = std::make_unique<OrtTypeInfo>(*type)};
    });
  };
}

std::vector<std::string> texts(const char* const* names, size_t count, const char* what) {
  std::vector<std::string> made;
  for (size_t i = 0; i < count; ++i) made.emplace_back(chars_of(element(names, i, what), what));
  return made;
}

void add_graphs(OrtModelEditorApi& table) {
  // A node takes ownership of its attributes, a graph of its nodes and values, and a model of its graph. Clients must not release these
  // objects afterwards.
  table.CreateNode = [](const char* op_type, const char* domain, const char* name, const char* const* inputs, size_t num_inputs,
                        const char* const* outputs, size_t num_outputs, OrtOpAttr** attributes, size_t num_attributes, OrtNode** out) {
    return guarded([&] {
      auto made = std::make_unique<OrtNode>();
      made->op_type = chars_of(op_type, "operator_name"), made->domain = chars_of(domain, "domain_name");
      made->name = chars_of(name, "node_name");
      made->inputs = texts(inputs, num_inputs, "input_names"), made->outputs = texts(outputs, num_outputs, "output_names");
      for (size_t i = 0; i < num_attributes; ++i)
        made->attributes.push_back(required(element(attributes, i, "attributes"), "an attribute"));
      required(out, "node") = made.release();
      for (size_t i = 0; i < num_attributes; ++i) delete attributes[i];
    });
  };
  table.CreateGraph = [](OrtGraph** out) { return guarded([&] { required(out, "graph") = new OrtGraph(); }); };
  table.SetGraphInputs = [](OrtGraph* graph, OrtValueInfo** values, size_t count) {
    return guarded([&] { required(graph, "graph").set(graph->inputs, taken(values, count)); });
  };
  table.SetGraphOutputs = [](OrtGraph* graph, OrtValueInfo** values, size_t count) {
    return guarded([&] { required(graph, "graph").set(graph->outputs, taken(values, count)); });
  };
  // If `data_is_external` is false, clients may free the value's memory after the call, so it is copied.
  table.AddInitializerToGraph = [](OrtGraph* graph, const char* name, OrtValue* value, bool data_is_external) {
    return guarded([&] {
      if (!required(value, "tensor").datum.is_tensor()) throw Error(ErrorCode::invalid_argument, "an initializer is a dense tensor");
      const auto& all = required(graph, "graph").initializers;
      if (name == nullptr || *name == '\0') throw Error(ErrorCode::invalid_argument, "name cannot be null or empty");
      const std::string wanted = name;
      constexpr size_t kMostInModel = 127;
      if (data_is_external && value->datum.tensor().size_bytes() <= kMostInModel)
        throw Error(ErrorCode::invalid_argument, "data_is_external=true requires the tensor to be larger than 127 bytes (got " +
                                                     std::to_string(value->datum.tensor().size_bytes()) + " bytes)");
      if (std::any_of(all.begin(), all.end(), [&](const auto& other) { return other.first == wanted; }))
        throw Error(ErrorCode::invalid_argument, "An initializer with this name has already been added to the graph: " + wanted);
      if (!data_is_external) value->datum = owned_by_client(value->datum);
      graph->add_initializer(wanted, std::unique_ptr<OrtValue>(value));
    });
  };
  table.AddNodeToGraph = [](OrtGraph* graph, OrtNode* node) {
    return guarded([&] {
      if (required(node, "node").graph != nullptr)
        throw Error(ErrorCode::invalid_argument, "the node \"" + node->name + "\" is in a graph already");
      required(graph, "graph").add_node(std::unique_ptr<OrtNode>(node));
    });
  };
}

void add_models(OrtModelEditorApi& table) {
  table.CreateModel = [](const char* const* domains, const int* versions, size_t count, OrtModel** out) {
    return guarded([&] {
      auto made = std::make_shared<OrtModel>();
      for (size_t i = 0; i < count; ++i) {
        const std::string domain = chars_of(element(domains, i, "domain_names"), "a domain");
        // If a domain occurs several times, its last version counts, as in ONNX Runtime.
        std::erase_if(made->opsets, [&](const auto& opset) { return canonical(opset.domain) == canonical(domain); });
        made->opsets.push_back({domain, element(versions, i, "opset_versions")});
      }
      required(out, "model") = made.get();
      made->self = made;
    });
  };
  table.AddGraphToModel = [](OrtModel* model, OrtGraph* graph) {
    return guarded([&] {
      if (required(graph, "graph").model != nullptr) throw Error(ErrorCode::invalid_argument, "the graph is in a model already");
      if (required(model, "model").graph) throw Error(ErrorCode::invalid_argument, "the model has a graph already");
      model->graph.reset(graph);
      graph->model = model;
    });
  };
  table.CreateSessionFromModel = [](const OrtEnv* env, const OrtModel* model, const OrtSessionOptions* options, OrtSession** out) {
    return guarded([&] {
      auto made = std::make_unique<OrtSession>();
      const OrtSessionOptions& with = options != nullptr ? *options : default_session_options();
      check_severity(with.log_severity_level, "session_log_severity_level");
      const std::vector<onnx::OpsetImport>& opsets = required(model, "model").opsets;
      if (std::none_of(opsets.begin(), opsets.end(), [](const auto& opset) { return canonical(opset.domain).empty(); }))
        throw Error(ErrorCode::invalid_argument, "The opset for the ONNX domain must be explicitly specified.");
      begin_session(*made, required(env, "env"), with, make_model(model_def(required(model, "model")), {}));
      required(out, "out") = made.release();
    });
  };
}

void add_editing(OrtModelEditorApi& table) {
  table.CreateModelEditorSession = [](const OrtEnv*, const char* path, const OrtSessionOptions* options, OrtSession** out) {
    return guarded([&] {
      check_model_file(chars_of(path, "model_path"));
      required(out, "out") = new_editing(readable([&] { return onnx::parse_model_file(path); }), options);
    });
  };
  table.CreateModelEditorSessionFromArray = [](const OrtEnv*, const void* data, size_t size, const OrtSessionOptions* options,
                                               OrtSession** out) {
    return guarded([&] {
      const auto* bytes = &required(static_cast<const std::byte*>(data), "model_data");
      if (size == 0) throw Error(ErrorCode::invalid_argument, "No graph was found in the protobuf, of no bytes");
      required(out, "out") = new_editing(readable([&] { return onnx::parse_model_bytes({bytes, size}, nullptr, "."); }), options);
    });
  };
  table.SessionGetOpsetForDomain = [](const OrtSession* session, const char* domain, int* out) {
    return guarded([&] {
      const OrtSession& given = required(session, "session");
      const onnx::ModelDef& def = given.editing ? *given.editing : given.session->model().impl().def;
      const std::string wanted = canonical(chars_of(domain, "domain"));
      const auto found = std::find_if(def.opset_imports.begin(), def.opset_imports.end(),
                                      [&](const auto& opset) { return canonical(opset.domain) == wanted; });
      if (found == def.opset_imports.end()) throw StatusError(ORT_FAIL, "Domain not used by model: \"" + wanted + "\"");
      required(out, "opset") = static_cast<int>(found->version);
    });
  };
  table.ApplyModelToModelEditorSession = [](OrtSession* session, OrtModel* model) {
    return guarded([&] {
      onnx::ModelDef& def = edited(session);
      add_opsets(def.opset_imports, required(model, "model").opsets);
      add_graph(def.graph, graph_of(*model));
      describe(*session);
    });
  };
  table.FinalizeModelEditorSession = [](OrtSession* session, const OrtSessionOptions* options, OrtPrepackedWeightsContainer*) {
    return guarded([&] {
      if (!required(session, "session").editing) return;  // the session is complete already
      Model model = make_model(std::move(edited(session)), {});
      session->editing = nullptr;
      begin_session(*session, OrtEnv(), options != nullptr ? *options : *session->editing_options, model);
    });
  };
}

}  // namespace

onnx::ModelDef model_def(const OrtModel& model) {
  onnx::ModelDef made;
  made.ir_version = onnx::kMaxIrVersion;
  add_opsets(made.opset_imports, model.opsets);
  made.graph.name = kGraphName;
  add_graph(made.graph, graph_of(model));
  return made;
}

void add_model_editor(OrtApi& table) {
  table.GetModelEditorApi = [] {
    static const OrtModelEditorApi editor = [] {
      OrtModelEditorApi made{};
      add_editor_types(made);
      add_graphs(made);
      add_models(made);
      add_editing(made);
      return made;
    }();
    return &editor;
  };
  table.ReleaseValueInfo = [](OrtValueInfo* value) { delete value; };
  table.ReleaseNode = [](OrtNode* node) { delete node; };
  table.ReleaseGraph = [](OrtGraph* graph) { delete graph; };
  table.ReleaseModel = [](OrtModel* model) { release_handle(model); };
  table.GetValueInfoName = [](const OrtValueInfo* value, const char** out) {
    return guarded([&] { required(out, "name") = required(value, "value_info").name.c_str(); });
  };
  table.GetValueInfoTypeInfo = [](const OrtValueInfo* value, const OrtTypeInfo** out) {
    return guarded([&] {
      static const OrtTypeInfo unknown;
      const OrtTypeInfo* type = required(value, "value_info").type.get();
      required(out, "type_info") = type != nullptr ? type : &unknown;
    });
  };
}

}  // namespace treadle::ort
