#include "train/data/pictures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/files/file.h"
#include "core/values/dispatch.h"
#include "kernels/image/decode.h"
#include "treadle/data.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

[[noreturn]] void refuse_picture(const std::string& what) { throw Error(ErrorCode::invalid_argument, what); }

int64_t extent_at(const ValueInfo& info, size_t axis, int64_t otherwise) {
  const int64_t* extent = axis < info.shape.size() ? std::get_if<int64_t>(&info.shape[axis]) : nullptr;
  return extent ? *extent : otherwise;
}

}  // namespace

PictureLayout layout_of(const ValueInfo& input) {
  const bool batched = input.shape.size() == 4;
  const size_t first = batched ? 1 : 0;
  if (input.shape.size() != 3 && !batched)
    refuse_picture(fmt::format("the input \"{}\" has rank {}; pictures are for inputs of rank 3 or 4", input.name, input.shape.size()));
  const int64_t last = extent_at(input, first + 2, 0);
  const bool channels_last = last == 3 || last == 1;
  const size_t height_axis = channels_last ? first : first + 1;
  const int64_t channels = channels_last ? last : extent_at(input, first, 3);
  if (channels != 1 && channels != 3)
    refuse_picture(fmt::format("the input \"{}\" has {} channels; pictures have 1 or 3", input.name, channels));
  return {batched, channels_last, extent_at(input, height_axis, 0), extent_at(input, height_axis + 1, 0), channels};
}

Tensor resize_image(const Tensor& image, int64_t height, int64_t width) {
  int64_t from_height = image.shape()[0], from_width = image.shape()[1];
  if (from_height == height && from_width == width) return image;
  Tensor result(DType::uint8, {height, width, 3});
  auto position = [](int64_t i, int64_t to, int64_t from) {
    return std::clamp((static_cast<double>(i) + 0.5) * static_cast<double>(from) / static_cast<double>(to) - 0.5, 0.0,
                      static_cast<double>(from - 1));
  };
  const uint8_t* src = image.data<uint8_t>();
  for (int64_t y = 0; y < height; ++y) {
    double fy = position(y, height, from_height);
    auto y0 = static_cast<int64_t>(fy), y1 = std::min(y0 + 1, from_height - 1);
    for (int64_t x = 0; x < width; ++x) {
      double fx = position(x, width, from_width);
      auto x0 = static_cast<int64_t>(fx), x1 = std::min(x0 + 1, from_width - 1);
      for (int64_t c = 0; c < 3; ++c) {
        auto at = [&](int64_t row, int64_t column) { return static_cast<double>(src[(row * from_width + column) * 3 + c]); };
        double wy = fy - static_cast<double>(y0), wx = fx - static_cast<double>(x0);
        double value = (1 - wy) * ((1 - wx) * at(y0, x0) + wx * at(y0, x1)) + wy * ((1 - wx) * at(y1, x0) + wx * at(y1, x1));
        result.data<uint8_t>()[(y * width + x) * 3 + c] = static_cast<uint8_t>(std::lround(value));
      }
    }
  }
  return result;
}

Tensor as_input(const Tensor& image, const ValueInfo& input, const PictureLayout& layout, const PixelRule& rule) {
  const int64_t height = image.shape()[0], width = image.shape()[1], channels = layout.channels;
  if (input.dtype != DType::uint8 && !is_float(input.dtype))
    refuse_picture(
        fmt::format("the input \"{}\" is {}; pictures become uint8 or floating-point numbers", input.name, name_of(input.dtype)));
  Shape shape = layout.channels_last ? Shape{height, width, channels} : Shape{channels, height, width};
  if (layout.batched) shape.insert(0, 1);
  Tensor tensor(input.dtype, shape);
  auto pixel_at = [&](int64_t y, int64_t x, int64_t c) {
    const uint8_t* pixel = image.data<uint8_t>() + (y * width + x) * 3;
    if (channels == 1) return 0.299 * pixel[0] + 0.587 * pixel[1] + 0.114 * pixel[2];
    return static_cast<double>(pixel[rule.bgr ? 2 - c : c]);
  };
  visit_any_dtype<concat_t<FloatTypes, TypeList<uint8_t>>>(input.dtype, [&]<typename T>() {
    T* to = reinterpret_cast<T*>(tensor.raw());
    for (int64_t y = 0; y < height; ++y)
      for (int64_t x = 0; x < width; ++x)
        for (int64_t c = 0; c < channels; ++c) {
          const int64_t at = layout.channels_last ? (y * width + x) * channels + c : (c * height + y) * width + x;
          const auto channel = static_cast<size_t>(c);
          if constexpr (std::is_same_v<T, uint8_t>)
            to[at] = static_cast<uint8_t>(std::lround(pixel_at(y, x, c)));
          else
            to[at] = static_cast<T>(static_cast<float>((pixel_at(y, x, c) / 255 * rule.range - rule.mean[channel]) / rule.std[channel]));
        }
  });
  return tensor;
}

Tensor read_picture(const ValueInfo& input, const std::string& path) {
  const PictureLayout layout = layout_of(input);
  const std::shared_ptr<Storage> file = map_file(path);
  const auto decoded = kernels::decode_image({reinterpret_cast<const uint8_t*>(file->data()), file->size_bytes()});
  if (!decoded) refuse_picture(fmt::format("{}: no picture, or a broken one", path));
  Tensor image(DType::uint8, {decoded->height, decoded->width, 3});
  std::memcpy(image.raw(), decoded->pixels.data(), image.size_bytes());
  image = resize_image(image, layout.height ? layout.height : decoded->height, layout.width ? layout.width : decoded->width);
  return as_input(image, input, layout, {});
}

}  // namespace treadle::train
