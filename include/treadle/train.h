// Training of ONNX models: forward and backward pass form one graph, which is optimized, planned and run like any other.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "treadle/allocator.h"
#include "treadle/communicator.h"
#include "treadle/datum.h"
#include "treadle/export.h"
#include "treadle/model.h"
#include "treadle/session.h"

namespace treadle::train {

/// Losses by PyTorch's definitions. The mean is over all elements; for class labels, over the labels that are not ignored, weighted by
/// class_weights.
enum class Loss : int {
  softmax_cross_entropy = 0,             ///< scores [N, C, ...], and int64 (or int32) labels [N, ...]
  mean_squared_error = 1,                ///< an output, and labels of its shape and dtype
  l1 = 2,                                ///< the operands are those of mean_squared_error
  huber = 3,                             ///< the operands are those of mean_squared_error; uses TrainerOptions::huber_delta
  binary_cross_entropy_with_logits = 4,  ///< scores, and labels from 0 to 1 in their shape
  negative_log_likelihood = 5,  ///< the operands are those of softmax_cross_entropy, but logarithms of probabilities in place of scores
  kl_divergence = 6,            ///< log-probabilities, and labels that are probabilities; summed, then divided by the first extent
  output = 7,                   ///< the output is the loss itself, one float32 number, without labels
  ctc = 8,    ///< scores [N, C, steps], and int64 (or int32) labels [N, length]; labels from the first negative one on are ignored
  graph = 9,  ///< the loss is TrainerOptions::loss_model
};
/// Finds a loss by its enumerator's name. @throws Error(invalid_argument) suggesting the nearest name
TREADLE_API Loss loss_named(std::string_view name);

/// Optimizers, with PyTorch's formulas and defaults; Lion (Chen et al. 2023) and LAMB (You et al. 2020) as published. The comments list the
/// members of TrainerOptions that each uses; all use weight_decay.
enum class Optimizer : int {
  sgd = 0,      ///< v = momentum v + g + weight_decay p; p = p - rate v (dampening 0); uses momentum and nesterov
  adam = 1,     ///< weight decay is added to the gradient; uses beta1, beta2 and epsilon
  adamw = 2,    ///< weight decay (default 0.01) shrinks the parameter; uses beta1, beta2 and epsilon
  adagrad = 3,  ///< uses epsilon, which is 1e-10 by default
  rmsprop = 4,  ///< uses smoothing, momentum and epsilon
  lion = 5,     ///< steps by the sign of averaged gradients; uses beta1 and beta2 (default 0.99)
  lamb = 6,     ///< scales AdamW's step to the parameter's norm; uses beta1, beta2 and epsilon (default 1e-6)
};
TREADLE_API Optimizer optimizer_named(std::string_view name);

/// The learning rate as a function of the number of updates.
struct TREADLE_API Schedule {
  enum class Kind : int {
    constant = 0,
    step = 1,       ///< multiplies by `gamma` (default 0.1) every `step_size` updates
    cosine = 2,     ///< falls to `final_factor` (default 0) at `total_steps`, as a cosine
    linear = 3,     ///< falls to `final_factor` (default 0) at `total_steps`, linearly
    one_cycle = 4,  ///< rises from 1/25 during 30 % of `total_steps`, then falls to 4e-6, both as a cosine; 1 is learning_rate
  };
  Kind kind = Kind::constant;
  int64_t warmup_steps = 0;  ///< number of first updates, in which the rate rises linearly from 1 / warmup_steps; not for one_cycle
  int64_t total_steps = 0;   ///< number of updates, including the warm-up
  int64_t step_size = 0;
  std::optional<double> gamma = std::nullopt, final_factor = std::nullopt;

