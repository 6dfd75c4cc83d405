#include "cli/inputs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <random>
#include <set>

#include "cli/media.h"
#include "cli/numbers.h"
#include "cli/terminal.h"
#include "core/base/nearest.h"
#include "core/files/file.h"
#include "core/values/dispatch.h"
#include "core/values/float_types.h"
#include "onnx/parse.h"
#include "treadle/data.h"
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

bool is_picture(const std::string& path) {
  const std::string extension = extension_of(path);
  return extension == ".png" || extension == ".jpg" || extension == ".jpeg";
}

bool is_known_file(const std::string& path) {
  static const std::vector<std::string> kOthers{".npz", ".npy", ".pb", ".wav"};
  return is_picture(path) || std::find(kOthers.begin(), kOthers.end(), extension_of(path)) != kOthers.end();
}

// Says which kinds of sources the values of a model's inputs come from.
struct Sources {
  bool pictures = false, numbers = false, random = false;  // image files, literals on the command line, random numbers
};

void refuse_unread(const InputOptions& options, const Sources& sources) {
  if (const std::string_view option = options.pictures.any(); !option.empty() && !sources.pictures)
    throw Error(ErrorCode::invalid_argument, fmt::format("{} needs a picture: a .png or .jpg", option));
  if (options.seed && !sources.random) throw Error(ErrorCode::invalid_argument, "--seed needs random inputs: all are given");
  if (sources.random || sources.numbers || (options.shapes.empty() && options.dimensions.empty())) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} needs an input that no file gives", options.shapes.empty() ? "--dim" : "--shapes"));
}

// Parses the extents in a value of --shapes, such as "1x576". @throws Error that quotes `option`, the whole value
Shape parse_extents(const std::string& text, const std::string& option) {
  Shape shape;
  for (const std::string& part : CLI::detail::split(text, 'x')) {
    int64_t extent = 0;
    if (!CLI::detail::lexical_cast(part, extent) || extent < 0)
      throw Error(ErrorCode::invalid_argument, fmt::format("--shapes {}: extents joined by x are expected, as in 1x3x224x224", option));
    shape.push_back(extent);
  }
  return shape;
}

// Parses the values of --shapes. The last colon separates the name from the shape, since names may contain colons.
std::map<std::string, Shape> given_shapes(const std::vector<ValueInfo>& inputs, const InputOptions& options) {
  std::map<std::string, Shape> shapes;
  for (const std::string& given : options.shapes) {
    const size_t colon = given.rfind(':');
    if (colon == std::string::npos && inputs.size() != 1)
      throw Error(ErrorCode::invalid_argument, fmt::format("--shapes {}: the model has {} inputs; NAME:EXTENTS is expected, as in {}:1x576",
                                                           given, inputs.size(), inputs.empty() ? "x" : inputs[0].name));
    const ValueInfo& info = colon == std::string::npos ? inputs[0] : input_of(inputs, given.substr(0, colon));
    const Shape shape = parse_extents(colon == std::string::npos ? given : given.substr(colon + 1), given);
    bool fits = !info.has_rank || info.shape.size() == static_cast<size_t>(shape.rank());
    for (int axis = 0; fits && info.has_rank && axis < shape.rank(); ++axis)
      fits = extent_or(info, static_cast<size_t>(axis), shape[axis]) == shape[axis];
    if (!fits)
      throw Error(ErrorCode::invalid_argument, fmt::format("--shapes {}: the input \"{}\" is {}", given, info.name, shape_text(info)));
    shapes[info.name] = shape;
  }
  return shapes;
}

