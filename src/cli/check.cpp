// Implements the command `treadle check`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/given_options.h"
#include "cli/inputs.h"
#include "cli/terminal.h"
#include "session/model.h"
#include "session/options.h"
#include "treadle/error.h"
#include "treadle/out_of_memory.h"
#include "treadle/session.h"

namespace treadle::cli {
namespace {

struct CheckOptions {
  std::string model;
  bool plans = false, json = false;
  InputOptions inputs;
  SessionOptions session;
};

struct PlanChecks {
  nlohmann::json plans = nlohmann::json::object();
  AssumedExtents assumed;
};

// Checks the memory plans of one kind of execution (such as parallel), and runs the model with it.
// @return false if a plan is wrong, or if the run fails. Running out of a memory limit is not a failure.
bool check_schedule(const CheckOptions& options, const Model& model, const char* name, SessionOptions session_options, MemoryReport* memory,
                    PlanChecks& found) {
  auto say = [&](bool right, const std::string& text) {
    found.plans[name] = {{"right", right}, {"text", text}};
    if (!options.json) show("{}: {}\n", name, text);
    return right;
  };
  session_options.verify_plans = true;
  try {
    Session session(model, session_options);
    const MadeFeeds feeds = make_feeds(session.inputs(), options.inputs);
    found.assumed = feeds.assumed;
    with_assumed_extents(feeds.assumed, options.inputs, [&] { session.run(feeds.values); });
    if (memory) *memory = session.memory();
    return say(true, "every node reads what was written for it");
  } catch (const OutOfMemory& error) {
    if (session_options.memory_limit_bytes == 0) return say(false, error.what());
    return say(true, fmt::format("no run keeps to {} bytes", session_options.memory_limit_bytes));
  } catch (const Error& error) {
    return say(false, error.what());
  }
}

bool check_plans(const CheckOptions& options, const Model& model, PlanChecks& found) {
  MemoryReport memory;
  bool right = check_schedule(options, model, "in order", options.session, &memory, found);
  SessionOptions parallel = options.session;
  parallel.execution_mode = ExecutionMode::parallel;
  right &= check_schedule(options, model, "by readiness", parallel, nullptr, found);
  if (!model.impl().compiled) {  // compiled models hold kernels of the host
    SessionOptions streams = options.session;
    streams.device = "sim";
    streams.compute_streams = 2;
    right &= check_schedule(options, model, "on streams", streams, nullptr, found);
  }
  if (memory.arena_bytes > 0) {
    SessionOptions limited = options.session;
    // The limit leaves no memory for outputs, so that the session must use plans that save memory.
    limited.memory_limit_bytes = memory.weight_bytes + memory.packed_bytes + memory.arena_bytes;
    right &= check_schedule(options, model, "under a budget", limited, nullptr, found);
  }
  return right;
}

int check(const CheckOptions& options, const GivenOptions& given) {
  const Model model = Model::load(options.model);
  if (!model.impl().compiled) check_symbols(model, complete(options.session));
  check_extents(model.inputs(), options.inputs);
  constexpr std::string_view kPlans = "--plans, which runs the model";
  given.need(options.plans, kPlans, {"inputs"});
  given.need(options.plans, kPlans, sample_options());
  given.need(options.plans, kPlans, session_options());
  const std::vector<std::string> problems = model.unsupported();
  if (!options.json) {
    for (const std::string& text : problems) show("{}\n", text);
    if (problems.empty())
      show("{}: everything in it is supported\n", options.model);
    else
      show("{}: {} thing{} to see to before this build can run it\n", options.model, problems.size(), problems.size() == 1 ? "" : "s");
  }
  PlanChecks found;
  const bool right = problems.empty() && (!options.plans || check_plans(options, model, found));
  if (options.json)
    show_json(nlohmann::json{
        {"model", options.model}, {"unsupported", problems}, {"plans", found.plans}, {"assumed_extents", joined(found.assumed)}});
  else
    print_assumed(found.assumed, options.inputs);
  return right ? 0 : 1;
}

}  // namespace

Command add_check(CLI::App& app) {
  app.description("List everything in a model that this build cannot run; exit status 1 if there is anything");
  auto options = std::make_shared<CheckOptions>();
  app.add_option("model", options->model, "ONNX file")->required();
  app.add_flag(
      "--plans", options->plans,
      "Run it in order, by readiness, on the streams of a simulated device and under a memory limit, and prove each time that every "
      "node reads what was written for it");
  app.add_flag("--json", options->json, "Print JSON");
  add_input_options(app, options->inputs);
  add_session_options(app, options->session);
  return [options, &app] { return check(*options, GivenOptions(app)); };
}

}  // namespace treadle::cli
