// The implementation of JointModule.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "exec/program/variables.h"
#include "session/runtime.h"
#include "session/stoppable_run.h"
#include "train/graph/training_graph.h"
#include "train/run/runner.h"
#include "treadle/train.h"

namespace treadle::train {

inline const Storage* storage_of(const Datum& datum) { return datum.is_tensor() ? datum.tensor().storage().get() : nullptr; }

/// A running statistic that a run updates.
struct StateUpdate {
  size_t result;  // index among the graph's outputs
  Tensor memory;
  bool is_late;  // true: written after the backward pass; false: after the forward pass
};

struct JointModule::Impl : Runtime {
  Impl(const Model& source, const JointOptions& given);
  ~Impl();

  profile::ProfilePlan profile_plan(const Profiling& of) const override;
  CacheStatistics cache_statistics() const override;

  /// The graph with its outputs. The running statistics come last.
  struct Joint {
    TrainingGraph training;
    Outputs outputs;
    std::vector<std::string> output_names;
    size_t num_differentiable = 0;
    std::vector<int> result_of;  // for each gradient, its index among the results; -1: there is none
    std::vector<int> rows_of;    // for each gradient, the result that holds the indices of its rows; -1: it is dense
  };
  /// Builds the graph. @param simplified  false: keep every value of the model, for monitors
  Joint make_joint(bool simplified) const;
  void make(const JointOptions& given);
  std::vector<ValueId> find_outputs(Joint& joint) const;
  void add_gradients(Joint& joint, std::vector<ValueId> ys, bool simplified) const;
  void check_requests(const TrainingGraph& training) const;
  GradientRequest request_of(const std::string& name) const;
  void keep_states(const TrainingGraph& made);
  void find_states();
  Tensor held_now(const std::string& name) const;
  /// Checks a feed whose name is not an input of the graph.
  /// @throws Error(invalid_argument) unless the model has an input of this name, which the graph does not need
  void check_unread(const std::string& name) const;
  /// Returns, for each of `kept_states`, true if its new value can be written only after the backward pass, because a node after the Yield
  /// computes the new value or reads the old one.
  std::vector<bool> find_late(const Executable& executable) const;
  /// Returns the running statistics that a run updates. @param inputs  all inputs of the run
  std::vector<StateUpdate> updates(const Executable& executable, std::span<const Datum> inputs) const;
  /// Binds caller memory for gradients: adds it to `bound`, and also to `feeds` for gradients that are added to its old contents.
  void bind_gradients(const NamedTensors& memory, Feeds& feeds, std::vector<Datum>& bound) const;

  void refuse_fed_states() const;
  /// @param inputs  all inputs of the run.
  /// @param bound   for each result, memory of the caller; undefined: it has none
  static std::unique_ptr<Run::Impl> begin_run(const std::shared_ptr<Impl>& self, std::vector<Datum> inputs, std::span<const Datum> bound,
                                              const Feeding& feeding);

  struct KeptState {
    size_t feed, result;  // index among the graph's inputs, and among its outputs
    bool is_fed;          // true: the statistic is in memory of the caller, who feeds it
  };

  Model model;
  JointOptions joint_options;  // its own `held` is empty after make() has moved the tensors to Impl::held
  const bool forward_only;
  bool is_random = false;
  std::vector<std::string> output_names, gradient_names;
  NamedTensors parameters, states;
  const std::shared_ptr<exec::Variables> held = std::make_shared<exec::Variables>();
  std::map<std::string, size_t> places_of_held;
  std::vector<KeptState> kept_states;   // running statistics that the module updates
  std::vector<bool> late;               // result of find_late() for the runner's executable
  std::vector<int> result_of, rows_of;  // for each gradient: its index among the results, or -1; see Joint
  std::vector<bool> copied;             // for each output, true if the caller gets a copy
  size_t num_differentiable = 0, num_results = 0;
  std::unique_ptr<Runner> runner;
};

struct JointModule::Run::Impl {
  void take_yielded();
  /// @param value_of  returns an output of the graph by index
  template <typename ValueOf>
  void write_states(bool is_late, const ValueOf& value_of);

  std::shared_ptr<JointModule::Impl> module;
  std::shared_ptr<StoppableRun> run;  // null after the backward pass
  std::vector<StateUpdate> updates;
  std::vector<Tensor> outputs;
  bool has_outputs = false;
  std::vector<const Storage*> callers;           // memory that the caller can access: feeds, output gradients and outputs; sorted
  bool is_backward = false, has_memory = false;  // has_memory: the caller supplied memory for all requested gradients
  std::vector<bool> given;                       // for each gradient: true if it has been returned
  std::vector<Tensor> rows;                      // for each returned gradient: indices of its rows in the parameter; undefined: it is dense
  std::set<const Storage*> gradients;            // memory of the returned gradients
};

}  // namespace treadle::train
