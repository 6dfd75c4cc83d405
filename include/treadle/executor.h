// Graph executors in the style of MXNet: values are bound to names once, and forward and backward passes work on them in place.
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

/// The compiled graphs of one model, and the initial values of its parameters. Executors of different shapes share them. Cheap to copy:
/// copies are the same object.
class TREADLE_API ExecutorGraphs {
 public:
  /// @param session         options of all passes. If trainers lack one of them, training passes throw Error(invalid_argument). Nullopt:
  ///                        the default options; passes that are not for training then read parameters and states from the memory bound to
  ///                        them. With options, a session runs these passes, and the values are fed to it
  /// @param row_gradients   parameters whose gradients are sparse tensors of rows (JointOptions::sparse_gradients)
  /// @param make_session    makes the session for passes that are not for training, from this model and these options, when it is first
  ///                        needed. Empty: a session of the model is made directly
  explicit ExecutorGraphs(const Model& model, const std::optional<SessionOptions>& session = std::nullopt,
                          const std::vector<std::string>& row_gradients = {},
                          const std::function<std::shared_ptr<Session>()>& make_session = {});

  const Model& model() const;
  const std::optional<SessionOptions>& session_options() const;
  std::vector<ValueInfo> inputs() const;
  const std::vector<std::string>& output_names() const;
  /// Returns the initial values of trainable parameters and of running statistics. Both are empty for a model that cannot be trained.
  const NamedTensors& parameters() const;
  const NamedTensors& states() const;
  /// True if the gradient of this parameter is a sparse tensor of rows.
  bool has_row_gradient(const std::string& parameter) const;

  /// Returns the module for training passes with these gradients; the first call makes it. @throws Error for a model that cannot be trained
  JointModule& training(const GradientRequests& requests) const;
  /// Returns all modules that training() has made so far.
  std::vector<JointModule*> all_training() const;
  /// Returns the module that executes passes that are not for training and reads the bound values in place. Null if a session executes
  /// these passes, and is fed the values.
  JointModule* evaluation() const;
  Session* session() const;

  /// Like Session::set_monitor(), for the inputs and results of nodes in all passes.
  void set_monitor(const Monitor& monitor) const;
  /// Ends profiling (SessionOptions::enable_profiling). @return paths of the profiles: first that of passes that are not for training, then
  /// one per graph of training(). Empty without profiling
  std::vector<std::string> end_profiling() const;
  /// Returns the bytes of weights, packed weights and activations for passes that are not for training.
  size_t memory_bytes() const;
  /// Returns the optimized model, like Session::optimized_model().
  std::string optimized_model() const;

  /// Returns this object if its model is `model`; otherwise new graphs of `model` with the same options.
  ExecutorGraphs for_model(const Model& model) const;
  /// Returns true if both are copies of the same object.
  bool operator==(const ExecutorGraphs& other) const { return impl_ == other.impl_; }

 private:
  friend class Executor;
  /// Returns the executor whose values evaluation() reads at present; null if there is none.
  const void*& reader() const;

  struct Impl;
  std::shared_ptr<Impl> impl_;
};

class Executor;

struct TREADLE_API BindOptions {
  /// Applies to float32 inputs and parameters that `requests` does not name.
  GradientRequest request = GradientRequest::write;
  GradientRequests requests;
  /// Memory for gradients, by argument: contiguous, float32, in the argument's shape. Missing ones are allocated as zeros. A gradient by
  /// rows (`row_gradients`) is a sparse tensor, COO over the first axis; if it is missing, it begins without rows.
  Feeds gradients;
  /// Memory for running statistics, contiguous and float32. Missing ones are copies of the model's.
  NamedTensors states;
  /// An executor whose parameters and states the new one shares, except those given to the new one.
  const Executor* shared = nullptr;
  /// Names of the values of `shared` that the new executor shares; nullopt: all that both models have.
  std::optional<std::vector<std::string>> shared_names = std::nullopt;
};

struct TREADLE_API SimpleBindOptions : BindOptions {
  std::map<std::string, DType> dtypes;  ///< dtypes of inputs; an input that is not listed has the model's dtype
  /// Memory by name, for inputs and for their gradients ("grad of NAME"). The executor uses it if it is large enough, and otherwise
  /// allocates new memory and adds it here. Executors that run one after the other can share it.
  NamedTensors* shared_buffer = nullptr;
};

