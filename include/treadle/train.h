// Training of ONNX models: the forward and backward graph, optimised, planned and run like any other.
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

/// With PyTorch's definitions; means are over all elements, or over the labels that count, by their weights.
enum class Loss : int {
  softmax_cross_entropy = 0,             ///< of scores [N, C, ...] and int64 (or int32) labels [N, ...]
  mean_squared_error = 1,                ///< of an output and labels of its shape and dtype
  l1 = 2,                                ///< likewise
  huber = 3,                             ///< likewise; TrainerOptions::huber_delta
  binary_cross_entropy_with_logits = 4,  ///< of scores and labels from 0 to 1 of their shape
  negative_log_likelihood = 5,           ///< as the first, of logarithms of probabilities
  kl_divergence = 6,  ///< of logarithms of probabilities and labels that are probabilities, summed, over the first extent
  output = 7,         ///< the output is the loss itself, one float32 number; there are no labels
  ctc = 8,    ///< of scores [N, C, steps] and int64 (or int32) labels [N, length], of which those behind a negative one do not count
  graph = 9,  ///< as TrainerOptions::loss_model says
};
/// By its name here. @throws Error(invalid_argument) naming the nearest.
TREADLE_API Loss loss_named(std::string_view name);

/// With PyTorch's formulas and defaults; Lion (Chen et al. 2023) and LAMB (You et al. 2020) as published. Each takes the numbers of
/// TrainerOptions that are named; weight_decay all of them.
enum class Optimizer : int {
  sgd = 0,      ///< v = momentum v + g + weight_decay p; p = p - rate v (dampening 0); momentum, nesterov
  adam = 1,     ///< weight decay is added to the gradient; beta1, beta2, epsilon
  adamw = 2,    ///< weight decay shrinks the parameter, 0.01 by default; beta1, beta2, epsilon
  adagrad = 3,  ///< epsilon, 1e-10 by default
  rmsprop = 4,  ///< smoothing, momentum, epsilon
  lion = 5,     ///< of the gradient's sign; beta1, beta2 (0.99 by default)
  lamb = 6,     ///< AdamW's step, as long as the parameter; beta1, beta2, epsilon (1e-6 by default)
};
TREADLE_API Optimizer optimizer_named(std::string_view name);

/// How the learning rate goes with the number of updates.
struct TREADLE_API Schedule {
  enum class Kind : int {
    constant = 0,
    step = 1,       ///< times `gamma` (0.1 by default) every `step_size` updates
    cosine = 2,     ///< down to `final_factor` (0 by default) at `total_steps`
    linear = 3,     ///< likewise
    one_cycle = 4,  ///< up from a 25th in 30 % of `total_steps`, down to 4e-6 of it, both as a cosine; learning_rate is the greatest
  };
  Kind kind = Kind::constant;
  int64_t warmup_steps = 0;  ///< first, from 1 / warmup_steps up; not of one_cycle
  int64_t total_steps = 0;   ///< warm-up included
  int64_t step_size = 0;
  std::optional<double> gamma = std::nullopt, final_factor = std::nullopt;

  /// Of the learning rate, for update `index` (from 0).
  double factor(int64_t index) const;
};
TREADLE_API Schedule::Kind schedule_named(std::string_view name);

/// Parameters with settings of their own.
struct TREADLE_API ParameterGroup {
  std::vector<std::string> parameters;  ///< names or patterns; a parameter is of the first group that it fits
  double rate_factor = 1;
  std::optional<double> weight_decay = std::nullopt;  ///< none: the trainer's
};

/// How parameters begin, with PyTorch's formulas and counts of inputs and outputs.
enum class Initializer : int {
  zeros = 0,
  ones = 1,
  normal = 2,           ///< of standard deviation `scale`
  uniform = 3,          ///< from -scale to scale
  xavier_normal = 4,    ///< of standard deviation scale * sqrt(2 / (inputs + outputs))
  xavier_uniform = 5,   ///< of the same deviation
  kaiming_normal = 6,   ///< of standard deviation scale * sqrt(2 / inputs), for ReLU
  kaiming_uniform = 7,  ///< of the same deviation
};
TREADLE_API Initializer initializer_named(std::string_view name);

