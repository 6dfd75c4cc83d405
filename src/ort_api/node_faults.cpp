// Returns the status that ONNX Runtime would report for a node that fails in a run.
#include <string_view>

#include "core/base/node_fault.h"
#include "graph/custom_ops.h"
#include "graph/op_def.h"
#include "ort_api/api.h"

namespace treadle::ort {
namespace {

// ONNX operators whose kernels in ONNX Runtime report errors as INVALID_ARGUMENT. Others report FAIL.
constexpr std::string_view kTellOfArguments =
    " AffineGrid BatchNormalization ConvTranspose DepthToSpace Det Einsum Expand EyeLike GRU Gather GatherND Gemm InstanceNormalization "
    "LSTM "
    "LayerNormalization OneHot RNN Range RoiAlign Scatter ScatterElements ScatterND SequenceAt SequenceErase SequenceInsert Slice "
    "SpaceToDepth SplitToSequence Tile Transpose Trilu ";
constexpr std::string_view kTellOfArgumentsMl = " ArrayFeatureExtractor Scaler ";
constexpr std::string_view kFailMicrosoft = " FusedGemm FusedMatMul MatMulNBits ";

OrtErrorCode code_of(const NodeFault& fault) {
  const std::string word = " " + fault.op_type + " ";
  auto is_in = [&](std::string_view words) { return words.find(word) != std::string_view::npos; };
  if (fault.domain == "com.microsoft") return is_in(kFailMicrosoft) ? ORT_FAIL : ORT_INVALID_ARGUMENT;
  if (fault.domain == "ai.onnx.ml") return is_in(kTellOfArgumentsMl) ? ORT_INVALID_ARGUMENT : ORT_FAIL;
  if (!fault.domain.empty()) return ORT_FAIL;
  if (fault.op_type == "Cast") return ORT_RUNTIME_EXCEPTION;  // a text that is no number
  return is_in(kTellOfArguments) ? ORT_INVALID_ARGUMENT : ORT_FAIL;
}

}  // namespace

StatusError status_of(const NodeFault& fault) {
  // Kernels of clients choose their errors' codes themselves.
  if (const OpDef* op = find_op(fault.domain, fault.op_type); op != nullptr && is_custom_op(*op))
    return {fault.code() == ErrorCode::invalid_argument ? ORT_INVALID_ARGUMENT : ORT_INVALID_GRAPH, fault.what()};
  return {code_of(fault), "Non-zero status code returned while running " + fault.op_type + " node. Name:'" + fault.name +
                              "' Status Message: " + fault.what()};
}

}  // namespace treadle::ort
