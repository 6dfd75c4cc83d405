// Profiles some steps of `treadle train`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "treadle/profile.h"
#include "treadle/train.h"

namespace treadle::cli {

struct TrainArguments;

/// Skips the first steps, which bind extents and allocate memory. Work between steps, such as validation, is not recorded.
class StepProfile {
 public:
  /// @param trainer  must outlive this object. @throws Error(invalid_argument) for a file name whose format is not supported
  StepProfile(const TrainArguments& arguments, train::Trainer& trainer);

  void begin_step();
  /// Must be called after each step. @return a message if the profile has been written, otherwise an empty text.
  std::string end_step();
  /// Must be called at the end of training. @return as end_step()
  std::string finish();

 private:
  std::string write();

  const TrainArguments& arguments_;
  train::Trainer& trainer_;
  std::optional<Profiler> profiler_;
  int64_t num_steps_ = 0;  // number of steps that have ended
  bool written_ = false;
};

}  // namespace treadle::cli
