// Implements the command `treadle quantize`.
#include "treadle/quantize.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/commands.h"
#include "cli/given_options.h"
#include "cli/inputs.h"
#include "cli/numbers.h"
#include "cli/profile_output.h"
#include "cli/terminal.h"
#include "onnx/serialize.h"
#include "session/model.h"
#include "treadle/error.h"

namespace treadle::cli {
namespace {

namespace fs = std::filesystem;

struct QuantizeArguments {
  std::string model, output, mode = "dynamic", method = "minmax", format = "matmul_nbits", activations = "uint8";
  std::vector<std::string> data, include, exclude, op_types;
  int64_t random_samples = 0;
  bool verify = false, asymmetric = false, per_tensor = false, quiet = false, json = false;
  InputOptions inputs;
  QuantizeOptions options;
};

double median_ms(const Session& session, const std::map<std::string, Datum>& feeds) {
  std::vector<double> times;
  session.run(feeds);
  for (int i = 0; i < 15; ++i) {
    const auto start = std::chrono::steady_clock::now();
    session.run(feeds);
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(times.begin(), times.begin() + 7, times.end());
  return times[7];
}

// Saves the model. If it could exceed 2 GiB, the limit of protobuf, saves its weights in a separate file.
void save(const Model& model, const std::string& path, size_t bytes) {
  onnx::WriteOptions write;
  if (bytes > size_t{1900} << 20) write.external_data_file = fs::path(path).filename().string() + ".data";
  onnx::write_model_file(model.impl().def, path, write);
}

bool has_quantized(const QuantizeReport& report) {
  return std::any_of(report.nodes.begin(), report.nodes.end(), [](const QuantizedNode& node) { return node.quantized; });
}

// Throws if no node was quantized, since the output would equal the input. The error names a mode that works, or says that none does.
void refuse_nothing(const Model& model, const QuantizeArguments& a, const QuantizeReport& report) {
  if (has_quantized(report)) return;
  std::string text = fmt::format("mode {} quantised no node of \"{}\"; no file was written", a.mode, a.model);
  for (size_t i = 0; i < std::min<size_t>(report.nodes.size(), 3); ++i)
    text += fmt::format("\n  {} \"{}\": {}", report.nodes[i].op_type, report.nodes[i].name, report.nodes[i].reason);
  std::string others;
  for (auto [name, mode] : {std::pair("dynamic", QuantizeMode::dynamic), std::pair("weights", QuantizeMode::weights),
                            std::pair("qdq --data FOLDER", QuantizeMode::qdq)}) {
    QuantizeOptions other = a.options;
    other.mode = mode, other.compared_samples = 0;
    bool is_given = false;
    auto one_sample = [&](std::map<std::string, Datum>& feeds) {
      if (std::exchange(is_given, true)) return false;
      AssumedExtents not_reported;
      feeds = make_sample(model.inputs(), a.inputs, {}, 0, not_reported);
      return true;
    };
    try {
      if (mode != a.options.mode && has_quantized(quantize(model, other, one_sample).report))
        others += fmt::format("{}--mode {}", others.empty() ? "" : " or ", name);
    } catch (const Error&) {
      // The error is ignored: a mode that fails on this model is not suggested.
    }
  }
  text += others.empty() ? "\n  No other mode finds more: the weights are small, not float32, not constant, or quantised already."
                         : "\n  Try " + others + ".";
  throw Error(ErrorCode::invalid_argument, text);
}

nlohmann::json to_json(const QuantizeReport& report) {
  auto nodes = nlohmann::json::array(), outputs = nlohmann::json::array();
  for (const QuantizedNode& node : report.nodes)
    nodes.push_back({{"name", node.name},
                     {"op_type", node.op_type},
                     {"quantized", node.quantized},
                     {"reason", node.reason},
                     {"weight_sqnr_db", node.weight_sqnr_db},
                     {"output_sqnr_db", node.output_sqnr_db}});  // NaN (no value) becomes null
  for (const QuantizedOutput& output : report.outputs)
    outputs.push_back({{"name", output.name}, {"sqnr_db", output.sqnr_db}, {"largest_difference", output.largest_difference}});
  return {{"bytes_before", report.bytes_before},
          {"bytes_after", report.bytes_after},
          {"calibration_samples", report.calibration_samples},
          {"compared_samples", report.compared_samples},
          {"warnings", report.warnings()},
          {"nodes", nodes},
          {"outputs", outputs}};
}

// Rejects options that only other modes use, and options for samples if there are no samples.
void check_options(const CLI::App& app, const QuantizeArguments& a) {
  const GivenOptions given(app);
  given.need(a.mode != "weights", "--mode dynamic or qdq", {"--per-tensor", "--reduce-range"});
  given.need(a.mode == "qdq", "--mode qdq", {"--activations", "--method", "--percentile"});
  given.need(a.method == "percentile", "--method percentile", {"--percentile"});
  given.need(a.mode == "weights", "--mode weights", {"--bits", "--block", "--asymmetric", "--format"});
  const bool has_samples = !a.data.empty() || a.random_samples > 0 || a.verify;
  constexpr std::string_view kSamples = "samples: --data, --random or --verify";
  given.need(has_samples, kSamples, {"--compared"});
  given.need(has_samples, kSamples, sample_options());
  given.need(!a.json, "the table: no --json", {"--quiet"});
}

int run_quantize(QuantizeArguments& a) {
  static const std::map<std::string, QuantizeMode> kModes{
      {"dynamic", QuantizeMode::dynamic}, {"qdq", QuantizeMode::qdq}, {"weights", QuantizeMode::weights}};
  static const std::map<std::string, CalibrationMethod> kMethods{
      {"minmax", CalibrationMethod::minmax}, {"percentile", CalibrationMethod::percentile}, {"entropy", CalibrationMethod::entropy}};
  QuantizeOptions& o = a.options;
  o.mode = kModes.at(a.mode), o.method = kMethods.at(a.method);
  o.format = a.format == "qdq" ? WeightFormat::qdq : WeightFormat::matmul_nbits;
  o.activation_dtype = dtype_from_name(a.activations);
  o.include = a.include, o.exclude = a.exclude, o.op_types = a.op_types;
  o.symmetric = !a.asymmetric, o.per_channel = !a.per_tensor;
  check_target("--output", a.output);  // before work begins
  const Model model = Model::load(a.model);
  const std::vector<std::string> files = sample_files(a.data);
  if (a.verify && files.empty() && a.random_samples == 0) a.random_samples = 1;
  const int64_t count = static_cast<int64_t>(files.size()) + a.random_samples;
  if (o.mode == QuantizeMode::qdq && count == 0)
    throw Error(ErrorCode::invalid_argument,
                "mode qdq needs values that the inputs take in use: --data FILE or FOLDER, or --random 8 to try the command");
  check_sample_options(model.inputs(), a.inputs, files, count);
  AssumedExtents assumed;
  auto sample = [&](int64_t i) { return make_sample(model.inputs(), a.inputs, files, i, assumed); };
  int64_t next = 0;
  std::optional<QuantizeResult> made;
  with_assumed_extents(assumed, a.inputs, [&] {
    made = quantize(model, o, [&](std::map<std::string, Datum>& feeds) {
      if (next == count) return false;
      feeds = sample(next++);
      return true;
    });
  });
  const QuantizeResult& result = *made;
  refuse_nothing(model, a, result.report);
  save(result.model, a.output, result.report.bytes_after);
  nlohmann::json json = to_json(result.report);
  json["assumed_extents"] = joined(assumed);
  if (!a.quiet && !a.json)
    show_text(stdout, result.report.to_text()), print_assumed(assumed, a.inputs);
  else
    for (const std::string& warning : result.report.warnings()) show_on(stderr, "treadle quantize: warning: {}\n", warning);
  if (a.verify) {
    const Session before(model), after(Model::load(a.output));
    const auto feeds = sample(0);
    const double slow = median_ms(before, feeds), fast = median_ms(after, feeds);
    json["median_ms_before"] = slow, json["median_ms_after"] = fast;
    if (!a.json) show("median of 15 runs: {:.3f} ms before, {:.3f} ms after, {:.2f} times as fast\n", slow, fast, slow / fast);
  }
  if (a.json) show_json(json);
  return 0;
}

}  // namespace

Command add_quantize(CLI::App& app) {
  app.description("Write the model in 8- or 4-bit numbers: dynamic, qdq with calibration data, or weights only");
  auto a = std::make_shared<QuantizeArguments>();
  QuantizeOptions& o = a->options;
  app.footer(
      "Which mode?\n"
      "  dynamic   transformers and other products, no data needed: weights take a quarter of the bytes\n"
      "  qdq       convolution networks, and products too: needs some 20 to 200 samples of what the model sees in use\n"
      "  weights   decoders, which wait for their weights: 4 bits take an eighth of the bytes, activations stay exact\n"
      "Examples:\n"
      "  treadle quantize bert.onnx -o bert_int8.onnx --verify\n"
      "  treadle quantize resnet.onnx -o resnet_int8.onnx --mode qdq --data pictures/ --method percentile\n"
      "  treadle quantize decoder.onnx -o decoder_int4.onnx --mode weights --bits 4 --block 32 --exclude '*lm_head*'\n"
      "The table names each node with 10 log10(signal / noise): of its weights, and of its output against the float model. 40 dB is 1 % "
      "of\n"
      "the signal. Where one node spoils the rest, --exclude its name. docs/quantize.md has sizes, accuracy and speed of real models.");
  app.add_option("model", a->model, "ONNX file")->required();
  app.add_option("-o,--output", a->output, "File to write")->required();
  app.add_option("--mode", a->mode)->check(CLI::IsMember({"dynamic", "qdq", "weights"}))->capture_default_str();
  auto list = [&](const char* name, std::vector<std::string>& values, const char* text) {
    app.add_option(name, values, text)->allow_extra_args(false)->take_all();
  };
  list("--data", a->data, "Samples: a .npz (its names are inputs'), .npy, .pb, picture or .wav, one each, or a folder; may be repeated");
  app.add_option("--random", a->random_samples, "Number of random samples; inputs that no file gives are random too")->check(at_least(0));
  add_sample_options(app, a->inputs);
  list("--include", a->include, "Take only nodes whose names match this pattern (* and ?); may be repeated");
  list("--exclude", a->exclude, "Leave out nodes whose names match; may be repeated");
  list("--op", a->op_types, "Only this operator: MatMul, Gemm, Conv; may be repeated");
  app.add_option("--skip-first", o.skip_first, "Keep this many of the first nodes in float")->check(at_least(0))->capture_default_str();
  app.add_option("--skip-last", o.skip_last, "Keep this many of the last nodes in float")->check(at_least(0))->capture_default_str();
  app.add_option("--min-weights", o.min_weight_elements, "Products with fewer weights stay float")
      ->check(at_least(0))
      ->capture_default_str();
  app.add_flag("--per-tensor", a->per_tensor, "dynamic, qdq: one scale for each weight instead of one for each channel");
  app.add_flag("--reduce-range", o.reduce_range,
               "dynamic, qdq: 7-bit weights, for runtimes whose 8-bit products saturate on AVX2 machines");
  app.add_option("--activations", a->activations, "qdq: dtype of activations")
      ->check(CLI::IsMember({"uint8", "int8"}))
      ->capture_default_str();
  app.add_option("--method", a->method, "qdq: how ranges follow from the samples")
      ->check(CLI::IsMember({"minmax", "percentile", "entropy"}))
      ->capture_default_str();
  app.add_option("--percentile", o.percentile, "qdq: percentage of the values inside the range")->capture_default_str();
  app.add_option("--bits", o.weight_bits, "weights: 4 or 8")->capture_default_str();
  app.add_option("--block", o.block_size, "weights: number of weights that share a scale: 16, 32, 64, 128, 256")->capture_default_str();
  app.add_flag("--asymmetric", a->asymmetric, "weights: a zero point for each block");
  app.add_option("--format", a->format, "weights: com.microsoft's MatMulNBits, or ONNX's DequantizeLinear (opset 21)")
      ->check(CLI::IsMember({"matmul_nbits", "qdq"}))
      ->capture_default_str();
  app.add_flag("--preprocess", o.preprocess, "Simplify the graph first; always so in mode qdq");
  app.add_option("--compared", o.compared_samples, "Number of samples to compare both models on; 0: none")
      ->check(at_least(0))
      ->capture_default_str();
  app.add_flag("--verify", a->verify, "Compare both models, on random inputs if there are no samples, and measure them");
  app.add_flag("--json", a->json, "Print JSON");
  app.add_flag("-q,--quiet", a->quiet, "No table");
  return [a, &app] {
    check_options(app, *a);
    return run_quantize(*a);
  };
}

}  // namespace treadle::cli
