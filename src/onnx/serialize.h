// Writes ONNX files.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "onnx/model_def.h"

namespace treadle::onnx {

/// Returns the position of an initializer if its bytes are in an existing file; nullopt if they are to be stored in the model.
using Locate = std::function<std::optional<ExternalDataDef>(const TensorDef&)>;

/// Calls `visit` for all initializers of the model, including those of graphs inside nodes.
void each_initializer(const ModelDef& model, const std::function<void(const TensorDef&)>& visit);

struct WriteOptions {
  /// Returns where the bytes of an initializer already are; called for each initializer that has a value. Null: none is in an existing
  /// file. Cannot be combined with `external_data_file`.
  Locate locate;
  /// Name, without a folder, of a file next to the model that receives the initializers of at least `external_threshold_bytes`. Empty: all
  /// are stored in the model.
  std::string external_data_file;
  size_t external_threshold_bytes = 1024;
  /// Alignment of tensors of at least the next threshold: a page, so that each can be mapped and released alone. Others: 64 bytes.
  size_t external_alignment = 4096;
  size_t external_alignment_threshold_bytes = 65536;
  bool aligns_others = true;  ///< false: smaller tensors are not aligned
};

/// Returns options that place initializers as ONNX Runtime does for an optimized model.
WriteOptions beside_optimized(const std::string& external_data_file, size_t external_threshold_bytes);

/// Encodes a ModelProto: numeric tensors as raw_data, strings as string_data. External tensors that were not loaded stay external.
/// @param locate  called for each initializer that has a value, including those of inner graphs; null: none is external
/// @throws Error(invalid_argument) above protobuf's limit of 2 GiB - 1; Error(invalid_model) for a tensor without a value
std::string serialize_model(const ModelDef& model, const Locate& locate = {});

/// Encodes a TensorProto.
std::string serialize_tensor(const TensorDef& tensor);

/// Writes the model and, if requested, its external data. Each file is written under a temporary name and then renamed, the data file
/// first. So each file is either completely old or completely new, even if the process is killed.
/// @throws as serialize_model(); Error(io_error) if a file cannot be written
void write_model_file(const ModelDef& model, const std::string& path, const WriteOptions& options = {});

}  // namespace treadle::onnx
