// Implements the command `treadle run`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>

#include "cli/commands.h"
#include "cli/given_options.h"
#include "cli/inputs.h"
#include "cli/model_totals.h"
#include "cli/numbers.h"
#include "cli/terminal.h"
#include "core/files/file.h"
#include "core/files/npy.h"
#include "core/values/dispatch.h"
#include "treadle/error.h"
#include "treadle/profile.h"

namespace treadle::cli {
namespace {

struct RunArguments {
  std::string model, output_folder, labels, profile;
  std::vector<std::string> fetches;
  InputOptions inputs;
  SessionOptions session;
  int top = 0;
  bool json = false;
};

struct Score {
  float score;
  size_t index;
  std::string label;
};

// Returns the largest elements of a float32 output in descending order. `labels` has a name for each element.
std::vector<Score> largest(const Datum& output, int count, const std::vector<std::string>& labels) {
  if (count <= 0 || !output.is_tensor() || output.tensor().dtype() != DType::float32 || output.tensor().shape().rank() == 0) return {};
  const Tensor& tensor = output.tensor();
  std::vector<int64_t> order(static_cast<size_t>(tensor.num_elements()));
  std::iota(order.begin(), order.end(), 0);
  auto shown = std::min<size_t>(static_cast<size_t>(count), order.size());
  const float* scores = tensor.data<float>();
  std::partial_sort(order.begin(), order.begin() + static_cast<int64_t>(shown), order.end(),
                    [&](int64_t a, int64_t b) { return scores[a] > scores[b]; });
  std::vector<Score> found;
  for (size_t i = 0; i < shown; ++i) {
    const auto at = static_cast<size_t>(order[i]);
    found.push_back({scores[at], at, at < labels.size() ? labels[at] : ""});
  }
  return found;
}

// Returns the lines of the file, or the names of classes that `treadle train` has written into the model.
std::vector<std::string> read_labels(const std::string& path, const Model& model) {
  if (path.empty()) return class_names(model);
  std::vector<std::string> labels;
  std::ifstream in(path);
  if (!in) throw Error(ErrorCode::not_found, fmt::format("--labels {}: the file cannot be read", path));
  for (std::string line; std::getline(in, line);) labels.push_back(line);
  return labels;
}

constexpr int64_t kMostElements = 1000;  // JSON has the elements of outputs with at most this many, otherwise null; -o writes all

// Returns a tensor's elements in row-major order; null if there are too many or JSON lacks their type. NaN and infinities become null.
nlohmann::json elements_of(const Tensor& tensor) {
  if (tensor.num_elements() > kMostElements || is_sub_byte(tensor.dtype())) return nullptr;
  auto list = nlohmann::json::array();
  auto add_all = [&]<typename T>(const T* data) {
    for (int64_t i = 0; i < tensor.num_elements(); ++i) {
      if constexpr (std::is_integral_v<T> || std::is_same_v<T, double> || std::is_same_v<T, std::string>)
        list.push_back(data[i]);
      else
        list.push_back(static_cast<float>(data[i]));
    }
  };
  if (tensor.dtype() == DType::string)
    add_all(tensor.data<std::string>());
  else if (tensor.dtype() == DType::boolean)
    add_all(reinterpret_cast<const bool*>(tensor.raw()));
  else if (is_float(tensor.dtype()) || is_integer(tensor.dtype()))
    visit_dtype<NumericTypes>(tensor.dtype(), [&]<typename T>() { add_all(reinterpret_cast<const T*>(tensor.raw())); });
  else
    return nullptr;
  return list;
}

nlohmann::json to_json(const std::string& name, const Datum& output, const std::vector<Score>& scores) {
  nlohmann::json json{{"name", name}, {"value", summary(output)}};
  if (output.is_tensor()) {
    json["dtype"] = name_of(output.tensor().dtype());
    json["shape"] = std::vector<int64_t>(output.tensor().shape().begin(), output.tensor().shape().end());
    json["elements"] = elements_of(output.tensor());
  }
  for (const Score& score : scores) json["top"].push_back({{"score", score.score}, {"index", score.index}, {"label", score.label}});
  return json;
}

void print_output(const std::string& name, const Datum& output, const std::vector<Score>& scores) {
  show("{}  {}\n", styled(name, Style::bold), summary(output));
  for (const Score& score : scores) show("    {:10.6f}  {:>6}  {}\n", score.score, score.index, score.label);
}

// Returns a file name for the name of a value: replaces characters that file names should not contain.
std::string file_name_of(std::string name) {
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c) && c != '-' && c != '_' && c != '.'; }, '_');
  return name;
}