/// Parameters that begin with other values than the model's. The last four take weights of rank 2 or more.
struct TREADLE_API Initialization {
  std::vector<std::string> parameters;  ///< names or patterns; a parameter takes the first entry that it fits
  Initializer initializer = Initializer::zeros;
  double scale = 1;
};

/// Low-rank adaptation (Hu et al. 2021): beside a weight W, which stays as it is, two thin matrices A and B are trained, and the product
/// counts as that by W + alpha / rank B A.
struct TREADLE_API LoraOptions {
  int64_t rank = 0;                            ///< rows of A; 0: there are no adapters
  std::optional<double> alpha = std::nullopt;  ///< none: the rank, a factor of 1
  double dropout = 0;                          ///< of what A reads, in steps; from 0 to 1, and less
  /// Weights that get adapters, or nodes that read them: names or patterns. Float32 initializers that only MatMul and Gemm (as their second
  /// matrix) or Conv (of one group) read. Empty: all of MatMul and Gemm.
  std::vector<std::string> targets;
  uint64_t seed = 0;  ///< of the first A; the first B is zeros
};

/// How the loss is scaled before the backward pass of a trainer whose `precision` has float16, so that gradients neither vanish in it nor
/// overflow: in the words and by the defaults of PyTorch's GradScaler. Where a gradient is infinite or NaN, the step is skipped: it changes
/// nothing, and the scale backs off.
struct TREADLE_API LossScaling {
  std::optional<double> init_scale = std::nullopt;        ///< 65536 by default
  std::optional<double> growth_factor = std::nullopt;     ///< 2 by default
  std::optional<double> backoff_factor = std::nullopt;    ///< 0.5 by default
  std::optional<int64_t> growth_interval = std::nullopt;  ///< updates without an overflow before the scale grows; 2000 by default
};
/// Where it is.
struct TREADLE_API LossScale {
  double scale = 1;
  int64_t growth_tracker = 0;  ///< updates since the scale moved
  uint64_t num_skipped = 0;    ///< steps, so far
};

/// A number that nobody gave is as usual; one that the loss, the optimizer or the schedule has no use for is refused.
struct TREADLE_API TrainerOptions {
  std::string output;  ///< of the model, or another of its values, which the loss is taken of; empty: its first output
  Loss loss = Loss::softmax_cross_entropy;
  /// With Loss::graph: a model whose output, one float32 number, is the loss. Its first input takes the value that the loss is taken of.
  /// Others take the value of the model that has their name, an initializer too; the first that finds none takes the labels, and those
  /// behind it are fed by their names. Its initializers are not trained. Of several ranks, each counts the same.
  std::optional<Model> loss_model = std::nullopt;
  bool int32_labels = false;
  int class_axis = 1;                                  ///< of the scores; may be negative
  std::optional<int64_t> ignore_index = std::nullopt;  ///< labels that do not count
  std::vector<float> class_weights;                    ///< empty: 1 each
  double label_smoothing = 0;                          ///< from 0 to 1
  std::optional<double> huber_delta = std::nullopt;    ///< 1 by default
  std::optional<int64_t> blank = std::nullopt;         ///< the class of ctc that is no label; 0 by default

