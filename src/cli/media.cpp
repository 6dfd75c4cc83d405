#include "cli/media.h"

#include <fmt/format.h>
#include <jpeglib.h>
#include <png.h>

#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstring>

#include "core/files/file.h"
#include "treadle/error.h"

namespace treadle::cli {
namespace {

[[noreturn]] void broken(const std::string& path, std::string_view what) {
  throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}", path, what));
}

Tensor read_png(const std::string& path) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  if (!png_image_begin_read_from_file(&image, path.c_str())) broken(path, image.message);
  image.format = PNG_FORMAT_RGB;
  Tensor tensor(DType::uint8, {image.height, image.width, 3});
  png_color white{255, 255, 255};
  if (!png_image_finish_read(&image, &white, tensor.raw(), 0, nullptr)) broken(path, image.message);
  return tensor;
}

struct JpegError {
  jpeg_error_mgr manager;
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX];
};

Tensor read_jpeg(const std::string& path, const std::shared_ptr<Storage>& file) {
  jpeg_decompress_struct decoder;
  JpegError error;
  decoder.err = jpeg_std_error(&error.manager);
  error.manager.error_exit = [](j_common_ptr info) {
    auto* self = reinterpret_cast<JpegError*>(info->err);
    info->err->format_message(info, self->message);
    std::longjmp(self->jump, 1);  // libjpeg's error handler must not return; no destructor is skipped
  };
  error.manager.output_message = [](j_common_ptr) {};
  auto tensor = std::make_unique<Tensor>();
  if (setjmp(error.jump)) {
    jpeg_destroy_decompress(&decoder);
    broken(path, error.message);
  }
  jpeg_create_decompress(&decoder);
  jpeg_mem_src(&decoder, reinterpret_cast<const unsigned char*>(file->data()), file->size_bytes());
  jpeg_read_header(&decoder, TRUE);
  decoder.out_color_space = JCS_RGB;
  jpeg_start_decompress(&decoder);
  *tensor = Tensor(DType::uint8, {decoder.output_height, decoder.output_width, 3});
  while (decoder.output_scanline < decoder.output_height) {
    auto* row = tensor->data<uint8_t>() + static_cast<size_t>(decoder.output_scanline) * decoder.output_width * 3;
    jpeg_read_scanlines(&decoder, &row, 1);
  }
  jpeg_finish_decompress(&decoder);
  jpeg_destroy_decompress(&decoder);
  return *tensor;
}

template <typename T>
T read_at(const std::shared_ptr<Storage>& file, size_t offset, const std::string& path) {
  if (offset > file->size_bytes() || file->size_bytes() - offset < sizeof(T)) broken(path, "the file is cut off");
  T value;
  std::memcpy(&value, file->data() + offset, sizeof(T));
  return value;
}

}  // namespace

Tensor read_image(const std::string& path) {
  auto file = read_file(path);
  bool png = file->size_bytes() > 8 && std::memcmp(file->data(), "\x89PNG", 4) == 0;
  return png ? read_png(path) : read_jpeg(path, file);
}

Tensor read_wav(const std::string& path) {
  auto file = read_file(path);
  if (file->size_bytes() < 12 || std::memcmp(file->data(), "RIFF", 4) != 0 || std::memcmp(file->data() + 8, "WAVE", 4) != 0)
    broken(path, "not a WAV file");
  uint16_t format = 0, channels = 0, bits = 0;
  for (size_t at = 12; at + 8 <= file->size_bytes();) {
    auto size = read_at<uint32_t>(file, at + 4, path);
    if (std::memcmp(file->data() + at, "fmt ", 4) == 0) {
      format = read_at<uint16_t>(file, at + 8, path);
      channels = read_at<uint16_t>(file, at + 10, path);
      bits = read_at<uint16_t>(file, at + 22, path);
    } else if (std::memcmp(file->data() + at, "data", 4) == 0) {
      bool known = (format == 1 && (bits == 8 || bits == 16 || bits == 32)) || (format == 3 && bits == 32);
      if (!known || channels == 0)
        broken(path, fmt::format("format {} with {} bits and {} channels is not supported", format, bits, channels));
      size_t bytes = std::min<size_t>(size, file->size_bytes() - at - 8), frames = bytes / (bits / 8U) / channels;
      Tensor samples(DType::float32, {static_cast<int64_t>(frames)});
      for (size_t i = 0; i < frames; ++i) {
        double sum = 0;
        for (size_t c = 0; c < channels; ++c) {
          size_t offset = at + 8 + (i * channels + c) * (bits / 8U);
          if (format == 3)
            sum += read_at<float>(file, offset, path);
          else if (bits == 16)
            sum += read_at<int16_t>(file, offset, path) / 32768.0;
          else if (bits == 32)
            sum += read_at<int32_t>(file, offset, path) / 2147483648.0;
          else
            sum += (read_at<uint8_t>(file, offset, path) - 128) / 128.0;
        }
        samples.data<float>()[i] = static_cast<float>(sum / channels);
      }
      return samples;
    }
    at += 8 + size + (size & 1);
  }
  broken(path, "it holds no samples");
}

}  // namespace treadle::cli
