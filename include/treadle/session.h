// Sessions: a model made ready to run, and its runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "treadle/adapter.h"
#include "treadle/allocator.h"
#include "treadle/datum.h"
#include "treadle/export.h"
#include "treadle/model.h"

namespace treadle {

class ThreadPool;
class Job;
struct Profile;
class Profiler;
struct ProfilerOptions;
struct NodeCounter;

/// A pool for sessions or runs to share. @param num_threads  including the caller of a run; 0: the CPUs that the process may use.
TREADLE_API std::shared_ptr<ThreadPool> make_thread_pool(int num_threads);

/// sequential: one node at a time, its loops in parallel. parallel: also independent expensive nodes at once, on the same threads. Results
/// are the same bits.
enum class ExecutionMode : int { sequential = 0, parallel = 1 };

enum class GraphOptimizationLevel : int { disable_all = 0, basic = 1, extended = 2, layout = 3, all = 99 };

/// What the session is to do with a training graph or an inference graph: inference-only passes (batch-norm into convolution) run or not.
enum class SessionMode : int { inference = 0, training = 1 };

struct TREADLE_API SessionOptions {
  int intra_op_num_threads = 0;  ///< threads per node, including the caller; 0: the process's shared pool, sized by affinity and cgroup
  int inter_op_num_threads = 0;  ///< nodes to run concurrently with ExecutionMode::parallel; 0: as many as threads
  ExecutionMode execution_mode = ExecutionMode::sequential;
  /// Default device: "cpu" (also if empty), "sim", or "sim:NAME", one device for all sessions of the process. Nodes of a group (their
  /// metadata's "ctx_group"), and nodes that read an argument of argument_devices, run on the devices given for them. Others follow their
  /// operands, then their readers. Copies and fences are inserted. Nodes that only the host can run stay there.
  std::string device;
  std::map<std::string, std::string> group2ctx;         ///< group → device
  std::map<std::string, std::string> argument_devices;  ///< input or initializer → device that has it first
  int compute_streams = 1;                              ///< per device; independent branches use different ones
  std::shared_ptr<Job> job;                             ///< job that runs belong to; null: the one that the environment names, if any
  std::shared_ptr<ThreadPool> thread_pool;  ///< instead of the shared one; the numbers above limit how many of its threads a run uses
  GraphOptimizationLevel graph_optimization_level = GraphOptimizationLevel::all;
  SessionMode mode = SessionMode::inference;
  /// Arithmetic of products by constant weights and of convolutions: "float32" (also if empty), "bfloat16", "bfloat16x3", "float16",
  /// "int8_weights", or entries separated by ";", of which PATTERN=PRECISION holds for nodes of such names and the last that matches
  /// counts. Without graph optimisations it has no effect. docs/precision.md says what each costs and gives.
  std::string precision;
  /// Largest size of a convolution's transformed weights, relative to the weights. 1 forbids Winograd's algorithms (1.8 and 4 times), which
  /// are the fastest for many convolutions. Session::to_text("planned") says what each node packs.
  double max_weight_expansion = std::numeric_limits<double>::infinity();
  /// File with the speeds by which convolutions choose their algorithm; `bench_conv --calibrate FILE` writes it. Empty: built-in speeds.
  /// Results may differ in their last bits between different files, never between runs.
  std::string conv_rates;
  bool reuse_memory = true;              ///< false: every value has its own bytes (for debugging)
  bool verify_plans = false;             ///< prove before a run with new extents that every node reads what was written for it
  std::shared_ptr<Allocator> allocator;  ///< of weights, packed weights, activations, scratch and outputs; null: the system
  /// Limit for everything that the session holds: weights, packed weights, and for every run activations, scratch and outputs until they
  /// are handed over (not memory that the caller bound). 0: none. A run whose arena does not fit goes node by node: it reorders nodes,
  /// writes values to a file, or computes them twice. A run that cannot keep the limit ends before it begins, with
  /// Error(resource_exhausted) that names the least limit. Runs that do not fit beside others wait. Sizes that only the run can tell are
  /// checked when they are known; the error then also names a limit for the largest possible sizes, if they have bounds. On a device, its
  /// memory is limited.
  size_t memory_limit_bytes = 0;
  /// The share, up to 1, that a run may have of the bytes which its activations and scratch take otherwise; as with a limit, runs reorder,
  /// write to a file, and compute twice. It holds for all feeds, whatever their extents; where no plan can do with so little, the least
  /// that one can do with. Of trainers and modules it holds for training steps. 0: no limit. On the host.
  double memory_fraction = 0;
  /// The share, up to 1, of a run's time that it may spend on computing values a second time, so that its activations and scratch take less
  /// memory, with the same bits. Times are the planner's estimates; nothing is written to a file for it. It holds for the same runs as
  /// memory_fraction. -1: up to 0.1 of what learns, as far as a percent of the time frees four of that memory; 0 of sessions, of parallel
  /// execution and on devices, with which no other value goes but 0.
  double recompute_fraction = -1;
  std::string spill_folder;                       ///< folder for values that do not fit; empty: the one for temporary files
  std::shared_ptr<MemoryAccount> memory_account;  ///< is charged with everything the session is charged with; null: none
  bool use_mmap = true;                           ///< when the session loads the model itself
  /// Hold weights and packed weights once that several sessions of the process have, byte for byte. Only without an allocator.
  bool share_weights = true;
  /// Folder of compiled models (docs/compiled-models.md). The first session writes the optimised graph and packed weights; later sessions
  /// of the same model, options, library and processor map them. Empty: none.
  std::string cache_dir;
  std::string compiled_model_filepath;  ///< file to write the compiled model to (docs/compiled-models.md); empty: none
  bool strict_symbols = false;          ///< feeds that contradict a symbol of the model are an error, and not only a warning
  bool set_denormal_as_zero = false;    ///< treat denormal numbers as zero, on the host
  bool enable_profiling = false;
  /// Count how long each node takes, in every run: Session::node_counters(). Costs about 10 ns a node.
  bool node_counters = false;
  std::string profile_file_prefix = "treadle_profile_";
  std::string optimized_model_filepath;  ///< file to write the optimised model to; empty: none
  /// A file's name beside it, without a folder, for its initializers of at least so many bytes. Empty: they are in the model.
  std::string optimized_model_data_file;
  int64_t optimized_model_data_threshold = 1024;
  std::vector<std::string> disabled_passes;                 ///< by name; `treadle options` lists them
  int64_t max_patches = INT64_MAX;                          ///< stop the graph optimiser after that many patches (to bisect a fault)
  std::map<std::string, int64_t> free_dimension_overrides;  ///< symbol → extent
  std::map<std::string, int64_t> denotation_overrides;      ///< denotation of an input's dimension ("DATA_BATCH") → extent
  std::map<std::string, Tensor> initializers;               ///< replace initializers of these names
  std::map<std::string, std::string> config;  ///< ONNX Runtime's session config entries; kept, see docs/options.md for those with meaning
  /// Called once per pass that changed something: name, what it did, microseconds.
  std::function<void(std::string_view pass, const std::string& what, int64_t elapsed_us)> on_pass;
  /// Called with warnings about the model.
  std::function<void(const std::string&)> on_warning;
};

/// Ends all runs that were given a copy of it, from any thread. It cannot be reset.
class TREADLE_API CancelToken {
 public:
  CancelToken() : flag_(std::make_shared<std::atomic<bool>>(false)) {}
  void cancel() const noexcept { flag_->store(true); }
  bool cancelled() const noexcept { return flag_->load(); }
  /// What runs look at; it lives as long as any copy of the token.
  const std::atomic<bool>& flag() const noexcept { return *flag_; }

