// Writes ONNX files.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "onnx/model_def.h"

namespace treadle::onnx {

/// Where an initializer's bytes are, which are there already; nothing: in the model.
using Locate = std::function<std::optional<ExternalDataDef>(const TensorDef&)>;

/// The model's initializers, and those of the graphs inside its nodes.
void each_initializer(const ModelDef& model, const std::function<void(const TensorDef&)>& visit);

struct WriteOptions {
  /// Asked for each initializer that has a value; null: none lies in a file that is there. Not with `external_data_file`.
  Locate locate;
  /// Name, without a folder, of a file beside the model that takes the initializers of at least `external_threshold_bytes`. Empty: none.
  std::string external_data_file;
  size_t external_threshold_bytes = 1024;
  /// Large tensors start at a multiple of this (a page, so that they can be mapped and given back one by one), others at 64 bytes.
  size_t external_alignment = 4096;
  size_t external_alignment_threshold_bytes = 65536;
  bool aligns_others = true;  ///< false: they follow what is before them
};

/// The places that ONNX Runtime gives the initializers of an optimised model.
WriteOptions beside_optimized(const std::string& external_data_file, size_t external_threshold_bytes);

/// The encoded ModelProto: numeric tensors as raw_data, strings as string_data; external tensors that were not loaded keep their reference.
/// @param locate  asked for each initializer that has a value, those of inner graphs too; null: none is external.
/// @throws Error(invalid_argument) above protobuf's limit of 2 GiB - 1; Error(invalid_model) for a tensor without a value.
std::string serialize_model(const ModelDef& model, const Locate& locate = {});

/// The encoded TensorProto.
std::string serialize_tensor(const TensorDef& tensor);

/// Writes the model, and its external data if asked, each under a temporary name that is then renamed: a killed process leaves the old
/// file or the new one, never half of one. The data file is renamed before the model.
/// @throws as serialize_model; Error(io_error) if a file cannot be written.
void write_model_file(const ModelDef& model, const std::string& path, const WriteOptions& options = {});

}  // namespace treadle::onnx