  /// Returns the factor of the learning rate for update `index` (from 0).
  double factor(int64_t index) const;
};
TREADLE_API Schedule::Kind schedule_named(std::string_view name);

/// Settings for some of the parameters: a factor of the trainer's rate, and a weight decay in place of the trainer's.
struct TREADLE_API ParameterGroup {
  std::vector<std::string> parameters;  ///< names or patterns; a parameter belongs to the first group that matches
  double rate_factor = 1;
  std::optional<double> weight_decay = std::nullopt;  ///< nullopt: the trainer's weight decay
};

/// Initialization of parameters, with the formulas of PyTorch, which also define the numbers of inputs and outputs (fan-in and fan-out).
enum class Initializer : int {
  zeros = 0,
  ones = 1,
  normal = 2,           ///< normal distribution with the standard deviation `scale`
  uniform = 3,          ///< uniform distribution from -scale to scale
  xavier_normal = 4,    ///< standard deviation scale * sqrt(2 / (inputs + outputs))
  xavier_uniform = 5,   ///< uniform distribution with the same deviation
  kaiming_normal = 6,   ///< standard deviation scale * sqrt(2 / inputs), for ReLU
  kaiming_uniform = 7,  ///< uniform distribution with the same deviation
};
TREADLE_API Initializer initializer_named(std::string_view name);

/// Replaces the model's initial values of some parameters. xavier_* and kaiming_* need weights of rank 2 or more.
struct TREADLE_API Initialization {
  std::vector<std::string> parameters;  ///< names or patterns; a parameter uses the first entry that matches
  Initializer initializer = Initializer::zeros;
  double scale = 1;
};

/// Low-rank adaptation (Hu et al. 2021): a weight W stays fixed, and two thin matrices A and B are trained. The product uses W + alpha /
/// rank B A.
struct TREADLE_API LoraOptions {
  int64_t rank = 0;                            ///< rows of A; 0: no adapters
  std::optional<double> alpha = std::nullopt;  ///< nullopt: alpha equals rank, so the factor is 1
  double dropout = 0;                          ///< probability with which training steps drop an element of A's input; at least 0, below 1
  /// Names or patterns of weights that get adapters, or of nodes that read such weights. A weight must be a float32 initializer that only
  /// MatMul and Gemm, as second matrix, or Conv with one group read. Empty: all weights of MatMul and Gemm.
  std::vector<std::string> targets;
  uint64_t seed = 0;  ///< seeds the initial A; the initial B is zero
};

/// Loss scaling of a trainer whose `precision` includes float16, so that gradients neither underflow nor overflow. Terms and defaults are
/// as in PyTorch's GradScaler. If a gradient is infinite or NaN, the step is skipped: it changes nothing, and the scale is reduced.
struct TREADLE_API LossScaling {
  std::optional<double> init_scale = std::nullopt;        ///< 65536 by default
  std::optional<double> growth_factor = std::nullopt;     ///< 2 by default
  std::optional<double> backoff_factor = std::nullopt;    ///< 0.5 by default
  std::optional<int64_t> growth_interval = std::nullopt;  ///< updates without overflow before the scale grows; default 2000
};
/// The present state of loss scaling.
struct TREADLE_API LossScale {
  double scale = 1;
  int64_t growth_tracker = 0;  ///< updates since the scale last changed
  uint64_t num_skipped = 0;    ///< skipped steps so far
};

/// Options of a trainer. Numbers that are not set have their usual defaults. Setting one that the loss, the optimizer or the schedule does
/// not use is an error.
struct TREADLE_API TrainerOptions {
  std::string output;  ///< name of the model's output, or other value, that the loss is computed from; empty: the first output
  Loss loss = Loss::softmax_cross_entropy;
  /// For Loss::graph: a model whose output, one float32 number, is the loss. Its first input gets `output`. Other inputs get the model's
  /// value or initializer of the same name; the first input without one gets the labels, and further ones are fed by name. The initializers
  /// of the loss model are not trained. With several ranks, the losses of all ranks have the same weight.
  std::optional<Model> loss_model = std::nullopt;
  bool int32_labels = false;
  int class_axis = 1;                                  ///< the axis of the scores along which the classes lie; may be negative
  std::optional<int64_t> ignore_index = std::nullopt;  ///< label that is ignored
  std::vector<float> class_weights;                    ///< empty: all weights are 1
  double label_smoothing = 0;                          ///< a number from 0 to 1
  std::optional<double> huber_delta = std::nullopt;    ///< 1 by default
  std::optional<int64_t> blank = std::nullopt;         ///< for ctc: the class that means "no label"; default 0

