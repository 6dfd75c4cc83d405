// Custom operators of clients: their descriptions, and the arguments of their kernels. plugin/custom_operator.h registers them for the
// process. Descriptions with the same domain and name are registered as one operator; a node uses the first description that accepts the
// dtypes of its inputs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ort_api/api.h"
#include "plugin/host.h"

struct OrtShapeInferContext {
  const treadle_node& node;
  std::vector<std::unique_ptr<OrtTensorTypeAndShapeInfo>> inputs, outputs;
  std::vector<std::unique_ptr<OrtOpAttr>> attributes;  // attributes that the client has requested
};

/// The client fills this in. Its `version` determines which fields exist.
struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info);
  const char* (*GetName)(const OrtCustomOp* op);
  const char* (*GetExecutionProviderType)(const OrtCustomOp* op);
  ONNXTensorElementDataType (*GetInputType)(const OrtCustomOp* op, size_t index);
  size_t (*GetInputTypeCount)(const OrtCustomOp* op);
  ONNXTensorElementDataType (*GetOutputType)(const OrtCustomOp* op, size_t index);
  size_t (*GetOutputTypeCount)(const OrtCustomOp* op);
  void (*KernelCompute)(void* kernel, OrtKernelContext* context);
  void (*KernelDestroy)(void* kernel);
  int (*GetInputCharacteristic)(const OrtCustomOp* op, size_t index);  // since version 8; 0: required, 1: optional, 2: variadic
  int (*GetOutputCharacteristic)(const OrtCustomOp* op, size_t index);
  OrtMemType (*GetInputMemoryType)(const OrtCustomOp* op, size_t index);
  int (*GetVariadicInputMinArity)(const OrtCustomOp* op);  // since version 14
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp* op);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp* op);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp* op);
  // A member since version 16.
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info, void** kernel);
  OrtStatus* (*KernelComputeV2)(void* kernel, OrtKernelContext* context);
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp* op, OrtShapeInferContext* context);  // since version 17
  int (*GetStartVersion)(const OrtCustomOp* op);
  int (*GetEndVersion)(const OrtCustomOp* op);
};

namespace treadle::ort {
/// Returns the first opset version (of the operator's domain) to which the operator applies. ONNX Runtime also asks for the last version,
/// but ignores it.
inline int start_of(const OrtCustomOp& op) {
  constexpr uint32_t kWithVersions = 17;
  return op.version >= kWithVersions && op.GetStartVersion ? op.GetStartVersion(&op) : 1;
}

enum Characteristic { kRequired, kOptional, kVariadic };
/// The kinds and numbers of inputs (or outputs) that an operator declares.
struct OperandKinds {
  std::vector<Characteristic> kinds;
  size_t least = 0, most = 0;  // bounds of the number of operands; `most` is SIZE_MAX if the last is variadic
};
OperandKinds inputs_of(const OrtCustomOp& op);
OperandKinds outputs_of(const OrtCustomOp& op);
}  // namespace treadle::ort

struct OrtCustomOpDomain : treadle::ort::Kept<OrtCustomOpDomain> {
  explicit OrtCustomOpDomain(std::string named) : name(std::move(named)) {}
  std::string name;
  std::vector<const OrtCustomOp*> operators;
};

struct OrtOpAttr {
  std::string name;
  treadle::Attribute value;
};

/// Describes a node for its kernel. Exists as long as the kernel.
struct OrtKernelInfo {
  treadle_node node;
  std::vector<std::shared_ptr<const OrtValue>> constants;  // one per input; null: the input is not constant
  std::string domain = {};                                 // the domain, as the client has named it
  int since_version = 1;
};

struct OrtKernelContext {
  treadle_call& call;
  std::vector<std::unique_ptr<OrtValue>> inputs, outputs;
  std::vector<std::shared_ptr<treadle::Storage>> scratch;
  std::vector<treadle::DType> output_dtypes;
};

namespace treadle::ort {

/// Returns the domain under which a client's operator is registered. If Treadle has an operator of this name, it is a separate domain, so
/// that only sessions whose options contain the client's operator use it.
std::string found_in(const std::string& domain, const std::string& name);

/// Converts a tensor type, including the symbolic names of extents.
OrtTensorTypeAndShapeInfo tensor_type(const Type& type);

/// Returns a logger that drops all messages, for the kernels of clients.
const OrtLogger& silent_logger();

}  // namespace treadle::ort