 private:
  std::shared_ptr<std::atomic<bool>> flag_;
};

/// Which values in floating-point outputs of nodes end a run.
enum class FiniteCheck : int { off = 0, nan = 1, nan_and_infinity = 2 };

/// Bytes of values in the memory of one device, by what they come from.
struct NodeMemory {
  std::string device;     ///< "cpu", "sim"; where the node ran
  std::string allocator;  ///< its name
  size_t bytes = 0;
};

/// What one node did in a run. Times in nanoseconds since the run began.
struct NodeStatistics {
  std::string name, op_type;
  int64_t scheduled_ns = 0;  ///< when it could have run: its operands existed, and, in sequential order, it was next
  int64_t start_ns = 0, end_ns = 0;
  uint64_t thread = 0;  ///< the system's id
  size_t output_bytes = 0;
  std::vector<NodeMemory> memory;  ///< where the output bytes are
};

struct RunMetadata {
  uint64_t run_id = 0, graph_id = 0;
  bool cached = true;  ///< false: the graph was compiled for this run
  int64_t duration_ns = 0;
  std::vector<NodeStatistics> nodes;  ///< in the order of their ends; those of bodies once per iteration
};
/// Sets an option by its name, from text; `treadle options` lists them all. Lists grow.
/// @throws Error(not_found) for a name that does not exist; Error(invalid_argument) for a value that the option does not take.
TREADLE_API void set_option(SessionOptions& options, std::string_view name, const std::string& value);
/// Keeps a config entry, and sets the option that it stands for, if there is one. @throws Error(invalid_argument) as set_option.
TREADLE_API void add_config_entry(SessionOptions& options, const std::string& key, const std::string& value);

/// Options of one run; may be shared by several. `terminate` may be set from any thread.
/// A run that was stopped by `terminate`, the token or Session::close() ends with Error(cancelled), one past its deadline with
/// Error(timed_out): at the next node, or the next iteration of a loop. The session stays usable.
struct TREADLE_API RunOptions {
  std::atomic<bool> terminate{false};
  std::optional<CancelToken> cancel_token;
  int64_t deadline_ms = 0;  ///< from the start of the run; 0: none
  std::string tag;
  std::map<std::string, std::string> config;
  /// Nodes (by name) or values to compute without fetching them; then an empty list of outputs means none.
  std::vector<std::string> targets;
  std::shared_ptr<ThreadPool> thread_pool;  ///< for this run, which uses at most as many of its threads as the session has
  /// Allocator of an output, by its name. Outputs that are a feed or a constant keep their memory, and so do strings. A name that is no
  /// output of the run, or is bound to memory, is an error, here and in output_devices.
  std::map<std::string, std::shared_ptr<Allocator>> output_allocators;
  /// Where outputs are after the run, by their names: a device as sessions call it. Strings stay on the host.
  std::map<std::string, std::string> output_devices;
  /// Their parameters are fed besides the run's own feeds. @throws Error(invalid_argument) out of the run for one that is fed twice, or
  /// that the model has no input or initializer for.
  std::vector<std::shared_ptr<const Adapter>> adapters;
  /// Ends the run with Error(invalid_argument) naming the first node with an output that is not finite, and the element.
  FiniteCheck check_finite = FiniteCheck::off;
  /// Writes the inputs and outputs of nodes whose names match as ONNX tensors: <folder>/<run id>/<step>_<node>_<in|out><i>.pb.
  std::string dump_folder;
  std::string dump_pattern = "*";  ///< shell pattern: * and ?; one that no node matches is an error
  /// Called at the end of a run that did not fail.
  std::function<void(const RunMetadata&)> on_metadata;
};

/// A value as a node sees it.
struct MonitorEvent {
  uint64_t run_id = 0;
  std::string_view value;          ///< its name in the model
  std::string_view node, op_type;  ///< empty for a feed, a constant, or what the feeds' shapes determine
  bool is_input = false;           ///< read by the node, which has not run yet
  const Datum& datum;              ///< in memory that the run uses again: copy it to keep it
};

/// Watches values of the main graph by name. The graph optimiser keeps them.
struct Monitor {
  std::function<void(const MonitorEvent&)> callback;  ///< on the run's threads, one at a time; what it throws ends the run
  std::string pattern = "*";                          ///< shell pattern over the names of values: * and ?; an error if none matches
  bool inputs = false;                                ///< also before each node that reads such a value
};

/// A run that had not ended when close() stopped waiting.
struct UnfinishedRun {
  uint64_t run_id = 0;
  std::string tag;
  int64_t elapsed_ms = 0;
};

/// Counts of compiled graphs (one for each set of fed, fetched, target and monitored values) and of their bindings (one for each set of
/// extents).
struct CacheStatistics {
  int64_t hits = 0, misses = 0, evictions = 0, size = 0;
  int64_t binding_hits = 0, binding_misses = 0, memory_plans = 0;  ///< a run whose extents are those of the one before counts as neither
};

using ValueHandle = uint64_t;

class Session;

/// Inputs and outputs bound by name ahead of the runs, so that a run looks nothing up and allocates nothing.
class TREADLE_API IoBinding {
 public:
  explicit IoBinding(const Session& session);
  ~IoBinding();
  IoBinding(IoBinding&&) noexcept;
  IoBinding& operator=(IoBinding&&) noexcept;

