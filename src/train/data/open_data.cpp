// Opens files as training data for a model.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <numeric>
#include <set>

#include "core/values/dispatch.h"
#include "train/data/samples.h"
#include "treadle/data.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUsualLabels = "labels";

// Returns the extension of a file name in lower case, such as ".npz".
std::string extension_of(const std::string& path) {
  std::string extension = fs::path(path).extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(), [](unsigned char c) { return std::tolower(c); });
  return extension;
}

[[noreturn]] void refuse_data(const std::string& what) { throw Error(ErrorCode::invalid_argument, what); }

std::string names_of(const NamedTensors& arrays) {
  std::vector<std::string> names;
  for (const auto& [name, array] : arrays) names.push_back(fmt::format("\"{}\" {}", name, describe(array)));
  return fmt::format("{}", fmt::join(names, ", "));
}

// Returns true if the dtype can represent the number exactly, without rounding or wrapping around.
template <typename T>
bool is_integer_of(double number, DType dtype) {
  constexpr double kExact = 9e15;  // below this number, every integer is exact in double
  if (!(std::abs(number) < kExact) || number != std::floor(number)) return false;
  if (dtype == DType::boolean) return number == 0 || number == 1;
  return number >= static_cast<double>(std::numeric_limits<T>::min()) && number <= static_cast<double>(std::numeric_limits<T>::max());
}

// Converts a tensor to another dtype, and multiplies it by `scale`. @throws Error for an integer outside of the dtype's range, or a
// fraction in an integer dtype.
Tensor converted(const Tensor& from, DType dtype, double scale, const std::string& what) {
  if (from.dtype() == dtype && scale == 1) return from;
  Tensor to(dtype, from.shape());
  std::vector<double> numbers(static_cast<size_t>(from.num_elements()));
  const DType read_as = from.dtype() == DType::boolean ? DType::uint8 : from.dtype();
  visit_any_dtype<NumericTypes>(read_as, [&]<typename T>() {
    const T* elements = reinterpret_cast<const T*>(from.raw());
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (from.dtype() == DType::boolean)
        numbers[i] = static_cast<float>(elements[i]) != 0 ? scale : 0;
      else if constexpr (std::is_integral_v<T> || std::is_same_v<T, double>)
        numbers[i] = static_cast<double>(elements[i]) * scale;
      else
        numbers[i] = static_cast<double>(static_cast<float>(elements[i])) * scale;
    }
  });
  visit_any_dtype<NumericTypes>(dtype == DType::boolean ? DType::uint8 : dtype, [&]<typename T>() {
    for (size_t i = 0; i < numbers.size(); ++i) {
      if constexpr (std::is_integral_v<T>) {
        if (!is_integer_of<T>(numbers[i], dtype)) refuse_data(fmt::format("{}: {} is no {}", what, numbers[i], name_of(dtype)));
        reinterpret_cast<T*>(to.raw())[i] = static_cast<T>(static_cast<int64_t>(numbers[i]));
      } else if constexpr (std::is_same_v<T, double>) {
        reinterpret_cast<T*>(to.raw())[i] = numbers[i];
      } else {
        reinterpret_cast<T*>(to.raw())[i] = static_cast<T>(static_cast<float>(numbers[i]));
      }
    }
  });
  return to;
}

// Reshapes each row (one sample) to the extents of the model's samples, without moving elements. Throws if the numbers of elements differ.
Tensor with_extents(const Tensor& rows, const std::vector<int64_t>& extents, const std::string& what) {
  Shape shape{rows.shape()[0]};
  int64_t elements = 1;
  for (int64_t extent : extents) shape.push_back(extent), elements *= extent;
  const bool is_known = std::none_of(extents.begin(), extents.end(), [](int64_t extent) { return extent < 0; });
  const int64_t have = rows.shape()[0] ? rows.num_elements() / rows.shape()[0] : elements;
  if (is_known && have == elements) return rows.reshaped(shape);
  bool fits = !is_known && rows.shape().rank() == shape.rank();
  for (int axis = 1; fits && axis < shape.rank(); ++axis) fits = shape[axis] < 0 || shape[axis] == rows.shape()[axis];
  if (!fits) refuse_data(fmt::format("{}: a sample takes [{}], the data are {}", what, fmt::join(extents, ","), describe(rows)));
  return rows;
}

// A data set that converts each batch to the model's dtypes and shapes when the batch is read.
class PreparedData final : public Dataset {
 public:
  PreparedData(std::shared_ptr<const Dataset> data, std::vector<ValueInfo> inputs, LabelForm labels, double scale)
      : data_(std::move(data)), inputs_(std::move(inputs)), labels_(std::move(labels)), scale_(scale) {}
  int64_t num_samples() const override { return data_->num_samples(); }
  NamedTensors read(std::span<const int64_t> samples) const override {
    NamedTensors batch = data_->read(samples);
    for (const ValueInfo& info : inputs_) {
      Tensor& feed = batch.at(info.name);
      const std::string what = fmt::format("the input \"{}\"", info.name);
      feed = converted(feed, info.dtype, is_float(info.dtype) ? scale_ : 1, what);
      if (info.has_rank) feed = with_extents(feed, sample_extents(info), what);
    }
    if (labels_.dtype != DType::undefined) {
      Tensor& labels = batch.at(kBatchLabels);
      labels = converted(labels, labels_.dtype, 1, "labels");
      if (labels_.extents) labels = with_extents(labels, *labels_.extents, "labels");
    }
    return batch;
  }

