// The additional tables of functions: for editing models, and for compiling them. As in the main table, the order of members is fixed.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "onnx/model_def.h"
#include "ort_api/api.h"
#include "ort_api/custom_operator.h"

// The objects of which clients assemble models. A graph owns its nodes, values and initializers; a model owns its graph.
struct OrtValueInfo {
  std::string name;
  std::unique_ptr<OrtTypeInfo> type;  // null: the type is not declared
  const OrtGraph* graph = nullptr;    // null: the value is in no graph yet
};
struct OrtNode {
  std::string op_type, domain, name;
  std::vector<std::string> inputs, outputs;
  std::vector<OrtOpAttr> attributes;
  const OrtGraph* graph = nullptr;  // null: the node is in no graph yet
  size_t id = 0;                    // index in the graph
};
struct OrtGraph {
  using Values = std::vector<std::unique_ptr<OrtValueInfo>>;
  std::optional<Values> inputs, outputs;  // nullopt: the graph does not declare them
  std::vector<std::unique_ptr<OrtNode>> nodes;
  std::vector<std::pair<std::string, std::unique_ptr<OrtValue>>> initializers;
  std::map<std::string, std::unique_ptr<OrtValueInfo>> inner;  // values that nodes or initializers name, including inputs and outputs
  const OrtModel* model = nullptr;                             // null: the graph is in no model yet

  // These functions take ownership of the nodes and values that are passed.
  void add_node(std::unique_ptr<OrtNode> node);
  void add_initializer(const std::string& name, std::unique_ptr<OrtValue> value);
  void set(std::optional<Values>& to, Values values);
};
struct OrtModel : treadle::ort::Kept<OrtModel> {
  std::vector<treadle::onnx::OpsetImport> opsets;
  std::unique_ptr<OrtGraph> graph;
};

struct OrtModelCompilationOptions;
using OrtWriteBufferFunc = OrtStatus* (*)(void* state, const void* buffer, size_t size);
// A client's function that sets `location` to where an initializer's bytes go; null: into the model. The caller releases `location`.
// `old_location` is null if the bytes were in the model.
using OrtGetInitializerLocationFunc = OrtStatus* (*)(void* state, const char* name, const OrtValue* value,
                                                     const OrtExternalInitializerInfo* old_location, OrtExternalInitializerInfo** location);

struct OrtModelEditorApi {
  OrtStatus* (*CreateTensorTypeInfo)(const OrtTensorTypeAndShapeInfo* tensor_info, OrtTypeInfo** type_info);
  OrtStatus* (*CreateSparseTensorTypeInfo)(const OrtTensorTypeAndShapeInfo* tensor_info, OrtTypeInfo** type_info);
  OrtStatus* (*CreateMapTypeInfo)(ONNXTensorElementDataType key_type, const OrtTypeInfo* value_type, OrtTypeInfo** type_info);
  OrtStatus* (*CreateSequenceTypeInfo)(const OrtTypeInfo* element_type, OrtTypeInfo** type_info);
  OrtStatus* (*CreateOptionalTypeInfo)(const OrtTypeInfo* contained_type, OrtTypeInfo** type_info);
  OrtStatus* (*CreateValueInfo)(const char* name, const OrtTypeInfo* type_info, OrtValueInfo** value_info);
  OrtStatus* (*CreateNode)(const char* operator_name, const char* domain_name, const char* node_name, const char* const* input_names,
                           size_t num_inputs, const char* const* output_names, size_t num_outputs, OrtOpAttr** attributes,
                           size_t num_attributes, OrtNode** node);
  OrtStatus* (*CreateGraph)(OrtGraph** graph);
  OrtStatus* (*SetGraphInputs)(OrtGraph* graph, OrtValueInfo** inputs, size_t count);
  OrtStatus* (*SetGraphOutputs)(OrtGraph* graph, OrtValueInfo** outputs, size_t count);
  OrtStatus* (*AddInitializerToGraph)(OrtGraph* graph, const char* name, OrtValue* tensor, bool data_is_external);
  OrtStatus* (*AddNodeToGraph)(OrtGraph* graph, OrtNode* node);
  OrtStatus* (*CreateModel)(const char* const* domain_names, const int* opset_versions, size_t count, OrtModel** model);
  OrtStatus* (*AddGraphToModel)(OrtModel* model, OrtGraph* graph);
  OrtStatus* (*CreateSessionFromModel)(const OrtEnv* env, const OrtModel* model, const OrtSessionOptions* options, OrtSession** out);
  OrtStatus* (*CreateModelEditorSession)(const OrtEnv* env, const char* path, const OrtSessionOptions* options, OrtSession** out);
  OrtStatus* (*CreateModelEditorSessionFromArray)(const OrtEnv* env, const void* data, size_t size, const OrtSessionOptions* options,
                                                  OrtSession** out);
  OrtStatus* (*SessionGetOpsetForDomain)(const OrtSession* session, const char* domain, int* opset);
  OrtStatus* (*ApplyModelToModelEditorSession)(OrtSession* session, OrtModel* model);
  OrtStatus* (*FinalizeModelEditorSession)(OrtSession* session, const OrtSessionOptions* options, OrtPrepackedWeightsContainer* weights);
};