struct ReshapeOptions {
  /// Inputs that are not named may change shape; those whose new shape does not follow from symbols keep theirs.
  bool partial_shaping = false;
  bool allow_up_sizing = false;  ///< new memory may be allocated for inputs that grow
};

/// What a forward pass is for.
enum class ForwardMode : uint8_t {
  predict,  ///< only computes outputs
  train,    ///< keeps what backward() needs; normalizations use the batch's statistics and update the running ones
};
/// Says how an executor treats names that it does not have: it refuses or ignores them.
enum class ExtraNames : uint8_t { refuse, ignore };

/// A model with values bound to its arguments (inputs and parameters) and running statistics. Contiguous values are not copied, so changes
/// of their elements take effect in the next forward pass. The backward pass reads arguments again, so change them only after it. Not
/// thread-safe.
class TREADLE_API Executor {
 public:
  /// @param arguments  all inputs, by name; missing parameters get the model's values
  /// @throws Error(invalid_argument) naming an argument that is missing or has a wrong dtype or shape; Error(not_found)
  Executor(ExecutorGraphs graphs, const Feeds& arguments, const BindOptions& options = {});
  explicit Executor(const Model& model, const Feeds& arguments, const BindOptions& options = {})
      : Executor(ExecutorGraphs(model), arguments, options) {}
  /// Binds zeros to the inputs in `shapes`, and to inputs whose shapes follow from symbols that they share with these.
  static Executor simple_bind(ExecutorGraphs graphs, const std::map<std::string, Shape>& shapes, const SimpleBindOptions& options = {});
  static Executor simple_bind(const Model& model, const std::map<std::string, Shape>& shapes, const SimpleBindOptions& options = {}) {
    return simple_bind(ExecutorGraphs(model), shapes, options);
  }
  ~Executor();
  Executor(Executor&&) noexcept;
  Executor& operator=(Executor&&) noexcept;

  /// Runs a forward pass. @return outputs(), valid until the next pass
  const std::vector<Datum>& forward(ForwardMode mode = ForwardMode::predict, const RunOptions* options = nullptr);
  /// Runs one step of the forward pass: a node of the optimized graph or, if training uses several devices, a node or a copy. Step 0 begins
  /// a pass; the others follow in order. When no steps are left, outputs() are those of the pass.
  /// @param mode, options  used at step 0
  /// @return number of steps left; 0 for a step beyond the last. @throws Error(invalid_argument) for a step out of order
  size_t partial_forward(size_t step, ForwardMode mode = ForwardMode::predict, const RunOptions* options = nullptr);
  /// Writes gradients, or adds them, as requested per argument. Call it once after each forward pass for training.
  /// @param head_gradients  gradients of the outputs, in their shapes; empty: ones
  void backward(std::span<const Tensor> head_gradients = {});

  const std::vector<Datum>& outputs() const;
  const std::vector<std::string>& output_names() const;
  const Feeds& arguments() const;
  const Feeds& gradients() const;  ///< returns the gradients of arguments whose request is not null
  const NamedTensors& states() const;
  const GradientRequests& requests() const;  ///< returns the requests of all arguments; null: no gradient is computed
  /// Binds another value of the same shape and dtype. With set_gradient(), later passes write the gradient to the new memory.
  void set_argument(const std::string& name, Datum value);
  void set_gradient(const std::string& name, Datum value);
  void set_state(const std::string& name, Tensor value);
  /// Copies values into the bound ones, by name. @param extra  what to do with names that are neither an argument nor a state
  void copy_from(const NamedTensors& values, ExtraNames extra = ExtraNames::refuse);

  /// Makes an executor for other input shapes, which shares graphs, parameters, states and, as far as possible, memory of inputs. The
  /// shapes of inputs that are not named follow from shared symbols.
  Executor reshape(const std::map<std::string, Shape>& shapes, const ReshapeOptions& options = {}) const;

  const ExecutorGraphs& graphs() const;

 private:
  struct Impl;
  explicit Executor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace treadle::train
