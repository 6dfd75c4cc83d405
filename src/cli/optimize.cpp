// treadle optimize, treadle compare and treadle options
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>

#include "cli/commands.h"
#include "cli/inputs.h"
#include "cli/peer.h"
#include "core/dispatch.h"
#include "graph/op_def.h"
#include "onnx/import.h"
#include "passes/pipeline.h"
#include "session/intermediate.h"
#include "session/model.h"
#include "session/options.h"
#include "treadle/error.h"

namespace treadle::cli {
namespace {

struct OptimizeOptions {
  std::string model, output;
  SessionOptions session;
  int opset = 0;
  bool verbose = false;
};

int optimize(const OptimizeOptions& options) {
  Model model = Model::load(options.model);
  if (options.verbose) {
    SessionOptions session = options.session;
    session.on_pass = [](std::string_view pass, const std::string& what, int64_t elapsed_us) {
      fmt::print("{:32} {:8} us  {}\n", pass, elapsed_us, what);
    };
    Session logged(model, session);
  }
  model.save(options.output, /*optimised=*/true, options.opset);
  return 0;
}

struct CompareOptions {
  std::string model, with = "onnxruntime", python = "python3";
  InputOptions inputs;
  double rtol = 1e-3, atol = 1e-5;
  bool all = false;
};

double element(const Tensor& tensor, int64_t i) {
  double value = 0;
  visit_dtype<NumericTypes>(tensor.dtype() == DType::boolean ? DType::uint8 : tensor.dtype(), [&]<typename T>() {
    const T x = reinterpret_cast<const T*>(tensor.raw())[i];
    if constexpr (std::is_integral_v<T>)
      value = static_cast<double>(x);
    else
      value = static_cast<double>(static_cast<float>(x));
  });
  return value;
}

struct Difference {
  double largest = 0;    // |a - b|
  double magnitude = 0;  // largest |b|
  bool comparable = false, within = true;
};

Difference difference_of(const Tensor& a, const Tensor& b, const CompareOptions& options) {
  Difference result;
  if (a.dtype() != b.dtype() || a.shape() != b.shape() || a.dtype() == DType::string || is_sub_byte(a.dtype())) return result;
  result.comparable = true;
  for (int64_t i = 0; i < a.num_elements(); ++i) {
    double x = element(a, i), y = element(b, i);
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    double gap = std::isfinite(x - y) ? std::abs(x - y) : INFINITY;
    result.largest = std::max(result.largest, gap);
    result.within &= gap <= options.atol + options.rtol * std::abs(y);
  }
  for (int64_t i = 0; i < b.num_elements(); ++i)
    if (std::isfinite(element(b, i))) result.magnitude = std::max(result.magnitude, std::abs(element(b, i)));
  return result;
}

// All values of the graph as read are compared in its own order, so that the first that differs is the node to look at.
int compare(const CompareOptions& options) {
  Model model = Model::load(options.model);
  std::map<std::string, Datum> feeds = make_feeds(model.inputs(), options.inputs);
  std::vector<std::pair<std::string, Datum>> ours = run_intermediates(model, feeds);
  std::map<std::string, Tensor> theirs;
  if (options.with == "onnxruntime") {
    std::vector<std::string> names;
    for (const auto& entry : ours) names.push_back(entry.first);
    theirs = run_onnxruntime(options.python, options.model, feeds, names);
  } else {
    Session session(model);
    std::vector<Datum> outputs = session.run(feeds);
    std::vector<ValueInfo> infos = session.outputs();
    for (size_t i = 0; i < outputs.size(); ++i)
      if (outputs[i].is_tensor()) theirs[infos[i].name] = outputs[i].tensor();
  }
  std::string first;
  size_t compared = 0;
  for (const auto& [name, value] : ours) {
    auto found = theirs.find(name);
    if (found == theirs.end() || !value.is_tensor()) continue;
    Difference difference = difference_of(value.tensor(), found->second, options);
    ++compared;
    bool bad = !difference.comparable ? describe(value) != describe(found->second) : !difference.within;
    if (bad && first.empty()) first = name;
    if (bad || options.all)
      fmt::print("{} {:48} {}  largest difference {:.3g} (of {:.3g})\n", bad ? "DIFFERS" : "       ", name, describe(value),
                 difference.largest, difference.magnitude);
  }
  if (first.empty()) {
    fmt::print("{} values compared, none differs by more than {} + {} * |reference|\n", compared, options.atol, options.rtol);
    return 0;
  }
  std::unique_ptr<Graph> graph = model.impl().import();
  const Value& value = graph->value(graph->find_value(first));
  fmt::print("the first node that differs is {}, in its output \"{}\"\n", describe(graph->node(value.producer)), first);
  return 1;
}

struct ListOptions {
  bool markdown = false;
};

int list_options(const ListOptions& list) {
  if (list.markdown) {
    std::fputs(options_markdown().c_str(), stdout);
    return 0;
  }
  const SessionOptions defaults;
  fmt::print("session options (--option NAME=VALUE; in Python attributes of SessionOptions; keys are session config entries):\n");
  for (const OptionInfo& info : option_table()) {
    const std::string value = info.get(defaults);
    fmt::print("  {:26} {} ({}{}{})\n", info.name, info.text, info.type, value.empty() ? "" : "; default " + value,
               info.key.empty() ? "" : fmt::format("; key {}", info.key));
    if (!info.python.empty() && info.python != "-") fmt::print("  {:26} in Python: {}\n", "", info.python);
  }
  fmt::print(
      "environment variables: TREADLE_JOB_CLASS, TREADLE_JOB_NAME, TREADLE_JOB_SHARE, TREADLE_JOB_MEMORY and TREADLE_JOB_HOST_MEMORY put "
      "sessions in a job,\n"
      "  TREADLE_SHARING_DIR says where jobs meet (docs/sharing.md); what a run computes depends on its options only\n");
  fmt::print("passes of the graph optimiser, in order (--skip-pass NAME, SessionOptions::disabled_passes):\n");
  for (const passes::PassInfo& pass : passes::list_passes())
    fmt::print("  {:32} {}{}\n", pass.name, pass.description, pass.conditions.inference_only() ? " (inference only)" : "");
  size_t standard = 0;
  for (const OpDef& op : all_ops()) standard += op.domain.empty();
  fmt::print("operators: {} of ai.onnx (opset {}), {} of other domains\n", standard, newest_opset(""), all_ops().size() - standard);
  return 0;
}

}  // namespace

Command add_optimize(CLI::App& app) {
  auto options = std::make_shared<OptimizeOptions>();
  app.add_option("model", options->model, "ONNX file")->required();
  app.add_option("-o,--output", options->output, "File to write")->required();
  app.add_option("--opset", options->opset, "Opset of ai.onnx; 0: the lowest that suffices")->capture_default_str();
  app.add_flag("-v,--verbose", options->verbose, "Print what every pass did");
  return [options] { return optimize(*options); };
}

Command add_compare(CLI::App& app) {
  auto options = std::make_shared<CompareOptions>();
  app.add_option("model", options->model, "ONNX file")->required();
  add_input_options(app, options->inputs);
  app.add_option("--with", options->with, "onnxruntime, or the optimised stage of the same model")
      ->check(CLI::IsMember({"onnxruntime", "optimised"}))
      ->capture_default_str();
  app.add_option("--python", options->python, "Interpreter that has onnxruntime")->capture_default_str();
  app.add_option("--rtol", options->rtol)->capture_default_str();
  app.add_option("--atol", options->atol)->capture_default_str();
  app.add_flag("--all", options->all, "Print every value, not only those that differ");
  return [options] { return compare(*options); };
}

Command add_options(CLI::App& app) {
  auto options = std::make_shared<ListOptions>();
  app.add_flag("--markdown", options->markdown, "The session options as the table of docs/options.md");
  return [options] { return list_options(*options); };
}

}  // namespace treadle::cli
