// The commands of the program, one file each. A command adds its description and options to the parser, and returns the function to run.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace treadle::cli {

/// Runs the command that the arguments name. The first argument is the program's name, as in main(). @return the exit status
int run_command_line(int argc, char** argv);

/// Executes a command, and returns the exit status.
using Command = std::function<int()>;

// Lists all commands in the order of the help: COMMAND(run) is the command `run`. Its file defines add_run(), which describes it.
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