int run(RunArguments& options) {
  Session session(options.model, options.session);
  if (!options.profile.empty()) session.start_profiling();
  const MadeFeeds feeds = make_feeds(session.inputs(), options.inputs);
  const std::vector<std::string> labels = read_labels(options.labels, session.model());
  std::vector<Datum> results;
  with_assumed_extents(feeds.assumed, options.inputs, [&] { results = session.run(feeds.values, options.fetches); });
  std::vector<std::string> names = options.fetches;
  if (names.empty())
    for (const ValueInfo& info : session.outputs()) names.push_back(info.name);
  auto list = nlohmann::json::array();
  for (size_t i = 0; i < results.size(); ++i) {
    const std::vector<Score> scores = largest(results[i], options.top, labels);
    if (options.json)
      list.push_back(to_json(names[i], results[i], scores));
    else
      print_output(names[i], results[i], scores);
    if (!options.output_folder.empty() && results[i].is_tensor()) {
      std::filesystem::create_directories(options.output_folder);
      write_npy((std::filesystem::path(options.output_folder) / (file_name_of(names[i]) + ".npy")).string(), results[i].tensor());
    }
  }
  if (options.json)
    show_json(nlohmann::json{{"outputs", list}, {"assumed_extents", joined(feeds.assumed)}});
  else
    print_assumed(feeds.assumed, options.inputs);
  if (!options.profile.empty()) {
    const TraceFormat format = options.profile.ends_with(".pftrace") ? TraceFormat::perfetto : TraceFormat::chrome;
    const std::string trace = profile_to_trace(session.profile(), format);
    AtomicFile file(options.profile);
    file.write(std::as_bytes(std::span(trace)));
    file.commit();
    if (!options.json) show("profile written to {}: open it in ui.perfetto.dev\n", options.profile);
  }
  return 0;
}

}  // namespace

Command add_run(CLI::App& app) {
  app.description("Run a model once and print its outputs");
  auto options = std::make_shared<RunArguments>();
  app.add_option("model", options->model, "ONNX file")->required();
  add_input_options(app, options->inputs);
  add_session_options(app, options->session);
  app.add_option("--fetch", options->fetches,
                 "An output, or another value of the graph, to compute; may be repeated; all outputs by default")
      ->allow_extra_args(false)
      ->take_all();
  app.add_option("-o,--output", options->output_folder, "Folder to write the outputs to, one .npy each");
  app.add_flag("--json", options->json, "Print JSON: dtypes, shapes, and the elements of outputs that have up to 1,000");
  app.add_option("--top", options->top, "Print the largest K scores of every float output")->check(at_least(0));
  app.add_option("--labels", options->labels, "File with one label a line, for --top; by default the model's class names, if it has any");
  app.add_option("--profile", options->profile, "Write a trace of the run for ui.perfetto.dev: Perfetto's (.pftrace), or Chrome's JSON");
  app.footer("Example: treadle run squeezenet.onnx cat.png --preset imagenet-caffe --top 5 --labels classes.txt");
  return [options, &app] {
    GivenOptions(app).need(options->top > 0, "--top", {"--labels"});
    return run(*options);
  };
}

}  // namespace treadle::cli
