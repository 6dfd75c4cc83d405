// The implementation of Executor.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "treadle/executor.h"

namespace treadle::train {

struct Executor::Impl {
  explicit Impl(ExecutorGraphs of) : graphs(std::move(of)) {}

  /// Checks a value. @throws Error(invalid_argument) if the value cannot be bound to this name.
  void check_argument(const std::string& name, const Datum& value) const;
  void check_gradient(const std::string& name, const Datum& gradient) const;
  void check_state(const std::string& name, const Tensor& state) const;
  /// Determines for each argument whether its gradient is ignored, written or added, and allocates memory for the gradients.
  void request_gradients(const BindOptions& options);
  void take_shared(const BindOptions& options, Feeds& arguments, NamedTensors& states) const;

  Feeds evaluation_feeds() const;
  /// Makes the module read the currently bound arguments and states in place.
  /// @return the other arguments, which must be fed to the module
  Feeds hold_for_evaluation(JointModule& module);
  JointModule::Run begin_training(const RunOptions* options);
  void end_training(JointModule::Run run);
  void begin_steps(ForwardMode mode, const RunOptions* options);
  /// Stores the outputs of a pass. Copies an output that shares memory with a bound value.
  void take_outputs(std::vector<Datum> outputs);

  /// The state of partial_forward(): the run that is in progress, which belongs either to a JointModule or to a session.
  struct Stepping {
    size_t steps_left() const;

    std::optional<JointModule::Run> run;
    std::optional<PartialRun> session_run;  // set instead of `run` if a session executes the pass
    ForwardMode mode = ForwardMode::predict;
    bool is_under_way = false;
    size_t num_steps = 0, next = 0;
  };

  ExecutorGraphs graphs;
  Feeds arguments, gradients;
  NamedTensors states;
  GradientRequests requests;
  bool is_bound_anew = true;  // true: values have been bound since the last evaluation, and the next one must read them
  std::vector<Datum> outputs;
  std::optional<JointModule::Run> run;  // the forward pass whose backward pass is still to come
  Stepping stepping;
};

}  // namespace treadle::train
