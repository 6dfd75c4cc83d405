// Converts images to inputs: crop, size and pixel values.
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

/// The options that the user has given. Each overrides the preset's value.
struct PictureOptions {
  std::string preset;
  std::vector<double> mean, std;      // one number for all channels, or one per channel
  std::optional<double> range;        // value of a white pixel before mean and std are applied: 1 or 255
  std::optional<bool> bgr;            // true: BGR; absent: RGB
  std::vector<int64_t> resize, crop;  // one number: the shorter side (resize) or a square (crop); two numbers: height, width
  /// Returns the name of an option that was given; empty if none was.
  std::string_view any() const;
};

void add_picture_options(CLI::App& app, PictureOptions& options);

/// Reads an image in the input's layout: NCHW or NHWC, depending on which axis has extent 1 or 3, with a batch of 1 if the input has one.
/// Without options, the whole image is stretched to the input's extents, and floats are in [0, 1].
/// @throws Error for a file that is no image, an input whose shape is not that of an image, and options that contradict the input.
Tensor image_for(const ValueInfo& info, const std::string& path, const PictureOptions& options = {});

}  // namespace treadle::cli