  Optimizer optimizer = Optimizer::sgd;
  double learning_rate = 0.01;
  Schedule schedule;
  // Unset values have the optimizer's default: 0, except 0.9 and 0.999 for the betas, 1e-8 for epsilon, 0.99 for smoothing.
  std::optional<double> momentum = std::nullopt;
  std::optional<double> weight_decay = std::nullopt;
  bool nesterov = false;  ///< true requires momentum
  std::optional<double> beta1 = std::nullopt, beta2 = std::nullopt;
  std::optional<double> epsilon = std::nullopt;
  std::optional<double> smoothing = std::nullopt;  ///< the factor that PyTorch calls alpha
  LossScaling loss_scaling;                        ///< requires float16 in the session's `precision`
  double clip_value = 0;                           ///< gradients are clipped to [-clip_value, clip_value]; 0: not clipped
  double clip_norm = 0;  ///< limit of the joint norm of all gradients, which are scaled down after clip_value is applied; 0: none
  /// Number of steps per update: each step adds to the gradients, and an update uses their mean.
  int accumulation_steps = 1;
  /// Keeps an exponential average of each parameter, which begins as the parameter. After an update, average = ema_decay average + (1 -
  /// ema_decay) parameter. 0: none.
  double ema_decay = 0;
  /// True: also averages running statistics (PyTorch's `use_buffers`). False: averaged parameters are used with the newest statistics.
  /// Cannot be combined with accumulation_steps.
  bool ema_statistics = false;
  std::vector<ParameterGroup> groups;
  /// Initializers to train: names or patterns (* and ?). Empty: every float32 initializer of rank 1 or more that the loss depends on,
  /// except running statistics of BatchNormalization.
  std::vector<std::string> parameters;
  std::vector<std::string> frozen;  ///< excluded from training; names or patterns
  /// Names or patterns of float32 initializers to unshare: each node that reads one gets its own copy, as untied() does. For initializers
  /// that an exporter has merged because their values were equal.
  std::vector<std::string> untied;
  std::vector<Initialization> initialization;  ///< empty: parameters begin as in the model
  uint64_t initialization_seed = 0;
  /// Replaces the last layer before `output` by one with this many classes, initialized randomly from initialization_seed; 0: keeps it.
  int64_t head_classes = 0;
  /// Accepts any batch size, although the model's inputs declare a fixed first extent.
  bool dynamic_batch = false;
  /// If `lora.rank` is not 0, the trainer trains adapters, and of the initializers only those that `parameters` names.
  LoraOptions lora;
  /// Names or patterns of tables whose updates touch only the rows that the step's batch has read, so that time and memory of gradient and
  /// update are proportional to these rows. Only for parameters read by nothing but Gather along the first axis; others that match are
  /// updated normally. Rows that were not read stay unchanged, as does their optimizer state: unlike in a normal update, weight decay,
  /// momentum and Adam's averages pause for them. Cannot be combined with lamb, accumulation_steps and fused_update.
  std::vector<std::string> lazy_updates;
  /// Stores all parameters contiguously, likewise their gradients and momentum. One node updates them all, and an all-reduce handles them
  /// as one array. The bits are the same. Cannot be combined with groups, clip_norm, lamb and accumulation_steps.
  bool fused_update = false;
  /// Updates each parameter as soon as its gradient exists and no node reads the parameter any more, so that gradients are not kept until
  /// the end of the step; with the same bits. After its first update, a step can neither be cancelled nor time out. If it then fails, the
  /// trainer returns no parameters and takes no steps until a checkpoint is loaded. Only sequential, on the host, and without features that
  /// need all gradients first: clip_norm, loss scaling, accumulation, fused_update, several ranks.
  bool early_updates = false;
  /// Makes this trainer one of several ranks that train one model: each computes gradients from its part of a joint batch, and all make the
  /// update of the joint batch. Null: the communicator of communicator_name, if set. All ranks must call step(), gradients(), checkpoints
  /// and the constructor together; each may call other functions on its own.
  std::shared_ptr<Communicator> communicator = nullptr;
  std::string communicator_name;  ///< name for connect_communicator(); not allowed together with `communicator`
  double communicator_deadline_s = kDefaultCommunicatorDeadlineSeconds;
  int64_t bucket_bytes = 4 << 20;    ///< gradients are reduced in parts of this many bytes, while the next ones are computed
  DType reduction = DType::float32;  ///< dtype in which gradients are sent and summed: float32 or bfloat16
  bool shard_optimizer = false;      ///< true: each rank updates its share of the parameters, and has the optimizer state of it (ZeRO 1)
  /// Threads, devices, memory, job, profiling and passes, as for a session. The memory limit covers parameters, states, momentum, packed
  /// constants and, while a graph runs, its activations, scratch and outputs. To stay within it, steps recompute values or write them to a
  /// file, with the same bits. Options for reading or writing models are rejected.
  SessionOptions session = {};
};

/// Unshares weights: gives each node its own copy of an initializer that several nodes read. `patterns`: names, or patterns of names, of
/// such float32 initializers. The first node keeps the original; another node's copy is named NAME/NODE. Where an exporter wrote an
/// Identity for a merged weight, a copy named like the Identity's output replaces it. @throws Error(not_found) naming the nearest name
TREADLE_API Model untied(const Model& model, const std::vector<std::string>& patterns);

/// The values that a step takes besides the model's inputs.
struct LossInputs {
  std::optional<ValueInfo> labels;
  std::vector<ValueInfo> feeds;
};
/// Returns the labels and inputs that options.loss_model takes for this model. Empty for other losses.
TREADLE_API LossInputs loss_inputs(const Model& model, const TrainerOptions& options);

/// Sets an option by its name, from text: "learning_rate", "optimizer", "schedule" (its kind), "warmup_steps" …; lists are separated by
/// commas. "loss" is a name, or the path of an ONNX file, which contains a dot or slash. "group" adds a group:
/// "PATTERN,PATTERN;rate_factor=0.1;weight_decay=0". "session.NAME" is the session's option NAME.
/// @throws Error(not_found) for an unknown name; Error(invalid_argument) for an invalid value
TREADLE_API void set_option(TrainerOptions& options, std::string_view name, const std::string& value);

using Feeds = std::map<std::string, Datum>;
using NamedTensors = std::map<std::string, Tensor>;
using Metadata = std::vector<std::pair<std::string, std::string>>;

/// A trainer's progress. Dropout depends on num_steps, the schedule on num_updates.
struct TrainerPosition {
  uint64_t num_steps = 0;
  int64_t num_updates = 0;
  int accumulated_steps = 0;  ///< number of steps since the last update
};

/// Selects which settings apply when a checkpoint is loaded, besides its tensors.
enum class CheckpointSettings : int {
  same = 0,  ///< loss, optimizer, schedule and their numbers must equal the trainer's; the learning rate is the checkpoint's
  own = 1,   ///< the trainer keeps its settings and learning rate; the optimizer must be the same
};

/// Trains a model with a loss by gradient descent. BatchNormalization uses the batch's statistics and updates the running ones (auxiliary
/// states) with ONNX's momentum; Dropout is active. Several threads may call evaluate(), predict() and gradients(), also during step():
/// they see the parameters before or after a step. Other functions are not thread-safe.
class TREADLE_API Trainer {
 public:
  /// @throws Error(not_found) for names that the model lacks; not_implemented naming every node without a gradient rule
  Trainer(const Model& model, const TrainerOptions& options = {});
  ~Trainer();
  Trainer(Trainer&&) noexcept;
  Trainer& operator=(Trainer&&) noexcept;

