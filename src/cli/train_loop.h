// The loop of `treadle train`: steps, validation, checkpoints, and how it ends.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "cli/train_data.h"
#include "cli/train_report.h"
#include "treadle/data.h"
#include "treadle/train.h"

namespace treadle::cli {

struct TrainArguments {
  std::string model, output;
  train::DataFiles data;
  std::vector<std::string> validation;  // a fraction, or files
  std::string validation_labels;
  train::TrainerOptions trainer;
  train::LoaderOptions loader;
  std::string communicator;  // empty: as the launcher says; "none"
  int64_t epochs = 10;
  std::string checkpoint;
  int64_t checkpoint_steps = 0;  // besides the end of each epoch; 0: not
  int keep_last = 3;
  bool resume = false, asynchronous = false;
  int64_t patience = 0;  // epochs without a better validation loss; 0: all epochs run
  bool unchecked = false, skip_nan = false, quiet = false;
  std::string log, curve, adapters, tensorboard, profile;
  int64_t profile_steps = 20;
  int64_t log_steps = 10;
  std::set<std::string> given = {};             // options by their long names
  std::set<std::string> given_to_trainer = {};  // those among them that say what the trainer is

  /// Whether `validation` is a fraction of the data.
  bool holds_out_a_fraction() const;
};

/// @return the exit status: 0, or 130 after SIGINT or SIGTERM.
int run_training(TrainArguments& arguments);

}  // namespace treadle::cli
