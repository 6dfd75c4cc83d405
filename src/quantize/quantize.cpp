// Entry point of quantization: upgrades the model to the necessary opset, selects nodes, quantizes them, and compares the two models.
#include "treadle/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "onnx/export.h"
#include "onnx/import.h"
#include "passes/pipeline.h"
#include "quantize/codes.h"
#include "quantize/plan.h"
#include "session/model.h"
#include "session/run_names.h"
#include "treadle/error.h"
#include "treadle/session.h"

namespace treadle {
namespace {

using quantization::Editor;
using quantization::Histogram;
using quantization::Noise;
using quantization::Plan;
using Feeds = std::map<std::string, Datum>;

void check(const QuantizeOptions& o) {
  auto refuse = [](const std::string& message) { throw Error(ErrorCode::invalid_argument, message); };
  for (const std::string& op : o.op_types)
    if (const bool is_product = op == "MatMul" || op == "Gemm"; !is_product && (op != "Conv" || o.mode != QuantizeMode::qdq))
      refuse(fmt::format("{} cannot be quantised in this mode; MatMul and Gemm can, and Conv in mode qdq", op));
  if (o.weight_bits != 4 && o.weight_bits != 8) refuse(fmt::format("weights of {} bits; 4 and 8 are possible", o.weight_bits));
  if (o.block_size < 16 || o.block_size > 256 || (o.block_size & (o.block_size - 1)) != 0)
    refuse(fmt::format("block_size = {}; 16, 32, 64, 128 and 256 are possible", o.block_size));
  if (o.activation_dtype != DType::uint8 && o.activation_dtype != DType::int8)
    refuse(fmt::format("activations of {}; uint8 and int8 are possible", name_of(o.activation_dtype)));
  if (!(o.percentile > 50 && o.percentile <= 100)) refuse(fmt::format("percentile = {}; it is more than 50 and at most 100", o.percentile));
  if (o.skip_first < 0 || o.skip_last < 0 || o.compared_samples < 0) refuse("a count is negative");
}

// Refuses patterns that match no node, of the file or simplified. A pattern may match a node that the mode leaves alone, so that one
// command serves all modes.
void check_patterns(const QuantizeOptions& o, const onnx::GraphDef& file, const onnx::GraphDef& simplified) {
  std::vector<std::string> names;
  for (const onnx::GraphDef* graph : {&file, &simplified})
    for (const onnx::NodeDef& node : graph->nodes)
      if (!node.name.empty() || !node.outputs.empty()) names.push_back(node.name.empty() ? node.outputs[0] : node.name);
  for (const std::string& pattern : o.include) check_pattern("include: the pattern", pattern, names, "node");
  for (const std::string& pattern : o.exclude) check_pattern("exclude: the pattern", pattern, names, "node");
}

int64_t opset_for(const QuantizeOptions& o) {
  if (o.mode == QuantizeMode::dynamic) return 11;
  if (o.mode == QuantizeMode::qdq) return 13;
  return o.format == WeightFormat::qdq ? 21 : 1;
}

/// Returns the model to be quantized: unchanged, or simplified and upgraded to an opset that has the necessary operators.
onnx::ModelDef base_of(const Model& model, const QuantizeOptions& o) {
  onnx::ModelDef base = model.impl().def;
  // Old exporters list every weight as a graph input, too, so that it can be fed. Treats such weights as constants: removes these inputs,
  // except before IR version 4, which requires them.
  if (base.ir_version >= 4) {
    std::set<std::string> initialized;
    for (const onnx::TensorDef& tensor : base.graph.initializers) initialized.insert(tensor.name);
    std::erase_if(base.graph.inputs, [&](const onnx::ValueInfoDef& input) { return initialized.contains(input.name); });
  }
  const bool simplify = o.preprocess || o.mode == QuantizeMode::qdq;
  if (!simplify && Editor(base).opset("") >= opset_for(o)) return base;
  std::unique_ptr<Graph> graph = onnx::import_graph(base);
  onnx::upgrade(*graph);
  if (simplify) {
    // Skips optimizer passes that make operators which other runtimes lack.
    passes::optimize(
        *graph, {.skip = {"fuse-gelu", "fuse-normalization", "fuse-attention", "attention-layouts", "fuse-into-matmul", "fuse-elementwise"},
                 .keep_quantization = true,
                 .for_file = true});
  }
  onnx::ModelDef exported = onnx::export_model(*graph, &base);
  if (Editor(exported).opset("") < opset_for(o)) exported = onnx::export_model(*graph, &base, {.opset = static_cast<int>(opset_for(o))});
  return exported;
}

size_t weight_bytes(const onnx::ModelDef& def) {
  size_t bytes = 0;
  for (const onnx::TensorDef& tensor : def.graph.initializers) bytes += size_bytes(tensor.dtype, tensor.shape.num_elements());
  for (const onnx::NodeDef& node : def.graph.nodes)
    for (const onnx::AttributeDef& attribute : node.attributes)
      if (attribute.t) bytes += size_bytes(attribute.t->dtype, attribute.t->shape.num_elements());
  return bytes;
}

std::vector<Histogram> calibrate(const Model& base, const std::vector<std::string>& values, const QuantizeOptions& o,
                                 const CalibrationSource& next, std::vector<Feeds>& kept, int64_t& samples) {
  std::vector<Histogram> histograms(values.size(), Histogram(o.method != CalibrationMethod::minmax));
  Session session(base);
  Feeds feeds;
  for (; next(feeds); feeds.clear(), ++samples) {
    std::vector<std::string> fetched;
    std::vector<size_t> places;
    auto add = [&](size_t place, const Datum& datum) {
      if (!datum.is_tensor() || datum.tensor().dtype() != DType::float32) return;
      const Tensor tensor = datum.tensor().contiguous();
      if (!histograms[place].add(tensor.data<float>(), tensor.num_elements()))
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("the value \"{}\" is not finite in calibration sample {}", values[place], samples));
    };
    for (size_t i = 0; i < values.size(); ++i) {
      if (auto feed = feeds.find(values[i]); feed != feeds.end())
        add(i, feed->second);
      else
        fetched.push_back(values[i]), places.push_back(i);
    }
    if (fetched.empty()) continue;
    const std::vector<Datum> results = session.run(feeds, fetched);
    for (size_t i = 0; i < results.size(); ++i) add(places[i], results[i]);
    if (static_cast<int64_t>(kept.size()) < o.compared_samples) kept.push_back(feeds);
  }
  if (samples == 0) throw Error(ErrorCode::invalid_argument, "mode qdq needs calibration samples, and there are none");
  return histograms;
}

// If the signal-to-noise ratio is lower, the error exceeds about a third of the signal, and the quantized model counts as broken.
constexpr double kPoorSqnrDb = 10;
bool is_poor(double sqnr_db) { return sqnr_db < kPoorSqnrDb; }  // false for NaN, which is reported separately

struct Compared {
  Noise noise;
  double largest_difference = 0, largest_value = 0;
  bool other_extents = false;

