// Converts images to inputs of models.
#pragma once

#include <string>
#include <vector>

#include "treadle/model.h"
#include "treadle/tensor.h"

namespace treadle::train {

struct PictureLayout {
  bool batched, channels_last;
  int64_t height, width, channels;  ///< 0: the model's input accepts any number
};
/// Returns the image layout that this model input expects. @throws Error(invalid_argument) if the input's shape is not that of images.
PictureLayout layout_of(const ValueInfo& input);

/// Describes how pixels are converted to the numbers that a model reads.
struct PixelRule {
  double range = 1;
  bool bgr = false;
  std::vector<double> mean{0, 0, 0}, std{1, 1, 1};  // one number per channel, in the model's channel order
};

/// Resizes an image by bilinear interpolation with half-pixel centers.
/// @param image  uint8 [H, W, 3]
Tensor resize_image(const Tensor& image, int64_t height, int64_t width);

/// Converts an image to the model's input. @param image  uint8 [H, W, 3], RGB.
Tensor as_input(const Tensor& image, const ValueInfo& input, const PictureLayout& layout, const PixelRule& rule);

}  // namespace treadle::train