  Optimizer optimizer = Optimizer::sgd;
  double learning_rate = 0.01;
  Schedule schedule;
  // Without a word: 0, but for the betas (0.9 and 0.999), epsilon (1e-8), smoothing (0.99) and what Optimizer says.
  std::optional<double> momentum = std::nullopt;
  std::optional<double> weight_decay = std::nullopt;
  bool nesterov = false;  ///< with momentum
  std::optional<double> beta1 = std::nullopt, beta2 = std::nullopt;
  std::optional<double> epsilon = std::nullopt;
  std::optional<double> smoothing = std::nullopt;  ///< PyTorch's alpha
  LossScaling loss_scaling;                        ///< only with float16 in the session's `precision`
  double clip_value = 0;                           ///< gradients are cut to its distance from 0; 0: not
  double clip_norm = 0;  ///< of all gradients together, which are scaled to it where it is longer; 0: not. After clip_value
  /// A step adds to the gradients; every so many update the parameters with their mean.
  int accumulation_steps = 1;
  /// An exponential average of each parameter is kept, which begins as the parameter: after an update, average = ema_decay average +
  /// (1 - ema_decay) parameter. 0: none is.
  double ema_decay = 0;
  /// Running statistics are averaged as well (PyTorch's `use_buffers`); otherwise the averages go with the newest ones. Not with
  /// accumulation_steps.
  bool ema_statistics = false;
  std::vector<ParameterGroup> groups;
  /// Initializers to train, names or patterns (*, ?, [...]). Empty: every float32 one of rank 1 or more that the loss depends on, but
  /// BatchNormalization's running statistics.
  std::vector<std::string> parameters;
  std::vector<std::string> frozen;  ///< not trained though they would be; names or patterns
  /// Float32 initializers of which each node that reads them gets one of its own, names or patterns: for what an exporter has merged, since
  /// the values were equal. As untied() makes them.
  std::vector<std::string> untied;
  std::vector<Initialization> initialization;  ///< empty: parameters begin as the model has them
  uint64_t initialization_seed = 0;
  /// The last layer before `output` is replaced by one of so many classes, which begins with random numbers of initialization_seed; 0: it
  /// is not.
  int64_t head_classes = 0;
  /// A model that was written for one size of the batch, as its inputs' first extent, takes any.
  bool dynamic_batch = false;
  /// With a rank, adapters are trained, and of the initializers only those that `parameters` names.
  LoraOptions lora;
  /// Tables, by names or patterns, of which an update touches only the rows that the step's batch has read: time and memory of gradient and
  /// update go with those rows. Only parameters that nothing but Gather along the first axis reads; others that a pattern fits are updated
  /// as usual. Rows that were not read stay as they are, and so does their state: no weight decay, momentum or moving averages of Adam go
  /// on there, which is where this differs from the usual update. Not with lamb, accumulation_steps and fused_update.
  std::vector<std::string> lazy_updates;
  /// All parameters lie one after the other in memory, so do their gradients, where they are computed, and their momentum: one node updates
  /// them all, and an all-reduce finds them as one array. The bits are the same. Without groups, norms and accumulation.
  bool fused_update = false;
  /// Each parameter is updated as soon as its gradient is there and nobody reads the parameter any more, so that gradients are not kept
  /// until the end of the step; the same bits. From its first update on a step is neither cancelled nor ended by its deadline. If it fails
  /// behind it, the trainer gives no parameters and takes no step until a checkpoint is loaded. In order and on the host, without what
  /// needs all gradients first: clip_norm, loss scaling, accumulation, fused_update, several ranks.
  bool early_updates = false;
  /// This trainer is one rank among several, which train one model: each steps with its part of a joint batch, and all take the step of the
  /// joint batch. Null: the one that communicator_name connects to; there is none without a name. step(), gradients(), checkpoints and the
  /// constructor are calls that all ranks make together; the others are each rank's own.
  std::shared_ptr<Communicator> communicator = nullptr;
  std::string communicator_name;  ///< as of connect_communicator(); with `communicator` refused
  double communicator_deadline_s = kDefaultCommunicatorDeadlineSeconds;
  int64_t bucket_bytes = 4 << 20;    ///< gradients are reduced in parts of this size, while the next are computed
  DType reduction = DType::float32;  ///< in which gradients travel and are added: or bfloat16
  bool shard_optimizer = false;      ///< each rank keeps the optimizer's state of, and updates, its share of the parameters (ZeRO 1)
  /// Threads, devices, memory, job, profiling and passes, as of a session. The memory limit is of parameters, states, momentum, packed
  /// constants and, while a graph runs, its activations, scratch and outputs; steps keep to it by computing values a second time or writing
  /// them to a file, with the same bits. What says how a model is read or written is refused.
  SessionOptions session = {};
};

/// The model with an initializer for each node that reads one of these, names or patterns of float32 initializers that several nodes read.
/// The first node keeps it. Another's is named NAME/NODE; in place of an Identity, which exporters put for a weight that they merged, as
/// the Identity's output. @throws Error(not_found) naming the nearest.
TREADLE_API Model untied(const Model& model, const std::vector<std::string>& patterns);

