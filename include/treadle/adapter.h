// Adapters: parameters kept apart from the model that they adjust, such as the matrices of LoRA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "treadle/export.h"
#include "treadle/tensor.h"

namespace treadle {

/// Tensors by the names of a model's inputs, or of initializers that are inputs too. `RunOptions::adapters` feeds them to a run; one
/// session serves any number of adapters. Files have ONNX Runtime's format (.onnx_adapter).
struct TREADLE_API Adapter {
  static constexpr int32_t kFormatVersion = 1;
  int32_t adapter_version = 0;  ///< the caller's own numbering
  int32_t model_version = 0;    ///< of the model that the adapter was made for
  std::map<std::string, Tensor> parameters;

  /// @throws Error(not_found) if there is no such file, and as from_bytes().
  static Adapter load(const std::string& path);
  /// Copies what it needs. @throws Error(invalid_argument) for bytes that are no adapter, and for parameters that contradict themselves
  static Adapter from_bytes(std::span<const std::byte> bytes);
  /// @throws Error(not_implemented) for strings and numbers of less than a byte, which the format does not have.
  std::string to_bytes() const;
  /// Writes the file, or leaves the one that was there. @throws Error as to_bytes(), and if it cannot be written.
  void save(const std::string& path) const;
};

}  // namespace treadle
