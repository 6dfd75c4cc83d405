#include "cli/inputs.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>

#include "cli/media.h"
#include "cli/npy.h"
#include "core/dispatch.h"
#include "core/file.h"
#include "core/float_types.h"
#include "core/nearest.h"
#include "onnx/parse.h"
#include "treadle/error.h"

namespace treadle::cli {
namespace {

const ValueInfo& input_of(const std::vector<ValueInfo>& inputs, const std::string& name) {
  auto found = std::find_if(inputs.begin(), inputs.end(), [&](const ValueInfo& info) { return info.name == name; });
  if (found != inputs.end()) return *found;
  std::string names;
  for (const ValueInfo& info : inputs) names += (names.empty() ? "" : ", ") + info.name;
  throw Error(ErrorCode::invalid_argument, fmt::format("the model has no input \"{}\"; it has: {}", name, names));
}

int64_t extent_or(const ValueInfo& info, size_t axis, int64_t otherwise) {
  if (axis >= info.shape.size()) return otherwise;
  const int64_t* extent = std::get_if<int64_t>(&info.shape[axis]);
  return extent ? *extent : otherwise;
}

Tensor sound_for(const ValueInfo& info, const std::string& path) {
  Tensor samples = read_wav(path);
  int64_t count = samples.num_elements(), wanted = info.shape.empty() ? count : extent_or(info, info.shape.size() - 1, count);
  if (wanted > count)
    throw Error(ErrorCode::invalid_argument, fmt::format("the input \"{}\" wants {} samples, {} has {}", info.name, wanted, path, count));
  Shape shape{wanted};
  while (shape.rank() < static_cast<int>(info.shape.size())) shape.insert(0, 1);
  return Tensor(DType::float32, shape, samples.storage());
}

Datum read_input(const ValueInfo& info, const std::string& path) {
  std::string extension = extension_of(path);
  if (extension == ".npy") return read_npy(path);
  if (extension == ".png" || extension == ".jpg" || extension == ".jpeg") return image_for(info, path);
  if (extension == ".wav") return sound_for(info, path);
  if (extension == ".pb") {
    auto file = read_file(path);
    return onnx::parse_tensor_bytes({file->data(), file->size_bytes()}).value;
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("\"{}\": inputs are .npy, .npz, .pb, .png, .jpg and .wav files", path));
}

Tensor random_tensor(const ValueInfo& info, const std::map<std::string, int64_t>& dimensions, int64_t default_extent,
                     std::mt19937_64& random) {
  Shape shape;
  for (const auto& extent : info.shape) {
    if (const auto* value = std::get_if<int64_t>(&extent)) {
      shape.push_back(*value);
      continue;
    }
    auto found = dimensions.find(std::get<std::string>(extent));
    shape.push_back(found == dimensions.end() ? default_extent : found->second);
  }
  Tensor tensor(info.dtype, shape);
  if (info.dtype == DType::string) return tensor;
  std::uniform_real_distribution<float> uniform(0, 1);
  visit_dtype<NumericTypes>(info.dtype == DType::boolean ? DType::uint8 : info.dtype, [&]<typename T>() {
    auto* elements = reinterpret_cast<T*>(tensor.raw());
    for (int64_t i = 0; i < tensor.num_elements(); ++i) {
      if constexpr (std::is_integral_v<T>)
        elements[i] = static_cast<T>(random() & 1);
      else
        elements[i] = static_cast<T>(uniform(random));
    }
  });
  return tensor;
}

}  // namespace

std::string extension_of(const std::string& path) {
  std::string extension = std::filesystem::path(path).extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension;
}

Tensor image_for(const ValueInfo& info, const std::string& path) {
  Tensor image = read_image(path);
  bool batched = info.shape.size() == 4;
  size_t first = batched ? 1 : 0;
  if (info.shape.size() != 3 && !batched)
    throw Error(ErrorCode::invalid_argument, fmt::format("the input \"{}\" is no picture: its rank is {}", info.name, info.shape.size()));
  int64_t last_extent = extent_or(info, first + 2, 0);
  bool channels_last = last_extent == 3 || last_extent == 1;
  size_t height_axis = channels_last ? first : first + 1;
  image = resize_image(image, extent_or(info, height_axis, image.shape()[0]), extent_or(info, height_axis + 1, image.shape()[1]));
  int64_t height = image.shape()[0], width = image.shape()[1];
  int64_t channels = channels_last ? last_extent : extent_or(info, first, 3);
  if (channels != 1 && channels != 3)
    throw Error(ErrorCode::invalid_argument, fmt::format("the input \"{}\" has {} channels", info.name, channels));
  Shape shape = channels_last ? Shape{height, width, channels} : Shape{channels, height, width};
  if (batched) shape.insert(0, 1);
  if (info.dtype != DType::uint8 && info.dtype != DType::float32)
    throw Error(ErrorCode::invalid_argument, fmt::format("pictures become uint8 or float32, not {}", name_of(info.dtype)));
  Tensor tensor(info.dtype, shape);
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x)
      for (int64_t c = 0; c < channels; ++c) {
        const uint8_t* pixel = image.data<uint8_t>() + (y * width + x) * 3;
        double value = channels == 3 ? pixel[c] : 0.299 * pixel[0] + 0.587 * pixel[1] + 0.114 * pixel[2];
        int64_t at = channels_last ? (y * width + x) * channels + c : (c * height + y) * width + x;
        if (info.dtype == DType::uint8)
          tensor.data<uint8_t>()[at] = static_cast<uint8_t>(std::lround(value));
        else
          tensor.data<float>()[at] = static_cast<float>(value / 255);
      }
  return tensor;
}