  /// Runs one training step: forward, backward, and update of parameters and states in place. A step that fails before its updates changes
  /// nothing. Without early_updates, the updates come last.
  /// @param labels   undefined if the loss has none
  /// @param options  options of the run, as for a session: cancellation, deadline, checks, dumps, metadata. Targets and allocators of
  ///                 outputs are rejected
  /// @return the loss before the update
  double step(const Feeds& feeds, const Tensor& labels, const RunOptions* options = nullptr);
  /// Returns the loss, computed with running statistics and without Dropout. Changes nothing.
  double evaluate(const Feeds& feeds, const Tensor& labels, const RunOptions* options = nullptr);
  struct Evaluated {
    double loss = 0;
    std::vector<Datum> outputs;  ///< the outputs of the model, in order
  };
  /// Returns loss and outputs of one forward pass.
  Evaluated evaluate_with_outputs(const Feeds& feeds, const Tensor& labels, const RunOptions* options = nullptr);
  /// Returns the model's outputs, in order, in the mode of evaluate().
  std::vector<Datum> predict(const Feeds& feeds, const RunOptions* options = nullptr);
  /// Returns the gradients that step() would use, by parameter. Changes nothing.
  NamedTensors gradients(const Feeds& feeds, const Tensor& labels, const RunOptions* options = nullptr);