/// What a step takes besides the inputs of the model.
struct LossInputs {
  std::optional<ValueInfo> labels;
  std::vector<ValueInfo> feeds;
};
/// Of options.loss_model with this model. Nothing if the loss is another.
TREADLE_API LossInputs loss_inputs(const Model& model, const TrainerOptions& options);

/// Sets one of the options above by its name, from text: "learning_rate", "optimizer", "schedule" (its kind), "warmup_steps" …; lists are
/// separated by commas. "loss" is a name, or the path of an ONNX file, which has a dot or a slash in it. "group" adds one:
/// "PATTERN,PATTERN;rate_factor=0.1;weight_decay=0". "session.NAME" is the session's option NAME.
/// @throws Error(not_found) for a name that does not exist; Error(invalid_argument) for a value that the option does not take.
TREADLE_API void set_option(TrainerOptions& options, std::string_view name, const std::string& value);

using Feeds = std::map<std::string, Datum>;
using NamedTensors = std::map<std::string, Tensor>;
using Metadata = std::vector<std::pair<std::string, std::string>>;

/// How far a trainer has come. Dropout draws by num_steps, the schedule counts num_updates.
struct TrainerPosition {
  uint64_t num_steps = 0;
  int64_t num_updates = 0;
  int accumulated_steps = 0;  ///< since the last update
};

/// What a checkpoint says besides tensors: whether they alone are taken.
enum class CheckpointSettings : int {
  same = 0,  ///< loss, optimizer, schedule and their numbers must be the trainer's; the learning rate becomes the checkpoint's
  own = 1,   ///< the trainer keeps its own, and its learning rate; the optimizer must be the same one
};

/// Trains a model with a loss by gradient descent. BatchNormalization uses the batch's statistics and updates the running ones
/// (auxiliary states) with ONNX's momentum; Dropout drops. evaluate(), predict() and gradients() may be called by several threads, also
/// beside step(): they see the parameters as they are before a step or after it. All else is not for use by several threads at once.
class TREADLE_API Trainer {
 public:
  /// @throws Error(not_found) for names that the model has not; not_implemented naming every node without a gradient rule.
  Trainer(const Model& model, const TrainerOptions& options = {});
  ~Trainer();
  Trainer(Trainer&&) noexcept;
  Trainer& operator=(Trainer&&) noexcept;

  /// One step: forward, backward, update of parameters and states, all in place. @return the loss before the update.
  /// @param labels  undefined where the loss has none. A step that fails on its way to the updates, which come last without early_updates,
  /// has changed nothing.
  /// @param options  of the run, as a session's: cancellation, deadline, checks, dumps, metadata. Targets and allocators of outputs are
  ///                 refused.
  double step(const Feeds& feeds, const Tensor& labels, const RunOptions* options = nullptr);
  /// The loss with running statistics and without Dropout. Changes nothing.
  double evaluate(const Feeds& feeds, const Tensor& labels, const RunOptions* options = nullptr);
  struct Evaluated {
    double loss = 0;
    std::vector<Datum> outputs;  ///< the model's, in order
  };
  /// Loss and outputs of one forward pass.
  Evaluated evaluate_with_outputs(const Feeds& feeds, const Tensor& labels, const RunOptions* options = nullptr);
  /// The model's outputs, in order, as evaluate() sees them.
  std::vector<Datum> predict(const Feeds& feeds, const RunOptions* options = nullptr);
  /// What step() would follow, by parameter. Changes nothing.
  NamedTensors gradients(const Feeds& feeds, const Tensor& labels, const RunOptions* options = nullptr);

