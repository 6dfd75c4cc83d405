#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstring>

#include "kernels/image/decode.h"

namespace treadle::kernels {
namespace {

struct Source {
  EncodedBytes bytes;
  size_t at = 0;
};

void read_bytes(png_structp png, png_bytep to, png_size_t count) {
  auto& source = *static_cast<Source*>(png_get_io_ptr(png));
  if (count > source.bytes.size() - source.at) png_error(png, "the file ends early");
  std::memcpy(to, source.bytes.data() + source.at, count);
  source.at += count;
}

// The library reports errors by longjmp, which skips destructors. So all objects with destructors belong to the caller.
bool read_image(png_structp png, png_infop info, Source& source, RgbImage& image, std::vector<png_bytep>& rows) {
  if (setjmp(png_jmpbuf(png))) return false;
  png_set_read_fn(png, &source, read_bytes);
  png_read_info(png, info);
  png_set_expand(png);
  png_set_strip_16(png);
  png_set_strip_alpha(png);
  png_set_gray_to_rgb(png);
  png_set_interlace_handling(png);
  png_read_update_info(png, info);
  image = RgbImage::of_size(png_get_image_height(png, info), png_get_image_width(png, info));
  if (png_get_rowbytes(png, info) != static_cast<size_t>(image.width) * 3) return false;
  for (int64_t y = 0; y < image.height; ++y) rows.push_back(image.row(y));
  png_read_image(png, rows.data());
  return true;
}

}  // namespace

std::optional<RgbImage> decode_png(EncodedBytes bytes) {
  struct Handles {
    png_structp png = nullptr;
    png_infop info = nullptr;
    ~Handles() { png_destroy_read_struct(&png, &info, nullptr); }
  } handles;
  auto quiet = [](png_structp, png_const_charp) {};
  handles.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, quiet);
  if (!handles.png) return std::nullopt;
  png_set_error_fn(
      handles.png, nullptr, [](png_structp png, png_const_charp) { png_longjmp(png, 1); }, quiet);
  handles.info = png_create_info_struct(handles.png);
  if (!handles.info) return std::nullopt;
  Source source{bytes};
  RgbImage image;
  std::vector<png_bytep> rows;
  if (!read_image(handles.png, handles.info, source, image, rows)) return std::nullopt;
  return image;
}

}  // namespace treadle::kernels
