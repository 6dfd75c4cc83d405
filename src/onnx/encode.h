// Encodes the structs of model_def.h, with one function per protobuf message.
#pragma once

#include <unordered_map>

#include "onnx/model_def.h"
#include "onnx/wire_writer.h"

namespace treadle::onnx {

/// For tensors whose elements are in an external file: maps each tensor to its position in that file.
using ExternalPlan = std::unordered_map<const TensorDef*, ExternalDataDef>;

struct EncodeContext {
  WireWriter& out;
  const ExternalPlan& external;
};

void encode_model(const EncodeContext& context, const ModelDef& model);
/// Encodes a tensor. @throws Error(invalid_model) if the tensor has neither a value nor a reference to external data
void encode_tensor(const EncodeContext& context, const TensorDef& tensor);
void encode_sparse_tensor(const EncodeContext& context, const SparseTensorDef& sparse);
void encode_type(const EncodeContext& context, const TypeDef& type);
void encode_value_info(const EncodeContext& context, const ValueInfoDef& info);
void encode_properties(const EncodeContext& context, uint32_t field, const Properties& properties);

}  // namespace treadle::onnx
