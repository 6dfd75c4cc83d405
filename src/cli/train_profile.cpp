#include "cli/train_profile.h"

#include <fmt/format.h>

#include "cli/profile_output.h"
#include "cli/train_loop.h"

namespace treadle::cli {
namespace {

constexpr int64_t kWarmupSteps = 5;

}  // namespace

StepProfile::StepProfile(const TrainArguments& arguments, train::Trainer& trainer) : arguments_(arguments), trainer_(trainer) {
  check_profile_output("--profile", arguments.profile);
}

void StepProfile::begin_step() {
  if (written_ || num_steps_ < kWarmupSteps) return;
  if (profiler_)
    profiler_->resume();
  else
    profiler_.emplace(trainer_.profiler({.memory = true, .passes = true}));
}

std::string StepProfile::end_step() {
  ++num_steps_;
  if (!profiler_) return {};
  profiler_->pause();
  return num_steps_ < kWarmupSteps + arguments_.profile_steps ? std::string() : write();
}

std::string StepProfile::finish() {
  if (written_) return {};
  if (profiler_) return write();
  return fmt::format("{} was not written: the first {} steps are not recorded, and there were {}", arguments_.profile, kWarmupSteps,
                     num_steps_);
}

std::string StepProfile::write() {
  const Profile profile = profiler_->profile();
  ProfileContext context{.model = arguments_.model, .command = "treadle train " + arguments_.model, .warmup_runs = kWarmupSteps};
  measure_peaks_for(profile, context);
  write_profile_output(arguments_.profile, report_profile(profile, context), &profile);
  profiler_.reset();
  written_ = true;
  return fmt::format("{} has a profile of steps {} to {}", arguments_.profile, kWarmupSteps + 1, num_steps_);
}

}  // namespace treadle::cli
