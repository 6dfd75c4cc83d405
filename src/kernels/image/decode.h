// Image decoders. BMP and PNM are decoded by this library itself, other formats by libraries that the build finds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace treadle::kernels {

/// Rows of pixels with three bytes each: red, green, blue.
struct RgbImage {
  int64_t height = 0, width = 0;
  std::vector<uint8_t> pixels;

  /// Makes an image of zeros. @throws Error(resource_exhausted) if it is larger than decoders allow
  static RgbImage of_size(int64_t height, int64_t width);
  uint8_t* row(int64_t y) { return pixels.data() + y * width * 3; }
};

using EncodedBytes = std::span<const uint8_t>;

/// Decodes an image. Returns nullopt if the bytes are not an image or the image is damaged. @throws Error(not_implemented) if this build
/// has no library for the format
std::optional<RgbImage> decode_image(EncodedBytes bytes);

// One decoder for each format. It returns nullopt if it cannot read the bytes.
std::optional<RgbImage> decode_bmp(EncodedBytes bytes);
std::optional<RgbImage> decode_pnm(EncodedBytes bytes);
std::optional<RgbImage> decode_png(EncodedBytes bytes);
std::optional<RgbImage> decode_jpeg(EncodedBytes bytes);
std::optional<RgbImage> decode_jpeg2000(EncodedBytes bytes);
std::optional<RgbImage> decode_tiff(EncodedBytes bytes);
std::optional<RgbImage> decode_webp(EncodedBytes bytes);

}  // namespace treadle::kernels
