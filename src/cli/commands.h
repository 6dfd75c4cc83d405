// The commands of the program, one file each. A command registers its options with the parser and returns what runs it.
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

Command add_run(CLI::App& app);
Command add_inspect(CLI::App& app);
Command add_check(CLI::App& app);
Command add_bench(CLI::App& app);
Command add_profile(CLI::App& app);
Command add_explain(CLI::App& app);
Command add_optimize(CLI::App& app);
Command add_quantize(CLI::App& app);
Command add_precision(CLI::App& app);
Command add_compile(CLI::App& app);
Command add_compare(CLI::App& app);
Command add_plan(CLI::App& app);
Command add_options(CLI::App& app);
Command add_operators(CLI::App& app);
Command add_train(CLI::App& app);
Command add_artifacts(CLI::App& app);
Command add_jobs(CLI::App& app);
Command add_coordinator(CLI::App& app);
Command add_completion(CLI::App& app);

}  // namespace treadle::cli