  /// Live views: they change with every step, and may be written between steps. Since somebody may do that without a word, evaluate() and
  /// predict() from now on compare all of them with what kernels have packed, which reads every byte, and steps on a device copy all that
  /// they update to the host. Adapters of a weight "X.weight" are "X.lora_A.weight", [rank, inputs ...], and "X.lora_B.weight", [outputs,
  /// rank ...].
  const NamedTensors& parameters() const;
  const NamedTensors& states() const;  ///< running means and variances
  /// The same as tensors of their own: steps copy, and evaluate() and predict() compare, for as long as one of them is held.
  NamedTensors parameter_views() const;
  NamedTensors state_views() const;
  const NamedTensors& momentum() const;  ///< by parameter; empty for optimizers without
  /// All that is kept for each parameter, as "PARAMETER/WHAT": momentum, mean, squares, average (TrainerOptions::ema_decay), gradient (of
  /// accumulation).
  const NamedTensors& optimizer_state() const;
  /// The same with what other ranks keep (TrainerOptions::shard_optimizer) and all ranks' sums of gradients: what a checkpoint has. All
  /// ranks call it. As of the last step: tensors that are not this rank's are copies, and others stay as they are where steps on a device
  /// leave what they update there.
  NamedTensors joint_optimizer_state() const;
  /// Of the parameters, by parameter, and with TrainerOptions::ema_statistics of running statistics; empty without ema_decay. Live views.
  NamedTensors averages() const;
  /// Parameters and averages change places: evaluate(), predict(), save() and parameters() then have the averages, until this is called
  /// with false. Steps and checkpoints are refused meanwhile. @throws Error(invalid_argument) if no averages are kept.
  void use_averages(bool use);
  bool averages_used() const;
  int64_t num_updates() const;
  TrainerPosition position() const;
  /// @throws Error(invalid_argument) for counts that no trainer with these options reaches.
  void set_position(const TrainerPosition& position);
  /// Nothing if the loss is not scaled.
  std::optional<LossScale> loss_scale() const;
  /// @throws Error(invalid_argument) if the loss is not scaled, or for numbers that no trainer with these options reaches.
  void set_loss_scale(const LossScale& scale);
  const TrainerOptions& options() const;
  const Model& model() const;     ///< as read, but with running statistics of their own
  double learning_rate() const;   ///< before the schedule and the groups
  double scheduled_rate() const;  ///< of the next update
  void set_learning_rate(double rate);
  const std::vector<std::string>& output_names() const;
  /// As Session::set_monitor(): values of all graphs that the trainer runs, by the names that they have before the optimiser; gradients and
  /// updates are among them. Setting another one compiles the graphs anew.
  void set_monitor(Monitor monitor);
  /// What the trainer holds, by class. @throws Error(invalid_argument) for a limit of a trainer that was made without one.
  MemoryStatistics memory_statistics() const;
  void set_memory_limit(size_t limit_bytes);
  /// Writes a trace in the words of PyTorch's profiler (Chrome's JSON) and returns its path; profiling goes off.
  std::string end_profiling();
  /// As a Session's. Steps, gradients and predictions are runs; nodes say whether they are of the forward part, the backward part or the
  /// optimizer. Not while another thread uses the trainer.
  void start_profiling();
  void pause_profiling();
  void resume_profiling();
  Profile profile() const;
  /// A profile beside that one: any number at once (treadle/profile.h). It must not outlive this.
  Profiler profiler(const ProfilerOptions& options);
  /// As Session::node_counters() and reset_node_counters(), with the option of `session`.
  std::vector<NodeCounter> node_counters() const;
  void reset_node_counters() const;

