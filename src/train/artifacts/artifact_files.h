// Metadata keys and paths of the ONNX files in a folder of training artifacts.
#pragma once

#include <filesystem>
#include <string>

#include "train/artifacts/artifacts.h"

namespace treadle::train {

/// Metadata keys that only the training model has: the version of Treadle that wrote it, and the ArtifactsDescription as JSON.
inline constexpr const char *kArtifactsVersionKey = "treadle.artifacts.version", *kArtifactsDescriptionKey = "treadle.artifacts.trainer";

inline std::string artifact_path(const std::string& folder, const std::string& file) {
  return (std::filesystem::path(folder) / file).string();
}

}  // namespace treadle::train
