// Adapters: parameters stored separately from the model that they modify, such as LoRA matrices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "treadle/export.h"
#include "treadle/tensor.h"

namespace treadle {

/// Tensors, keyed by the names of the model inputs, or of the overridable initializers, that they are fed to. RunOptions::adapters feeds
/// them in a run; a session can serve any number of adapters. The file format is ONNX Runtime's (.onnx_adapter).
struct TREADLE_API Adapter {
  static constexpr int32_t kFormatVersion = 1;
  int32_t adapter_version = 0;  ///< the caller's own version number
  int32_t model_version = 0;    ///< version of the model that the adapter was made for
  std::map<std::string, Tensor> parameters;

  /// Reads an adapter file. @throws Error(not_found) if the file does not exist; otherwise as from_bytes()
  static Adapter load(const std::string& path);
  /// Copies the parameters. @throws Error(invalid_argument) if the bytes are not a valid adapter
  static Adapter from_bytes(std::span<const std::byte> bytes);
  /// Returns the bytes of an adapter file. @throws Error(not_implemented) for strings and sub-byte types, which the file format cannot hold
  std::string to_bytes() const;
  /// Writes the file atomically: on failure, an existing file stays unchanged. @throws Error as to_bytes(), or if writing fails
  void save(const std::string& path) const;
};

}  // namespace treadle