  /// Returns live views of the parameters: they change with every step, and may be written between steps. Because writes are not announced,
  /// evaluate() and predict() from now on compare all parameters with the kernels' packed copies, reading every byte, and steps on a device
  /// copy all updates to the host. Adapters of a weight "X.weight" are "X.lora_A.weight", [rank, inputs ...], and "X.lora_B.weight",
  /// [outputs, rank ...].
  const NamedTensors& parameters() const;
  const NamedTensors& states() const;  ///< running means and variances
  /// Return such views as separate tensors: steps copy, and evaluate() and predict() compare, only while any of these tensors exists.
  NamedTensors parameter_views() const;
  NamedTensors state_views() const;
  const NamedTensors& momentum() const;  ///< returns the momentum of each parameter; empty for optimizers without momentum
  /// Returns all state kept for parameters, as "PARAMETER/WHAT". WHAT is momentum, mean, squares, average (TrainerOptions::ema_decay) or
  /// gradient (accumulated).
  const NamedTensors& optimizer_state() const;
  /// Returns optimizer_state() with the parts of all other ranks (TrainerOptions::shard_optimizer) and the summed gradients of all ranks,
  /// as in a checkpoint. All ranks must call it. The tensors are those of the last step: parts of other ranks are copies, and this rank's
  /// parts do not follow later steps on a device.
  NamedTensors joint_optimizer_state() const;
  /// Returns live views of the averages of parameters and, with TrainerOptions::ema_statistics, of running statistics; empty without
  /// ema_decay.
  NamedTensors averages() const;
  /// Swaps parameters and averages: evaluate(), predict(), save() and parameters() use the averages until this function is called with
  /// false. Meanwhile steps and checkpoints are rejected. @throws Error(invalid_argument) if no averages are kept
  void use_averages(bool use);
  bool averages_used() const;
  int64_t num_updates() const;
  TrainerPosition position() const;
  /// Sets the counts of steps and updates. @throws Error(invalid_argument) for counts that no trainer with these options can reach
  void set_position(const TrainerPosition& position);
  /// Returns the present loss scale; nullopt if the loss is not scaled.
  std::optional<LossScale> loss_scale() const;
  /// Sets the loss scale. @throws Error(invalid_argument) if the loss is not scaled, or for numbers that no trainer with these options can
  /// reach
  void set_loss_scale(const LossScale& scale);
  const TrainerOptions& options() const;
  const Model& model() const;     ///< the model as read, but running statistics that shared an initializer have one each
  double learning_rate() const;   ///< rate before the factors of schedule and group
  double scheduled_rate() const;  ///< rate for the next update
  void set_learning_rate(double rate);
  const std::vector<std::string>& output_names() const;
  /// Does what Session::set_monitor() does, for values of all graphs that the trainer runs, including gradients and updates, by their names
  /// before optimization. Setting another monitor recompiles the graphs.
  void set_monitor(Monitor monitor);
  /// Cancels running steps and other runs and waits for them, as Session::close() does. Later runs throw Error(cancelled). A step that has
  /// begun its updates is not cancelled, but ends.
  std::vector<UnfinishedRun> close(int64_t timeout_ms = -1);
  bool closed() const;
  /// Returns the memory of the trainer, by class. set_memory_limit() throws Error(invalid_argument) if the trainer was made without a limit
  MemoryStatistics memory_statistics() const;
  void set_memory_limit(size_t limit_bytes);
  /// Writes a trace with the terms of PyTorch's profiler (Chrome's JSON), and returns its path. Turns profiling off.
  std::string end_profiling();
  /// Does what Session::start_profiling() does. Steps, gradients and predictions are runs; nodes are marked as forward, backward or
  /// optimizer. Must not be called while another thread uses the trainer.
  void start_profiling();
  void pause_profiling();
  void resume_profiling();
  Profile profile() const;
  /// Begins an additional profile. Any number may be active at once (treadle/profile.h). It must not outlive the trainer.
  Profiler profiler(const ProfilerOptions& options);
  /// Do what Session::node_counters() and reset_node_counters() do, if the `session` option is set.
  std::vector<NodeCounter> node_counters() const;
  void reset_node_counters() const;

