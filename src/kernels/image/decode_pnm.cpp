// Decodes portable bitmaps, graymaps and pixmaps, in text (P1 to P3) and binary form (P4 to P6). Source: netpbm's pages pbm, pgm and ppm.
#include "kernels/image/decode.h"

namespace treadle::kernels {
namespace {

class Reader {
 public:
  explicit Reader(EncodedBytes bytes) : bytes_(bytes) {}

  /// Reads the next number, skipping white space and comments; -1 if there is none.
  int64_t number(int most_digits = 9) {
    while (at_ < bytes_.size()) {
      if (bytes_[at_] == '#')
        while (at_ < bytes_.size() && bytes_[at_] != '\n' && bytes_[at_] != '\r') ++at_;
      else if (is_space(bytes_[at_]))
        ++at_;
      else
        break;
    }
    int64_t value = -1;
    for (int digits = 0; digits < most_digits && at_ < bytes_.size() && bytes_[at_] >= '0' && bytes_[at_] <= '9'; ++digits)
      value = std::max<int64_t>(value, 0) * 10 + (bytes_[at_++] - '0');
    return value;
  }
  void skip(size_t count) { at_ = std::min(at_ + count, bytes_.size()); }
  EncodedBytes rest() const { return bytes_.subspan(at_); }

 private:
  static bool is_space(uint8_t c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
  EncodedBytes bytes_;
  size_t at_ = 0;
};

uint8_t scaled(int64_t value, int64_t largest) { return static_cast<uint8_t>((std::min(value, largest) * 255 + largest / 2) / largest); }

}  // namespace

std::optional<RgbImage> decode_pnm(EncodedBytes bytes) {
  if (bytes.size() < 3) return std::nullopt;
  const int kind = bytes[1] - '0';
  const bool is_text = kind <= 3, is_bitmap = kind == 1 || kind == 4, is_color = kind == 3 || kind == 6;
  Reader reader(bytes);
  reader.skip(2);
  const int64_t width = reader.number(), height = reader.number(), largest = is_bitmap ? 1 : reader.number();
  if (width < 1 || height < 1 || largest < 1 || largest > 65535) return std::nullopt;
  reader.skip(1);  // skips the white space after the header
  const EncodedBytes data = reader.rest();
  const int64_t channels = is_color ? 3 : 1, sample = largest > 255 ? 2 : 1;
  const int64_t row_bytes = is_text ? width * channels : is_bitmap ? (width + 7) / 8 : width * channels * sample;
  if (static_cast<int64_t>(data.size()) / row_bytes < height) return std::nullopt;  // a text sample takes at least one digit
  RgbImage image = RgbImage::of_size(height, width);
  for (int64_t y = 0; y < height; ++y) {
    const uint8_t* from = data.data() + (is_text ? 0 : y * row_bytes);
    uint8_t* to = image.row(y);
    for (int64_t i = 0; i < width * channels; ++i) {
      int64_t value = 0;
      if (is_text)
        value = reader.number(is_bitmap ? 1 : 9);
      else if (is_bitmap)
        value = from[i / 8] >> (7 - i % 8) & 1;
      else
        value = sample == 2 ? from[2 * i] << 8 | from[2 * i + 1] : from[i];
      if (value < 0) return std::nullopt;
      const uint8_t byte = is_bitmap ? (value != 0 ? 0 : 255) : scaled(value, largest);  // in bitmaps, 1 means black
      for (int64_t k = 0; k < 3 / channels; ++k) *to++ = byte;
    }
  }
  return image;
}

}  // namespace treadle::kernels