  void bind_input(std::string_view name, Datum value);
  /// Memory that the output is written to; without memory the session makes it at every run.
  void bind_output(std::string_view name, std::optional<Tensor> memory = std::nullopt);
  /// The output stays on the device, or comes to lie there. @param device  as sessions call it. @throws Error(invalid_argument)
  void bind_output_to_device(std::string_view name, std::string_view device);
  void clear_inputs();
  void clear_outputs();
  /// In the order of binding; those of the last run.
  std::vector<Datum> outputs() const;
  std::vector<std::string> output_names() const;

 private:
  friend class Session;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Values of nodes with one output, by name, for partial runs to keep and to share; of one thread at a time. A value that is there
/// replaces the computation of its node; an undefined one is filled in by the first run that computes it.
using ValueCache = std::map<std::string, Datum, std::less<>>;

/// A run that stops at every `treadle.Yield` node. May be resumed from another thread, interleaved with others, or abandoned.
class TREADLE_API PartialRun {
 public:
  ~PartialRun();  ///< abandons a run that is not at its end
  PartialRun(PartialRun&&) noexcept;
  PartialRun& operator=(PartialRun&&) noexcept;

  /// Runs to the next Yield, to what reads an input that is still to be fed, or to the end. @return true at the end.
  /// @throws Error(invalid_argument) if it waits for an input already
  bool advance();
  /// Feeds what was left out at the start, runs, and fetches what has been made.
  /// @param until    a node, as advance_until(); empty: as far as it goes.
  /// @param fetches  names of outputs, or of the options' targets.
  /// @return one value per fetch. @throws Error(invalid_argument) for an output that has not been made by then.
  std::vector<Datum> advance(std::string_view until, const std::map<std::string, Datum>& feeds, std::span<const std::string> fetches);
  /// An input that was left out at the start; of one dtype and of extents that are declared, or that other inputs tell.
  /// @throws Error(invalid_argument) for another name or type, and for what has been fed
  void feed(std::string_view name, Datum value);
  /// Outputs that have been made, before the end too.
  std::vector<Datum> fetch(std::span<const std::string> names) const;
  /// Runs until the node has run, or as far as advance() goes before it. Does nothing if it has run. @return true at the end.
  /// @throws Error(not_found) for a node that the optimised graph does not have.
  bool advance_until(std::string_view node);
  /// Runs so many nodes of the optimised graph, or all that are left before the next Yield or the end (MXNet's PartialForward).
  /// @return steps_left() then.
  size_t advance_steps(size_t count = 1);
  /// Nodes of the optimised graph before the next Yield, before what reads an input that is still to be fed, or before the end.
  size_t steps_left() const;
  bool at_yield() const;
  /// At a Yield: the values it hands out, by name.
  std::vector<std::pair<std::string, Datum>> yielded() const;
  /// At a Yield: hands values in (one per output of the Yield) and goes on to the next Yield or the end. @return true at the end.
  bool resume(std::span<const Datum> values);
  bool finished() const;
  /// At the end: the outputs, in the order of the session's.
  std::vector<Datum> outputs();
  const std::shared_ptr<ValueCache>& cache() const;

