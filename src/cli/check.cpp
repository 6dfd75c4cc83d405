// treadle check
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/inputs.h"
#include "treadle/error.h"
#include "treadle/session.h"

namespace treadle::cli {
namespace {

struct CheckOptions {
  std::string model;
  bool plans = false;
  InputOptions inputs;
  SessionOptions session;
};

// @return false if a plan is wrong, or a run fails for another reason.
bool check_schedule(const CheckOptions& options, const Model& model, const char* name, SessionOptions session_options,
                    MemoryReport* memory) {
  session_options.verify_plans = true;
  try {
    Session session(model, session_options);
    session.run(make_feeds(session.inputs(), options.inputs));
    if (memory) *memory = session.memory();
    fmt::print("{}: every node reads what was written for it\n", name);
    return true;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::resource_exhausted && session_options.memory_limit_bytes > 0) {
      fmt::print("{}: no run keeps to {} bytes\n", name, session_options.memory_limit_bytes);
      return true;
    }
    fmt::print("{}: {}\n", name, error.what());
    return false;
  }
}

int check_plans(const CheckOptions& options) {
  const Model model = Model::load(options.model);
  MemoryReport memory;
  bool right = check_schedule(options, model, "in order", options.session, &memory);
  SessionOptions parallel = options.session;
  parallel.execution_mode = ExecutionMode::parallel;
  right &= check_schedule(options, model, "by readiness", parallel, nullptr);
  SessionOptions streams = options.session;
  streams.device = "sim";
  streams.compute_streams = 2;
  right &= check_schedule(options, model, "on streams", streams, nullptr);
  if (memory.arena_bytes > 0) {
    SessionOptions limited = options.session;
    limited.memory_limit_bytes = memory.weight_bytes + memory.packed_bytes + memory.arena_bytes;  // and outputs are to fit as well
    right &= check_schedule(options, model, "under a budget", limited, nullptr);
  }
  return right ? 0 : 1;
}

int check(const CheckOptions& options) {
  const std::vector<std::string> problems = Model::load(options.model).unsupported();
  for (const std::string& text : problems) fmt::print("{}\n", text);
  if (problems.empty())
    fmt::print("{}: everything in it is supported\n", options.model);
  else
    fmt::print("{}: {} thing{} to see to before this build can run it\n", options.model, problems.size(), problems.size() == 1 ? "" : "s");
  if (!problems.empty()) return 1;
  return options.plans ? check_plans(options) : 0;
}

}  // namespace

Command add_check(CLI::App& app) {
  auto options = std::make_shared<CheckOptions>();
  app.add_option("model", options->model, "ONNX file")->required();
  app.add_flag(
      "--plans", options->plans,
      "Run it in order, by readiness, on the streams of a simulated device and under a memory limit, and prove each time that every "
      "node reads what was written for it");
  add_input_options(app, options->inputs);
  add_session_options(app, options->session);
  return [options] { return check(*options); };
}

}  // namespace treadle::cli
