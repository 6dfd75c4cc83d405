// The training loop of `treadle train`: steps, validation, checkpoints, and saving the model.
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
  std::vector<std::string> validation;  // a fraction of the training data, or names of files
  std::string validation_labels;
  train::TrainerOptions trainer;
  train::LoaderOptions loader;
  std::string communicator;  // empty: that of the program's launcher, such as MPI; "none": no communicator
  int64_t epochs = 10;
  std::string checkpoint;
  int64_t checkpoint_steps = 0;  // steps between checkpoints; 0: checkpoints only at the end of an epoch
  int keep_last = 3;
  bool resume = false, asynchronous = false;
  int64_t patience = 0;  // stops after this many epochs without a better validation loss; 0: never
  bool unchecked = false, skip_nan = false, quiet = false;
  std::string log, curve, adapters, tensorboard, profile;
  int64_t profile_steps = 20;
  int64_t log_steps = 10;
  std::set<std::string> given = {};             // long names of the options that were given
  std::set<std::string> given_to_trainer = {};  // names of those that set options of the trainer

  /// Returns true if `validation` is a fraction of the training data rather than names of files.
  bool holds_out_a_fraction() const;
};

/// Trains a model. @return the exit status: 0, or 130 after SIGINT or SIGTERM.
int run_training(TrainArguments& arguments);

}  // namespace treadle::cli