std::map<std::string, int64_t> given_dimensions(const std::vector<ValueInfo>& inputs, const InputOptions& options) {
  std::set<std::string> known;
  for (const ValueInfo& info : inputs)
    for (const auto& extent : info.shape)
      if (const auto* symbol = std::get_if<std::string>(&extent); symbol && !symbol->empty()) known.insert(*symbol);
  const std::vector<std::string> symbols(known.begin(), known.end());
  std::map<std::string, int64_t> dimensions;
  for (const std::string& pair : options.dimensions) {
    const size_t equals = pair.find('=');
    int64_t extent = 0;
    if (equals == std::string::npos || !CLI::detail::lexical_cast(pair.substr(equals + 1), extent) || extent < 0)
      throw Error(ErrorCode::invalid_argument, fmt::format("--dim {}: SYMBOL=EXTENT is expected", pair));
    const std::string symbol = pair.substr(0, equals);
    if (!known.contains(symbol))
      throw Error(ErrorCode::not_found,
                  symbols.empty()
                      ? fmt::format("--dim {}: the model's inputs have no named dimensions; --shapes NAME:EXTENTS sets others", pair)
                      : fmt::format("--dim {}: no input has this symbol; is it {}?", pair, nearest_names(symbol, symbols)));
    dimensions[symbol] = extent;
  }
  // A given shape also determines the extents of its symbols in all other inputs.
  for (const auto& [name, shape] : given_shapes(inputs, options)) {
    const ValueInfo& info = input_of(inputs, name);
    for (size_t axis = 0; axis < info.shape.size(); ++axis)
      if (const auto* symbol = std::get_if<std::string>(&info.shape[axis]); symbol && !symbol->empty())
        dimensions.emplace(*symbol, shape[static_cast<int>(axis)]);
  }
  return dimensions;
}

// Makes a tensor for an input from one number or several, separated by commas. A single number fills the whole tensor.
Tensor literal_numbers(const ValueInfo& info, const std::string& text, const Shape& shape) {
  std::vector<double> numbers;
  for (const std::string& part : CLI::detail::split(text, ',')) {
    double number = part == "true" ? 1 : 0;
    if (part != "true" && part != "false" && !CLI::detail::lexical_cast(part, number))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}={}: the input is {} {}; a file (.npy, .npz, .pb, picture, .wav), or numbers as in 1,2,3 are expected",
                              info.name, text, name_of(info.dtype), shape_text(info)));
    numbers.push_back(number);
  }
  Shape taken = shape;
  const bool is_list = numbers.size() > 1;
  if (is_list && taken.num_elements() != static_cast<int64_t>(numbers.size())) {
    // The number of elements determines one open extent: the last one that the model leaves open.
    int64_t fixed = 1;
    int open = -1;
    for (int axis = 0; axis < taken.rank(); ++axis) {
      if (static_cast<size_t>(axis) < info.shape.size() && std::holds_alternative<std::string>(info.shape[static_cast<size_t>(axis)]))
        open = axis;
    }
    for (int axis = 0; axis < taken.rank(); ++axis)
      if (axis != open) fixed *= taken[axis];
    if (open < 0 || fixed == 0 || static_cast<int64_t>(numbers.size()) % fixed != 0)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}={}: {} numbers for an input that is {}", info.name, text, numbers.size(), shape_text(info)));
    taken[open] = static_cast<int64_t>(numbers.size()) / fixed;
  }
  Tensor tensor(info.dtype, taken);
  constexpr double kExact = 9e15;  // numbers are parsed as double, which is exact for integers up to this one
  visit_dtype<NumericTypes>(info.dtype == DType::boolean ? DType::uint8 : info.dtype, [&]<typename T>() {
    for (int64_t i = 0; i < tensor.num_elements(); ++i) {
      const double number = numbers[is_list ? static_cast<size_t>(i) : 0];
      if constexpr (std::is_integral_v<T>) {
        const double most = info.dtype == DType::boolean ? 1 : std::min(kExact, static_cast<double>(std::numeric_limits<T>::max()));
        const double least = std::max(-kExact, static_cast<double>(std::numeric_limits<T>::min()));
        if (!(number == std::floor(number) && number >= least && number <= most))
          throw Error(ErrorCode::invalid_argument,
                      fmt::format("{}={}: the input is {}, whose numbers are integers from {:.0f} to {:.0f} here", info.name, text,
                                  name_of(info.dtype), least, most));
        reinterpret_cast<T*>(tensor.raw())[i] = static_cast<T>(static_cast<int64_t>(number));
      } else if constexpr (std::is_same_v<T, double>) {
        reinterpret_cast<T*>(tensor.raw())[i] = number;
      } else {
        reinterpret_cast<T*>(tensor.raw())[i] = static_cast<T>(static_cast<float>(number));
      }
    }
  });
  return tensor;
}

