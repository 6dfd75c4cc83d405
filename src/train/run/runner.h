// Runs a training graph. The graph's inputs are fed by the caller, or are tensors that the trainer keeps, such as parameters.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "session/runtime.h"
#include "train/graph/training_graph.h"

namespace treadle::train {

/// The options of one run, and an object that the run keeps alive. `held` is released when the run ends, which may be later than the
/// return of the function that began the run.
struct Call {
  const RunOptions* options = nullptr;
  std::shared_ptr<const void> held;
};

struct RunnerOptions {
  std::optional<std::vector<std::string>> forward = std::nullopt;  ///< see exec::ProgramOptions::forward_outputs
  bool is_ready = false;                                           ///< true: all graphs that the runner is given are optimized already
  bool early_updates = false;                                      ///< see exec::ProgramOptions
  std::vector<std::string> nodes = {};                             ///< see optimize()
  /// Called for each feed that is not an input of the graph. Throws, unless the client accepts such a feed. Null: any feed is accepted.
  std::function<void(const std::string&)> check_unread = nullptr;
};

class Runner {
 public:
  /// Builds the graph again with the same inputs and outputs, but without simplification, so that a monitor can watch every value.
  using MakeUnsimplified = std::function<std::unique_ptr<Graph>()>;

  /// @param graph      must have its outputs; it is optimized first, unless options.is_ready.
  /// @param kept       tensors by input name; all other inputs are fed by the caller.
  /// @param variables  the tensors of the graph's values of kind `parameter`.
  Runner(const Runtime& runtime, std::unique_ptr<Graph> graph, MakeUnsimplified make_unsimplified,
         const std::vector<const NamedTensors*>& kept, std::shared_ptr<exec::Variables> variables = nullptr, RunnerOptions options = {});

  /// Returns all inputs in the graph's order: kept tensors, feeds and labels. @throws Error(invalid_argument) that names a missing feed, or
  /// the error of RunnerOptions::check_unread for an unknown feed
  std::vector<Datum> arrange(const Feeds& feeds, const Datum& labels) const;
  /// Like arrange(), given all feeds in the order of fed_names().
  /// @throws Error(invalid_argument) if their number is wrong.
  std::vector<Datum> arrange_in_order(std::vector<Datum> fed) const;
  /// Returns, for each output, the kept tensor of the same name, into which a run may write the output; undefined: there is none.
  const std::vector<Datum>& written() const { return written_; }
  /// Replaces a kept tensor, for runs that begin later. Has no effect if the graph does not read it.
  void keep(const std::string& name, const Datum& value);
  /// Returns the names of the inputs that the trainer does not keep.
  const std::vector<std::string>& fed_names() const { return fed_names_; }
  /// Returns the index that the input fed_names()[fed] has among all inputs.
  size_t place_of_fed(size_t fed) const;
  const std::shared_ptr<const Executable>& executable() const { return executable_; }
  /// Returns an executable that has the values watched by the monitor as additional outputs. The first call for a monitor compiles it. If
  /// `monitor` is null, returns executable(). Thread-safe.
  std::shared_ptr<const Executable> executable(const std::shared_ptr<const Monitor>& monitor) const;
  /// Appends every executable that has been compiled so far.
  void add_to(Runtime::Executables& all) const;
  Runtime::Executables executables() const;
  /// Frees the memory of execution frames (arenas and tables of one run) that no run uses.
  void trim() const;
  bool updates_early() const { return options_.early_updates; }
  const exec::Program& program() const { return *executable_->program; }
  const Graph& graph() const { return *executable_->graph; }

 private:
  std::shared_ptr<Executable> lower(std::unique_ptr<Graph> graph, bool observable) const;

  const Runtime& runtime_;
  const MakeUnsimplified make_unsimplified_;
  const std::shared_ptr<exec::Variables> variables_;  // the graph's parameters; null: it has none
  const RunnerOptions options_;
  std::shared_ptr<const Executable> executable_;
  mutable std::mutex mutex_;  // guards the members below
  mutable std::shared_ptr<const Monitor> monitor_;
  mutable std::shared_ptr<const Executable> watched_;  // the executable compiled for monitor_
  std::vector<Datum> kept_;                            // for each input: the trainer's value; undefined: the caller feeds it
  std::vector<Datum> written_;
  std::vector<std::string> fed_names_;
};

/// Returns a session's options, adapted for training. @throws Error(invalid_argument) for options that training does not support.
SessionOptions in_training(const SessionOptions& options);
/// Checks the options of a run. @throws Error(invalid_argument) for options that training does not support.
void check_run_options(const RunOptions* options);
/// Throws the error for a feed that is not an input of any of the client's graphs.
/// @param inputs  names of the client's inputs, from which the error suggests similar ones
/// @throws Error(invalid_argument); if the model has a value of this name, the text says that inner values cannot be fed in training.
[[noreturn]] void refuse_feed(const Model& model, const std::string& name, std::span<const std::string> inputs);

}  // namespace treadle::train
