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
  /// @param trainer  must outlive this. @throws Error(invalid_argument) for a file name whose format is not supported
  StepProfile(const TrainArguments& arguments, train::Trainer& trainer);

  void begin_step();
  /// @return the message that the profile has been written, or an empty text.
  std::string end_step();
  /// Called at the end of training. @return as end_step()
  std::string finish();

 private:
  std::string write();

  const TrainArguments& arguments_;
  train::Trainer& trainer_;
  std::optional<Profiler> profiler_;
  int64_t num_steps_ = 0;  // steps that have ended
  bool written_ = false;
};

}  // namespace treadle::cli
