// treadle run
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "cli/commands.h"
#include "cli/inputs.h"
#include "cli/npy.h"
#include "treadle/error.h"

namespace treadle::cli {
namespace {

struct RunArguments {
  std::string model, output_folder, labels, profile;
  std::vector<std::string> outputs;
  InputOptions inputs;
  SessionOptions session;
  int top = 0;
};

void print_top(const Tensor& tensor, int count, const std::vector<std::string>& labels) {
  if (tensor.dtype() != DType::float32 || tensor.shape().rank() == 0) return;
  std::vector<int64_t> order(static_cast<size_t>(tensor.num_elements()));
  std::iota(order.begin(), order.end(), 0);
  auto shown = std::min<size_t>(static_cast<size_t>(count), order.size());
  const float* scores = tensor.data<float>();
  std::partial_sort(order.begin(), order.begin() + static_cast<int64_t>(shown), order.end(),
                    [&](int64_t a, int64_t b) { return scores[a] > scores[b]; });
  for (size_t i = 0; i < shown; ++i) {
    auto at = static_cast<size_t>(order[i]);
    fmt::print("    {:10.6f}  {:>6}  {}\n", scores[at], at, at < labels.size() ? labels[at] : "");
  }
}

// Names of values may hold what names of files may not.
std::string file_name_of(std::string name) {
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c) && c != '-' && c != '_' && c != '.'; }, '_');
  return name;
}

int run(RunArguments& options) {
  options.session.enable_profiling = !options.profile.empty();
  Session session(options.model, options.session);
  std::map<std::string, Datum> feeds = make_feeds(session.inputs(), options.inputs);
  std::vector<Datum> results = session.run(feeds, options.outputs);
  std::vector<std::string> names = options.outputs;
  if (names.empty())
    for (const ValueInfo& info : session.outputs()) names.push_back(info.name);
  std::vector<std::string> labels;
  std::ifstream in(options.labels);
  for (std::string line; std::getline(in, line);) labels.push_back(line);
  for (size_t i = 0; i < results.size(); ++i) {
    fmt::print("{}  {}\n", names[i], summary(results[i]));
    if (options.top > 0 && results[i].is_tensor()) print_top(results[i].tensor(), options.top, labels);
    if (!options.output_folder.empty() && results[i].is_tensor()) {
      std::filesystem::create_directories(options.output_folder);
      write_npy((std::filesystem::path(options.output_folder) / (file_name_of(names[i]) + ".npy")).string(), results[i].tensor());
    }
  }
  if (!options.profile.empty()) {
    std::filesystem::rename(session.end_profiling(), options.profile);
    fmt::print("profile written to {}: open it in ui.perfetto.dev\n", options.profile);
  }
  return 0;
}

}  // namespace

Command add_run(CLI::App& app) {
  auto options = std::make_shared<RunArguments>();
  app.add_option("model", options->model, "ONNX file")->required();
  add_input_options(app, options->inputs);
  add_session_options(app, options->session);
  app.add_option("-o,--outputs", options->outputs, "An output to compute, may be repeated; all by default")
      ->allow_extra_args(false)
      ->take_all();
  app.add_option("--save", options->output_folder, "Folder for the outputs, one .npy each");
  app.add_option("--top", options->top, "Print the largest K scores of every float output");
  app.add_option("--labels", options->labels, "File with one label a line, for --top");
  app.add_option("--profile", options->profile, "Write a trace of the run for ui.perfetto.dev");
  app.footer("Example: treadle run squeezenet.onnx data_0=cat.png --top 5 --labels classes.txt");
  return [options] { return run(*options); };
}

}  // namespace treadle::cli
