#include "cli/compare_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>
#include <string_view>

#include "cli/inputs.h"
#include "core/files/file.h"
#include "core/values/dispatch.h"
#include "graph/op_def.h"
#include "onnx/parse.h"
#include "session/model.h"
#include "treadle/data.h"
#include "treadle/error.h"

namespace treadle::cli {
namespace {

namespace fs = std::filesystem;

// The bits of the fraction, and the exponent of the smallest normal number.
struct FloatFormat {
  int fraction_bits = 0, least_exponent = 0;
};

std::optional<FloatFormat> format_of(DType dtype) {
  switch (dtype) {
    case DType::float64: return FloatFormat{52, -1022};
    case DType::float32: return FloatFormat{23, -126};
    case DType::float16: return FloatFormat{10, -14};
    case DType::bfloat16: return FloatFormat{7, -126};
    case DType::float8e4m3fn: return FloatFormat{3, -6};
    case DType::float8e4m3fnuz: return FloatFormat{3, -7};
    case DType::float8e5m2: return FloatFormat{2, -14};
    case DType::float8e5m2fnuz: return FloatFormat{2, -15};
    default: return std::nullopt;
  }
}

// Returns the distance of neighbouring numbers of the format at `value`.
double unit_in_last_place(double value, const FloatFormat& format) {
  if (!std::isfinite(value)) return 0;
  int exponent = format.least_exponent;
  if (value != 0) exponent = std::max(exponent, std::ilogb(value));
  return std::ldexp(1.0, exponent - format.fraction_bits);
}

// Compares strings, or values of dtypes that are no numbers by their bytes.
Difference difference_of_texts(const Tensor& a, const Tensor& b) {
  Difference result{.comparable = true};
  if (a.dtype() != DType::string) {
    result.within = equal(a, b);
    result.num_different = result.within ? 0 : a.num_elements();
    return result;
  }
  const Tensor x = a.contiguous(), y = b.contiguous();
  for (int64_t i = 0; i < x.num_elements(); ++i) {
    const std::string &left = x.data<std::string>()[i], &right = y.data<std::string>()[i];
    if (left == right) continue;
    if (++result.num_different == 1) result.example = fmt::format("element {}: \"{}\", \"{}\"", i, left, right);
  }
  result.within = result.num_different == 0;
  return result;
}

template <typename T>
void compare_elements(const Tensor& a, const Tensor& b, const Tolerance& tolerance, Difference& result) {
  const auto *x = reinterpret_cast<const T*>(a.raw()), *y = reinterpret_cast<const T*>(b.raw());
  const std::optional<FloatFormat> format = format_of(a.dtype());
  for (int64_t i = 0; i < a.num_elements(); ++i) {
    double left = 0, right = 0, allowed = tolerance.step;
    if constexpr (std::is_integral_v<T>) {
      result.magnitude = std::max(result.magnitude, std::abs(static_cast<double>(y[i])));
      if (x[i] == y[i]) continue;
      left = static_cast<double>(x[i]), right = static_cast<double>(y[i]);
      const double gap = std::max(std::abs(left - right), 1.0);  // large neighbours are equal as double
      result.largest = std::max(result.largest, gap);
      result.num_different += gap > allowed;
      continue;
    } else if constexpr (std::is_same_v<T, double>) {
      left = x[i], right = y[i];
    } else {
      left = static_cast<double>(static_cast<float>(x[i])), right = static_cast<double>(static_cast<float>(y[i]));
    }
    if (std::isfinite(right)) result.magnitude = std::max(result.magnitude, std::abs(right));
    if (left == right || (std::isnan(left) && std::isnan(right))) continue;
    const double gap = std::isfinite(left - right) ? std::abs(left - right) : std::numeric_limits<double>::infinity();
    result.largest = std::max(result.largest, gap);
    allowed = std::max(allowed, format ? unit_in_last_place(right, *format) : 0) + tolerance.atol + tolerance.rtol * std::abs(right);
    result.num_different += !(gap <= allowed);
  }
  result.within = result.num_different == 0;
}

// True if the node's outputs are elements of its inputs, or bounds of them, so that a quantization step stays one.
bool moves_elements(const onnx::NodeDef& node) {
  if (node.op_type == "Relu" || node.op_type == "Clip") return true;
  const OpDef* const op = find_op(node.domain, node.op_type);
  return op != nullptr && (op->moves != Moves::no || op->quantization == Quantization::chooses);
}

double largest_of(const Tensor& scales) {
  double largest = 0;
  if (scales.dtype() == DType::float32)
    for (int64_t i = 0; i < scales.num_elements(); ++i) largest = std::max(largest, std::abs(static_cast<double>(scales.data<float>()[i])));
  return largest;
}

std::string recorded_name(std::string name) { return name.rfind("out:", 0) == 0 ? name.substr(4) : name; }

Tensor read_tensor(const std::string& path) {
  if (extension_of(path) == ".npy") return train::map_npy(path);
  const auto file = read_file(path);
  return onnx::parse_tensor_bytes({file->data(), file->size_bytes()}).value;
}

}  // namespace

Difference difference_of(const Tensor& a, const Tensor& b, const Tolerance& tolerance) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return {};
  const bool is_number = a.dtype() == DType::boolean || is_float(a.dtype()) || is_integer(a.dtype());
  if (!is_number || is_sub_byte(a.dtype())) return difference_of_texts(a, b);
  Difference result{.comparable = true};
  const Tensor left = a.contiguous(), right = b.contiguous();
  visit_dtype<concat_t<NumericTypes, Float8Types>>(a.dtype() == DType::boolean ? DType::uint8 : a.dtype(),
                                                   [&]<typename T>() { compare_elements<T>(left, right, tolerance, result); });
  result.within = result.num_different == 0;
  return result;
}

