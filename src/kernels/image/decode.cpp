#include "kernels/image/decode.h"

#include <fmt/format.h>

#include <algorithm>

#include "treadle/error.h"

namespace treadle::kernels {
namespace {

using namespace std::string_view_literals;
using Decoder = std::optional<RgbImage> (*)(EncodedBytes);

// A decoder is null if its library was not found when this file was built.
#ifdef TREADLE_WITH_PNG
constexpr Decoder kPng = decode_png;
#else
constexpr Decoder kPng = nullptr;
#endif
#ifdef TREADLE_WITH_JPEG
constexpr Decoder kJpeg = decode_jpeg;
#else
constexpr Decoder kJpeg = nullptr;
#endif
#ifdef TREADLE_WITH_JPEG2000
constexpr Decoder kJpeg2000 = decode_jpeg2000;
#else
constexpr Decoder kJpeg2000 = nullptr;
#endif
#ifdef TREADLE_WITH_TIFF
constexpr Decoder kTiff = decode_tiff;
#else
constexpr Decoder kTiff = nullptr;
#endif
#ifdef TREADLE_WITH_WEBP
constexpr Decoder kWebp = decode_webp;
#else
constexpr Decoder kWebp = nullptr;
#endif

/// A file format, recognized by the first bytes of a file.
struct Format {
  std::string_view name, library, magic;
  Decoder decode;
  std::string_view second_magic = "";  ///< expected at byte `second_at`
  size_t second_at = 0;
};
constexpr Format kFormats[] = {
    {"PNG", "libpng", "\x89PNG\r\n\x1a\n"sv, kPng},
    {"JPEG", "libjpeg", "\xff\xd8\xff"sv, kJpeg},
    {"JPEG 2000", "libopenjp2", "\0\0\0\x0cjP  \r\n\x87\n"sv, kJpeg2000},
    {"JPEG 2000", "libopenjp2", "\xff\x4f\xff\x51"sv, kJpeg2000},
    {"TIFF", "libtiff", "II*\0"sv, kTiff},
    {"TIFF", "libtiff", "MM\0*"sv, kTiff},
    {"WebP", "libwebp", "RIFF"sv, kWebp, "WEBP"sv, 8},
    {"BMP", "", "BM"sv, decode_bmp},
    {"PNM", "", "P1"sv, decode_pnm},
    {"PNM", "", "P2"sv, decode_pnm},
    {"PNM", "", "P3"sv, decode_pnm},
    {"PNM", "", "P4"sv, decode_pnm},
    {"PNM", "", "P5"sv, decode_pnm},
    {"PNM", "", "P6"sv, decode_pnm},
};

bool begins_with(EncodedBytes bytes, std::string_view magic) {
  return bytes.size() >= magic.size() &&
         std::equal(magic.begin(), magic.end(), bytes.begin(), [](char a, uint8_t b) { return static_cast<uint8_t>(a) == b; });
}

}  // namespace

RgbImage RgbImage::of_size(int64_t height, int64_t width) {
  constexpr int64_t kMostPixels = int64_t{1} << 28;
  if (height < 0 || width < 0 || (width > 0 && height > kMostPixels / width))
    throw Error(ErrorCode::resource_exhausted,
                fmt::format("an image of {} by {} pixels; at most {} are decoded", height, width, kMostPixels));
  return {height, width, std::vector<uint8_t>(static_cast<size_t>(height * width * 3))};
}

std::optional<RgbImage> decode_image(EncodedBytes bytes) {
  for (const Format& format : kFormats) {
    if (!begins_with(bytes, format.magic)) continue;
    if (bytes.size() < format.second_at || !begins_with(bytes.subspan(format.second_at), format.second_magic)) continue;
    if (!format.decode)
      throw Error(ErrorCode::not_implemented,
                  fmt::format("the image is a {} file, and this build was made without {}", format.name, format.library));
    return format.decode(bytes);
  }
  return std::nullopt;
}

}  // namespace treadle::kernels
