// Reads ONNX files: zero-copy where the file allows it, and safe on any bytes.
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

/// Whether a file of this name is one in ONNX Runtime's format: *.ort, in any case.
bool has_ort_extension(const std::string& path);

struct ReadOptions {
  /// ort: ONNX Runtime's flat buffers. any: these, if the file is named so or begins as one.
  enum class Format : uint8_t { any, onnx, ort } format = Format::any;
  bool use_mmap = true;                ///< false: read files into memory
  bool share = false;                  ///< what is read into memory, or copied, is held once by all of the process (core/shared_storage.h)
  bool load_external = true;           ///< false: external tensors keep only their description
  int max_nesting_depth = 64;          ///< of subgraphs and of types, each
  size_t max_tensor_bytes = SIZE_MAX;  ///< of one tensor
  size_t max_messages = 10'000'000;    ///< nodes, attributes, tensors …: two bytes of a hostile file would each cost hundreds in memory
  /// Smaller tensors are copied, so that a few scalars do not keep a whole file mapped.
  size_t min_in_place_bytes = 1024;
  /// Initializers and Constants from this size on stay in place even at an address that is no multiple of their element's size: three of
  /// four weights in files that PyTorch writes. Graph::constant_tensor() copies those whose elements somebody reads.
  size_t min_unaligned_bytes = 65536;
  /// Contents of external files that are in memory already, by the location that the model names.
  std::map<std::string, std::shared_ptr<Storage>> external_files = {};
  /// Values of the graph's external initializers that take the place of their files, by name.
  std::map<std::string, Tensor> external_values = {};
};

/// Reads a model, in ONNX's or in ONNX Runtime's format. Tensors of at least `min_in_place_bytes` whose data lies at a multiple of its
/// element's natural alignment, and those of at least `min_unaligned_bytes`, are read-only views of the file (mapped privately; the file
/// must not be truncated while they live); the rest is copied. External data is looked for relative to the file's folder, and must lie
/// inside it or inside the folder of the file that `path` finally names: download caches make both symbolic links into one folder.
/// @throws Error(not_found, io_error) if a file cannot be read; Error(invalid_model), with the place in the model, if it breaks
///   protobuf's or ONNX's rules; Error(not_implemented) for a newer IR version or an unknown dtype; Error(resource_exhausted) for a limit.
ModelDef parse_model_file(const std::string& path, const ReadOptions& options = {});

/// The same, from memory.
/// @param owner      keeps `bytes` alive, and they lie within it: large tensors become views of it. Null: everything is copied.
/// @param model_dir  where external data is looked for; empty: a model that has any is an error.
ModelDef parse_model_bytes(std::span<const std::byte> bytes, std::shared_ptr<Storage> owner, const std::filesystem::path& model_dir,
                           const ReadOptions& options = {});

/// One TensorProto, as in the *.pb files of ONNX's test cases. External data is an error.
TensorDef parse_tensor_bytes(std::span<const std::byte> bytes, const ReadOptions& options = {});

}  // namespace treadle::onnx