struct OrtCompileApi {
  void (*ReleaseModelCompilationOptions)(OrtModelCompilationOptions* options);
  OrtStatus* (*CreateModelCompilationOptionsFromSessionOptions)(const OrtEnv* env, const OrtSessionOptions* session_options,
                                                                OrtModelCompilationOptions** out);
  OrtStatus* (*ModelCompilationOptions_SetInputModelPath)(OrtModelCompilationOptions* options, const char* path);
  OrtStatus* (*ModelCompilationOptions_SetInputModelFromBuffer)(OrtModelCompilationOptions* options, const void* data, size_t size);
  OrtStatus* (*ModelCompilationOptions_SetOutputModelPath)(OrtModelCompilationOptions* options, const char* path);
  OrtStatus* (*ModelCompilationOptions_SetOutputModelExternalInitializersFile)(OrtModelCompilationOptions* options, const char* path,
                                                                               size_t threshold_bytes);
  OrtStatus* (*ModelCompilationOptions_SetOutputModelBuffer)(OrtModelCompilationOptions* options, OrtAllocator* allocator, void** data,
                                                             size_t* size);
  OrtStatus* (*ModelCompilationOptions_SetEpContextEmbedMode)(OrtModelCompilationOptions* options, bool embed);
  OrtStatus* (*CompileModel)(const OrtEnv* env, const OrtModelCompilationOptions* options);
  OrtStatus* (*ModelCompilationOptions_SetFlags)(OrtModelCompilationOptions* options, uint32_t flags);
  OrtStatus* (*ModelCompilationOptions_SetEpContextBinaryInformation)(OrtModelCompilationOptions* options, const char* folder,
                                                                      const char* name);
  OrtStatus* (*ModelCompilationOptions_SetGraphOptimizationLevel)(OrtModelCompilationOptions* options, OrtOptimizationLevel level);
  OrtStatus* (*ModelCompilationOptions_SetOutputModelWriteFunc)(OrtModelCompilationOptions* options, OrtWriteBufferFunc write, void* state);
  OrtStatus* (*ModelCompilationOptions_SetOutputModelGetInitializerLocationFunc)(OrtModelCompilationOptions* options,
                                                                                 OrtGetInitializerLocationFunc locate, void* state);
  OrtStatus* (*ModelCompilationOptions_SetInputModel)(OrtModelCompilationOptions* options, const OrtModel* model);
};

namespace treadle::ort {

/// Adds the tables whose functions are all unsupported.
void add_refused_tables(OrtApi& table);

/// Converts a model that a client has assembled. @throws Error(invalid_argument) if it has no graph, or an invalid type
onnx::ModelDef model_def(const OrtModel& model);

/// The name of the graph in a model that a client has assembled.
inline constexpr const char* kGraphName = "graph";

}  // namespace treadle::ort
