// Converts images to model inputs: crops and resizes them, and converts pixel values.
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

/// The options for images that the user has given. Each option overrides the preset's value.
struct PictureOptions {
  std::string preset;
  std::vector<double> mean, std;      // one number for all channels, or one per channel
  std::optional<double> range;        // value of a white pixel, 1 or 255, before mean and std are applied
  std::optional<bool> bgr;            // order of channels; true: BGR
  std::vector<int64_t> resize, crop;  // one number: shorter side (resize), side of a square (crop); two: height, width
  /// Returns the name of one of the options that were given; empty if there are none.
  std::string_view any() const;
};

void add_picture_options(CLI::App& app, PictureOptions& options);

/// Reads an image in the layout of a model's input. The layout is NCHW or NHWC, depending on which axis has extent 1 or 3; the batch is 1.
/// Without options, the whole image is stretched to the input's height and width, and floats are in [0, 1].
/// @throws Error for a file that is no image, an input whose shape is not that of an image, or options that contradict the input.
Tensor image_for(const ValueInfo& info, const std::string& path, const PictureOptions& options = {});

}  // namespace treadle::cli
