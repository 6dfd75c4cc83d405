// Implements the commands `treadle optimize` and `treadle options`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/inputs.h"
#include "cli/numbers.h"
#include "cli/terminal.h"
#include "graph/op_def.h"
#include "passes/pipeline.h"
#include "session/environment.h"
#include "session/model.h"
#include "session/options.h"
#include "train/joint/joint_options.h"
#include "train/options/options.h"
#include "treadle/error.h"

namespace treadle::cli {
namespace {

struct OptimizeOptions {
  std::string model, output;
  SessionOptions session;
  int opset = 0;
  bool verbose = false, json = false;
};

int optimize(const OptimizeOptions& options) {
  Model model = Model::load(options.model);
  TextTable table({"pass", "us", "what it did"});
  auto passes = nlohmann::json::array();
  if (options.verbose || options.json) {
    SessionOptions session = options.session;
    session.on_pass = [&](std::string_view pass, const std::string& what, int64_t elapsed_us) {
      table.add({std::string(pass), std::to_string(elapsed_us), what});
      passes.push_back({{"pass", pass}, {"elapsed_us", elapsed_us}, {"changes", what}});
    };
    Session logged(model, session);
  }
  model.save(options.output, GraphState::optimized, options.opset);
  const auto bytes = std::filesystem::file_size(options.output);
  if (options.json)
    show_json(nlohmann::json{{"output", options.output}, {"bytes", bytes}, {"passes", passes}});
  else
    show("{}{}: {:.2f} MB\n", options.verbose ? table.to_text() : "", options.output, static_cast<double>(bytes) / 1e6);
  return 0;
}

struct ListOptions {
  bool markdown = false, json = false;
};

template <typename O>
nlohmann::json options_json(const OptionTable<O>& table) {
  const O defaults;
  auto options = nlohmann::json::array();
  for (const Option<O>& row : table.rows())
    options.push_back({{"name", row.name},
                       {"python", row.python.empty() ? row.name : row.python},
                       {"key", row.key},
                       {"alias", row.alias},
                       {"type", row.type_text()},
                       {"default", row.get(defaults)},
                       {"text", row.text}});
  return options;
}

void print_options_json() {
  auto passes = nlohmann::json::array();
  for (const passes::PassInfo& pass : passes::list_passes())
    passes.push_back({{"name", pass.name}, {"text", pass.description}, {"inference_only", pass.conditions.inference_only()}});
  auto variables = nlohmann::json::array();
  for (const EnvironmentVariable& variable : environment_variables())
    variables.push_back({{"name", variable.name}, {"type", variable.type}, {"text", variable.text}});
  const nlohmann::json all{{"options", options_json(session_option_table())},
                           {"run_options", options_json(run_option_table())},
                           {"trainer_options", options_json(train::trainer_option_table())},
                           {"joint_options", options_json(train::joint_option_table())},
                           {"environment", variables},
                           {"passes", passes}};
  show_json(all);
}

template <typename O>
void print_options(const OptionTable<O>& table) {
  const O defaults;
  for (const Option<O>& row : table.rows()) {
    const std::string value = row.get(defaults), type = row.type_text();
    show("  {:26} {} ({}{}{})\n", row.name, row.text, type, value.empty() ? "" : "; default " + value,
         row.alias.empty() ? "" : fmt::format("; key {}", row.alias));
    if (!row.python.empty() && row.python != "-") show("  {:26} in Python: {}\n", "", row.python);
  }
}

int list_options(const ListOptions& list) {
  if (list.markdown) {
    show("{}\n{}\n{}\n{}\n{}", options_markdown(), run_options_markdown(), train::trainer_options_markdown(),
         train::joint_options_markdown(), environment_markdown());
    return 0;
  }
  if (list.json) {
    print_options_json();
    return 0;
  }
  show(
      "session options (--option NAME=VALUE; in Python attributes of SessionOptions; as session config entries: treadle.NAME, and keys of "
      "onnxruntime):\n");
  print_options(session_option_table());
  show("run options (in Python attributes of RunOptions; as run config entries: treadle.NAME):\n");
  print_options(run_option_table());
  show("trainer options (`treadle train`: -- and the name with dashes, --loss-of for output; in Python arguments of Trainer):\n");
  print_options(train::trainer_option_table());
  show("options of joint modules (in C entries of treadle_joint_module_create):\n");
  print_options(train::joint_option_table());
  show("environment variables; nothing else in the environment changes what a run does:\n");
  for (const EnvironmentVariable& variable : environment_variables())
    show("  {:26} {} ({})\n", variable.name, variable.text, variable.type);
  show("passes of the graph optimiser, in order (--skip-pass NAME, SessionOptions::disabled_passes):\n");
  for (const passes::PassInfo& pass : passes::list_passes())
    show("  {:32} {}{}\n", pass.name, pass.description, pass.conditions.inference_only() ? " (inference only)" : "");
  size_t standard = 0;
  for (const OpDef& op : all_ops()) standard += op.domain.empty();
  show("operators: {} of ai.onnx (opset {}), {} of other domains\n", standard, newest_opset(""), all_ops().size() - standard);
  return 0;
}

}  // namespace

Command add_optimize(CLI::App& app) {
  app.description("Write the optimised model as ONNX");
  auto options = std::make_shared<OptimizeOptions>();
  app.add_option("model", options->model, "ONNX file")->required();
  app.add_option("-o,--output", options->output, "File to write")->required();
  app.add_option("--opset", options->opset, "Opset of ai.onnx; 0: the lowest that suffices")->check(at_least(0))->capture_default_str();
  app.add_flag("-v,--verbose", options->verbose, "Print what every pass did");
  app.add_flag("--json", options->json, "Print JSON");
  return [options] { return optimize(*options); };
}

Command add_options(CLI::App& app) {
  app.description("List options, passes and environment variables");
  auto options = std::make_shared<ListOptions>();
  app.add_flag("--json", options->json, "Print JSON");
  app.add_flag("--markdown", options->markdown, "The tables of docs/options.md");
  return [options] { return list_options(*options); };
}

}  // namespace treadle::cli
