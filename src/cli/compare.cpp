// Implements the command `treadle compare`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/commands.h"
#include "cli/given_options.h"
#include "cli/inputs.h"
#include "cli/peer.h"
#include "cli/terminal.h"
#include "core/values/dispatch.h"
#include "onnx/import.h"
#include "passes/pipeline.h"
#include "session/intermediate.h"
#include "session/model.h"
#include "session/options.h"
#include "treadle/error.h"

namespace treadle::cli {
namespace {

struct CompareOptions {
  std::string model, with = "onnxruntime", python = "python3";
  InputOptions inputs;
  SessionOptions session;  // options of the session that runs the optimized model
  double rtol = 1e-3, atol = 1e-5;
  bool all = false, json = false;
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
  double largest = 0;    // largest |a - b| of two compared tensors
  double magnitude = 0;  // largest |b|
  bool comparable = false, within = true;
};

Difference difference_of(const Tensor& a, const Tensor& b, const CompareOptions& options) {
  Difference result;
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return result;
  if (a.dtype() == DType::string || is_sub_byte(a.dtype())) {
    result.comparable = true;
    result.within = equal(a, b);
    return result;
  }
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

// Returns the names of those values that the optimized graph still computes. Other values are inside of fused nodes.
std::vector<std::string> surviving_names(const Model& model, const std::vector<std::pair<std::string, Datum>>& written) {
  std::set<std::string> known;
  for (const auto& entry : written) known.insert(entry.first);
  std::unique_ptr<Graph> graph = model.impl().import();
  onnx::upgrade(*graph);
  passes::optimize(*graph);
  std::vector<std::string> names;
  for (NodeId id : graph->order())
    for (ValueId output : graph->node(id).outputs)
      if (output != kNoValue && known.contains(graph->value(output).name)) names.push_back(graph->value(output).name);
  return names;
}

std::map<std::string, Tensor> values_to_compare_with(const Model& model, const CompareOptions& options,
                                                     const std::vector<std::pair<std::string, Datum>>& ours,
                                                     const std::map<std::string, Datum>& feeds) {
  std::vector<std::string> names;
  if (options.with == "onnxruntime") {
    for (const auto& entry : ours) names.push_back(entry.first);
    return run_onnxruntime(options.python, options.model, feeds, names);
  }
  names = surviving_names(model, ours);
  for (const ValueInfo& info : model.outputs())
    if (std::find(names.begin(), names.end(), info.name) == names.end()) names.push_back(info.name);
  const std::vector<Datum> values = Session(model, options.session).run(feeds, names);
  std::map<std::string, Tensor> theirs;
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i].is_tensor()) theirs[names[i]] = values[i].tensor();
  return theirs;
}

struct ComparedValue {
  std::string name, ours, theirs;
  Difference difference;
  bool differs = false;
};

// Compares all values of the original graph in the order of its nodes, so that the first difference shows the faulty node.
std::vector<ComparedValue> compared_values(const std::vector<std::pair<std::string, Datum>>& ours,
                                           const std::map<std::string, Tensor>& theirs, const CompareOptions& options) {
  std::vector<ComparedValue> values;
  for (const auto& [name, value] : ours) {
    auto found = theirs.find(name);
    if (found == theirs.end() || !value.is_tensor()) continue;
    const Difference difference = difference_of(value.tensor(), found->second, options);
    values.push_back({name, describe(value), describe(found->second), difference, !difference.comparable || !difference.within});
  }
  return values;
}

void print_json(const std::vector<ComparedValue>& values, const std::string& first, const AssumedExtents& assumed) {
  auto list = nlohmann::json::array();
  for (const ComparedValue& value : values) {
    list.push_back({{"name", value.name}, {"treadle", value.ours}, {"other", value.theirs}, {"differs", value.differs}});
    if (value.difference.comparable) list.back()["largest_difference"] = value.difference.largest;
  }
  show_json(nlohmann::json{
      {"compared", values.size()}, {"first_node_that_differs", first}, {"assumed_extents", joined(assumed)}, {"values", list}});
}

// Rejects session options if ONNX Runtime is compared with the unoptimized graph, because they would have no effect.
void check_options(const CompareOptions& options) {
  if (options.with == "optimized") return;
  const SessionOptions defaults;
  for (const Option<SessionOptions>& row : session_option_table().rows())
    if (row.is_set(options.session, defaults))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the option {} holds for the optimised stage: add --with optimized, or leave it out", row.name));
}

int compare(const CompareOptions& options) {
  check_options(options);
  const Model model = Model::load(options.model);
  check_symbols(model, complete(options.session));
  const MadeFeeds feeds = make_feeds(model.inputs(), options.inputs);
  std::vector<std::pair<std::string, Datum>> ours;
  with_assumed_extents(feeds.assumed, options.inputs, [&] { ours = run_intermediates(model, feeds.values); });
  const std::vector<ComparedValue> values = compared_values(ours, values_to_compare_with(model, options, ours, feeds.values), options);
  if (values.empty())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("nothing was compared: no value of \"{}\" is a tensor that {} has as well", options.model,
                            options.with == "onnxruntime" ? "onnxruntime" : "the optimised graph"));
  const auto bad = std::find_if(values.begin(), values.end(), [](const ComparedValue& value) { return value.differs; });
  std::string first;
  if (bad != values.end()) {
    std::unique_ptr<Graph> graph = model.impl().import();
    first = describe(graph->node(graph->value(graph->find_value(bad->name)).producer));
  }
  if (options.json) {
    print_json(values, first, feeds.assumed);
    return first.empty() ? 0 : 1;
  }
  TextTable table({"", "value", "difference", "largest", options.with == "onnxruntime" ? "treadle" : "as written", options.with});
  for (const ComparedValue& value : values)
    if (value.differs || options.all) {
      const Difference& d = value.difference;
      table.add({value.differs ? "DIFFERS" : "", value.name, d.comparable ? fmt::format("{:.3g}", d.largest) : "-",
                 d.comparable ? fmt::format("{:.3g}", d.magnitude) : "-", value.ours, value.theirs});
    }
  if (!table.empty()) show("{}", table.to_text());
  print_assumed(feeds.assumed, options.inputs);
  if (first.empty())
    show("{} of {} values compared, none differs by more than {} + {} * |reference|\n", values.size(), ours.size(), options.atol,
         options.rtol);
  else
    show("{}: {}, in its output \"{}\"\n", styled("the first node that differs", Style::bad), first, bad->name);
  return first.empty() ? 0 : 1;
}

}  // namespace

Command add_compare(CLI::App& app) {
  app.description("Compare two stages, or Treadle with ONNX Runtime, value by value");
  auto options = std::make_shared<CompareOptions>();
  app.add_option("model", options->model, "ONNX file")->required();
  add_input_options(app, options->inputs);
  add_session_options(app, options->session);
  app.add_option("--with", options->with, "onnxruntime, or the optimised stage of the same model")
      ->check(CLI::IsMember({"onnxruntime", "optimized"}))
      ->capture_default_str();
  app.add_option("--python", options->python, "Interpreter that has onnxruntime")->capture_default_str();
  app.add_option("--rtol", options->rtol, "Relative tolerance")->capture_default_str();
  app.add_option("--atol", options->atol, "Absolute tolerance")->capture_default_str();
  app.add_flag("--json", options->json, "Print JSON");
  app.add_flag("--all", options->all, "Print every value, not only those that differ");
  return [options, &app] {
    GivenOptions(app).need(options->with == "onnxruntime", "--with onnxruntime", {"--python"});
    return compare(*options);
  };
}

}  // namespace treadle::cli