void add_input_options(CLI::App& app, InputOptions& options) {
  app.add_option("inputs", options.files,
                 "NAME=FILE or FILE: .npy, .npz (its names are inputs' names), .pb, .png, .jpg, .wav; inputs without a file are random");
  app.add_option("--dim", options.dimensions, "SYMBOL=EXTENT for random inputs")->allow_extra_args(false)->take_all();
  app.add_option("--default-dim", options.default_extent, "Extent of symbols that --dim does not name")->capture_default_str();
  app.add_option("--seed", options.seed, "Of random inputs")->capture_default_str();
}

void add_session_options(CLI::App& app, SessionOptions& options) {
  app.add_option("--threads", options.intra_op_num_threads, "Threads of one node; 0: by affinity and cgroup")->capture_default_str();
  app.add_option("--skip-pass", options.disabled_passes, "A pass that does not run; `treadle options` lists them; may be repeated")
      ->allow_extra_args(false)
      ->take_all();
  app.add_flag_callback(
      "--no-optimize", [&options] { options.graph_optimization_level = GraphOptimizationLevel::disable_all; }, "Run the graph as written");
  app.add_option_function<std::vector<std::string>>(
         "--option",
         [&options](const std::vector<std::string>& pairs) {
           for (const std::string& pair : pairs) {
             const size_t equals = pair.find('=');
             if (equals == std::string::npos)
               throw Error(ErrorCode::invalid_argument, fmt::format("--option {}: NAME=VALUE is expected", pair));
             set_option(options, pair.substr(0, equals), pair.substr(equals + 1));
           }
         },
         "NAME=VALUE: any session option; `treadle options` lists them; may be repeated")
      ->allow_extra_args(false)
      ->take_all();
  app.add_flag_callback(
      "--loose-symbols", [&options] { options.strict_symbols = false; }, "Let a symbol have different extents in different inputs");
}

std::map<std::string, Datum> make_feeds(const std::vector<ValueInfo>& inputs, const InputOptions& options) {
  std::map<std::string, Datum> feeds;
  size_t position = 0;
  for (const std::string& argument : options.files) {
    size_t equals = argument.find('=');
    std::string path = equals == std::string::npos ? argument : argument.substr(equals + 1);
    if (extension_of(path) == ".npz") {
      for (auto& [name, tensor] : read_npz(path)) {
        std::string input = name.rfind("in:", 0) == 0 ? name.substr(3) : name;  // reference files keep inputs and outputs apart by a prefix
        if (name.rfind("out:", 0) != 0) feeds[input_of(inputs, input).name] = tensor;
      }
      continue;
    }
    if (equals == std::string::npos && position >= inputs.size())
      throw Error(ErrorCode::invalid_argument, fmt::format("\"{}\": the model has {} inputs only", path, inputs.size()));
    const ValueInfo& info = equals == std::string::npos ? inputs[position++] : input_of(inputs, argument.substr(0, equals));
    feeds[info.name] = read_input(info, path);
  }
  std::vector<std::string> symbols;
  for (const ValueInfo& info : inputs)
    for (const auto& extent : info.shape)
      if (const auto* symbol = std::get_if<std::string>(&extent); symbol && !symbol->empty()) symbols.push_back(*symbol);
  std::sort(symbols.begin(), symbols.end());
  symbols.erase(std::unique(symbols.begin(), symbols.end()), symbols.end());
  std::map<std::string, int64_t> dimensions;
  for (const std::string& pair : options.dimensions) {
    size_t equals = pair.find('=');
    if (equals == std::string::npos) throw Error(ErrorCode::invalid_argument, fmt::format("--dim {}: SYMBOL=EXTENT is expected", pair));
    const std::string symbol = pair.substr(0, equals);
    if (std::find(symbols.begin(), symbols.end(), symbol) == symbols.end())
      throw Error(ErrorCode::not_found,
                  symbols.empty() ? fmt::format("--dim {}: the model's inputs have no symbols", pair)
                                  : fmt::format("--dim {}: no input has this symbol; is it {}?", pair, nearest_names(symbol, symbols)));
    dimensions[symbol] = std::stoll(pair.substr(equals + 1));
  }
  std::mt19937_64 random(options.seed);
  for (const ValueInfo& info : inputs) {
    if (feeds.contains(info.name)) continue;
    if (info.type.rfind("tensor", 0) != 0)
      throw Error(ErrorCode::invalid_argument, fmt::format("the input \"{}\" is {}: give it a file", info.name, info.type));
    feeds[info.name] = random_tensor(info, dimensions, options.default_extent, random);
  }
  return feeds;
}

