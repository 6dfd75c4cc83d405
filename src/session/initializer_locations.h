// Writes models whose initializers are stored in files that the caller chooses.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "treadle/session.h"

namespace treadle {

/// The position of an initializer's bytes in a file beside the model.
struct InitializerLocation {
  std::string file;  ///< relative to the model's folder
  int64_t offset_bytes = 0;
  int64_t size_bytes = 0;
};

/// Decides where a model's initializer is stored. The function has already written the bytes to the location it returns; nullopt: they are
/// stored in the model.
/// @param read_from  location from which the bytes were read; null: they were in the model, or have been computed since.
using LocateInitializer =
    std::function<std::optional<InitializerLocation>(const std::string& name, const Tensor& value, const InitializerLocation* read_from)>;

/// Like Session::optimized_model, with each initializer (of bodies too) stored where `locate` returns; without `locate`, all in the model.
/// @throws errors of optimized_model(); Error(invalid_argument) for a location that does not exist, or whose size differs from the
///   initializer's. Above disable_all, the optimized model must fit into one protobuf message (2 GB) before its initializers are moved out.
std::string optimized_model(const Session& session, const LocateInitializer& locate);

}  // namespace treadle
