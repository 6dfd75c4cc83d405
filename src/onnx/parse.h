// Reads ONNX files: without copies if possible, and safely for any bytes.
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

/// Returns true if the file name has ONNX Runtime's extension: *.ort, in upper or lower case.
bool has_ort_extension(const std::string& path);

struct ReadOptions {
  /// ort: ONNX Runtime's flat buffers. any: that format if the file's name or first bytes indicate it, otherwise ONNX.
  enum class Format : uint8_t { any, onnx, ort } format = Format::any;
  bool use_mmap = true;        ///< false: files are read into memory
  bool share = false;          ///< tensors that are read or copied into memory are shared in the process (core/files/shared_storage.h)
  bool load_external = true;   ///< false: external tensors keep only their description
  int max_nesting_depth = 64;  ///< separate limits for subgraphs and for types
  size_t max_tensor_bytes = SIZE_MAX;  ///< limit for a single tensor
  size_t max_messages = 10'000'000;    ///< nodes, attributes, tensors …: in a hostile file, two bytes could each cost hundreds in memory
  /// Smaller tensors are copied, so that a few scalars do not keep a whole file mapped.
  size_t min_in_place_bytes = 1024;
  /// Initializers and Constants of at least this size are used in place even if they are unaligned, as are three of four weights in
  /// PyTorch's files. Graph::constant_tensor() copies those whose elements are read.
  size_t min_unaligned_bytes = 65536;
  /// Contents of external files that are in memory already, by the location that the model states.
  std::map<std::string, std::shared_ptr<Storage>> external_files = {};
  /// Values that replace external initializers of the graph, by name.
  std::map<std::string, Tensor> external_values = {};
};

/// Reads a model in ONNX's or ONNX Runtime's format. Aligned tensors of at least `min_in_place_bytes`, and all tensors of at least
/// `min_unaligned_bytes`, become read-only views of the file, which is mapped privately and must not be truncated while they live; others
/// are copied. External data is relative to the file's folder. It must be inside this folder, or inside the folder of the symbolic link's
/// target, since download caches link both files.
/// @throws Error(not_found, io_error) if a file cannot be read; Error(invalid_model), with the place in the model, if it violates
///   protobuf's or ONNX's rules; Error(not_implemented) for a newer IR version or an unknown dtype; Error(resource_exhausted) for a limit
ModelDef parse_model_file(const std::string& path, const ReadOptions& options = {});

/// Reads a model from memory.
/// @param owner      keeps `bytes` alive; large tensors become views of it. Null: everything is copied
/// @param model_dir  folder of external data; empty: external data is an error
ModelDef parse_model_bytes(std::span<const std::byte> bytes, std::shared_ptr<Storage> owner, const std::filesystem::path& model_dir,
                           const ReadOptions& options = {});

/// Reads a TensorProto, as in the *.pb files of ONNX's test cases. External data is an error.
TensorDef parse_tensor_bytes(std::span<const std::byte> bytes, const ReadOptions& options = {});

}  // namespace treadle::onnx
