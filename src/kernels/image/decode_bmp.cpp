// Decodes uncompressed BMP: 1, 4 and 8 bits with a palette, 16, 24 and 32 bits, rows bottom-up or top-down. Source: Microsoft, "Bitmap
// Storage" and BITMAPINFOHEADER (Win32 documentation).
#include <bit>
#include <cstdlib>

#include "kernels/image/decode.h"

namespace treadle::kernels {
namespace {

constexpr size_t kFileHeader = 14, kCoreHeader = 12, kInfoHeader = 40;

uint32_t little_endian(EncodedBytes bytes, size_t at, size_t count) {
  uint32_t value = 0;
  for (size_t i = count; i > 0; --i) value = value << 8U | bytes[at + i - 1];
  return value;
}

struct Layout {
  int64_t width = 0, height = 0;
  bool from_top = false;
  uint32_t bits = 0, pixels_at = 0, masks[3] = {};
  size_t palette_at = 0, palette_entry = 4, palette_size = 0;
};

std::optional<Layout> read_layout(EncodedBytes bytes) {
  if (bytes.size() < kFileHeader + kCoreHeader) return std::nullopt;
  Layout layout;
  layout.pixels_at = little_endian(bytes, 10, 4);
  const size_t header = little_endian(bytes, kFileHeader, 4);
  if (header > bytes.size() - kFileHeader) return std::nullopt;
  layout.palette_at = kFileHeader + header;
  if (header == kCoreHeader) {
    layout.width = little_endian(bytes, 18, 2), layout.height = little_endian(bytes, 20, 2);
    layout.bits = little_endian(bytes, 24, 2);
    layout.palette_entry = 3;
  } else if (header >= kInfoHeader) {
    layout.width = static_cast<int32_t>(little_endian(bytes, 18, 4));
    layout.height = static_cast<int32_t>(little_endian(bytes, 22, 4));
    layout.from_top = layout.height < 0;
    layout.height = std::abs(layout.height);
    layout.bits = little_endian(bytes, 28, 2);
    const uint32_t compression = little_endian(bytes, 30, 4);
    const bool has_masks = compression == 3 || compression == 6;
    if (compression != 0 && !has_masks) return std::nullopt;
    const uint32_t usual[3] = {layout.bits == 16 ? 0x7C00U : 0xFF0000U, layout.bits == 16 ? 0x3E0U : 0xFF00U,
                               layout.bits == 16 ? 0x1FU : 0xFFU};
    if (has_masks && bytes.size() < kFileHeader + kInfoHeader + 12) return std::nullopt;
    for (size_t i = 0; i < 3; ++i) layout.masks[i] = has_masks ? little_endian(bytes, kFileHeader + kInfoHeader + 4 * i, 4) : usual[i];
    layout.palette_size = little_endian(bytes, 46, 4);
  } else {
    return std::nullopt;
  }
  if (layout.width <= 0 || layout.height <= 0) return std::nullopt;
  if (layout.palette_size == 0 && layout.bits <= 8) layout.palette_size = size_t{1} << layout.bits;
  return layout;
}

/// Extracts the masked bits, scaled to 0..255.
uint8_t masked(uint32_t pixel, uint32_t mask) {
  if (mask == 0) return 0;
  const int shift = std::countr_zero(mask);
  const uint64_t largest = mask >> shift, value = (pixel & mask) >> shift;
  return static_cast<uint8_t>((value * 255 + largest / 2) / largest);
}

}  // namespace

std::optional<RgbImage> decode_bmp(EncodedBytes bytes) {
  const auto layout = read_layout(bytes);
  if (!layout) return std::nullopt;
  const uint32_t bits = layout->bits;
  if (bits != 1 && bits != 4 && bits != 8 && bits != 16 && bits != 24 && bits != 32) return std::nullopt;
  const uint64_t row_bytes = (static_cast<uint64_t>(layout->width) * bits + 31) / 32 * 4;
  if (layout->pixels_at > bytes.size() || (bytes.size() - layout->pixels_at) / row_bytes < static_cast<uint64_t>(layout->height))
    return std::nullopt;
  if (bits <= 8 && (layout->palette_size > 256 || layout->palette_at + layout->palette_size * layout->palette_entry > bytes.size()))
    return std::nullopt;
  RgbImage image = RgbImage::of_size(layout->height, layout->width);
  for (int64_t y = 0; y < layout->height; ++y) {
    const uint8_t* from =
        bytes.data() + layout->pixels_at + static_cast<uint64_t>(layout->from_top ? y : layout->height - 1 - y) * row_bytes;
    uint8_t* to = image.row(y);
    for (int64_t x = 0; x < layout->width; ++x, to += 3) {
      if (bits <= 8) {
        const int64_t per_byte = 8 / bits;
        const unsigned shift = static_cast<unsigned>(per_byte - 1 - x % per_byte) * bits;
        const size_t code = from[x / per_byte] >> shift & ((1U << bits) - 1U);
        if (code >= layout->palette_size) return std::nullopt;
        const uint8_t* color = bytes.data() + layout->palette_at + code * layout->palette_entry;
        to[0] = color[2], to[1] = color[1], to[2] = color[0];
      } else if (bits == 24) {
        to[0] = from[3 * x + 2], to[1] = from[3 * x + 1], to[2] = from[3 * x];
      } else {
        const size_t size = bits / 8;
        const uint32_t pixel = little_endian({from, row_bytes}, static_cast<size_t>(x) * size, size);
        for (int i = 0; i < 3; ++i) to[i] = masked(pixel, layout->masks[i]);
      }
    }
  }
  return image;
}

}  // namespace treadle::kernels
