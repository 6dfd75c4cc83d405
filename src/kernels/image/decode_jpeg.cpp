// clang-format off
#include <cstdio>  // jpeglib.h needs this header without including it
#include <jpeglib.h>
// clang-format on

#include <csetjmp>

#include "kernels/image/decode.h"

namespace treadle::kernels {
namespace {

struct Failure {
  jpeg_error_mgr manager;
  std::jmp_buf jump;
};

/// Converts a row of CMYK pixels to RGB. Adobe's files store the complements of the colors.
void write_cmyk(const uint8_t* from, int64_t width, bool is_complement, uint8_t* to) {
  for (int64_t x = 0; x < width; ++x, from += 4, to += 3)
    for (int i = 0; i < 3; ++i) {
      const int ink = is_complement ? from[i] : 255 - from[i], black = is_complement ? from[3] : 255 - from[3];
      to[i] = static_cast<uint8_t>(ink * black / 255);
    }
}

// The library reports errors by longjmp, which skips destructors. So all objects with destructors belong to the caller.
bool read_image(jpeg_decompress_struct& decoder, Failure& failure, EncodedBytes bytes, RgbImage& image, std::vector<uint8_t>& line) {
  if (setjmp(failure.jump)) return false;
  jpeg_mem_src(&decoder, bytes.data(), bytes.size());
  jpeg_read_header(&decoder, TRUE);
  const bool is_cmyk = decoder.num_components == 4;
  decoder.out_color_space = is_cmyk ? JCS_CMYK : JCS_RGB;
  jpeg_calc_output_dimensions(&decoder);
  image = RgbImage::of_size(decoder.output_height, decoder.output_width);
  if (is_cmyk) line.resize(static_cast<size_t>(image.width) * 4);
  jpeg_start_decompress(&decoder);
  while (decoder.output_scanline < decoder.output_height) {
    uint8_t* to = image.row(decoder.output_scanline);
    JSAMPROW row = is_cmyk ? line.data() : to;
    jpeg_read_scanlines(&decoder, &row, 1);
    if (is_cmyk) write_cmyk(line.data(), image.width, decoder.saw_Adobe_marker != 0, to);
  }
  jpeg_finish_decompress(&decoder);
  return true;
}

}  // namespace

std::optional<RgbImage> decode_jpeg(EncodedBytes bytes) {
  Failure failure;
  struct Handle {
    jpeg_decompress_struct decoder{};
    ~Handle() { jpeg_destroy_decompress(&decoder); }
  } handle;
  handle.decoder.err = jpeg_std_error(&failure.manager);
  failure.manager.error_exit = [](j_common_ptr info) { std::longjmp(reinterpret_cast<Failure*>(info->err)->jump, 1); };
  failure.manager.output_message = [](j_common_ptr) {};
  RgbImage image;
  std::vector<uint8_t> line;
  if (setjmp(failure.jump)) return std::nullopt;
  jpeg_create_decompress(&handle.decoder);
  if (!read_image(handle.decoder, failure, bytes, image, line)) return std::nullopt;
  return image;
}

}  // namespace treadle::kernels