  /// Writes the original model with the trained initializers; adapters are merged into their weights.
  /// @param metadata  entries that are set in the model's metadata
  void save(const std::string& path, const Metadata& metadata = {}) const;
  /// Returns the model of save() as bytes.
  std::string to_bytes(const Metadata& metadata = {}) const;
  /// Writes all that is needed to continue with the same bits: parameters, states, optimizer_state(), position(), learning rate, and the
  /// settings that a step depends on, by name. The file is a safetensors file with a checksum; if the process is killed, either the old or
  /// the new file exists. With a communicator all ranks must call it, and rank 0 writes.
  /// @param metadata  the caller's own, for instance the position in the data
  void save_checkpoint(const std::string& path, const Metadata& metadata = {}) const;
  /// Loads a checkpoint, perhaps of a different number of ranks. With a communicator all ranks must call it, and rank 0 reads.
  /// @return the metadata that save_checkpoint() was given
  /// @throws Error(invalid_model) if the file is damaged or not a checkpoint; Error(invalid_argument) naming the first difference, if it is
  ///         of another model, optimizer or setting. Then nothing has changed
  Metadata load_checkpoint(const std::string& path, CheckpointSettings settings = CheckpointSettings::same);
  /// Writes artifacts, which can be trained without the graph-building parts of the library. The folder, created if necessary, gets
  /// training_model.onnx (forward, backward and update), eval_model.onnx, optimizer_model.onnx (with accumulation), inference_model.onnx,
  /// checkpoint.safetensors, and required_operators.config, which lists what a small build of the library needs. The models use operators
  /// of the domain treadle: they are for this version of the library, on any processor.
  /// @throws Error(invalid_argument) with a communicator, or while averages are used; Error(io_error)
  void write_artifacts(const std::string& folder) const;
  /// Makes a trainer that continues from write_artifacts(), with the same bits. The trainer does not support gradients().
  /// @param session  threads, devices, memory, job and profiling; options that shape graphs (optimizations, precision) are rejected
  /// @throws Error(not_found) for a missing file; Error(invalid_model) for a file that is damaged or of other artifacts;
  ///         Error(not_implemented) for artifacts of another version, or an operator that this build lacks
  static Trainer open_artifacts(const std::string& folder, const SessionOptions& session = {});
  /// Writes A and B of each adapter as a safetensors file, with the names and shapes of parameters(), which are PEFT's, and with rank and
  /// alpha as metadata. @throws Error(invalid_argument) without adapters
  void save_adapters(const std::string& path) const;
  /// Loads adapters from a file of save_adapters() or of PEFT. @throws Error(invalid_argument) naming the first adapter that is missing,
  /// has another shape, or that this trainer does not have; then nothing has changed
  void load_adapters(const std::string& path);
  /// Returns the forward, backward and update graph as text.
  std::string to_text() const;

 private:
  /// Calls `write`, which changes parameters, states or optimizer state, while no run reads or writes them.
  void change(const std::function<void()>& write);

  struct Impl;
  explicit Trainer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct CheckpointFolderOptions {
  int keep_last = 3;          ///< older checkpoints are deleted when a newer one is complete; 0: all are kept
  bool asynchronous = false;  ///< save() copies the tensors, and a thread writes them
};

/// Checkpoints of one trainer in a folder, named by step. Only one process at a time may write to a folder.
class TREADLE_API CheckpointFolder {
 public:
  /// Creates the folder if necessary, and deletes incomplete files of a killed process.
  explicit CheckpointFolder(const std::string& folder, const CheckpointFolderOptions& options = {});
  /// Waits for the file being written. An error of writing it is dropped: call wait() to get it.
  ~CheckpointFolder();
  CheckpointFolder(CheckpointFolder&&) noexcept;
  CheckpointFolder& operator=(CheckpointFolder&&) noexcept;

