// Data-parallel training: the nodes and communication that one rank among several adds to its graphs and steps.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/ranks/exchange.h"
#include "graph/graph.h"
#include "treadle/train.h"

namespace treadle::train {

class DataParallel {
 public:
  DataParallel(std::shared_ptr<Communicator> communicator, const TrainerOptions& options);

  int rank() const { return communicator_->rank(); }
  int size() const { return communicator_->size(); }

  /// With TrainerOptions::shard_optimizer, each parameter is updated by one rank, its owner. Parameters are assigned in order of size, the
  /// largest first, to the rank with the fewest bytes.
  void assign_owners(const std::vector<std::string>& names, const NamedTensors& parameters);
  bool updates(const std::string& parameter) const { return owners_.empty() || owners_.at(parameter) == rank(); }

  /// The values that ranks average by all-reduce. In the mean over ranks, each rank counts with its `weight`: the divisor of its loss, such
  /// as its number of samples.
  struct StepValues {
    ValueId loss = kNoValue, weight = kNoValue;
    std::vector<ValueId*> states;  ///< running statistics of BatchNormalization
    std::vector<ValueId> gradients;
  };
  /// Adds the all-reduce of the loss, the states and the gradients to a step's graph. Gradients are sent in the order in which the backward
  /// pass computes them.
  void add_to_step(Graph& graph, StepValues& values);
  /// Like add_to_step(), but for a step that accumulates gradients: reduces only the loss and the states. Scales each gradient to this
  /// rank's share of the mean, so that the shares can later be summed.
  void add_to_accumulation(Graph& graph, StepValues& values);
  /// Adds to the update's graph the all-reduce that sums the accumulated shares of all ranks.
  std::vector<ValueId> add_to_update(Graph& graph, const std::vector<ValueId>& shares);
  /// Adds the all-reduce of the gradients to a graph that returns them without an update.
  void add_to_gradients(Graph& graph, StepValues& values);

  Exchange& step() { return step_.exchange; }
  Exchange& update() { return update_.exchange; }
  Exchange& gradients() { return gradients_.exchange; }

  /// Broadcasts rank 0's tensors to all ranks before the first step.
  /// @param description  a text that describes the model and the options.
  /// @throws Error(invalid_argument) that names the ranks whose description differs from rank 0's.
  void begin(const std::string& description, const std::vector<const NamedTensors*>& tensors);
  /// Must be called after an update: broadcasts each parameter from its owner to the other ranks.
  void share(const NamedTensors& parameters);
  /// Returns the complete optimizer state. Collects from the other ranks the state of parameters that they own, and adds up the accumulated
  /// gradients of all ranks.
  /// @param sum_name  name of the accumulated gradient among a parameter's states.
  NamedTensors joint_state(const NamedTensors& own, const NamedTensors& parameters, const std::vector<std::string>& state_names,
                           const std::string& sum_name) const;

 private:
  // The all-reduce of one graph. `groups` has the indices of the gradients of each bucket, which stay the same if the graph is rebuilt.
  struct Part {
    explicit Part(std::shared_ptr<Communicator> communicator) : exchange(std::move(communicator)) {}
    Exchange exchange;
    std::vector<std::vector<size_t>> groups;
  };
  std::vector<std::vector<size_t>> groups_of(const Graph& graph, const std::vector<ValueId>& values) const;
  struct Request {
    std::vector<ValueId> first, gradients;  // first: values that are exchanged in float32 before the gradients
    ValueId weight = kNoValue;              // kNoValue: compute sums instead of means
    std::vector<ValueId> awaited;           // values that every rank must have computed before any rank continues
  };
  struct Reduced {
    std::vector<ValueId> first, gradients;
    ValueId begun = kNoValue;
  };
  Reduced add(Graph& graph, Part& part, const Request& request) const;

  const std::shared_ptr<Communicator> communicator_;
  const size_t bucket_bytes_;
  const bool bfloat16_, sharded_;
  std::map<std::string, int> owners_;  // owner of each parameter; empty: all ranks update all parameters
  Part step_, update_, gradients_;
};

/// Broadcasts rank 0's text to all ranks. If make() throws on rank 0, every rank throws the error.
std::string text_of_rank_0(Communicator& communicator, const std::function<std::string()>& make);

}  // namespace treadle::train