 private:
  std::shared_ptr<const Dataset> data_;
  std::vector<ValueInfo> inputs_;
  LabelForm labels_;
  double scale_;
};

// A data set of image files, in one folder per class. Images are decoded when a batch is read.
class ImageFolder final : public Dataset {
 public:
  ImageFolder(const std::string& folder, ValueInfo input, const ReadPicture& read_picture, std::vector<std::string>& classes)
      : input_(std::move(input)), read_picture_(read_picture ? read_picture : ReadPicture(train::read_picture)) {
    const bool is_first = classes.empty();
    for (const fs::directory_entry& entry : fs::directory_iterator(folder))
      if (entry.is_directory() && is_first) classes.push_back(entry.path().filename().string());
    std::sort(classes.begin(), classes.end());
    for (size_t i = 0; i < classes.size(); ++i) {
      const fs::path of_class = fs::path(folder) / classes[i];
      std::set<std::string> files;
      if (fs::is_directory(of_class))
        for (const fs::directory_entry& entry : fs::directory_iterator(of_class))
          if (const std::string kind = extension_of(entry.path().string()); kind == ".png" || kind == ".jpg" || kind == ".jpeg")
            files.insert(entry.path().string());
      for (const std::string& file : files) samples_.emplace_back(file, static_cast<int64_t>(i));
    }
    if (samples_.empty())
      refuse_data(fmt::format("the folder \"{}\" holds no folders, one a class, with .png, .jpg or .jpeg files", folder));
  }
  int64_t num_samples() const override { return static_cast<int64_t>(samples_.size()); }
  NamedTensors read(std::span<const int64_t> samples) const override {
    Tensor images, labels(DType::int64, {static_cast<int64_t>(samples.size())});
    for (size_t i = 0; i < samples.size(); ++i) {
      const auto& [path, label] = samples_[static_cast<size_t>(samples[i])];
      const Tensor image = read_picture_(input_, path);
      if (i == 0) {
        Shape shape = image.shape();
        if (input_.shape.size() == 4) shape.erase(0);
        shape.insert(0, static_cast<int64_t>(samples.size()));
        images = Tensor(image.dtype(), shape);
      }
      if (image.size_bytes() * samples.size() != images.size_bytes())
        refuse_data(fmt::format("{} is of another size than the pictures before it, and the input \"{}\" does not say which to take", path,
                                input_.name));
      std::memcpy(images.raw() + i * image.size_bytes(), image.raw(), image.size_bytes());
      labels.data<int64_t>()[i] = label;
    }
    return {{input_.name, images}, {kBatchLabels, labels}};
  }

 private:
  ValueInfo input_;
  ReadPicture read_picture_;
  std::vector<std::pair<std::string, int64_t>> samples_;
};

const ValueInfo& the_input(const std::vector<ValueInfo>& inputs, const std::string& name, const std::string& path) {
  if (name.empty() && inputs.size() == 1) return inputs[0];
  for (const ValueInfo& info : inputs)
    if (info.name == name) return info;
  std::vector<std::string> names;
  for (const ValueInfo& info : inputs) names.push_back(info.name);
  refuse_data(name.empty() ? fmt::format("{}: the model has several inputs ({}): INPUT={}", path, fmt::join(names, ", "), path)
                           : fmt::format("the model has no input \"{}\"; it has: {}", name, fmt::join(names, ", ")));
}

// Assigns arrays to labels and inputs by name. If the model has one input and the file one array besides labels, that array's name is free.
void add_arrays(NamedTensors arrays, const std::string& path, const DataFiles& files, const std::vector<ValueInfo>& inputs, bool has_labels,
                NamedTensors& all) {
  const std::string labels = files.labels.empty() ? kUsualLabels : files.labels;
  if (auto found = arrays.find(labels); has_labels && found != arrays.end()) {
    all[kBatchLabels] = found->second;
    arrays.erase(found);
  }
  if (arrays.size() == 1 && inputs.size() == 1) {
    all[inputs[0].name] = arrays.begin()->second;
    return;
  }
  for (const ValueInfo& info : inputs)
    if (auto found = arrays.find(info.name); found != arrays.end()) all[info.name] = found->second;
  if (std::none_of(inputs.begin(), inputs.end(), [&](const ValueInfo& info) { return all.contains(info.name); }) && !arrays.empty())
    refuse_data(fmt::format("{}: none of its arrays is named as an input: {}", path, names_of(arrays)));
}

