// Where artifacts lie, and what their models say in their metadata besides ArtifactsDescription.
#pragma once

#include <filesystem>
#include <string>

#include "train/artifacts.h"

namespace treadle::train {

/// The same text in all models of one folder is kArtifactsKey's; these are the training model's.
inline constexpr const char *kArtifactsVersionKey = "treadle.artifacts.version", *kArtifactsDescriptionKey = "treadle.artifacts.trainer";

inline std::string artifact_path(const std::string& folder, const std::string& file) {
  return (std::filesystem::path(folder) / file).string();
}

}  // namespace treadle::train
