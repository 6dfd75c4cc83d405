// Keys that the metadata of models in a folder of training artifacts contain, besides ArtifactsDescription.
#pragma once

#include <filesystem>
#include <string>

#include "train/artifacts/artifacts.h"

namespace treadle::train {

/// Keys of metadata. kArtifactsKey has the same value in all models of one folder. The keys below are in the training model only.
inline constexpr const char *kArtifactsVersionKey = "treadle.artifacts.version", *kArtifactsDescriptionKey = "treadle.artifacts.trainer";

inline std::string artifact_path(const std::string& folder, const std::string& file) {
  return (std::filesystem::path(folder) / file).string();
}

}  // namespace treadle::train
