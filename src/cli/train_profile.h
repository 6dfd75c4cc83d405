// A profile of some steps of `treadle train`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "treadle/profile.h"
#include "treadle/train.h"

namespace treadle::cli {

struct TrainArguments;

/// Leaves the first steps out: they bind extents and find memory. What lies between steps, such as validation, is not recorded.
class StepProfile {
 public:
  /// @param trainer  outlives it. @throws Error(invalid_argument) for a name that no profile is written to
  StepProfile(const TrainArguments& arguments, train::Trainer& trainer);

  void begin_step();
  /// @return what there is to say: that it has been written, or nothing.
  std::string end_step();
  /// Training ends. @return as end_step()
  std::string finish();

 private:
  std::string write();

  const TrainArguments& arguments_;
  train::Trainer& trainer_;
  std::optional<Profiler> profiler_;
  int64_t num_steps_ = 0;  // that have ended
  bool written_ = false;
};

}  // namespace treadle::cli
