// What a joint module is made of.
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
#include "train/runner.h"
#include "train/training_graph.h"
#include "treadle/train.h"

namespace treadle::train {

inline const Storage* storage_of(const Datum& datum) { return datum.is_tensor() ? datum.tensor().storage().get() : nullptr; }

/// A running statistic that is to have a new value.
struct StateUpdate {
  size_t result;  // its place among the outputs of the graph
  Tensor memory;
  bool is_late;  // when the backward pass has ended; otherwise the forward pass
};

struct JointModule::Impl : Runtime {
  Impl(const Model& source, const JointOptions& given);
  ~Impl();

  profile::ProfilePlan profile_plan(const Profiling& of) const override;

  /// The graph with its outputs: results, then running statistics.
  struct Joint {
    TrainingGraph training;
    Outputs outputs;
    std::vector<std::string> output_names;
    size_t num_differentiable = 0;
    std::vector<int> result_of;  // per gradient; -1: there is none
    std::vector<int> rows_of;    // per gradient: the result with the places of its rows; -1: it is dense
  };
  /// @param simplified  false: every value of the model is there
  Joint make_joint(bool simplified) const;
  void make(const JointOptions& given);
  std::vector<ValueId> find_outputs(Joint& joint) const;
  void add_gradients(Joint& joint, std::vector<ValueId> ys, bool simplified) const;
  void check_requests(const TrainingGraph& training) const;
  GradientRequest request_of(const std::string& name) const;
  void keep_states(const TrainingGraph& made);
  void find_states();
  Tensor held_now(const std::string& name) const;
  /// Of a feed that the graph has no input for. @throws Error(invalid_argument) unless the model has one
  void check_unread(const std::string& name) const;
  /// By place in `kept_states`: whether the executable makes the new value behind the Yield, or reads the one before there.
  std::vector<bool> find_late(const Executable& executable) const;
  /// What a run with these inputs, all of them, is to write.
  std::vector<StateUpdate> updates(const Executable& executable, std::span<const Datum> inputs) const;
  /// @param feeds    that of a sum is added. @param bound  memory of a gradient is added.
  void bind_gradients(const NamedTensors& memory, Feeds& feeds, std::vector<Datum>& bound) const;

  void refuse_fed_states() const;
  /// @param inputs  all of them. @param bound  memory of results, or none
  static std::unique_ptr<Run::Impl> begin_run(const std::shared_ptr<Impl>& self, std::vector<Datum> inputs, std::span<const Datum> bound,
                                              const Feeding& feeding);

  struct KeptState {
    size_t feed, result;  // places among all inputs, and all outputs of the graph
    bool is_fed;          // by the caller, whose memory it is
  };

  Model model;
  JointOptions joint_options;  // without `held`, once that is in the member of this name
  const bool forward_only;
  bool is_random = false;
  std::vector<std::string> output_names, gradient_names;
  NamedTensors parameters, states;
  const std::shared_ptr<exec::Variables> held = std::make_shared<exec::Variables>();
  std::map<std::string, size_t> places_of_held;
  std::vector<KeptState> kept_states;   // running statistics
  std::vector<bool> late;               // of the runner's executable: find_late()
  std::vector<int> result_of, rows_of;  // per gradient; -1: there is none, or it is dense
  std::vector<bool> copied;             // per output
  size_t num_differentiable = 0, num_results = 0;
  std::unique_ptr<Runner> runner;
};

struct JointModule::Run::Impl {
  void take_yielded();
  /// @param value_of  an output of the graph
  template <typename ValueOf>
  void write_states(bool is_late, const ValueOf& value_of);

  std::shared_ptr<JointModule::Impl> module;
  std::shared_ptr<StoppableRun> run;  // null after the backward pass
  std::vector<StateUpdate> updates;
  std::vector<Tensor> outputs;
  bool has_outputs = false;
  std::vector<const Storage*> callers;  // memory that is the caller's: fed, handed in, and of the outputs; sorted before the backward pass
  bool is_backward = false, has_memory = false;  // of all gradients that are asked for
  std::vector<bool> given;                       // per gradient
  std::vector<Tensor> rows;            // per gradient that has been given: which rows of the parameter it has; undefined: it is dense
  std::set<const Storage*> gradients;  // memory of those
};

}  // namespace treadle::train
