// Implements the command `treadle precision`.
#include "treadle/precision.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/given_options.h"
#include "cli/inputs.h"
#include "cli/numbers.h"
#include "cli/terminal.h"
#include "treadle/error.h"

namespace treadle::cli {
namespace {

struct PrecisionArguments {
  std::string model;
  std::vector<std::string> data;
  int64_t random_samples = 1;
  InputOptions inputs;
  ChoosePrecisionOptions options;
  bool json = false;
};

int choose(const PrecisionArguments& a) {
  if (!a.options.session.precision.empty())
    throw Error(ErrorCode::invalid_argument, "the option precision is what `treadle precision` chooses: leave it out");
  const Model model = Model::load(a.model);
  const std::vector<std::string> files = sample_files(a.data);
  const int64_t count = files.empty() ? a.random_samples : static_cast<int64_t>(files.size());
  check_sample_options(model.inputs(), a.inputs, files, count);
  int64_t next = 0;
  AssumedExtents assumed;
  PrecisionChoice choice;
  with_assumed_extents(assumed, a.inputs, [&] {
    choice = choose_precision(
        model,
        [&](std::map<std::string, Datum>& feeds) {
          if (next == count) return false;
          feeds = make_sample(model.inputs(), a.inputs, files, next++, assumed);
          return true;
        },
        a.options);
  });
  if (!a.json) {
    print_assumed(assumed, a.inputs);
    show_text(stdout, choice.to_text());
    return 0;
  }
  auto tried = nlohmann::json::array();
  for (const TriedPrecision& one : choice.tried)
    tried.push_back({{"precision", one.precision}, {"error", one.error}, {"milliseconds", one.milliseconds}});
  show_json(nlohmann::json{{"precision", choice.precision},
                           {"error", choice.error},
                           {"speedup", choice.speedup},
                           {"assumed_extents", joined(assumed)},
                           {"tried", tried}});
  return 0;
}

}  // namespace

Command add_precision(CLI::App& app) {
  app.description("Choose the fastest precision that keeps to a bound on the error");
  auto a = std::make_shared<PrecisionArguments>();
  app.footer(
      "Example: treadle precision model.onnx --bound 1e-3 --data samples/\n"
      "The last line is a value for the option `precision` (treadle run --option precision=..., SessionOptions.precision).");
  app.add_option("model", a->model, "ONNX file")->required();
  app.add_option("--bound", a->options.bound, "Largest allowed difference from float32, divided by the largest value of an output")
      ->check(above(0))
      ->capture_default_str();
  app.add_option("--data", a->data, "Samples: a .npz, .npy, .pb, picture or .wav, one each, or a folder; may be repeated")
      ->allow_extra_args(false)
      ->take_all();
  app.add_option("--random", a->random_samples, "Number of random samples if there are no others")
      ->check(at_least(1))
      ->capture_default_str();
  app.add_flag("--json", a->json, "Print JSON");
  add_sample_options(app, a->inputs);
  add_session_options(app, a->options.session);
  app.add_option("--groups", a->options.max_groups, "Number of parts of the model to try separately")
      ->check(at_least(0))
      ->capture_default_str();
  return [a, &app] {
    GivenOptions(app).need(a->data.empty(), "no --data, whose samples are taken", {"--random"});
    return choose(*a);
  };
}

}  // namespace treadle::cli