  /// Writes the model as it was read, with the trained initializers, adapters merged into their weights.
  /// @param metadata  set in the model's metadata.
  void save(const std::string& path, const Metadata& metadata = {}) const;
  /// The same as bytes.
  std::string to_bytes(const Metadata& metadata = {}) const;
  /// With a communicator all ranks call it, and rank 0 writes. Writes all that it takes to go on with the same bits: parameters, states,
  /// optimizer_state(), position(), learning rate, and by name what a step depends on. A safetensors file with a checksum; a killed process
  /// leaves the old file or the new one.
  /// @param metadata  the caller's own: the position in the data, say.
  void save_checkpoint(const std::string& path, const Metadata& metadata = {}) const;
  /// With a communicator all ranks call it, and rank 0 reads; the checkpoint may be of any number of ranks.
  /// @return the metadata that save_checkpoint() was given.
  /// @throws Error(invalid_model) for a file that is damaged or no checkpoint; Error(invalid_argument) naming the first difference for one
  ///         of another model, optimizer or setting. Nothing has changed then.
  Metadata load_checkpoint(const std::string& path, CheckpointSettings settings = CheckpointSettings::same);
  /// Writes artifacts: what it takes to train without the parts of the library that make graphs. The folder, which is made if there is
  /// none, gets training_model.onnx (forward, backward and update), eval_model.onnx, with accumulation optimizer_model.onnx,
  /// inference_model.onnx, checkpoint.safetensors, and in required_operators.config what a small build of the library needs. Operators of
  /// the domain treadle are among the nodes: the models are for this version of the library, on any processor.
  /// @throws Error(invalid_argument) with a communicator, and while the averages are used; Error(io_error).
  void write_artifacts(const std::string& folder) const;
  /// A trainer that goes on where write_artifacts() was called, with the same bits. It has no gradients().
  /// @param session  threads, devices, memory, job and profiling; what shapes graphs (optimisations, precision) is refused.
  /// @throws Error(not_found) for a file that is missing; Error(invalid_model) for one that is damaged or of other artifacts;
  ///         Error(not_implemented) for artifacts of another version, or an operator that this build lacks.
  static Trainer open_artifacts(const std::string& folder, const SessionOptions& session = {});
  /// Writes A and B of each adapter, by the names and shapes of parameters(), which are PEFT's: a safetensors file whose metadata are rank
  /// and alpha. @throws Error(invalid_argument) for a trainer without adapters.
  void save_adapters(const std::string& path) const;
  /// Takes them from such a file, or one of PEFT's. @throws Error(invalid_argument) naming the first adapter that is missing, has another
  /// shape, or is none of this trainer's; nothing has changed then.
  void load_adapters(const std::string& path);
  /// The forward, backward and update graph as text.
  std::string to_text() const;

 private:
  /// Writes parameters, states or what the optimizer keeps while no run reads or writes them.
  void change(const std::function<void()>& write);

  struct Impl;
  explicit Trainer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct CheckpointFolderOptions {
  int keep_last = 3;          ///< older ones go when a newer one is complete; 0: none goes
  bool asynchronous = false;  ///< save() copies the tensors, and a thread writes them
};

/// Checkpoints of one trainer in one folder, named by its steps. No two processes may write to a folder at once.
class TREADLE_API CheckpointFolder {
 public:
  /// Makes the folder if there is none, and removes what a killed process has left half written.
  explicit CheckpointFolder(const std::string& folder, const CheckpointFolderOptions& options = {});
  /// Waits for the file that is being written; its failure is then lost: call wait().
  ~CheckpointFolder();
  CheckpointFolder(CheckpointFolder&&) noexcept;
  CheckpointFolder& operator=(CheckpointFolder&&) noexcept;

