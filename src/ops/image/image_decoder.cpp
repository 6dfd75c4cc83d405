// Implements ImageDecoder (ONNX, opset 20), which decodes an image to pixels [height, width, channels]. If decoding fails, the output is
// empty.
#include <fmt/format.h>

#include <cstring>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "kernels/image/decode.h"
#include "ops/list.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

int64_t channels_of(std::string_view format) {
  if (format == "RGB" || format == "BGR") return 3;
  if (format == "Grayscale") return 1;
  throw Error(ErrorCode::invalid_argument, fmt::format("pixel_format is \"{}\", not RGB, BGR or Grayscale", format));
}

void infer(InferContext& c) {
  if (c.has_rank(0) && c.rank(0) != 1)
    throw Error(ErrorCode::invalid_argument, fmt::format("encoded_stream is of rank {}, not 1", c.rank(0)));
  c.set_output(0, DType::uint8,
               {c.data_dependent_dim("height"), c.data_dependent_dim("width"), channels_of(c.get_string("pixel_format", "RGB"))});
}

struct ImageDecoder {
  static constexpr bool allocates = true;
  bool reversed, gray;

  static ImageDecoder bind(BindContext& c) {
    const std::string_view format = c.get_string("pixel_format", "RGB");
    return {format == "BGR", format == "Grayscale"};
  }

  void run(RunContext& c) const {
    const Tensor stream = c.input(0).tensor().contiguous();
    const auto image = kernels::decode_image(stream.span<uint8_t>());
    if (!image) {
      c.allocate_output(0, Shape{0, 0, gray ? 1 : 3});
      return;
    }
    auto* to = c.allocate_output(0, Shape{image->height, image->width, gray ? 1 : 3}).data<uint8_t>();
    const uint8_t* from = image->pixels.data();
    for (int64_t i = 0; i < image->height * image->width; ++i, from += 3) {
      if (gray) {
        // Converts to gray by the luma formula of ITU-R BT.601, in 16-bit fixed point, rounded to nearest.
        *to++ = static_cast<uint8_t>((from[0] * 19595U + from[1] * 38470U + from[2] * 7471U + 0x8000U) >> 16U);
      } else {
        for (int k = 0; k < 3; ++k) *to++ = from[reversed ? 2 - k : k];
      }
    }
  }
};

}  // namespace

std::vector<OpDef> image_decoder_ops() {
  return {{.name = "ImageDecoder",
           .since = {20},
           .inputs = {{"encoded_stream", {DType::uint8}}},
           .outputs = {{"image", {DType::uint8}}},
           .attributes = {{"pixel_format", std::string_view("RGB")}},
           .infer = infer,
           .kernels = {kernel<ImageDecoder>()}}};
}

}  // namespace treadle::ops
