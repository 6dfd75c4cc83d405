// Graph executors in the way of MXNet: values are bound to names once, and forward and backward passes work on them in place.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "treadle/export.h"
#include "treadle/model.h"
#include "treadle/session.h"
#include "treadle/train.h"

namespace treadle::train {

using GradientRequests = std::map<std::string, GradientRequest>;

/// The compiled graphs of one model, and what its arguments are. Executors of other shapes share them. Cheap to copy: copies are the same.
class TREADLE_API ExecutorGraphs {
 public:
  /// @param session         of all passes; training refuses some of it. None: the defaults, and passes that are not for training read
  ///                        parameters and states where they are bound.
  /// @param row_gradients   parameters whose gradients are by rows, as JointOptions::sparse_gradients.
  /// @param make_session    makes the session of passes that are not for training, of this model and these options; it is called if there
  /// is
  ///                        to be one. Empty: it is made here.
  explicit ExecutorGraphs(const Model& model, const std::optional<SessionOptions>& session = std::nullopt,
                          const std::vector<std::string>& row_gradients = {},
                          const std::function<std::shared_ptr<Session>()>& make_session = {});

  const Model& model() const;
  const std::optional<SessionOptions>& session_options() const;
  std::vector<ValueInfo> inputs() const;
  const std::vector<std::string>& output_names() const;
  /// Initial values of what can be trained, and of running statistics. Both are empty for a model that cannot be trained.
  const NamedTensors& parameters() const;
  const NamedTensors& states() const;
  /// Whether this parameter has a gradient by rows.
  bool has_row_gradient(const std::string& parameter) const;

  /// The graph of training passes with these gradients: made at the first call. @throws Error for a model that cannot be trained.
  JointModule& training(const GradientRequests& requests) const;
  /// All that have been made.
  std::vector<JointModule*> all_training() const;
  /// What passes that are not for training run, one of both: a module that reads what is bound, or a session that is fed it.
  JointModule* evaluation() const;
  Session* session() const;

  /// As Session::set_monitor(), of all passes: inputs, and what nodes make.
  void set_monitor(const Monitor& monitor) const;
  /// Ends what SessionOptions::enable_profiling began. @return the profiles' paths: of passes that are not for training, then of each graph
  /// of training(). Empty without profiling.
  std::vector<std::string> end_profiling() const;
  /// Weights, packed weights and activations of passes that are not for training.
  size_t memory_bytes() const;
  /// As Session::optimized_model().
  std::string optimized_model() const;

  /// These, if they are of that model; otherwise others with the same options.
  ExecutorGraphs for_model(const Model& model) const;
  /// Of the same model and options.
  bool operator==(const ExecutorGraphs& other) const { return impl_ == other.impl_; }

 private:
  friend class Executor;
  /// The executor whose values evaluation() reads.
  const void*& reader() const;

  struct Impl;
  std::shared_ptr<Impl> impl_;
};

class Executor;

struct TREADLE_API BindOptions {
  /// Of float32 inputs and parameters that `requests` does not name.
  GradientRequest request = GradientRequest::write;
  GradientRequests requests;
  /// Memory of gradients, by argument: contiguous, float32 and of the argument's shape. Zeros are made where it is missing. A gradient by
  /// rows is a sparse tensor, COO over the first axis; none has no rows.
  Feeds gradients;
  /// Memory of running statistics, contiguous and float32; a copy of the model's where it is missing.
  NamedTensors states;
  /// Its parameters and states are the new executor's, too, where no others are given.
  const Executor* shared = nullptr;
  /// Names of those; none: all that both models have. @see shared
  std::optional<std::vector<std::string>> shared_names = std::nullopt;
};

struct TREADLE_API SimpleBindOptions : BindOptions {
  std::map<std::string, DType> dtypes;  ///< of inputs; the model's where none is given
  /// Memory by name in which inputs, and gradients of inputs as "grad of NAME", lie where they fit; new memory is put into it. Executors
  /// that take turns share it.
  NamedTensors* shared_buffer = nullptr;
};

struct ReshapeOptions {
  bool partial_shaping = false;  ///< inputs that are not named may change; those whose shape does not follow keep theirs
  bool allow_up_sizing = false;  ///< new memory may be made for inputs that grow
};

/// A model with values bound to its arguments (inputs and parameters) and running statistics. Contiguous values are not copied: what is
/// written to them holds from the next forward pass on. The backward pass reads arguments again, so write them behind it. For one thread at
/// a time.
class TREADLE_API Executor {
 public:
  /// @param arguments  of all inputs, by name; parameters that are missing have the model's values.
  /// @throws Error(invalid_argument) naming the argument that is missing, or has another dtype or shape than it can have; Error(not_found).
  Executor(ExecutorGraphs graphs, const Feeds& arguments, const BindOptions& options = {});
  explicit Executor(const Model& model, const Feeds& arguments, const BindOptions& options = {})
      : Executor(ExecutorGraphs(model), arguments, options) {}
  /// With zeros for inputs of these shapes, and of those that follow from the symbols they share.
  static Executor simple_bind(ExecutorGraphs graphs, const std::map<std::string, Shape>& shapes, const SimpleBindOptions& options = {});
  static Executor simple_bind(const Model& model, const std::map<std::string, Shape>& shapes, const SimpleBindOptions& options = {}) {
    return simple_bind(ExecutorGraphs(model), shapes, options);
  }
  ~Executor();
  Executor(Executor&&) noexcept;
  Executor& operator=(Executor&&) noexcept;

  /// @param is_train  keep what backward() needs; normalisations use the batch's statistics and update the running ones.
  /// @return outputs(), which live until the next pass.
  const std::vector<Datum>& forward(bool is_train = false, const RunOptions* options = nullptr);
  /// One step of the forward pass: a node of the optimised graph; of training over devices a piece of work. Step 0 begins a pass, the
  /// others follow in order, and outputs() are the pass's when none are left. @param is_train, options  count at step 0.
  /// @return how many steps are left; 0 for a step behind the last. @throws Error(invalid_argument) for a step that does not follow.
  size_t partial_forward(size_t step, bool is_train = false, const RunOptions* options = nullptr);
  /// Writes or adds gradients, as requested. Once for each forward pass for training.
  /// @param head_gradients  of the outputs, in their shapes; empty: ones.
  void backward(std::span<const Tensor> head_gradients = {});

  const std::vector<Datum>& outputs() const;
  const std::vector<std::string>& output_names() const;
  const Feeds& arguments() const;
  const Feeds& gradients() const;  ///< of arguments whose request is not null
  const NamedTensors& states() const;
  const GradientRequests& requests() const;  ///< of all arguments; null where there is no gradient
  /// Binds another value of the same shape and dtype. A gradient takes the memory of passes that begin from then on.
  void set_argument(const std::string& name, Datum value);
  void set_gradient(const std::string& name, Datum value);
  void set_state(const std::string& name, Tensor value);
  /// Copies values into what is bound, by name. @param allow_extra  ignores names that are neither argument nor state.
  void copy_from(const NamedTensors& values, bool allow_extra = false);

  /// An executor for inputs of other shapes, which shares graphs, parameters, states, and as much memory of inputs as there is. Inputs that
  /// are not named have the shape that follows from the symbols they share with those that are.
  Executor reshape(const std::map<std::string, Shape>& shapes, const ReshapeOptions& options = {}) const;

  const ExecutorGraphs& graphs() const;

 private:
  struct Impl;
  explicit Executor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace treadle::train
