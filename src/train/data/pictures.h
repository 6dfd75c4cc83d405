// Converts images to inputs of models.
#pragma once

#include <string>
#include <vector>

#include "treadle/model.h"
#include "treadle/tensor.h"

namespace treadle::train {

struct PictureLayout {
  bool batched, channels_last;
  int64_t height, width, channels;  ///< 0: the model's input does not fix it
};
/// Returns the layout of images in this input. @throws Error(invalid_argument) if the input's shape is not the shape of images.
PictureLayout layout_of(const ValueInfo& input);

/// Describes the conversion of pixels to numbers.
struct PixelRule {
  double range = 1;
  bool bgr = false;
  std::vector<double> mean{0, 0, 0}, std{1, 1, 1};  // one number per channel, in the order of the result
};

/// Resizes an image by bilinear interpolation with half-pixel centres.
/// @param image  uint8 [H, W, 3]
Tensor resize_image(const Tensor& image, int64_t height, int64_t width);

/// Converts an image to the model's input. @param image  uint8 [H, W, 3], RGB.
Tensor as_input(const Tensor& image, const ValueInfo& input, const PictureLayout& layout, const PixelRule& rule);

}  // namespace treadle::train
