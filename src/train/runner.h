// Runs a training graph: its inputs are the caller's feeds and tensors that the trainer keeps, if they are no parameters of the graph.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "session/runtime.h"
#include "train/training_graph.h"

namespace treadle::train {

/// How a runner is called, and what is let go when its run has ended, which may be after its caller has left.
struct Call {
  const RunOptions* options = nullptr;
  std::shared_ptr<const void> held;
};

struct RunnerOptions {
  std::optional<std::vector<std::string>> forward = std::nullopt;  ///< as exec::ProgramOptions::forward_outputs
  bool is_ready = false;                                           ///< the graph is optimised, and so are those that are made again
  bool early_updates = false;                                      ///< as exec::ProgramOptions has it
  std::vector<std::string> nodes = {};                             ///< as optimise() takes them
  /// Called for a feed that is no input of the graph; throws unless the client may be given it all the same. Null: anything may be fed.
  std::function<void(const std::string&)> check_unread = nullptr;
};

class Runner {
 public:
  /// Makes the graph again with the same inputs and outputs and all its values, for who wants to see those that are gone when it has been
  /// simplified.
  using MakeUnsimplified = std::function<std::unique_ptr<Graph>()>;

  /// @param graph      with its outputs; it is optimised, if it has not been.
  /// @param kept       tensors by input name; the rest of the inputs are fed.
  /// @param variables  of the graph's parameters.
  Runner(const Runtime& runtime, std::unique_ptr<Graph> graph, MakeUnsimplified make_unsimplified,
         const std::vector<const NamedTensors*>& kept, std::shared_ptr<exec::Variables> variables = nullptr, RunnerOptions options = {});

  /// Every input in order. @throws Error(invalid_argument) naming the feed that is missing, and as RunnerOptions::check_unread
  std::vector<Datum> arrange(const Feeds& feeds, const Datum& labels) const;
  /// The same for those that are fed, in their order. @throws Error(invalid_argument) for another number of them.
  std::vector<Datum> arrange_in_order(std::vector<Datum> fed) const;
  /// What is kept under the name lies elsewhere from now on, for runs that begin later. Does nothing where no node reads it.
  void keep(const std::string& name, const Datum& value);
  /// Inputs that the trainer does not keep.
  const std::vector<std::string>& fed_names() const { return fed_names_; }
  /// Among all inputs.
  size_t place_of_fed(size_t fed) const;
  const std::shared_ptr<const Executable>& executable() const { return executable_; }
  /// One in which the values that the monitor watches exist, as further outputs; made for a monitor's first run. Null: executable().
  /// Thread-safe.
  std::shared_ptr<const Executable> executable(const std::shared_ptr<const Monitor>& monitor) const;
  /// All that there are.
  void add_to(Runtime::Executables& all) const;
  Runtime::Executables executables() const;
  /// Frees the memory of runs that nobody uses.
  void trim() const;
  bool updates_early() const { return options_.early_updates; }
  const exec::Program& program() const { return *executable_->program; }
  const Graph& graph() const { return *executable_->graph; }

 private:
  std::shared_ptr<Executable> lower(std::unique_ptr<Graph> graph, bool observable) const;

  const Runtime& runtime_;
  const MakeUnsimplified make_unsimplified_;
  const std::shared_ptr<exec::Variables> variables_;  // of parameters; null: there are none
  const RunnerOptions options_;
  std::shared_ptr<const Executable> executable_;
  mutable std::mutex mutex_;  // of what follows
  mutable std::shared_ptr<const Monitor> monitor_;
  mutable std::shared_ptr<const Executable> watched_;  // for that monitor
  std::vector<Datum> kept_;                            // per input; undefined: fed
  std::vector<std::string> fed_names_;
};

/// A session's options for training. @throws Error(invalid_argument) for those that a training graph cannot have.
SessionOptions in_training(const SessionOptions& options);
/// Likewise for a run of one.
void check_run_options(const RunOptions* options);
/// Of a feed that is no input of any of a client's graphs. @param inputs  of the client
/// @throws Error(invalid_argument): in the words of refusals for a value that the model has.
[[noreturn]] void refuse_feed(const Model& model, const std::string& name, std::span<const std::string> inputs);

}  // namespace treadle::train
