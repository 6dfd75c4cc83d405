// Adds the options of a trainer to a command.
#pragma once

#include "treadle/train.h"

namespace CLI {
class App;
}

namespace treadle::cli {

inline constexpr const char* kTrainerGroup = "Loss and optimizer";

/// Adds the options of trainers under their names in docs/training.md, with dashes instead of underscores.
void add_trainer_options(CLI::App& app, train::TrainerOptions& options);

}  // namespace treadle::cli
