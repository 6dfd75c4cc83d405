// Binds the functions that treadle/quantization.py calls to convert float32 models to 8 or 4 bits.
#include "treadle/quantize.h"

#include "bindings.h"
#include "datum.h"
#include "numpy.h"
#include "quantize/matmul_blocks.h"
#include "treadle/precision.h"

namespace treadle::python {
namespace {

struct PyQuantizeResult {
  Model model;
  QuantizeReport report;
};

/// Returns a source of the samples that the Python callable `next` returns, until it returns None.
CalibrationSource source_of(const Model& model, const nb::object& next) {
  if (next.is_none()) return {};
  std::map<std::string, std::string> types;
  for (const ValueInfo& input : model.inputs()) types[input.name] = input.type;
  return [next = keep(next), types = std::move(types)](std::map<std::string, Datum>& feeds) {
    nb::gil_scoped_acquire acquire;
    nb::object sample = (*next)();
    if (sample.is_none()) return false;
    for (auto [key, value] : nb::cast<nb::dict>(sample)) {
      const std::string name = string_from_python(key);
      auto type = types.find(name);
      if (type == types.end()) throw Error(ErrorCode::invalid_argument, "the model has no input \"" + name + "\", which a sample has");
      feeds[name] = datum_from_python(value, type->second, nullptr);
    }
    return true;
  };
}

PyQuantizeResult quantize_model(const Model& model, const QuantizeOptions& options, const nb::object& next) {
  CalibrationSource source = source_of(model, next);
  nb::gil_scoped_release release;
  QuantizeResult result = quantize(model, options, source);
  return {std::move(result.model), std::move(result.report)};
}

PrecisionChoice choose(const Model& model, const nb::object& next, double bound, int64_t max_groups, int64_t timed_runs,
                       const PySessionOptions& session) {
  const CalibrationSource source = source_of(model, next);
  nb::gil_scoped_release release;
  return choose_precision(model, source, {.bound = bound, .session = session, .max_groups = max_groups, .timed_runs = timed_runs});
}

bool cut_matmul(nb::handle codes, nb::handle weights, nb::handle scales, nb::handle zeros, int64_t block_size, int64_t N, int64_t K,
                bool symmetric, int bits, bool linear) {
  const quantization::MatmulBlocks blocks{N, K, block_size, bits, symmetric};
  const Tensor to = written_array(codes, "the codes"), to_scales = written_array(scales, "the scales"),
               to_zeros = written_array(zeros, "the zero points"), from = tensor_from_array(weights);
  nb::gil_scoped_release release;
  if (linear) return quantization::cut_for_dequantize_linear(blocks, from, to, to_scales, to_zeros);
  quantization::cut_for_matmul_nbits(blocks, from, to, to_scales, to_zeros);
  return symmetric;
}

void cut_bnb4(nb::handle codes, nb::handle weights, nb::handle largest, int64_t block_size, int quant_type, int64_t N, int64_t K) {
  if (quant_type != 0 && quant_type != 1)
    throw Error(ErrorCode::invalid_argument, "quant_type is " + std::to_string(quant_type) + "; possible are 0 (FP4) and 1 (NF4)");
  if (N < 0 || K < 0) throw Error(ErrorCode::invalid_argument, "N = " + std::to_string(N) + ", K = " + std::to_string(K));
  const Tensor to = written_array(codes, "the codes"), to_largest = written_array(largest, "absmax"), from = tensor_from_array(weights);
  const int64_t num_elements = Shape{N, K}.num_elements();
  nb::gil_scoped_release release;
  quantization::cut_for_matmul_bnb4(num_elements, block_size, quant_type == 1, from, to, to_largest);
}

template <typename Enum>
Enum named(const std::map<std::string, Enum>& names, const std::string& name, const char* what) {
  auto found = names.find(name);
  if (found != names.end()) return found->second;
  std::string text = std::string(what) + " is \"" + name + "\"; possible are";
  for (const auto& [known, value] : names) text += " " + known;
  throw Error(ErrorCode::invalid_argument, text);
}

const std::map<std::string, QuantizeMode> kModes{
    {"dynamic", QuantizeMode::dynamic}, {"qdq", QuantizeMode::qdq}, {"weights", QuantizeMode::weights}};
const std::map<std::string, CalibrationMethod> kMethods{
    {"minmax", CalibrationMethod::minmax}, {"percentile", CalibrationMethod::percentile}, {"entropy", CalibrationMethod::entropy}};
const std::map<std::string, WeightFormat> kFormats{{"qdq", WeightFormat::qdq}, {"matmul_nbits", WeightFormat::matmul_nbits}};

}  // namespace

void register_quantize(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<QuantizedNode>(module, "QuantizedNode", "One operator that the mode could quantise.")
      .def_ro("name", &QuantizedNode::name)
      .def_ro("op_type", &QuantizedNode::op_type)
      .def_ro("output", &QuantizedNode::output)
      .def_ro("quantized", &QuantizedNode::quantized)
      .def_ro("reason", &QuantizedNode::reason, "Why it stayed float.")
      .def_ro("weight_sqnr_db", &QuantizedNode::weight_sqnr_db, "10 log10(signal / noise) of its weights; NaN where it stayed float.")
      .def_ro("output_sqnr_db", &QuantizedNode::output_sqnr_db,
              "The same for its output against the float model's, with the errors of all nodes before it; NaN without samples.");
  nb::class_<QuantizedOutput>(module, "QuantizedOutput", "An output of the model, compared with the float model's.")
      .def_ro("name", &QuantizedOutput::name)
      .def_ro("sqnr_db", &QuantizedOutput::sqnr_db)
      .def_ro("largest_difference", &QuantizedOutput::largest_difference)
      .def_ro("largest_value", &QuantizedOutput::largest_value);
  nb::class_<QuantizeReport>(module, "QuantizeReport")
      .def_ro("nodes", &QuantizeReport::nodes)
      .def_ro("outputs", &QuantizeReport::outputs)
      .def_ro("bytes_before", &QuantizeReport::bytes_before, "Of the weights.")
      .def_ro("bytes_after", &QuantizeReport::bytes_after)
      .def_ro("calibration_samples", &QuantizeReport::calibration_samples)
      .def_ro("compared_samples", &QuantizeReport::compared_samples)
      .def_prop_ro("warnings", &QuantizeReport::warnings,
                   "What makes the new model unfit for use: outputs with less than 10 dB, and the node where the error begins.")
      .def("__str__", &QuantizeReport::to_text);
  nb::class_<QuantizeOptions>(module, "QuantizeOptions", "treadle.quantize makes these.")
      .def(nb::init<>())
      .def_prop_rw(
          "mode", [](const QuantizeOptions& o) { return static_cast<int>(o.mode); },
          [](QuantizeOptions& o, const std::string& name) { o.mode = named(kModes, name, "mode"); })
      .def_prop_rw(
          "method", [](const QuantizeOptions& o) { return static_cast<int>(o.method); },
          [](QuantizeOptions& o, const std::string& name) { o.method = named(kMethods, name, "method"); })
      .def_prop_rw(
          "format", [](const QuantizeOptions& o) { return static_cast<int>(o.format); },
          [](QuantizeOptions& o, const std::string& name) { o.format = named(kFormats, name, "format"); })
      .def_prop_rw(
          "activation_dtype", [](const QuantizeOptions& o) { return std::string(name_of(o.activation_dtype)); },
          [](QuantizeOptions& o, const std::string& name) { o.activation_dtype = dtype_from_name(name); })
      .def_rw("op_types", &QuantizeOptions::op_types)
      .def_rw("include", &QuantizeOptions::include)
      .def_rw("exclude", &QuantizeOptions::exclude)
      .def_rw("skip_first", &QuantizeOptions::skip_first)
      .def_rw("skip_last", &QuantizeOptions::skip_last)
      .def_rw("min_weight_elements", &QuantizeOptions::min_weight_elements)
      .def_rw("per_channel", &QuantizeOptions::per_channel)
      .def_rw("reduce_range", &QuantizeOptions::reduce_range)
      .def_rw("percentile", &QuantizeOptions::percentile)
      .def_rw("weight_bits", &QuantizeOptions::weight_bits)
      .def_rw("block_size", &QuantizeOptions::block_size)
      .def_rw("symmetric", &QuantizeOptions::symmetric)
      .def_rw("preprocess", &QuantizeOptions::preprocess)
      .def_rw("compared_samples", &QuantizeOptions::compared_samples);
  nb::class_<PyQuantizeResult>(module, "QuantizeResult", "The quantised model, and the report.")
      .def_ro("model", &PyQuantizeResult::model)
      .def_ro("report", &PyQuantizeResult::report);
  nb::class_<TriedPrecision>(module, "TriedPrecision", "One precision that choose_precision tried.")
      .def_ro("precision", &TriedPrecision::precision)
      .def_ro("error", &TriedPrecision::error)
      .def_ro("milliseconds", &TriedPrecision::milliseconds);
  nb::class_<PrecisionChoice>(module, "PrecisionChoice", "A value for SessionOptions.precision, and how it was found.")
      .def_ro("precision", &PrecisionChoice::precision)
      .def_ro("error", &PrecisionChoice::error)
      .def_ro("speedup", &PrecisionChoice::speedup)
      .def_ro("tried", &PrecisionChoice::tried)
      .def("__str__", &PrecisionChoice::to_text);
  module.def("choose_precision", &choose, "model"_a, "next_sample"_a.none(), "bound"_a, "max_groups"_a, "timed_runs"_a, "session"_a,
             "What treadle.quantize.choose_precision calls.");
  module.def("quantize_model", &quantize_model, "model"_a, "options"_a, "next_sample"_a.none(),
             "What treadle.quantize calls; `next_sample` gives a dict by the names of the inputs, None at the end.");
  module.def(
      "cut_matmul", &cut_matmul, "codes"_a, "weights"_a, "scales"_a, "zeros"_a, "block_size"_a, "N"_a, "K"_a, "symmetric"_a, "bits"_a,
      "linear"_a,
      "The functions quantize_matmul_* and, if `linear`, quantize_qdq_matmul_* of ONNX Runtime's extension module: weights [K, N] in "
      "blocks, written to the other arrays.");
  module.def("cut_matmul_bnb4", &cut_bnb4, "codes"_a, "weights"_a, "largest"_a, "block_size"_a, "quant_type"_a, "N"_a, "K"_a,
             "Its quantize_matmul_bnb4.");
}

}  // namespace treadle::python
