// The options of commands that make a trainer.
#pragma once

#include "treadle/train.h"

namespace CLI {
class App;
}

namespace treadle::cli {

inline constexpr const char* kTrainerGroup = "Loss and optimizer";

/// Under the names that docs/training.md has for them, with dashes.
void add_trainer_options(CLI::App& app, train::TrainerOptions& options);

}  // namespace treadle::cli