  /// Saves a checkpoint. @return the file's path. @throws errors of writing; if asynchronous, at the next call
  std::string save(const Trainer& trainer, const Metadata& metadata = {});
  /// Waits until the last save() is on disk. @throws Error if it failed
  void wait();
  /// Lists complete files, oldest first.
  std::vector<std::string> files() const;
  struct Resumed {
    std::string path;
    Metadata metadata;
  };
  /// Loads the newest undamaged checkpoint. @return nullopt if there is no checkpoint at all
  /// @throws Error(invalid_model) if all are damaged; Error(invalid_argument) if it is of another model or other settings
  std::optional<Resumed> resume(Trainer& trainer, CheckpointSettings settings = CheckpointSettings::same) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Says how a gradient is returned (MXNet's grad_req).
enum class GradientRequest : int {
  null = 0,   ///< the gradient is not computed
  write = 1,  ///< the gradient overwrites the memory
  add = 2,    ///< the gradient is added to the contents of its memory
};
TREADLE_API GradientRequest gradient_request_named(std::string_view name);
TREADLE_API std::string_view name_of(GradientRequest request);

struct TREADLE_API JointOptions {
  std::vector<std::string> outputs;     ///< floating-point outputs to hand out; empty: all
  std::vector<std::string> inputs;      ///< names of inputs that need gradients, too
  std::vector<std::string> parameters;  ///< parameters to train: names or patterns, as in TrainerOptions
  std::vector<std::string> frozen;
  /// Outputs of any type, handed out after `outputs`; they have no gradients.
  std::vector<std::string> plain_outputs;
  /// Inputs that hold running statistics of BatchNormalization nodes. The caller feeds them, and the forward pass writes new ones into the
  /// same memory. Nodes whose statistics are inputs not listed here only normalize by them.
  std::vector<std::string> states;
  bool unbiased_variance = false;  ///< the running variance divides by n - 1, as in PyTorch; false: by n, as in ONNX
  /// Names or patterns of parameters whose gradients are returned by rows, as sparse tensors: tables read by nothing but Gather along the
  /// first axis. Others that match have normal gradients.
  std::vector<std::string> sparse_gradients;
  /// Requests for parameters and `inputs`, by name; default: write. Parameters with null gradients are still read in place. Gradients to be
  /// added need memory (begin_with_memory()) and cannot be by rows.
  std::map<std::string, GradientRequest> gradient_requests;
  bool zero_gradients = true;  ///< gradients of `inputs` that the outputs do not depend on are zeros; false: absent
  bool forward_only = false;   ///< true: there is no backward pass, and the model may have nothing to train
  /// Used with forward_only. True: BatchNormalization normalizes by running statistics, and Dropout is the identity.
  bool inference = false;
  /// Used with forward_only. The inputs and float initializers that each run reads from the caller's memory instead of a feed. Kernels pack
  /// them again after a change, which each run detects by comparing all elements.
  NamedTensors held;
  /// Like TrainerOptions::session. Backward nodes run on the devices of their forward nodes. A run that waits for its gradients does not
  /// count as running.
  SessionOptions session = {};
};

/// Sets an option from text, as for a trainer: a member's name, or "session.NAME". Lists are separated by commas and appended.
/// docs/options.md lists all options.
TREADLE_API void set_option(JointOptions& options, std::string_view name, const std::string& value);

/// The forward and backward graph of a model, with a Yield node between them. The forward pass hands out outputs; the caller computes a
/// loss and its gradient (for instance in PyTorch), passes that in, and gets the gradients of the parameters.
class TREADLE_API JointModule {
 public:
  explicit JointModule(const Model& model, const JointOptions& options = {});
  ~JointModule();
  JointModule(JointModule&&) noexcept;
  JointModule& operator=(JointModule&&) noexcept;

  /// A run of both passes, usually stopped at the Yield. Several may be open; each keeps the module's graph alive.
  class TREADLE_API Run {
   public:
    ~Run();
    Run(Run&&) noexcept;
    Run& operator=(Run&&) noexcept;
    /// For runs from begin(): executes this many steps of the forward pass. A step is a node or, with devices, a node or a copy.
    /// @return steps_left() afterwards
    size_t advance_steps(size_t count = 1);
    /// Returns the number of steps before the Yield.
    size_t steps_left() const;
    /// Returns the outputs in the order of output_names(). Empty before the run has reached its Yield.
    const std::vector<Tensor>& outputs() const;
    /// Does what backward() does, with gradients by position. @param grad_outputs  an undefined tensor means zeros
    /// @return gradients in the order of gradient_names(); undefined if the outputs do not depend on the value
    std::vector<Tensor> backward_in_order(std::span<const Tensor> grad_outputs);
    /// Declares, before the backward pass, that the value of input_names()[input] has moved; its old memory is not read any more.
    /// @throws Error(invalid_argument) for another dtype or shape
    void move_feed(size_t input, const Tensor& value);
    /// Begins a backward pass in parts: takes the gradients of the outputs, like backward_in_order(), and computes nothing yet.
    void begin_backward(std::span<const Tensor> grad_outputs);
    /// Computes until these gradients exist.
    /// @param gradients  indices in gradient_names(), such as one of gradient_groups(); each may be requested once
    /// @return one gradient per index; the run keeps none of them. The pass ends when all have been requested
    std::vector<Tensor> advance_backward(std::span<const size_t> gradients);
    /// Returns the indices of the parameter's rows for which a gradient has rows, int64, ascending. For gradients of
    /// JointOptions::sparse_gradients that have been returned; undefined for others.
    const Tensor& rows(size_t gradient) const;
    /// Runs the backward pass. @param grad_outputs  gradients of the outputs, in their shapes
    /// @return gradients of parameters and requested inputs. @throws Error if called twice, or for a module with gradients by rows
    NamedTensors backward(std::span<const Tensor> grad_outputs);
    /// Does what backward() does, but returns gradients by rows as sparse tensors: COO over the first axis.
    Feeds sparse_backward(std::span<const Tensor> grad_outputs);
    /// For runs from begin_with_memory(): writes gradients to their memory, or adds them. After an error, some may have been written.
    /// @return gradients by rows, as sparse tensors
    Feeds backward_to_memory(std::span<const Tensor> grad_outputs);

   private:
    friend class JointModule;
    struct Impl;
    explicit Run(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
  };

  /// Runs to the Yield, then updates running statistics as PyTorch does. A pass that fails leaves them unchanged.
  /// @param options  as in Trainer::step(); must outlive the run. The deadline counts from this call
  Run forward(const Feeds& feeds, const RunOptions* options = nullptr);
  /// Makes a run that has not executed anything yet.
  Run begin(const Feeds& feeds, const RunOptions* options = nullptr);
  /// Makes a run for Run::backward_to_memory(), which has not executed anything yet.
  /// @param gradients  contiguous memory for each requested gradient, in its dtype and shape, by name; gradients by rows need none
  Run begin_with_memory(const Feeds& feeds, const NamedTensors& gradients, const RunOptions* options = nullptr);
  struct Feeding {
    std::optional<uint64_t> draw = std::nullopt;  ///< seeds the random operators of this run; nullopt: the number of runs so far
    bool update_states = true;
    const RunOptions* options = nullptr;  ///< options as in forward()
  };
  /// Does what forward() does, with feeds by position. Outputs that the backward pass reads are copies, so the caller may write to all
  /// outputs.
  /// @param feeds  in the order of input_names()
  Run forward_in_order(std::vector<Datum> feeds, const Feeding& feeding);
  Run forward_in_order(std::vector<Datum> feeds) { return forward_in_order(std::move(feeds), Feeding()); }
  /// Returns the inputs to feed: the model's inputs on which any result depends, including `states`.
  const std::vector<std::string>& input_names() const;
  /// Returns the parameters, then the `inputs` of the options.
  const std::vector<std::string>& gradient_names() const;
  /// Gradients in the order of the backward pass, as indices in gradient_names(), in groups of at least this many bytes, except for the
  /// last. Gradients of inputs count as 0 bytes, since only a run knows their extents.
  std::vector<std::vector<size_t>> gradient_groups(size_t group_bytes) const;
  /// True if a run draws random numbers.
  bool is_random() const;
  /// Sets a monitor as Trainer::set_monitor() does, for runs that begin afterwards.
  void set_monitor(Monitor monitor);
  /// Does what Trainer::close() does: cancels forward and backward passes, and waits for them.
  std::vector<UnfinishedRun> close(int64_t timeout_ms = -1);
  bool closed() const;
  MemoryStatistics memory_statistics() const;
  void set_memory_limit(size_t limit_bytes);
  /// Frees the memory that ended runs keep for later runs: an idle module then holds only its parameters. Thread-safe.
  void trim();
  std::string end_profiling();
  /// Begins profiling, as in Session. A forward pass is a run, as is a backward pass or each group of its gradients. Must not be called
  /// while another thread uses the module.
  void start_profiling();
  void pause_profiling();
  void resume_profiling();
  Profile profile() const;
  /// Sets the memory of parameters, states and JointOptions::held for later runs; open runs keep theirs. Both passes of a run read
  /// parameters there, so do not change them in between. The forward pass writes states. Do not call it while another thread begins a run.
  /// @throws Error(not_found) for another name; Error(invalid_argument) for another dtype or shape, and for strides
  void hold(const NamedTensors& tensors);
  /// Returns the names in JointOptions::held that any result depends on.
  std::vector<std::string> held_names() const;
  /// Begins an additional profile. Any number may be active at once (treadle/profile.h). It must not outlive the module.
  Profiler profiler(const ProfilerOptions& options);
  /// Do what Session::node_counters() and reset_node_counters() do, if the `session` option is set.
  std::vector<NodeCounter> node_counters() const;
  void reset_node_counters() const;
  const std::vector<std::string>& output_names() const;
  /// Return live views of the module's memory, as Trainer::parameters() and Trainer::states() do.
  const NamedTensors& parameters() const;
  const NamedTensors& states() const;
  void save(const std::string& path, const Metadata& metadata = {}) const;
  std::string to_bytes(const Metadata& metadata = {}) const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace treadle::train
