// Pictures as inputs of models.
#pragma once

#include <string>
#include <vector>

#include "treadle/model.h"
#include "treadle/tensor.h"

namespace treadle::train {

struct PictureLayout {
  bool batched, channels_last;
  int64_t height, width, channels;  ///< 0: the input does not say
};
/// @throws Error(invalid_argument) for an input that takes no pictures.
PictureLayout layout_of(const ValueInfo& input);

/// What pixels become.
struct PixelRule {
  double range = 1;
  bool bgr = false;
  std::vector<double> mean{0, 0, 0}, std{1, 1, 1};  // by the channel of the result
};

/// Bilinear, half-pixel centres. `image` is uint8 [H, W, 3]; the result has the given extents.
Tensor resize_image(const Tensor& image, int64_t height, int64_t width);

/// @param image  uint8 [H, W, 3], RGB.
Tensor as_input(const Tensor& image, const ValueInfo& input, const PictureLayout& layout, const PixelRule& rule);

}  // namespace treadle::train
