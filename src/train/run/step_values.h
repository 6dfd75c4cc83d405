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
  NamedTensors optimizer_state;  ///< named by state_name(); includes accumulated gradients, if steps accumulate

  /// Creates the optimizer's state of the parameters: zeros, except for moving averages, which begin as copies of the parameters.
  /// @param ranks  determines which parameters this rank updates; null: it updates all
  void make_optimizer_state(const TrainerOptions& options, const std::vector<std::string>& trained, const DataParallel* ranks);
  /// Returns true if `state` is the name of a sum of accumulated gradients.
  bool is_sum(const std::string& state) const;
  /// Adds the name, memory class and size of each value to a memory profile.
  void add_held(std::vector<MemoryHolding>& held) const;

  // Functions for training steps. Each step overwrites the values in place.

  /// Returns the tensors that a step reads and writes, by input and output name. They must not be replaced afterwards. @param joined  names
  /// of parameters that are moved into one tensor, because the step updates them together
  NamedTensors by_name(const TrainerOptions& options, const std::vector<std::string>& joined);

  using Run = std::function<std::vector<Datum>(std::vector<Datum> arranged, std::span<const Datum> bound,
                                               std::span<const exec::OutputMemory> memory)>;
  /// Runs a step, which writes all values that it computes.
  /// @param arrange  returns the step's inputs
  /// @param run      runs the step and lets it write its outputs to the given memory
  std::vector<Datum> write(const Runner& step, const std::function<std::vector<Datum>()>& arrange, const Run& run);
  /// Ends an accumulation of gradients over several steps: stores the running statistics among `outputs`, and clears the gradient sums.
  /// @param names  names of the outputs
  void end_accumulation(const std::vector<std::string>& names, std::span<const Datum> outputs);
  /// From now on, values that the step writes may stay on the devices that run it, instead of being copied to the host.
  void let_stay(const Runner& step);
  /// Releases device memory, without copying its values to the host.
  void leave_devices() { staying_.reset(); }
  /// A flag that a step sets to true when it starts to overwrite values, and to false when it has succeeded.
  std::atomic<bool>& half_updated() { return half_updated_; }
  /// Throws if the values are inconsistent. @throws Error(invalid_argument) if the last step has failed after it had updated some of the
  /// parameters
  void check_whole() const;

  // Functions for code outside of steps that reads or writes the values.

  /// Copies the newest values to the host. Must be called before the host reads them. @throws Error like check_whole()
  void bring_to_host() const;
  /// Gives a caller access to the optimizer's state. The caller may read and write the state at any time from now on.
  const NamedTensors& show_state();
  /// Like show_state(), but returns the momentum by the parameters' names.
  const NamedTensors& show_momentum() { return show_state(), momentum_; }
  /// Lets a caller write to the values during the call of `write`. Runs that begin later read the new values.
  void change(const std::function<void()>& write);

  /// Returns the tensors that currently contain the moving averages of parameters and running statistics, by name.
  NamedTensors averages() const;
  /// Swaps the elements of parameters and their moving averages. Swaps them in place, because callers have views of the parameters, and
  /// compiled programs are bound to their memory.
  void use_averages(bool use);
  bool averages_used() const { return averages_used_; }
  /// Throws if averages are swapped in. @throws Error(invalid_argument) which says that `what` is impossible meanwhile
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