  /// @return the file's path. @throws what writing throws, of an asynchronous one the next time.
  std::string save(const Trainer& trainer, const Metadata& metadata = {});
  /// Until the last save() is on disk. @throws Error if it failed.
  void wait();
  /// Complete files, oldest first.
  std::vector<std::string> files() const;
  struct Resumed {
    std::string path;
    Metadata metadata;
  };
  /// Loads the newest checkpoint that is not damaged. @return nothing if there is no checkpoint at all.
  /// @throws Error(invalid_model) if all are damaged; Error(invalid_argument) if it is of another model or has other settings.
  std::optional<Resumed> resume(Trainer& trainer, CheckpointSettings settings = CheckpointSettings::same) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// What becomes of a gradient (MXNet's grad_req).
enum class GradientRequest : int {
  null = 0,   ///< it is not computed
  write = 1,  ///< it is written over what its memory has
  add = 2,    ///< it is added to what its memory has
};
TREADLE_API GradientRequest gradient_request_named(std::string_view name);
TREADLE_API std::string_view name_of(GradientRequest request);

struct TREADLE_API JointOptions {
  std::vector<std::string> outputs;     ///< that are handed out, floating-point; empty: all
  std::vector<std::string> inputs;      ///< whose gradients are wanted, too
  std::vector<std::string> parameters;  ///< as in TrainerOptions
  std::vector<std::string> frozen;
  /// Of any type: handed out behind `outputs`; no gradient is handed in for them.
  std::vector<std::string> plain_outputs;
  /// Inputs that hold the running statistics of BatchNormalization nodes. The caller feeds them, and the forward pass writes the new ones
  /// into the same memory. Nodes whose statistics are inputs that are not named here normalise by them.
  std::vector<std::string> states;
  bool unbiased_variance = false;  ///< The running variance takes the batch's over n - 1, as PyTorch's does; ONNX divides by n.
  /// Parameters whose gradients are handed out by rows, names or patterns: tables that nothing but Gather along the first axis reads.
  /// Others that a pattern fits have gradients as usual.
  std::vector<std::string> sparse_gradients;
  /// Of parameters and `inputs`, by name: write where none is given. Parameters of null gradients are read where they lie, like others.
  /// Gradients that are added have memory (begin_with_memory()), and are not by rows.
  std::map<std::string, GradientRequest> gradient_requests;
  bool zero_gradients = true;  ///< Of `inputs` that the outputs do not depend on; false: there are none.
  bool forward_only = false;   ///< There is no backward pass, and nothing to train is needed.
  /// With forward_only: BatchNormalization normalises by its running statistics, and Dropout drops nothing.
  bool inference = false;
  /// With forward_only: inputs and float initializers of the model that are read where the caller keeps them, run after run, instead of
  /// being fed. Kernels pack them when they have changed, which each run finds out by comparing all elements.
  NamedTensors held;
  /// As in TrainerOptions. The nodes of the backward pass are on the devices of those that they belong to; a run that waits for its
  /// gradients is not under way.
  SessionOptions session = {};
};

/// As of a trainer, from text: a member's name, or "session.NAME". Lists are separated by commas and grow. docs/options.md has all.
TREADLE_API void set_option(JointOptions& options, std::string_view name, const std::string& value);

/// A model's forward and backward graph with a Yield between: the outputs are handed out, the caller computes a loss and its gradient
/// (in PyTorch, say), hands that in, and gets the gradients of the parameters.
class TREADLE_API JointModule {
 public:
  explicit JointModule(const Model& model, const JointOptions& options = {});
  ~JointModule();
  JointModule(JointModule&&) noexcept;
  JointModule& operator=(JointModule&&) noexcept;

  /// A run that stands at the Yield. Several may be in flight; each keeps the module's graph alive.
  class TREADLE_API Run {
   public:
    ~Run();
    Run(Run&&) noexcept;
    Run& operator=(Run&&) noexcept;
    /// Of a run that begin() made: so many steps of the forward pass. A step is a node, on devices a piece of work.
    /// @return steps_left() then.
    size_t advance_steps(size_t count = 1);
    /// Before the Yield.
    size_t steps_left() const;
    /// In the order of output_names(); empty before the Yield.
    const std::vector<Tensor>& outputs() const;
    /// As backward(), by position. @param grad_outputs  an undefined tensor stands for zeros.
    /// @return in the order of gradient_names(); undefined where the outputs do not depend on it.
    std::vector<Tensor> backward_in_order(std::span<const Tensor> grad_outputs);
    /// Before the backward pass: the value of input_names()[input] lies elsewhere from now on, and where it lay nothing is read any more.
    /// @throws Error(invalid_argument) for another dtype or shape.
    void move_feed(size_t input, const Tensor& value);
    /// The backward pass part by part: hands in the gradients of the outputs, as backward_in_order(), and computes nothing yet.
    void begin_backward(std::span<const Tensor> grad_outputs);
    /// Computes until these gradients are there.
    /// @param gradients  places in gradient_names(), such as one of gradient_groups(); each may be asked for once.
    /// @return one each; the run keeps none of them. The pass is over when all have been asked for.
    std::vector<Tensor> advance_backward(std::span<const size_t> gradients);
    /// Of a gradient of JointOptions::sparse_gradients that has been taken, whose tensor has rows of it: which rows of the parameter those
    /// are, i64, ascending. Undefined for others.
    const Tensor& rows(size_t gradient) const;
    /// @param grad_outputs  the gradients of the outputs, of their shapes.
    /// @return gradients of the parameters and of the inputs that were asked for. @throws Error if called twice, and for a module with
    ///         gradients by rows.
    NamedTensors backward(std::span<const Tensor> grad_outputs);
    /// The same, with gradients by rows as sparse tensors: COO over the first axis.
    Feeds sparse_backward(std::span<const Tensor> grad_outputs);
    /// Of a run that begin_with_memory() made: gradients are written to their memory, or added to what it has. After an error it has some
    /// of them. @return those by rows, as sparse tensors.
    Feeds backward_to_memory(std::span<const Tensor> grad_outputs);