bool is_literal(const ValueInfo& info, const std::string& given) {
  return !is_known_file(given) || (info.dtype == DType::string && !std::filesystem::exists(given));
}

Tensor literal(const ValueInfo& info, const std::string& given, const Shape& shape) {
  if (info.dtype != DType::string) return literal_numbers(info, given, shape);
  Tensor tensor(DType::string, shape);
  std::fill_n(tensor.data<std::string>(), tensor.num_elements(), given);
  return tensor;
}

Datum read_input(const ValueInfo& info, const std::string& given, const PictureOptions& pictures) {
  const std::string extension = extension_of(given);
  if (extension == ".npy") return train::map_npy(given);
  if (extension == ".wav") return sound_for(info, given);
  if (extension == ".pb") {
    auto file = read_file(given);
    return onnx::parse_tensor_bytes({file->data(), file->size_bytes()}).value;
  }
  return image_for(info, given, pictures);
}

// Chooses the extents of inputs for which no file is given.
class Extents {
 public:
  Extents(const std::vector<ValueInfo>& inputs, const InputOptions& options)
      : shapes_(given_shapes(inputs, options)), dimensions_(given_dimensions(inputs, options)), default_extent_(options.default_extent) {}

  // Takes over the extents that the shape of a given value determines for symbols, which other inputs may have, too.
  void learn(const ValueInfo& info, const Datum& value) {
    if (!value.is_tensor() || value.tensor().shape().rank() != static_cast<int>(info.shape.size())) return;
    for (size_t axis = 0; axis < info.shape.size(); ++axis)
      if (const std::string* symbol = open_at(info, axis); symbol && !symbol->empty())
        dimensions_.emplace(*symbol, value.tensor().shape()[static_cast<int>(axis)]);
  }

  Shape of(const ValueInfo& info) const {
    if (auto found = shapes_.find(info.name); found != shapes_.end()) return found->second;
    Shape shape;
    for (const auto& extent : info.shape) {
      const auto* symbol = std::get_if<std::string>(&extent);
      const auto found = symbol ? dimensions_.find(*symbol) : dimensions_.end();
      shape.push_back(!symbol ? std::get<int64_t>(extent) : found == dimensions_.end() ? default_extent_ : found->second);
    }
    return shape;
  }

  // Adds to `assumed` the extents of an input that nothing determines.
  // @param shape  the shape of the value that was made. If it is a list of numbers, it has determined an extent itself.
  void note_assumed(const ValueInfo& info, const Shape& shape, AssumedExtents& assumed) const {
    if (shapes_.contains(info.name)) return;
    if (!info.has_rank) assumed.insert(fmt::format("{} is a scalar", info.name));
    for (size_t axis = 0; axis < info.shape.size(); ++axis) {
      const std::string* symbol = open_at(info, axis);
      if (!symbol || shape[static_cast<int>(axis)] != default_extent_) continue;
      assumed.insert(symbol->empty() ? fmt::format("{} axis {}={}", info.name, axis, default_extent_)
                                     : fmt::format("{}={}", *symbol, default_extent_));
    }
  }

 private:
  // If nothing determines the extent, returns its symbol, which may be empty; otherwise null.
  const std::string* open_at(const ValueInfo& info, size_t axis) const {
    const auto* symbol = std::get_if<std::string>(&info.shape[axis]);
    return symbol && !dimensions_.contains(*symbol) ? symbol : nullptr;
  }

