// The commands of the program, one file each. A command gives the parser its description and options, and returns what runs it.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace treadle::cli {

/// Runs the command that the arguments name; the first is the program's name, as main() gets it. @return the exit status
int run_command_line(int argc, char** argv);

/// Returns the exit status.
using Command = std::function<int()>;

// All commands in the order of the help, a line each: COMMAND(run) is the command `run`, which add_run() of its file describes.
#define TREADLE_COMMANDS(COMMAND) \
  COMMAND(run)                    \
  COMMAND(inspect)                \
  COMMAND(check)                  \
  COMMAND(bench)                  \
  COMMAND(explain)                \
  COMMAND(profile)                \
  COMMAND(optimize)               \
  COMMAND(quantize)               \
  COMMAND(train)                  \
  COMMAND(artifacts)              \
  COMMAND(precision)              \
  COMMAND(compile)                \
  COMMAND(compare)                \
  COMMAND(plan)                   \
  COMMAND(jobs)                   \
  COMMAND(coordinator)            \
  COMMAND(devices)                \
  COMMAND(operators)              \
  COMMAND(options)                \
  COMMAND(completion)

#define TREADLE_DECLARE_COMMAND(name) Command add_##name(CLI::App& app);
TREADLE_COMMANDS(TREADLE_DECLARE_COMMAND)
#undef TREADLE_DECLARE_COMMAND

}  // namespace treadle::cli
