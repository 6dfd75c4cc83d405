#include "cli/trainer_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "train/options.h"

namespace treadle::cli {

void add_trainer_options(CLI::App& app, train::TrainerOptions& options) {
  for (const train::TrainerOptionInfo& row : train::trainer_option_table()) {
    std::string argument = "--" + std::string(row.name);
    std::replace(argument.begin() + 2, argument.end(), '_', '-');
    if (row.argument) argument = *row.argument;
    if (argument.empty()) continue;
    const std::string text(row.text);
    if (row.is_flag) {
      app.add_flag_callback(
             argument, [&options, &row] { row.set(options, "1"); }, text)
          ->group(kTrainerGroup);
      continue;
    }
    app.add_option_function<std::vector<std::string>>(
           argument,
           [&options, &row](const std::vector<std::string>& values) {
             for (const std::string& value : values) row.set(options, value);
           },
           text)
        ->allow_extra_args(false)
        ->take_all()
        ->group(kTrainerGroup);
  }
}

}  // namespace treadle::cli
