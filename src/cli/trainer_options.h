// Adds the options of a trainer to a command.
#pragma once

#include "treadle/train.h"

namespace CLI {
class App;
}

namespace treadle::cli {

inline constexpr const char* kTrainerGroup = "Loss and optimizer";

/// Adds the options under the names of docs/training.md, with dashes.
void add_trainer_options(CLI::App& app, train::TrainerOptions& options);

}  // namespace treadle::cli