   private:
    friend class JointModule;
    struct Impl;
    explicit Run(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
  };

  /// Runs to the Yield. Then running statistics are updated, as PyTorch does it: a pass that fails leaves them as they are.
  /// @param options  as in Trainer::step(); must live as long as the run. The deadline counts from here.
  Run forward(const Feeds& feeds, const RunOptions* options = nullptr);
  /// A run that has not done anything yet.
  Run begin(const Feeds& feeds, const RunOptions* options = nullptr);
  /// The same, for Run::backward_to_memory().
  /// @param gradients  contiguous memory of each gradient that is asked for, in its dtype and shape, by name; those by rows have none.
  Run begin_with_memory(const Feeds& feeds, const NamedTensors& gradients, const RunOptions* options = nullptr);
  struct Feeding {
    std::optional<uint64_t> draw = std::nullopt;  ///< what random operators draw depends on this number; none: on how many runs there were
    bool update_states = true;
    const RunOptions* options = nullptr;  ///< as forward()
  };
  /// As forward(), by position. @param feeds  in the order of input_names().
  /// Outputs that the backward pass reads are copies: the caller may write to all of them.
  Run forward_in_order(std::vector<Datum> feeds, const Feeding& feeding);
  Run forward_in_order(std::vector<Datum> feeds) { return forward_in_order(std::move(feeds), Feeding()); }
  /// Inputs that are fed: those of the model that anything depends on, `states` with them.
  const std::vector<std::string>& input_names() const;
  /// Parameters, then the `inputs` of the options.
  const std::vector<std::string>& gradient_names() const;
  /// Gradients in the order in which a backward pass makes them, as places in gradient_names(), in groups of at least so many bytes but for
  /// the last. Those of inputs, whose extents only a run knows, count nothing.
  std::vector<std::vector<size_t>> gradient_groups(size_t group_bytes) const;
  /// Whether a run draws random numbers.
  bool is_random() const;
  /// As Trainer::set_monitor(), for runs that begin from then on.
  void set_monitor(Monitor monitor);
  MemoryStatistics memory_statistics() const;
  void set_memory_limit(size_t limit_bytes);
  /// Gives back what ended runs have left for later ones: a module that is not called for a while holds its parameters only. Thread-safe.
  void trim();
  std::string end_profiling();
  /// As a Session's. A forward part is a run, and so is a backward part, or each group of its gradients. Not while another thread uses the
  /// module.
  void start_profiling();
  void pause_profiling();
  void resume_profiling();
  Profile profile() const;
  /// Where JointOptions::held, parameters and states are from now on; runs in flight keep what they began with. Both passes of a run read
  /// parameters there: leave them alone in between. The forward pass writes states. Not while another thread begins a run.
  /// @throws Error(not_found) for another name, Error(invalid_argument) for another dtype or shape, and strides.
  void hold(const NamedTensors& tensors);
  /// The names of JointOptions::held that anything depends on.
  std::vector<std::string> held_names() const;
  /// A profile beside that one: any number at once (treadle/profile.h). It must not outlive this.
  Profiler profiler(const ProfilerOptions& options);
  /// As Session::node_counters() and reset_node_counters(), with the option of `session`.
  std::vector<NodeCounter> node_counters() const;
  void reset_node_counters() const;
  const std::vector<std::string>& output_names() const;
  /// Live views, as the Trainer's.
  const NamedTensors& parameters() const;
  const NamedTensors& states() const;
  void save(const std::string& path, const Metadata& metadata = {}) const;
  std::string to_bytes(const Metadata& metadata = {}) const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace treadle::train
