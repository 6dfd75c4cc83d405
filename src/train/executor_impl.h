// What an executor has.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "treadle/executor.h"

namespace treadle::train {

struct Executor::Impl {
  explicit Impl(ExecutorGraphs of) : graphs(std::move(of)) {}

  /// @throws Error(invalid_argument) for a value that cannot be bound there.
  void check_argument(const std::string& name, const Datum& value) const;
  void check_gradient(const std::string& name, const Datum& gradient) const;
  void check_state(const std::string& name, const Tensor& state) const;
  /// Requests of all arguments, and memory of gradients.
  void request_gradients(const BindOptions& options);
  void take_shared(const BindOptions& options, Feeds& arguments, NamedTensors& states) const;

  Feeds evaluation_feeds() const;
  /// The module reads the arguments and states as they are now. @return those that it is fed
  Feeds hold_for_evaluation(JointModule& module);
  JointModule::Run begin_training(const RunOptions* options);
  void end_training(JointModule::Run run);
  void begin_steps(bool is_train, const RunOptions* options);
  /// Those that have the bytes of something that is bound are copied.
  void take_outputs(std::vector<Datum> outputs);

  /// Of partial_forward().
  struct Stepping {
    size_t steps_left() const;

    std::optional<JointModule::Run> run;
    std::optional<PartialRun> session_run;  // or this one
    bool is_train = false, is_under_way = false;
    size_t num_steps = 0, next = 0;
  };

  ExecutorGraphs graphs;
  Feeds arguments, gradients;
  NamedTensors states;
  GradientRequests requests;
  bool is_bound_anew = true;  // values that evaluation reads, since it last did
  std::vector<Datum> outputs;
  std::optional<JointModule::Run> run;  // which waits for head gradients
  Stepping stepping;
};

}  // namespace treadle::train