std::string summary(const Datum& datum, int64_t max_elements) {
  if (!datum.is_tensor()) {
    std::string text = describe(datum);
    if (datum.kind() == Datum::Kind::sequence)
      for (size_t i = 0; i < datum.sequence().elements.size() && static_cast<int64_t>(i) < max_elements; ++i)
        text += fmt::format("\n    [{}] {}", i, summary(datum.sequence().elements[i], max_elements));
    return text;
  }
  const Tensor& tensor = datum.tensor();
  std::string text = describe(tensor);
  int64_t shown = std::min(max_elements, tensor.num_elements());
  std::string elements;
  if (tensor.dtype() == DType::string) {
    for (int64_t i = 0; i < shown; ++i) elements += fmt::format("{}\"{}\"", i ? ", " : "", tensor.data<std::string>()[i]);
    return text + "  " + elements + (shown < tensor.num_elements() ? ", ..." : "");
  }
  if (is_sub_byte(tensor.dtype()) || (!is_float(tensor.dtype()) && !is_integer(tensor.dtype()) && tensor.dtype() != DType::boolean))
    return text;
  double lowest = INFINITY, highest = -INFINITY;
  DType as = tensor.dtype() == DType::boolean ? DType::uint8 : tensor.dtype();
  visit_dtype<NumericTypes>(as, [&]<typename T>() {
    const auto* data = reinterpret_cast<const T*>(tensor.raw());
    auto number = [&](int64_t i) {
      if constexpr (std::is_integral_v<T>)
        return static_cast<double>(data[i]);
      else
        return static_cast<double>(static_cast<float>(data[i]));
    };
    for (int64_t i = 0; i < shown; ++i) elements += fmt::format("{}{:.6g}", i ? ", " : "", number(i));
    for (int64_t i = 0; i < tensor.num_elements(); ++i) lowest = std::min(lowest, number(i)), highest = std::max(highest, number(i));
  });
  if (shown < tensor.num_elements()) elements += fmt::format(", ...  min {:.6g}, max {:.6g}", lowest, highest);
  return text + "  " + elements;
}

std::map<std::string, Datum> make_sample(const std::vector<ValueInfo>& infos, const InputOptions& options,
                                         const std::vector<std::string>& files, int64_t i) {
  InputOptions inputs = options;
  inputs.seed += static_cast<uint64_t>(i);
  if (i < static_cast<int64_t>(files.size())) inputs.files = {files[static_cast<size_t>(i)]};
  return make_feeds(infos, inputs);
}

std::vector<std::string> sample_files(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    if (!std::filesystem::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    const size_t begin = files.size();
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      const std::string extension = extension_of(entry.path().string());
      static const std::vector<std::string> kKnown{".npz", ".npy", ".pb", ".png", ".jpg", ".jpeg", ".wav"};
      if (entry.is_regular_file() && std::find(kKnown.begin(), kKnown.end(), extension) != kKnown.end())
        files.push_back(entry.path().string());
    }
    if (files.size() == begin)
      throw Error(ErrorCode::not_found, fmt::format("the folder \"{}\" holds no .npz, .npy, .pb, picture or .wav", path));
    std::sort(files.begin() + static_cast<int64_t>(begin), files.end());
  }
  return files;
}

}  // namespace treadle::cli
