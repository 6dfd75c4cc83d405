#include <tiffio.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "kernels/image/decode.h"

namespace treadle::kernels {
namespace {

struct Source {
  EncodedBytes bytes;
  uint64_t at = 0;
};

Source& source_of(thandle_t handle) { return *static_cast<Source*>(handle); }

tmsize_t read_bytes(thandle_t handle, void* to, tmsize_t count) {
  Source& source = source_of(handle);
  const uint64_t size = source.bytes.size(), left = source.at < size ? size - source.at : 0;
  const auto part = static_cast<tmsize_t>(std::min<uint64_t>(left, static_cast<uint64_t>(std::max<tmsize_t>(count, 0))));
  if (part > 0) std::memcpy(to, source.bytes.data() + source.at, static_cast<size_t>(part));
  source.at += static_cast<uint64_t>(part);
  return part;
}

toff_t seek(thandle_t handle, toff_t offset, int whence) {
  Source& source = source_of(handle);
  source.at = offset + (whence == SEEK_CUR ? source.at : whence == SEEK_END ? source.bytes.size() : 0);
  return source.at;
}

toff_t size_of(thandle_t handle) { return source_of(handle).bytes.size(); }
tmsize_t write_nothing(thandle_t, void*, tmsize_t) { return 0; }
int close_nothing(thandle_t) { return 0; }

struct Close {
  void operator()(TIFF* tiff) const { TIFFClose(tiff); }
};
struct Free {
  void operator()(TIFFOpenOptions* options) const { TIFFOpenOptionsFree(options); }
};

}  // namespace

std::optional<RgbImage> decode_tiff(EncodedBytes bytes) {
  auto quiet = [](TIFF*, void*, const char*, const char*, va_list) { return 1; };
  std::unique_ptr<TIFFOpenOptions, Free> options(TIFFOpenOptionsAlloc());
  TIFFOpenOptionsSetErrorHandlerExtR(options.get(), quiet, nullptr);
  TIFFOpenOptionsSetWarningHandlerExtR(options.get(), quiet, nullptr);
  Source source{bytes};
  std::unique_ptr<TIFF, Close> tiff(
      TIFFClientOpenExt("image", "rm", &source, read_bytes, write_nothing, seek, close_nothing, size_of, nullptr, nullptr, options.get()));
  uint32_t width = 0, height = 0;
  if (!tiff || !TIFFGetField(tiff.get(), TIFFTAG_IMAGEWIDTH, &width) || !TIFFGetField(tiff.get(), TIFFTAG_IMAGELENGTH, &height))
    return std::nullopt;
  RgbImage image = RgbImage::of_size(height, width);
  std::vector<uint32_t> pixels(image.pixels.size() / 3);
  if (!TIFFReadRGBAImageOriented(tiff.get(), width, height, pixels.data(), ORIENTATION_TOPLEFT, 1)) return std::nullopt;
  for (size_t i = 0; i < pixels.size(); ++i) {
    image.pixels[3 * i] = static_cast<uint8_t>(TIFFGetR(pixels[i]));
    image.pixels[3 * i + 1] = static_cast<uint8_t>(TIFFGetG(pixels[i]));
    image.pixels[3 * i + 2] = static_cast<uint8_t>(TIFFGetB(pixels[i]));
  }
  return image;
}

}  // namespace treadle::kernels