std::map<std::string, double> quantization_steps(const Model& model) {
  std::map<std::string, double> steps;
  if (model.impl().compiled) return steps;
  const onnx::GraphDef& graph = model.impl().def.graph;
  std::map<std::string_view, const Tensor*> constants;
  for (const onnx::TensorDef& initializer : graph.initializers) constants.emplace(initializer.name, &initializer.value);
  for (const onnx::NodeDef& node : graph.nodes) {
    if (node.outputs.empty()) continue;
    const std::string& op = node.op_type;
    if (op == "QuantizeLinear" || op == "DynamicQuantizeLinear" || op.rfind("QLinear", 0) == 0) {
      steps[node.outputs[0]] = 1;
    } else if (op == "DequantizeLinear" && node.inputs.size() > 1) {
      const auto scale = constants.find(node.inputs[1]);
      if (scale != constants.end()) steps[node.outputs[0]] = largest_of(scale->second->contiguous());
    } else if (moves_elements(node)) {
      double step = 0;
      for (const std::string& input : node.inputs)
        if (const auto found = steps.find(input); found != steps.end()) step = std::max(step, found->second);
      if (step > 0)
        for (const std::string& output : node.outputs) steps[output] = step;
    }
  }
  return steps;
}

bool is_recording(const std::string& path) {
  const std::string extension = extension_of(path);
  return extension == ".npz" || extension == ".npy" || fs::is_directory(path);
}

std::vector<std::pair<std::string, Tensor>> read_recording(const std::string& path) {
  std::vector<std::pair<std::string, Tensor>> values;
  if (fs::is_directory(path)) {
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      const std::string extension = extension_of(entry.path().string());
      if (!entry.is_regular_file() || (extension != ".npy" && extension != ".pb")) continue;
      values.emplace_back(fs::relative(entry.path(), path).replace_extension().string(), read_tensor(entry.path().string()));
    }
    std::sort(values.begin(), values.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  } else if (extension_of(path) == ".npz") {
    for (auto& [name, tensor] : train::read_npz(path))
      if (name.rfind("in:", 0) != 0) values.emplace_back(recorded_name(name), tensor);
  } else {
    values.emplace_back(fs::path(path).stem().string(), read_tensor(path));
  }
  if (values.empty()) throw Error(ErrorCode::not_found, fmt::format("{} holds no recorded values: no .npy, .npz or .pb", path));
  return values;
}

}  // namespace treadle::cli