  double sqnr_db() const { return other_extents ? std::numeric_limits<double>::quiet_NaN() : noise.sqnr_db(); }

  void add(const Datum& expected, const Datum& actual) {
    if (!expected.is_tensor() || !actual.is_tensor()) return;
    const Tensor a = expected.tensor().contiguous(), b = actual.tensor().contiguous();
    if (a.dtype() != DType::float32 || b.dtype() != DType::float32) return;
    other_extents |= a.shape() != b.shape();
    for (int64_t i = 0; !other_extents && i < a.num_elements(); ++i) {
      const double x = a.data<float>()[i], y = b.data<float>()[i];
      if (!std::isfinite(x) && (x == y || (std::isnan(x) && std::isnan(y)))) continue;
      if (!std::isfinite(x - y)) {  // an infinite error is infinite noise
        largest_difference = noise.noise = std::numeric_limits<double>::infinity();
        continue;
      }
      noise.add(x, y);
      largest_difference = std::max(largest_difference, std::fabs(x - y)), largest_value = std::max(largest_value, std::fabs(x));
    }
  }
};

void compare(const Model& base, const Model& quantized, const Plan& plan, const std::vector<Feeds>& samples, QuantizeReport& report) {
  std::vector<std::string> before, after;
  std::vector<size_t> nodes;
  for (const ValueInfo& output : base.outputs()) before.push_back(output.name), after.push_back(output.name);
  const size_t num_outputs = before.size();
  for (const auto& [node, names] : plan.compared) nodes.push_back(node), before.push_back(names.first), after.push_back(names.second);
  std::vector<Compared> results(before.size());
  Session float_session(base), quantized_session(quantized);
  for (const Feeds& feeds : samples) {
    const std::vector<Datum> expected = float_session.run(feeds, before), actual = quantized_session.run(feeds, after);
    for (size_t i = 0; i < results.size(); ++i) results[i].add(expected[i], actual[i]);
  }
  for (size_t i = 0; i < num_outputs; ++i)
    if (results[i].noise.signal > 0 || results[i].noise.noise > 0 || results[i].other_extents)
      report.outputs.push_back({before[i], results[i].sqnr_db(), results[i].largest_difference, results[i].largest_value});
  for (size_t i = 0; i < nodes.size(); ++i)
    if (results[num_outputs + i].noise.signal > 0) report.nodes[nodes[i]].output_sqnr_db = results[num_outputs + i].sqnr_db();
  report.compared_samples = static_cast<int64_t>(samples.size());
}

}  // namespace