  std::map<std::string, Shape> shapes_;
  std::map<std::string, int64_t> dimensions_;
  int64_t default_extent_;
};

Tensor random_tensor(const ValueInfo& info, const Shape& shape, std::mt19937_64& random) try {
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
} catch (Error& error) {
  error.add_context(fmt::format("input \"{}\" of the extents {}", info.name, to_string(shape)));
  throw;
}

}  // namespace

std::string shape_text(const ValueInfo& info) {
  std::string text;
  for (const auto& extent : info.shape) {
    const auto* value = std::get_if<int64_t>(&extent);
    const auto* symbol = std::get_if<std::string>(&extent);
    text += (text.empty() ? "" : ", ") + (value ? std::to_string(*value) : symbol->empty() ? "?" : *symbol);
  }
  return info.has_rank ? "[" + text + "]" : "[...]";
}

std::string extension_of(const std::string& path) {
  std::string extension = std::filesystem::path(path).extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension;
}

void add_input_options(CLI::App& app, InputOptions& options) {
  app.add_option("inputs", options.files,
                 "NAME=FILE or FILE: .npy, .npz (its names are inputs' names), .pb, .png, .jpg, .wav. Or a value: sr=16000, ids=1,2,3, "
                 "text=hello. Inputs that are not given are random");
  add_sample_options(app, options);
}

void add_sample_options(CLI::App& app, InputOptions& options) {
  app.add_option("--shapes", options.shapes, "NAME:1x576, the shape of an input that no file gives; may be repeated")
      ->allow_extra_args(false)
      ->take_all();
  app.add_option("--dim", options.dimensions, "SYMBOL=EXTENT for inputs that no file gives; may be repeated")
      ->allow_extra_args(false)
      ->take_all();
  app.add_option("--default-dim", options.default_extent, "Extent of dimensions that neither --shapes nor --dim sets")
      ->check(at_least(0))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Seed for random inputs")->default_str("0");
  add_picture_options(app, options.pictures);
}

void add_session_options(CLI::App& app, SessionOptions& options) {
  app.add_option("--threads", options.intra_op_num_threads, "Threads per node; 0: sized by affinity and cgroup quota")
      ->check(at_least(0))
      ->capture_default_str();
  app.add_option("--skip-pass", options.disabled_passes, "Skip this pass of the optimiser; `treadle options` lists them; may be repeated")
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
         "NAME=VALUE: any session option, or its config entry; `treadle options` lists them; may be repeated")
      ->allow_extra_args(false)
      ->take_all();
  app.add_flag_callback(
      "--strict-symbols", [&options] { options.strict_symbols = true; }, "Inputs that give a symbol different extents are an error");
}

void check_extents(const std::vector<ValueInfo>& inputs, const InputOptions& options) { (void)given_dimensions(inputs, options); }