 private:
  friend class Session;
  struct Impl;
  explicit PartialRun(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

/// An input that takes what an output gave in the run before: a KV cache, the hidden state of a recurrent network.
struct StatePair {
  std::string input, output;
};

/// Runs of one sequence whose states go from run to run without a copy. Two buffers alternate between steps, each with headroom for growth,
/// so that a steady run allocates nothing. Concat(past, new) along the outermost axis appends in place; if rows grow within the state
/// (heads before tokens), the old rows move within its memory. For one thread at a time. Any number of them may use one session, which must
/// outlive them.
class TREADLE_API StatefulRun {
 public:
  /// @param initial  values of paired inputs for the first run. Memory that nobody else holds may be written to. Missing states of a fixed
  ///                 shape begin with zeros.
  /// @throws Error(invalid_argument) for a name that does not exist, or a state without a fixed shape or an initial value.
  StatefulRun(const Session& session, const std::vector<StatePair>& pairs, std::map<std::string, Datum> initial = {});
  ~StatefulRun();
  StatefulRun(StatefulRun&&) noexcept;
  StatefulRun& operator=(StatefulRun&&) noexcept;

  /// @param feeds    values of the other inputs.
  /// @param outputs  names of the outputs wanted; empty: all that are not states.
  /// @return one value per wanted output. After an error the states are those before the run.
  std::vector<Datum> run(const std::map<std::string, Datum>& feeds, std::span<const std::string> outputs = {},
                         const RunOptions* options = nullptr);
  /// The value that the paired input takes in the next run. Its memory is not used again while the caller holds it.
  Datum state(std::string_view input) const;
  /// Gives the value up as in the constructor.
  void set_state(std::string_view input, Datum value);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct MemoryReport {
  size_t weight_bytes = 0, packed_bytes = 0, arena_bytes = 0;
  size_t arena_lower_bound_bytes = 0;  ///< the most bytes alive in any step, or what was proved beyond
  size_t arena_sum_bytes = 0;          ///< of all buffers: the arena if nothing shared bytes
  size_t arena_in_order_bytes = 0;     ///< the arena by best fit in the order of execution, ONNX Runtime's way of planning
  size_t largest_node_bytes = 0;       ///< what the largest node reads, writes and uses as scratch in the arena: no run needs less
};

/// A value that is alive at the step of a run with the most bytes alive.
struct PeakTensor {
  std::string name;  ///< of the value in the optimised graph; of the node where it is scratch
  size_t size_bytes = 0;
  MemoryClass memory_class = MemoryClass::activations;
};

/// Thread-safe: any number of threads may run one session at once.
class TREADLE_API Session {
 public:
  /// @throws Error; not_implemented names everything that is missing at once.
  explicit Session(const Model& model, const SessionOptions& options = {});
  explicit Session(const std::string& path, const SessionOptions& options = {});
  ~Session();  ///< as close(), and waits for as long as it takes
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  /// @param feeds    values by name: inputs, overridable initializers, and any other value of the main graph, which is then not computed.
  /// @param outputs  names of the outputs wanted, or of any other value of the main graph; empty: all outputs. Only what they need is
  ///                 computed, and only what that needs must be fed.
  /// @return one value per wanted output.
  /// @throws Error(invalid_argument) naming the feed that is missing, unknown, or of another type or shape.
  std::vector<Datum> run(const std::map<std::string, Datum>& feeds, std::span<const std::string> outputs = {},
                         const RunOptions* options = nullptr) const;
  void run(IoBinding& binding, const RunOptions* options = nullptr) const;
  std::future<std::vector<Datum>> run_async(std::map<std::string, Datum> feeds, std::vector<std::string> outputs = {}) const;
  /// @param cache    names that are in it stay values of the graph, whatever the optimiser would have made of them; null: a new one.
  /// @param options  must live as long as the run; the deadline counts from here.
  PartialRun partial_run(const std::map<std::string, Datum>& feeds, std::shared_ptr<ValueCache> cache = nullptr,
                         const RunOptions* options = nullptr) const;

  /// Cancels the runs in flight and waits for them; later runs end with Error(cancelled).
  /// @param timeout_ms  how long to wait; negative: until all have ended.
  /// @return the runs that have not ended. One that calls close() itself, from a callback, is not waited for.
  std::vector<UnfinishedRun> close(int64_t timeout_ms = -1);
  bool closed() const;
  size_t runs_in_flight() const;

  /// Takes effect with the next run. A monitor without a callback watches nothing.
  void set_monitor(Monitor monitor);

  /// Keeps a value in the session. Its handle can be fed in place of the value.
  ValueHandle store(Datum value);
  /// @throws Error(not_found)
  Datum stored(ValueHandle handle) const;
  /// @throws Error(not_found)
  void erase(ValueHandle handle);
  size_t num_stored() const;

  CacheStatistics cache_statistics() const;

  const Model& model() const;
  const SessionOptions& options() const;
  std::vector<ValueInfo> inputs() const;
  std::vector<ValueInfo> outputs() const;
  std::vector<ValueInfo> overridable_initializers() const;

  /// The optimised graph, or the flat list of instructions with placement and memory, as text.
  std::string to_text(std::string_view stage) const;  // "onnx", "optimised", "planned"
  /// The model, simplified but without fused operators (each session makes its own), as an encoded ONNX model; at disable_all the model as
  /// it was read.
  /// @throws Error(not_implemented) for a compiled model, which has no graph as written.
  std::string optimized_model() const;
  /// After at least one run.
  MemoryReport memory() const;
  /// Bytes that the session holds now, by class, and the most so far.
  MemoryStatistics memory_statistics() const;
  void reset_memory_peaks() const;
  /// Changes the limit: at once for later runs, at the next node for those under way that can. Plans for the last few limits are kept.
  /// @throws Error(invalid_argument) for a session that was made without a limit.
  void set_memory_limit(size_t limit_bytes) const;
  /// After at least one run: what lies in the arena at the node with the most bytes alive, the largest first; its name first of all.
  std::pair<std::string, std::vector<PeakTensor>> memory_peak() const;
  /// Writes the profile so far and returns its path; profiling goes off.
  std::string end_profiling();
  /// Begins a profile: runs, and parts of runs, that begin from now on are recorded, also where enable_profiling was false. What was
  /// recorded before is forgotten.
  void start_profiling();
  /// Runs that begin while it is paused are not recorded. @throws Error(invalid_argument) without start_profiling() or enable_profiling
  void pause_profiling();
  void resume_profiling();
  /// Of the runs that have ended since the profile began (treadle/profile.h). Those under way go on.
  Profile profile() const;
  /// A profile beside that one: any number at once (treadle/profile.h).
  Profiler profiler(const ProfilerOptions& options);
  int64_t profiling_start_ns() const;
  /// How often each node has run, and how long it took: of all runs since the session was made, or since reset_node_counters()
  /// (treadle/profile.h). @throws Error(invalid_argument) for a session without SessionOptions::node_counters
  std::vector<NodeCounter> node_counters() const;
  /// Runs under way may still count what they had counted before.
  void reset_node_counters() const;

 private:
  friend class IoBinding;
  friend class PartialRun;
  friend class StatefulRun;
  struct Impl;
  std::shared_ptr<Impl> impl_;  // shared with partial runs
};

/// The elements in memory of a device, from where runs on it take them without a copy over the bus.
/// @param device  as sessions call it: "cpu", "sim", "sim:NAME", a plugin's. @throws Error(invalid_argument) if there is none, and for
/// strings
TREADLE_API Tensor to_device(const Tensor& tensor, std::string_view device);
/// "cpu", or the device whose memory it lies in; lives as long as the tensor. Tensor::clone() copies it to the host.
TREADLE_API std::string_view device_of(const Tensor& tensor);

/// "0.1.0"
TREADLE_API std::string_view version();

}  // namespace treadle
