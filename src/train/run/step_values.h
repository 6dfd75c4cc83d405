// The values that a trainer's steps write. Tracks where the newest version is and who may access it, and stores the averages that can
// replace the parameters.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "train/graph/data_parallel.h"
#include "train/run/runner.h"
#include "train/run/staying_values.h"
#include "train/run/trained_values.h"
#include "treadle/memory.h"
#include "treadle/profile.h"

namespace treadle::train {

class StepValues : public TrainedValues {
 public:
  NamedTensors optimizer_state;  ///< by the names of state_name(); with the sums of gradients, if steps accumulate

  /// Creates the optimizer's state of the parameters: zeros, except for averages, which begin as copies.
  /// @param ranks  null, or determines which parameters this rank updates
  void make_optimizer_state(const TrainerOptions& options, const std::vector<std::string>& trained, const DataParallel* ranks);
  /// Returns true for the name of a sum of accumulated gradients.
  bool is_sum(const std::string& state) const;
  /// Adds the name, class and size of each value to a memory profile.
  void add_held(std::vector<MemoryHolding>& held) const;

  // Functions for steps. Each step overwrites the values in place.

  /// Returns the tensors by the names of a step's inputs and outputs. They must not be replaced afterwards. @param joined  parameters that
  /// are stored side by side, because the step updates them together
  NamedTensors by_name(const TrainerOptions& options, const std::vector<std::string>& joined);

  using Run = std::function<std::vector<Datum>(std::vector<Datum> arranged, std::span<const Datum> bound,
                                               std::span<const exec::OutputMemory> memory)>;
  /// Runs a step that writes all values that it computes.
  /// @param arrange  returns the step's inputs
  /// @param run      runs the step, with the given memory for its outputs
  std::vector<Datum> write(const Runner& step, const std::function<std::vector<Datum>()>& arrange, const Run& run);
  /// Ends an accumulation: writes the running statistics among a step's outputs, and clears the sums of gradients.
  /// @param names  names of the outputs
  void end_accumulation(const std::vector<std::string>& names, std::span<const Datum> outputs);
  /// From now on, values that the step writes may stay on its devices.
  void let_stay(const Runner& step);
  /// Releases the device memory. The values there are lost.
  void leave_devices() { staying_.reset(); }
  /// A step sets this to true when it starts to overwrite values, and to false when it has succeeded.
  std::atomic<bool>& half_updated() { return half_updated_; }
  /// Throws if the values are inconsistent. @throws Error(invalid_argument) if the last step has failed after it had updated some of the
  /// parameters
  void check_whole() const;

  // Functions for readers and writers outside of steps.

  /// Copies the newest values to the host. Must be called before they are read. @throws Error as check_whole()
  void bring_to_host() const;
  /// Gives the optimizer's state to a caller, who may read and write it at any time from now on.
  const NamedTensors& show_state();
  /// Like show_state(), but returns the momentum by the parameters' names.
  const NamedTensors& show_momentum() { return show_state(), momentum_; }
  /// Lets a caller write to the values. Runs that begin later read the new values.
  void change(const std::function<void()>& write);

  /// Returns the averages of parameters and running statistics, by name: the tensors that contain them now.
  NamedTensors averages() const;
  /// Swaps the elements of parameters and averages. They are swapped in place, because callers hold views of the parameters and programs
  /// are bound to their memory.
  void use_averages(bool use);
  bool averages_used() const { return averages_used_; }
  /// Throws if averages are in use. @throws Error(invalid_argument) that says that `what` is not possible then
  void check_averages_unused(std::string_view what) const;

 private:
  template <typename Visit>
  void for_each_average(Visit&& visit) const;

  NamedTensors momentum_;
  std::unique_ptr<StayingValues> staying_;  // null: steps write to the host's memory
  bool is_state_shown_ = false;
  bool averages_used_ = false;
  std::atomic<bool> half_updated_ = false;
};

}  // namespace treadle::train
