// The trainer behind the C ABI.
#pragma once

#include <string>
#include <vector>

#include "c_api/values.h"
#include "treadle/train.h"
#include "treadle/treadle.h"

namespace treadle::c_api {

/// Null: what is usual.
inline const RunOptions* options_of(const treadle_run_options* options) { return options ? &options->options : nullptr; }

}  // namespace treadle::c_api

struct treadle_trainer {
  treadle::train::Trainer trainer;
  treadle::train::Metadata metadata;  // of the checkpoint that was loaded last
  std::vector<std::string> parameter_names;
};
