// The commands of the program. Each has its own file with a function that adds the command to the parser and returns a Command.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace treadle::cli {

/// Runs the command that the arguments name. Takes the arguments of main(), of which the first is the program. @return the exit status
int run_command_line(int argc, char** argv);

/// A function that executes a parsed command, and returns the exit status.
using Command = std::function<int()>;

// Lists all commands in the order of the help text. For example, COMMAND(run) is `treadle run`, whose file defines add_run().
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
