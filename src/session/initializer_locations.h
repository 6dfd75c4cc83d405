// Models that are written with their initializers in files of somebody else.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "treadle/session.h"

namespace treadle {

/// Where an initializer's bytes are in a file beside the model.
struct InitializerLocation {
  std::string file;  ///< relative to the model's folder
  int64_t offset_bytes = 0;
  int64_t size_bytes = 0;
};

/// Says where the bytes of a model's initializer are, and has written them there; nothing: they go into the model.
/// @param read_from  where they were read from; null: from the model, or they were made since.
using LocateInitializer =
    std::function<std::optional<InitializerLocation>(const std::string& name, const Tensor& value, const InitializerLocation* read_from)>;

/// Session::optimized_model, with each initializer, also of inner graphs, where the function says; null: all in the model.
/// @throws as it, and Error(invalid_argument) for a location that is none, or has another size than the initializer. Above disable_all, the
///         optimised model has to fit into a protobuf message before its initializers are moved.
std::string optimized_model(const Session& session, const LocateInitializer& locate);

}  // namespace treadle
