// Pictures as inputs: which part of the file, in which size, and what its pixels become.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "treadle/model.h"
#include "treadle/tensor.h"

namespace CLI {
class App;
}

namespace treadle::cli {

/// What the options said; each overrides the preset.
struct PictureOptions {
  std::string preset;
  std::vector<double> mean, std;      // one for all channels, or one each
  std::optional<double> range;        // a white pixel's value, before mean and std: 1 or 255
  std::optional<bool> bgr;            // the order of channels; absent: RGB
  std::vector<int64_t> resize, crop;  // one number: the shorter side, or a square; two: height, width
  /// The name of an option that was given; empty if none was.
  std::string_view any() const;
};

void add_picture_options(CLI::App& app, PictureOptions& options);

/// A picture in the layout of the input: NCHW or NHWC by where 1 or 3 channels stand, with a batch of 1 where the input has one. Without
/// options the whole picture is stretched to the input's extents, and floats are in [0, 1].
/// @throws Error for a file that is no picture, an input that takes none, and options that contradict the input.
Tensor image_for(const ValueInfo& info, const std::string& path, const PictureOptions& options = {});

}  // namespace treadle::cli