void add_csv(const std::string& path, const std::string& input, const DataFiles& files, const std::vector<ValueInfo>& inputs,
             const LabelForm& form, NamedTensors& all, std::vector<std::string>& classes) {
  const bool has_labels = form.dtype != DType::undefined;
  if (has_labels && files.labels.empty()) refuse_data(fmt::format("{}: labels names the column to learn", path));
  CsvTable table =
      read_csv(path, {.label = has_labels ? files.labels : "", .features = files.features, .label_classes = form.classes}, classes);
  all[the_input(inputs, input, path).name] = std::move(table.features);
  if (has_labels) all[kBatchLabels] = std::move(table.labels);
  classes = std::move(table.classes);
}

// Refuses labels of an array that are no classes. Labels of pixels or words are left to the loss, since there may be very many.
void check_classes(const Tensor& labels, const ClassRange& classes, const std::string& path) {
  if (labels.shape().rank() != 1 || !is_integer(labels.dtype()) || is_sub_byte(labels.dtype())) return;
  visit_any_dtype<NumericTypes>(labels.dtype(), [&]<typename T>() {
    if constexpr (std::is_integral_v<T>)
      for (int64_t i = 0; i < labels.num_elements(); ++i) {
        const auto label = static_cast<int64_t>(reinterpret_cast<const T*>(labels.raw())[i]);
        if (label != classes.ignored && (label < 0 || label >= classes.count))
          refuse_data(fmt::format("{}: the label {} of sample {}, counted from 0, is outside [0, {}): the model has {} classes", path,
                                  label, i, classes.count, classes.count));
      }
  });
}

}  // namespace

std::vector<int64_t> sample_extents(const ValueInfo& info) {
  std::vector<int64_t> extents;
  for (size_t i = 1; i < info.shape.size(); ++i) {
    const int64_t* extent = std::get_if<int64_t>(&info.shape[i]);
    extents.push_back(extent ? *extent : -1);
  }
  return extents;
}

OpenedData open_data(const DataFiles& files, const std::vector<ValueInfo>& inputs, const LabelForm& form,
                     const std::vector<std::string>& classes) {
  OpenedData opened{.classes = classes};
  NamedTensors all;
  std::shared_ptr<const Dataset> data;
  const bool has_labels = form.dtype != DType::undefined;
  std::string label_file;
  for (const std::string& argument : files.paths) {
    const size_t equals = fs::exists(argument) ? std::string::npos : argument.find('=');
    const std::string input = equals == std::string::npos ? "" : argument.substr(0, equals);
    const std::string path = equals == std::string::npos ? argument : argument.substr(equals + 1);
    const std::string kind = extension_of(path);
    if (fs::is_directory(path)) {
      if (files.paths.size() > 1 || !has_labels) refuse_data(fmt::format("{}: a folder of pictures stands alone, and has labels", path));
      data = std::make_shared<ImageFolder>(path, the_input(inputs, input, path), files.read_picture, opened.classes);
      if (const auto count = static_cast<int64_t>(opened.classes.size()); form.classes && count > form.classes->count)
        refuse_data(fmt::format("{}: the folder \"{}\" is class {} of {}, counted from 0: the model has {} classes", path,
                                opened.classes[static_cast<size_t>(form.classes->count)], form.classes->count, count, form.classes->count));
    } else if (kind == ".csv") {
      add_csv(path, input, files, inputs, form, all, opened.classes);
    } else if (kind == ".npy") {
      all[the_input(inputs, input, path).name] = map_npy(path);
    } else if (kind == ".npz") {
      add_arrays(read_npz(path), path, files, inputs, has_labels, all), label_file = path;
    } else if (kind == ".safetensors") {
      add_arrays(map_safetensors(path), path, files, inputs, has_labels, all), label_file = path;
    } else {
      refuse_data(fmt::format(
          "\"{}\": data are .npz, .npy, .csv and .safetensors files, or a folder with a folder of pictures for each class", path));
    }
  }
  if (has_labels && extension_of(files.labels) == ".npy") all[kBatchLabels] = map_npy(files.labels), label_file = files.labels;
  if (!data) {
    for (const ValueInfo& info : inputs)
      if (!all.contains(info.name))
        refuse_data(fmt::format("the data have nothing for the input \"{}\"; they have {}", info.name, names_of(all)));
    if (has_labels && !all.contains(kBatchLabels))
      refuse_data(fmt::format("the data have no labels \"{}\": labels names an array, a column or a .npy file",
                              files.labels.empty() ? kUsualLabels : files.labels));
    if (has_labels && form.classes) check_classes(all.at(kBatchLabels), *form.classes, label_file);
    data = dataset_of(std::move(all));
  }
  opened.data = std::make_shared<PreparedData>(std::move(data), inputs, form, files.scale);
  return opened;
}

std::pair<Feeds, Tensor> feeds_and_labels(NamedTensors batch) {
  Tensor labels;
  if (auto found = batch.find(kBatchLabels); found != batch.end()) {
    labels = found->second;
    batch.erase(found);
  }
  Feeds feeds;
  for (auto& [name, tensor] : batch) feeds.emplace(name, std::move(tensor));
  return {std::move(feeds), std::move(labels)};
}

}  // namespace treadle::train
