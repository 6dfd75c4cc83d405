#include "cli/pictures.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cli/media.h"
#include "cli/numbers.h"
#include "train/data/pictures.h"
#include "treadle/error.h"

namespace treadle::cli {
namespace {

using train::layout_of, train::PictureLayout, train::PixelRule, train::resize_image;

struct PicturePreset {
  std::string_view name, text;
  double range;
  bool bgr;
  std::vector<double> mean, std;
};

const std::vector<PicturePreset>& picture_presets() {
  static const std::vector<PicturePreset> presets{
      {"imagenet", "RGB, 0..1, mean and deviation of ImageNet (torchvision)", 1, false, {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}},
      {"imagenet-caffe", "BGR, 0..255 minus the mean of ImageNet (Caffe)", 255, true, {103.939, 116.779, 123.68}, {1}},
      {"inception", "RGB, -1..1 (TensorFlow)", 1, false, {0.5}, {0.5}},
  };
  return presets;
}

// ImageNet models are evaluated on the central 224 x 224 pixels, after the image's shorter side has been resized to 256.
constexpr int64_t kUsualCrop = 224;
constexpr double kCropRatio = 7.0 / 8.0;

[[noreturn]] void refuse_picture(const std::string& what) { throw Error(ErrorCode::invalid_argument, what); }

Tensor cropped(const Tensor& image, int64_t height, int64_t width, const std::string& path) {
  const int64_t from_height = image.shape()[0], from_width = image.shape()[1];
  if (height > from_height || width > from_width)
    refuse_picture(fmt::format("{}: --crop {}x{} is larger than the picture, which has {}x{} (height x width)", path, height, width,
                               from_height, from_width));
  const int64_t top = (from_height - height) / 2, left = (from_width - width) / 2;
  Tensor part(DType::uint8, {height, width, 3});
  for (int64_t y = 0; y < height; ++y)
    std::memcpy(part.data<uint8_t>() + y * width * 3, image.data<uint8_t>() + ((top + y) * from_width + left) * 3,
                static_cast<size_t>(width) * 3);
  return part;
}

Tensor resized(const Tensor& image, const std::vector<int64_t>& to) {
  if (to.size() == 2) return resize_image(image, to[0], to[1]);
  const auto height = static_cast<double>(image.shape()[0]), width = static_cast<double>(image.shape()[1]);
  const double factor = static_cast<double>(to[0]) / std::min(height, width);
  return resize_image(image, std::llround(height * factor), std::llround(width * factor));
}

// Resizes and crops the image as the options say, and then stretches it to the height and width that the model's input requires.
Tensor fitted(Tensor image, const PictureLayout& layout, const PictureOptions& options, const std::string& path) {
  std::vector<int64_t> resize = options.resize, crop = options.crop;
  if (!options.preset.empty() && resize.empty() && crop.empty()) {
    crop = {layout.height ? layout.height : kUsualCrop, layout.width ? layout.width : kUsualCrop};
    resize = {std::llround(static_cast<double>(std::max(crop[0], crop[1])) / kCropRatio)};
  }
  if (!resize.empty()) image = resized(image, resize);
  if (!crop.empty()) image = cropped(image, crop.front(), crop.back(), path);
  return resize_image(image, layout.height ? layout.height : image.shape()[0], layout.width ? layout.width : image.shape()[1]);
}

PixelRule rule_of(const PictureOptions& options, int64_t channels) {
  PixelRule rule;
  for (const PicturePreset& preset : picture_presets())
    if (preset.name == options.preset) rule = {preset.range, preset.bgr, preset.mean, preset.std};
  rule.range = options.range.value_or(rule.range);
  rule.bgr = options.bgr.value_or(rule.bgr);
  if (!options.mean.empty()) rule.mean = options.mean;
  if (!options.std.empty()) rule.std = options.std;
  for (auto [name, values] : {std::pair("--mean", &rule.mean), std::pair("--std", &rule.std)}) {
    if (values->size() != 1 && values->size() != 3)
      refuse_picture(fmt::format("{} {}: one number, or one for each of three channels is expected", name, fmt::join(*values, ",")));
    if (channels == 1 && values->size() == 3) *values = {(values->at(0) + values->at(1) + values->at(2)) / 3};
    values->resize(3, values->front());
  }
  if (std::any_of(rule.std.begin(), rule.std.end(), [](double x) { return x == 0; })) refuse_picture("--std 0: pixels are divided by it");
  if (const double most = *std::max_element(rule.mean.begin(), rule.mean.end()); most > rule.range)
    refuse_picture(fmt::format("--mean {}: pixels are in 0..{}; add --range 255 if the mean is in levels", most, rule.range));
  return rule;
}

std::vector<int64_t> parse_size(const std::string& text, const char* option) {
  std::vector<int64_t> extents;
  for (const std::string& part : CLI::detail::split(text, 'x')) {
    int64_t extent = 0;
    if (!CLI::detail::lexical_cast(part, extent) || extent < 1)
      throw CLI::ValidationError(option, fmt::format("\"{}\": 256, or 224x320 (height x width) is expected", text));
    extents.push_back(extent);
  }
  if (extents.size() > 2) throw CLI::ValidationError(option, fmt::format("\"{}\" has {} extents; pictures have two", text, extents.size()));
  return extents;
}

}  // namespace

std::string_view PictureOptions::any() const {
  if (!preset.empty()) return "--preset";
  if (!mean.empty()) return "--mean";
  if (!std.empty()) return "--std";
  if (range) return "--range";
  if (bgr) return *bgr ? "--bgr" : "--rgb";
  if (!resize.empty()) return "--resize";
  return crop.empty() ? "" : "--crop";
}

void add_picture_options(CLI::App& app, PictureOptions& options) {
  const std::string group = "Pictures";
  std::vector<std::string> names;
  std::string text = "Size, range and channels as a family of models was trained:";
  for (const PicturePreset& preset : picture_presets()) {
    names.emplace_back(preset.name);
    text += fmt::format("\n{} = {}", preset.name, preset.text);
  }
  app.add_option("--preset", options.preset, text)->check(CLI::IsMember(names))->group(group);
  auto numbers = [&](const char* name, std::vector<double>& values, const char* what) {
    app.add_option(name, values, what)->delimiter(',')->allow_extra_args(false)->group(group);
  };
  numbers("--mean", options.mean, "Subtracted from pixels: one number, or R,G,B (B,G,R with --bgr)");
  numbers("--std", options.std, "Pixels minus mean are divided by it");
  app.add_option("--range", options.range, "Value of a white pixel before --mean and --std: 1 (default) or 255")
      ->check(above(0))
      ->group(group);
  app.add_flag_function(
         "--bgr,!--rgb", [&options](int64_t count) { options.bgr = count > 0; }, "Order of the channels")
      ->group(group);
  auto size = [&](const char* name, std::vector<int64_t>& extents, const char* what) {
    app.add_option_function<std::string>(
           name, [name, &extents](const std::string& given) { extents = parse_size(given, name); }, what)
        ->group(group);
  };
  size("--resize", options.resize, "Shorter side, or HEIGHTxWIDTH");
  size("--crop", options.crop, "The middle of the picture: a square, or HEIGHTxWIDTH; after --resize");
}

Tensor image_for(const ValueInfo& info, const std::string& path, const PictureOptions& options) {
  const PictureLayout layout = layout_of(info);
  const Tensor image = fitted(read_image(path), layout, options, path);
  const PixelRule rule = rule_of(options, layout.channels);
  const bool is_levels = info.dtype == DType::uint8;
  if (is_levels && (!options.mean.empty() || !options.std.empty() || options.range))
    refuse_picture(fmt::format("the input \"{}\" takes uint8 pixels: --mean, --std and --range do not apply", info.name));
  if (!is_levels && !is_float(info.dtype))
    refuse_picture(fmt::format("the input \"{}\" is {}; pictures become uint8 or floating-point numbers", info.name, name_of(info.dtype)));
  return train::as_input(image, info, layout, rule);
}

}  // namespace treadle::cli