namespace {

MadeFeeds make_feeds(const std::vector<ValueInfo>& inputs, const InputOptions& options, Sources& sources) {
  Extents extents(inputs, options);
  MadeFeeds made;
  std::vector<std::pair<const ValueInfo*, std::string>> literals;  // parsed after the files, whose shapes may determine extents
  auto add_read = [&](const ValueInfo& info, Datum value) {
    extents.learn(info, value);
    made.values[info.name] = std::move(value);
  };
  size_t position = 0;
  for (const std::string& argument : options.files) {
    const size_t equals = std::filesystem::exists(argument) ? std::string::npos : argument.find('=');
    std::string given = equals == std::string::npos ? argument : argument.substr(equals + 1);
    if (extension_of(given) == ".npz") {
      for (auto& [name, tensor] : train::read_npz(given)) {
        std::string input = name.rfind("in:", 0) == 0 ? name.substr(3) : name;  // prefix of inputs in files that also have outputs
        if (name.rfind("out:", 0) != 0) add_read(input_of(inputs, input), tensor);
      }
      continue;
    }
    if (equals == std::string::npos && position >= inputs.size())
      throw Error(ErrorCode::invalid_argument, fmt::format("\"{}\": the model has {} inputs only", given, inputs.size()));
    const ValueInfo& info = equals == std::string::npos ? inputs[position++] : input_of(inputs, argument.substr(0, equals));
    if (is_literal(info, given)) {
      literals.emplace_back(&info, given);
      sources.numbers = true;
      continue;
    }
    sources.pictures |= is_picture(given);
    add_read(info, read_input(info, given, options.pictures));
  }
  auto add_made = [&](const ValueInfo& info, Tensor value) {
    extents.note_assumed(info, value.shape(), made.assumed);
    made.values[info.name] = std::move(value);
  };
  for (const auto& [info, text] : literals) {
    add_made(*info, literal(*info, text, extents.of(*info)));
    extents.learn(*info, made.values.at(info->name));
  }
  std::mt19937_64 random(options.seed.value_or(0));
  for (const ValueInfo& info : inputs) {
    if (made.values.contains(info.name)) continue;
    if (info.type.rfind("tensor", 0) != 0)
      throw Error(ErrorCode::invalid_argument, fmt::format("the input \"{}\" is {}: give it a file", info.name, info.type));
    add_made(info, random_tensor(info, extents.of(info), random));
    sources.random = true;
  }
  return made;
}

}  // namespace

MadeFeeds make_feeds(const std::vector<ValueInfo>& inputs, const InputOptions& options) {
  Sources sources;
  MadeFeeds made = make_feeds(inputs, options, sources);
  refuse_unread(options, sources);
  return made;
}

std::string joined(const AssumedExtents& assumed) { return fmt::format("{}", fmt::join(assumed, ", ")); }

std::string assumed_text(const AssumedExtents& assumed, const InputOptions& options) {
  return assumed.empty() ? std::string() : fmt::format("{}; {} sets others", joined(assumed), options.setters);
}

void print_assumed(const AssumedExtents& assumed, const InputOptions& options) {
  if (!assumed.empty()) show("assumed: {}\n", assumed_text(assumed, options));
}

void with_assumed_extents(const AssumedExtents& assumed, const InputOptions& options, const std::function<void()>& run) {
  try {
    run();
  } catch (Error& error) {
    if (!assumed.empty())
      error.add_details(fmt::format("Dimensions that were not given: {}. Set them by {}.", joined(assumed), options.setters));
    throw;
  }
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
                                         const std::vector<std::string>& files, int64_t i, AssumedExtents& assumed) {
  InputOptions inputs = options;
  inputs.seed = options.seed.value_or(0) + static_cast<uint64_t>(i);
  if (i < static_cast<int64_t>(files.size())) inputs.files = {files[static_cast<size_t>(i)]};
  Sources sources;
  MadeFeeds made = make_feeds(infos, inputs, sources);
  assumed.merge(made.assumed);
  return std::move(made.values);
}

void check_sample_options(const std::vector<ValueInfo>& infos, const InputOptions& options, const std::vector<std::string>& files,
                          int64_t count) {
  // Values are random for samples without a file, and for all other inputs of a model with several inputs.
  refuse_unread(options, {.pictures = std::any_of(files.begin(), files.end(), is_picture),
                          .random = infos.size() > 1 || count > static_cast<int64_t>(files.size())});
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
      if (entry.is_regular_file() && is_known_file(entry.path().string())) files.push_back(entry.path().string());
    }
    if (files.size() == begin)
      throw Error(ErrorCode::not_found, fmt::format("the folder \"{}\" holds no .npz, .npy, .pb, picture or .wav", path));
    std::sort(files.begin() + static_cast<int64_t>(begin), files.end());
  }
  return files;
}

}  // namespace treadle::cli
