// What a trainer that is one rank among several adds to its graphs and its steps.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/exchange.h"
#include "graph/graph.h"
#include "treadle/train.h"

namespace treadle::train {

class DataParallel {
 public:
  DataParallel(std::shared_ptr<Communicator> communicator, const TrainerOptions& options);

  int rank() const { return communicator_->rank(); }
  int size() const { return communicator_->size(); }

  /// With TrainerOptions::shard_optimizer each parameter has one rank that updates it: the largest first, to the rank with the fewest
  /// bytes.
  void assign_owners(const std::vector<std::string>& names, const NamedTensors& parameters);
  bool updates(const std::string& parameter) const { return owners_.empty() || owners_.at(parameter) == rank(); }

  /// What ranks agree on before anything is computed of it: values of this rank become their means, weighted by what each loss is a mean
  /// of.
  struct StepValues {
    ValueId loss = kNoValue, weight = kNoValue;
    std::vector<ValueId*> states;  ///< running statistics
    std::vector<ValueId> gradients;
  };
  /// Gradients leave in the order in which the backward pass makes them.
  void add_to_step(Graph& graph, StepValues& values);
  /// The same for steps that add gradients up: these become this rank's share of the mean.
  void add_to_accumulation(Graph& graph, StepValues& values);
  /// And for the update, where such shares are added over the ranks.
  std::vector<ValueId> add_to_update(Graph& graph, const std::vector<ValueId>& shares);
  /// For gradients that nothing follows.
  void add_to_gradients(Graph& graph, StepValues& values);

  Exchange& step() { return step_.exchange; }
  Exchange& update() { return update_.exchange; }
  Exchange& gradients() { return gradients_.exchange; }

  /// All begin with rank 0's tensors. @param description  of model and options. @throws Error(invalid_argument) naming the ranks that
  /// differ in it from rank 0.
  void begin(const std::string& description, const std::vector<const NamedTensors*>& tensors);
  /// After an update with owners: from them to all.
  void share(const NamedTensors& parameters);
  /// Of the whole optimizer's state, what this rank has not: those of other owners, and sums of all ranks' gradients.
  /// @param is_sum  tells the latter by name.
  NamedTensors joint_state(const NamedTensors& own, const NamedTensors& parameters, const std::vector<std::string>& state_names,
                           const std::string& sum_name) const;

 private:
  // The exchange of one graph, and which of its values share a bucket, which is the same when the graph is made again.
  struct Part {
    explicit Part(std::shared_ptr<Communicator> communicator) : exchange(std::move(communicator)) {}
    Exchange exchange;
    std::vector<std::vector<size_t>> groups;
  };
  std::vector<std::vector<size_t>> groups_of(const Graph& graph, const std::vector<ValueId>& values) const;
  struct Request {
    std::vector<ValueId> first, gradients;  // those that go in float32 before all others; and the others
    ValueId weight = kNoValue;              // none: sums, not means
    std::vector<ValueId> awaited;           // ranks go on together when all have these
  };
  struct Reduced {
    std::vector<ValueId> first, gradients;
    ValueId begun = kNoValue;
  };
  Reduced add(Graph& graph, Part& part, const Request& request) const;

  const std::shared_ptr<Communicator> communicator_;
  const size_t bucket_bytes_;
  const bool bfloat16_, sharded_;
  std::map<std::string, int> owners_;  // by parameter; empty: all ranks update all
  Part step_, update_, gradients_;
};

/// Rank 0's text for all. A failure of make() there is an error of all ranks.
std::string text_of_rank_0(Communicator& communicator, const std::function<std::string()>& make);

}  // namespace treadle::train
