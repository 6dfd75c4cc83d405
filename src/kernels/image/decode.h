// Encoded images: BMP and PNM by code of our own, all others by the libraries that the build has found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace treadle::kernels {

/// Rows of pixels of three bytes: red, green, blue.
struct RgbImage {
  int64_t height = 0, width = 0;
  std::vector<uint8_t> pixels;

  /// An image of zeros. @throws Error(resource_exhausted) if it is larger than any image may be.
  static RgbImage of_size(int64_t height, int64_t width);
  uint8_t* row(int64_t y) { return pixels.data() + y * width * 3; }
};

using EncodedBytes = std::span<const uint8_t>;

/// The image; nullopt if the bytes are no image, or a broken one.
/// @throws Error(not_implemented) if they are of a format whose library this build lacks.
std::optional<RgbImage> decode_image(EncodedBytes bytes);

// One decoder a format. Each gives nullopt for what it cannot read.
std::optional<RgbImage> decode_bmp(EncodedBytes bytes);
std::optional<RgbImage> decode_pnm(EncodedBytes bytes);
std::optional<RgbImage> decode_png(EncodedBytes bytes);
std::optional<RgbImage> decode_jpeg(EncodedBytes bytes);
std::optional<RgbImage> decode_jpeg2000(EncodedBytes bytes);
std::optional<RgbImage> decode_tiff(EncodedBytes bytes);
std::optional<RgbImage> decode_webp(EncodedBytes bytes);

}  // namespace treadle::kernels
