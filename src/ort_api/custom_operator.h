// Operators of clients: what they say of themselves, and what their kernels are given. They become operators of the process by
// plugin/custom_operator.h, those of one domain and name together: a node runs the first that takes the dtypes of its inputs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ort_api/api.h"
#include "plugin/host.h"

struct OrtShapeInferContext {
  const treadle_node& node;
  std::vector<std::unique_ptr<OrtTensorTypeAndShapeInfo>> inputs, outputs;
  std::vector<std::unique_ptr<OrtOpAttr>> attributes;  // that were asked for
};

/// Filled in by the client; `version` says how far.
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
  int (*GetInputCharacteristic)(const OrtCustomOp* op, size_t index);  // 8: 0 required, 1 optional, 2 variadic
  int (*GetOutputCharacteristic)(const OrtCustomOp* op, size_t index);
  OrtMemType (*GetInputMemoryType)(const OrtCustomOp* op, size_t index);
  int (*GetVariadicInputMinArity)(const OrtCustomOp* op);  // 14
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp* op);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp* op);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp* op);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info, void** kernel);  // 16
  OrtStatus* (*KernelComputeV2)(void* kernel, OrtKernelContext* context);
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp* op, OrtShapeInferContext* context);  // 17
  int (*GetStartVersion)(const OrtCustomOp* op);
  int (*GetEndVersion)(const OrtCustomOp* op);
};

namespace treadle::ort {
/// The first version of its domain that it is of. ONNX Runtime asks for the last one as well, and makes nothing of it.
inline int start_of(const OrtCustomOp& op) {
  constexpr uint32_t kWithVersions = 17;
  return op.version >= kWithVersions && op.GetStartVersion ? op.GetStartVersion(&op) : 1;
}

enum Characteristic { kRequired, kOptional, kVariadic };
/// The inputs or the outputs that an operator says it has.
struct OperandKinds {
  std::vector<Characteristic> kinds;
  size_t least = 0, most = 0;  // SIZE_MAX: the last one is variadic
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

/// A node, for as long as its kernel lives.
struct OrtKernelInfo {
  treadle_node node;
  std::vector<std::shared_ptr<const OrtValue>> constants;  // per input; null where it is none
  std::string domain = {};                                 // as the client has named it
  int since_version = 1;
};

struct OrtKernelContext {
  treadle_call& call;
  std::vector<std::unique_ptr<OrtValue>> inputs, outputs;
  std::vector<std::shared_ptr<treadle::Storage>> scratch;
  std::vector<treadle::DType> output_dtypes;
};

namespace treadle::ort {

/// The domain in which the process finds an operator of a client. One that the build has, too, is in a domain of its own, so that only
/// those sessions have the client's whose options ask for it.
std::string found_in(const std::string& domain, const std::string& name);

/// With the symbols of its extents.
OrtTensorTypeAndShapeInfo tensor_type(const Type& type);

/// Of a client's kernels: they tell nobody.
const OrtLogger& silent_logger();

}  // namespace treadle::ort
