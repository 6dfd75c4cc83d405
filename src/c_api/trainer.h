// The struct behind the handle treadle_trainer.
#pragma once

#include <string>
#include <vector>

#include "c_api/values.h"
#include "treadle/train.h"
#include "treadle/treadle.h"

struct treadle_trainer : treadle::c_api::Handle<treadle_trainer> {
  treadle::train::Trainer trainer;
  treadle::train::Metadata metadata = {};  // metadata of the last checkpoint loaded
  std::vector<std::string> parameter_names = {};
};
