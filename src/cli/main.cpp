// treadle: runs, trains, inspects, checks, measures, profiles, optimises, compiles and compares ONNX models.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <map>

#include "cli/commands.h"
#include "treadle/session.h"

int main(int argc, char** argv) {
  using namespace treadle::cli;
  CLI::App app{
      "Treadle runs, trains, inspects, checks, measures, profiles, optimises, compiles and compares ONNX models.\n"
      "  treadle run model.onnx image=cat.png --top 5\n"
      "  treadle bench model.onnx --compare onnxruntime\n"
      "  treadle profile model.onnx -o report.html\n"
      "`treadle COMMAND --help` tells more."};
  app.set_version_flag("--version", std::string(treadle::version()));
  app.require_subcommand(1);
  std::map<CLI::App*, Command> commands;
  auto add = [&](const char* name, const char* description, Command (*make)(CLI::App&)) {
    CLI::App* sub = app.add_subcommand(name, description);
    commands[sub] = make(*sub);
  };
  add("run", "Run a model once and print its outputs", add_run);
  add("inspect", "Show a model: graph, operators, parameters, dynamic extents, cost, memory", add_inspect);
  add("check", "List everything in a model that this build cannot run; exit status 1 if there is anything", add_check);
  add("bench", "Measure latency, throughput, load time and memory", add_bench);
  add("profile", "Say where the time and memory of runs go, node by node, and what would help; compare two profiles", add_profile);
  add("optimize", "Write the optimised model as ONNX", add_optimize);
  add("quantize", "Write the model in 8- or 4-bit numbers: dynamic, static with calibration data, or weights only", add_quantize);
  add("train", "Train a model on data: checkpoints, validation, and an inference model in the end", add_train);
  add("precision", "Choose the fastest precision that keeps to a bound on the error", add_precision);
  add("compile", "Write what a session makes of a model, optimised and packed, for sessions to start from", add_compile);
  add("compare", "Compare two stages, or Treadle with ONNX Runtime, value by value", add_compare);
  add("plan", "Place buffers with lifetimes in one arena: a CSV file in, offsets out", add_plan);
  add("jobs", "List the jobs of this machine that share it, or change one", add_jobs);
  add("coordinator", "Steer the jobs of this machine by a policy; a local socket and files steer it", add_coordinator);
  add("operators", "List the operators of this build: versions, dtypes, gradients", add_operators);
  add("options", "List options, passes and environment variables", add_options);
  try {
    app.parse(argc, argv);
    for (auto& [sub, command] : commands)
      if (sub->parsed()) return command();
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "treadle: %s\n", error.what());
    return 1;
  }
  return 0;
}
