#include <openjpeg.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "kernels/image/decode.h"

namespace treadle::kernels {
namespace {

struct Source {
  EncodedBytes bytes;
  size_t at = 0;
};

OPJ_SIZE_T read_bytes(void* to, OPJ_SIZE_T count, void* user) {
  auto& source = *static_cast<Source*>(user);
  const size_t part = std::min<size_t>(count, source.bytes.size() - source.at);
  if (part == 0) return static_cast<OPJ_SIZE_T>(-1);  // -1 reports the end of the data
  std::memcpy(to, source.bytes.data() + source.at, part);
  source.at += part;
  return part;
}

OPJ_OFF_T skip(OPJ_OFF_T count, void* user) {
  auto& source = *static_cast<Source*>(user);
  if (count < 0 || static_cast<uint64_t>(count) > source.bytes.size() - source.at) return -1;
  source.at += static_cast<size_t>(count);
  return count;
}

OPJ_BOOL seek(OPJ_OFF_T place, void* user) {
  auto& source = *static_cast<Source*>(user);
  if (place < 0 || static_cast<uint64_t>(place) > source.bytes.size()) return OPJ_FALSE;
  source.at = static_cast<size_t>(place);
  return OPJ_TRUE;
}

struct Destroy {
  void operator()(opj_codec_t* codec) const { opj_destroy_codec(codec); }
  void operator()(opj_image_t* image) const { opj_image_destroy(image); }
};
struct DestroyStream {
  void operator()(opj_stream_t* stream) const { opj_stream_destroy(stream); }
};

/// Scales a sample to 0..255.
int to_byte(const opj_image_comp_t& component, size_t i) {
  const int64_t value = int64_t{component.data[i]} + (component.sgnd ? int64_t{1} << (component.prec - 1) : 0);
  const int64_t largest = (int64_t{1} << component.prec) - 1;
  return static_cast<int>((std::clamp<int64_t>(value, 0, largest) * 255 + largest / 2) / largest);
}

uint8_t rounded(double value) { return static_cast<uint8_t>(std::clamp(std::lround(value), 0L, 255L)); }

std::optional<RgbImage> to_rgb(const opj_image_t& decoded) {
  const uint32_t channels = decoded.numcomps >= 3 ? 3 : 1;
  if (decoded.numcomps < 1) return std::nullopt;
  const uint32_t width = decoded.comps[0].w, height = decoded.comps[0].h;
  for (uint32_t k = 0; k < channels; ++k) {
    const opj_image_comp_t& component = decoded.comps[k];
    if (!component.data || component.w == 0 || component.h == 0 || component.prec < 1 || component.prec > 31) return std::nullopt;
  }
  RgbImage image = RgbImage::of_size(height, width);
  for (uint32_t y = 0; y < height; ++y) {
    uint8_t* to = image.row(y);
    for (uint32_t x = 0; x < width; ++x, to += 3) {
      int sample[3];
      for (uint32_t k = 0; k < 3; ++k) {
        const opj_image_comp_t& component = decoded.comps[k < channels ? k : 0];  // chroma components may have fewer samples than pixels
        const size_t row = static_cast<size_t>(uint64_t{y} * component.h / height),
                     column = static_cast<size_t>(uint64_t{x} * component.w / width);
        sample[k] = to_byte(component, row * component.w + column);
      }
      if (decoded.color_space == OPJ_CLRSPC_SYCC && channels == 3) {
        const double luma = sample[0], blue = sample[1] - 128.0, red = sample[2] - 128.0;
        to[0] = rounded(luma + 1.402 * red), to[1] = rounded(luma - 0.344136 * blue - 0.714136 * red), to[2] = rounded(luma + 1.772 * blue);
      } else {
        for (int k = 0; k < 3; ++k) to[k] = static_cast<uint8_t>(sample[k]);
      }
    }
  }
  return image;
}

}  // namespace

std::optional<RgbImage> decode_jpeg2000(EncodedBytes bytes) {
  Source source{bytes};
  std::unique_ptr<opj_codec_t, Destroy> codec(opj_create_decompress(bytes[0] == 0xFF ? OPJ_CODEC_J2K : OPJ_CODEC_JP2));
  std::unique_ptr<opj_stream_t, DestroyStream> stream(opj_stream_default_create(OPJ_TRUE));
  if (!codec || !stream) return std::nullopt;
  opj_stream_set_user_data(stream.get(), &source, nullptr);
  opj_stream_set_user_data_length(stream.get(), bytes.size());
  opj_stream_set_read_function(stream.get(), read_bytes);
  opj_stream_set_skip_function(stream.get(), skip);
  opj_stream_set_seek_function(stream.get(), seek);
  opj_dparameters_t parameters;
  opj_set_default_decoder_parameters(&parameters);
  if (!opj_setup_decoder(codec.get(), &parameters)) return std::nullopt;
  opj_image_t* header = nullptr;
  const bool has_header = opj_read_header(stream.get(), codec.get(), &header) != OPJ_FALSE;
  std::unique_ptr<opj_image_t, Destroy> decoded(header);
  if (!has_header) return std::nullopt;
  RgbImage::of_size(int64_t{header->y1} - header->y0, int64_t{header->x1} - header->x0);  // throws if the image is too large
  if (!opj_decode(codec.get(), stream.get(), header)) return std::nullopt;
  return to_rgb(*header);
}

}  // namespace treadle::kernels
