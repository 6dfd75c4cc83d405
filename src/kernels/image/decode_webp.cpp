#include <webp/decode.h>

#include "kernels/image/decode.h"

namespace treadle::kernels {

std::optional<RgbImage> decode_webp(EncodedBytes bytes) {
  int width = 0, height = 0;
  if (!WebPGetInfo(bytes.data(), bytes.size(), &width, &height)) return std::nullopt;
  RgbImage image = RgbImage::of_size(height, width);
  if (!WebPDecodeRGBInto(bytes.data(), bytes.size(), image.pixels.data(), image.pixels.size(), 3 * width)) return std::nullopt;
  return image;
}

}  // namespace treadle::kernels
