// Reads ONNX files. Avoids copies if possible, and is safe for files with any content.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "onnx/model_def.h"

namespace treadle::onnx {

/// Returns true if the file name has the extension of ONNX Runtime's format, *.ort, in upper or lower case.
bool has_ort_extension(const std::string& path);

struct ReadOptions {
  /// ort: ONNX Runtime's format (a flat buffer). any: that format if the file's name or first bytes indicate it, otherwise ONNX's format.
  enum class Format : uint8_t { any, onnx, ort } format = Format::any;
  bool use_mmap = true;                ///< false: files are read into memory
  bool share = false;                  ///< true: tensors in memory are shared within the process (core/files/shared_storage.h)
  bool load_external = true;           ///< false: external tensors are only described, not read
  int max_nesting_depth = 64;          ///< separate limits for subgraphs and for types
  size_t max_tensor_bytes = SIZE_MAX;  ///< limit for a single tensor
  size_t max_messages = 10'000'000;    ///< nodes, attributes, tensors ...: in a hostile file, two bytes could each take hundreds in memory
  /// Smaller tensors are copied, so that a few scalars do not keep a whole file mapped.
  size_t min_in_place_bytes = 1024;
  /// Initializers and Constants of at least this size are used in place even if they are unaligned, as three of four weights in PyTorch's
  /// files are. Graph::constant_tensor() makes an aligned copy of a tensor whose elements are read.
  size_t min_unaligned_bytes = 65536;
  /// Contents of external files that are already in memory, by location as in the model.
  std::map<std::string, std::shared_ptr<Storage>> external_files = {};
  /// Values that replace external initializers of the graph, by name.
  std::map<std::string, Tensor> external_values = {};
};

/// Reads a model in ONNX's or ONNX Runtime's format. Aligned tensors of at least `min_in_place_bytes`, and all tensors of at least
/// `min_unaligned_bytes`, become read-only views of the file. The file is mapped privately and must not be truncated while these tensors
/// live. Other tensors are copied. Locations of external data are relative to the file's folder. They must be inside this folder or, if the
/// file is a symbolic link, inside its target's folder, since download caches link both files.
/// @throws Error(not_found, io_error) if a file cannot be read; Error(invalid_model), with the place in the model, if it violates
///   protobuf's or ONNX's rules; Error(not_implemented) for a newer IR version or an unknown dtype; Error(resource_exhausted) for a limit
ModelDef parse_model_file(const std::string& path, const ReadOptions& options = {});

/// Reads a model from memory.
/// @param owner      keeps `bytes` alive; large tensors become views of these bytes. Null: everything is copied
/// @param model_dir  folder of external data; empty: external data is an error
ModelDef parse_model_bytes(std::span<const std::byte> bytes, std::shared_ptr<Storage> owner, const std::filesystem::path& model_dir,
                           const ReadOptions& options = {});

/// Reads a TensorProto, as in the *.pb files of ONNX's test cases. External data is an error.
TensorDef parse_tensor_bytes(std::span<const std::byte> bytes, const ReadOptions& options = {});

}  // namespace treadle::onnx