QuantizeResult quantize(const Model& model, const QuantizeOptions& options, const CalibrationSource& calibration) {
  check(options);
  model.impl().need_original();
  if (options.mode == QuantizeMode::qdq && !calibration)
    throw Error(ErrorCode::invalid_argument, "mode qdq needs calibration samples: values that the model's inputs take in use");
  onnx::ModelDef base_def = base_of(model, options), def = base_def;
  check_patterns(options, model.impl().def.graph, def.graph);
  const Model base = make_model(std::move(base_def), model.impl().path);
  Editor editor(def);
  QuantizeReport report;
  Plan plan{editor, options, report};
  quantization::select_nodes(plan);
  std::vector<Feeds> samples;
  if (options.mode == QuantizeMode::qdq) {
    quantization::StaticPlan static_plan(plan);
    static_plan.apply(calibrate(base, static_plan.values(), options, calibration, samples, report.calibration_samples));
  } else {
    for (Feeds feeds; calibration && static_cast<int64_t>(samples.size()) < options.compared_samples && calibration(feeds); feeds.clear())
      samples.push_back(feeds);
    options.mode == QuantizeMode::dynamic ? quantize_dynamic(plan) : quantize_weights(plan);
  }
  editor.remove_unused();
  report.bytes_before = weight_bytes(model.impl().def), report.bytes_after = weight_bytes(def);
  Model quantized = make_model(std::move(def), model.impl().path);
  if (!samples.empty()) compare(base, quantized, plan, samples, report);
  return {std::move(quantized), std::move(report)};
}

std::vector<std::string> QuantizeReport::warnings() const {
  std::vector<std::string> list;
  for (const QuantizedOutput& output : outputs) {
    if (std::isnan(output.sqnr_db))
      list.push_back(fmt::format("the output \"{}\" has other extents than the float model's", output.name));
    else if (is_poor(output.sqnr_db))
      list.push_back(fmt::format("the output \"{}\" has an error of {:.0f} % of the signal ({:.1f} dB) against the float model",
                                 output.name, 100 * std::pow(10, -output.sqnr_db / 20), output.sqnr_db));
  }
  const bool of_weights = compared_samples == 0;
  const auto worse = std::find_if(nodes.begin(), nodes.end(), [&](const QuantizedNode& node) {
    return node.quantized && is_poor(of_weights ? node.weight_sqnr_db : node.output_sqnr_db);
  });
  if ((list.empty() && !of_weights) || worse == nodes.end()) return list;
  list.push_back(
      fmt::format("{} node \"{}\" is the first whose {} exceeds a third of the signal ({:.1f} dB): leave it float, or try another "
                  "{}",
                  worse->op_type, worse->name, of_weights ? "weights' rounding" : "error",
                  of_weights ? worse->weight_sqnr_db : worse->output_sqnr_db, of_weights ? "number of bits" : "method or other samples"));
  return list;
}

std::string QuantizeReport::to_text() const {
  std::vector<const QuantizedNode*> order;
  for (const QuantizedNode& node : nodes) order.push_back(&node);
  auto rank = [](const QuantizedNode* n) { return std::isnan(n->output_sqnr_db) ? n->weight_sqnr_db : n->output_sqnr_db; };
  std::stable_sort(order.begin(), order.end(), [&](const QuantizedNode* a, const QuantizedNode* b) {
    if (a->quantized != b->quantized) return a->quantized;
    return a->quantized && rank(a) < rank(b);
  });
  auto decibels = [](double value) { return std::isnan(value) ? std::string("-") : fmt::format("{:.1f}", value); };
  std::string text = fmt::format("{:>10} {:>10}  {:8} {}\n", "output dB", "weights dB", "operator", "node");
  int64_t taken = 0;
  for (const QuantizedNode* node : order) {
    taken += node->quantized ? 1 : 0;
    text += fmt::format("{:>10} {:>10}  {:8} {}{}\n", decibels(node->output_sqnr_db), decibels(node->weight_sqnr_db), node->op_type,
                        node->name, node->quantized ? "" : "  left float: " + node->reason);
  }
  for (const QuantizedOutput& output : outputs)
    text += fmt::format("output {}: {} dB, largest difference {:.3g} of {:.3g}\n", output.name, decibels(output.sqnr_db),
                        output.largest_difference, output.largest_value);
  text += fmt::format("{} of {} nodes quantised; weights {:.2f} MB -> {:.2f} MB", taken, nodes.size(),
                      static_cast<double>(bytes_before) / 1e6, static_cast<double>(bytes_after) / 1e6);
  if (calibration_samples > 0) text += fmt::format("; {} calibration samples", calibration_samples);
  text += compared_samples > 0 ? fmt::format("; compared on {}\n", compared_samples) : "; not compared with the float model\n";
  for (const std::string& warning : warnings()) text += fmt::format("warning: {}\n", warning);
  return text;
}

}  // namespace treadle
