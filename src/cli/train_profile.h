// Profiles some of the steps of `treadle train`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "treadle/profile.h"
#include "treadle/train.h"

namespace treadle::cli {

struct TrainArguments;

/// Records a profile of training steps. Skips the first steps, which allocate memory, and work between steps, such as validation.
class StepProfile {
 public:
  /// @param trainer  must outlive this object. @throws Error(invalid_argument) for a file name whose format is not supported
  StepProfile(const TrainArguments& arguments, train::Trainer& trainer);

  void begin_step();
  /// Must be called after each step. @return a message if the profile has been written, otherwise an empty text.
  std::string end_step();
  /// Must be called at the end of training. @return the same as end_step()
  std::string finish();

 private:
  std::string write();

  const TrainArguments& arguments_;
  train::Trainer& trainer_;
  std::optional<Profiler> profiler_;
  int64_t num_steps_ = 0;  // number of completed steps
  bool written_ = false;
};

}  // namespace treadle::cli
