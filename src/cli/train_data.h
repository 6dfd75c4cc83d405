// What `treadle train` reads: files as feeds and labels in the shapes that the model takes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "treadle/data.h"
#include "treadle/model.h"

namespace treadle::cli {

struct DataArguments {
  std::vector<std::string> files;  // FILE or INPUT=FILE
  std::string labels;              // an array, a column, or a .npy file
  std::vector<std::string> features;
  double scale = 1;
};

/// What the loss takes beside the output.
struct LabelForm {
  DType dtype = DType::int64;  ///< undefined: the loss has no labels
  /// Extents of a sample, for losses whose labels are like the output; nothing: as they are.
  std::optional<std::vector<int64_t>> extents;
};

/// Under this name a batch has the labels.
inline constexpr const char* kBatchLabels = "treadle.labels";

struct OpenedData {
  std::shared_ptr<const train::Dataset> data;  ///< feeds by the inputs' names, and labels
  std::vector<std::string> classes;            ///< names, where labels are text or folders
};

/// @param classes  of the training data, for those to validate with; empty: the file's own.
/// @throws Error naming the file, and what it lacks.
OpenedData open_data(const DataArguments& arguments, const std::vector<ValueInfo>& inputs, const LabelForm& labels,
                     const std::vector<std::string>& classes = {});

/// This rank's part of the samples, the others being theirs.
std::shared_ptr<const train::Dataset> part_of_rank(std::shared_ptr<const train::Dataset> data, const train::LoaderOptions& loader);

}  // namespace treadle::cli
