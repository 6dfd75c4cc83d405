// Keys of the metadata that the models of a training artifacts folder contain, besides ArtifactsDescription.
#pragma once

#include <filesystem>
#include <string>

#include "train/artifacts/artifacts.h"

namespace treadle::train {

/// kArtifactsKey has the same value in all models of one folder. The keys below are in the training model only.
inline constexpr const char *kArtifactsVersionKey = "treadle.artifacts.version", *kArtifactsDescriptionKey = "treadle.artifacts.trainer";

inline std::string artifact_path(const std::string& folder, const std::string& file) {
  return (std::filesystem::path(folder) / file).string();
}

}  // namespace treadle::train
