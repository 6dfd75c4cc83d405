// Sessions: models prepared for execution, and their runs.
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

/// Makes a thread pool that sessions or runs share. @param num_threads  including the thread that calls a run; 0: the usable CPUs
TREADLE_API std::shared_ptr<ThreadPool> make_thread_pool(int num_threads);

/// sequential: runs one node at a time; threads share the loops of a node. parallel: also runs independent expensive nodes concurrently, on
/// the same threads. Both give the same bits.
enum class ExecutionMode : int { sequential = 0, parallel = 1 };

enum class GraphOptimizationLevel : int { disable_all = 0, basic = 1, extended = 2, layout = 3, all = 99 };

/// In inference mode, the optimizer also runs passes that are invalid for training, such as folding batch normalization into convolution.
enum class SessionMode : int { inference = 0, training = 1 };

struct TREADLE_API SessionOptions {
  int intra_op_num_threads = 0;  ///< threads per node, including the caller; 0: the process's pool, sized by CPU affinity and cgroup
  int inter_op_num_threads = 0;  ///< number of nodes that run concurrently with ExecutionMode::parallel; 0: as many as there are threads
  ExecutionMode execution_mode = ExecutionMode::sequential;
  /// Default device: "cpu" (also if empty), "sim", or "sim:NAME", one device for all sessions of the process. Nodes of a group (metadata
  /// "ctx_group") run on the group's device; nodes that read an argument of argument_devices, on its device. Others run where their
  /// operands or, failing that, their readers are. Copies and fences are inserted. Nodes without a kernel for the device run on the host.
  std::string device;
  std::map<std::string, std::string> group2ctx;         ///< maps the name of a group to its device
  std::map<std::string, std::string> argument_devices;  ///< maps an input or initializer to the device of its readers
  int compute_streams = 1;                  ///< number of compute streams per device; independent branches use different streams
  std::shared_ptr<Job> job;                 ///< job that runs belong to; null: the job described by the environment, if any
  std::shared_ptr<ThreadPool> thread_pool;  ///< used instead of the shared pool; the options *_op_num_threads above limit a run's use of it
  GraphOptimizationLevel graph_optimization_level = GraphOptimizationLevel::all;
  SessionMode mode = SessionMode::inference;
  /// Arithmetic of convolutions and of products by constant weights: "float32" (also if empty), "bfloat16", "bfloat16x3", "float16",
  /// "int8_weights". Or several entries separated by ";": an entry PATTERN=PRECISION applies to the nodes whose names match; the last match
  /// applies. Without graph optimizations it has no effect. docs/precision.md describes costs and gains.
  std::string precision;
  /// Largest size of a convolution's transformed weights, relative to the weights. 1 disables Winograd's algorithms, which need 1.8 and 4
  /// times the size and are the fastest for many convolutions. Session::to_text("planned") shows what each node packs.
  double max_weight_expansion = std::numeric_limits<double>::infinity();
  /// File of speeds by which convolutions choose their algorithm; `bench_conv --calibrate FILE` writes it. Empty: built-in speeds. The last
  /// bits of results may differ between files, but never between runs.
  std::string conv_rates;
  bool reuse_memory = true;   ///< false: every value has memory of its own (for debugging)
  bool verify_plans = false;  ///< true: checks the memory plan before a run with new input shapes: every node must read the right values
  std::shared_ptr<Allocator> allocator;  ///< allocator for weights, packed weights, activations, scratch and outputs; null: the system
  /// Limit for all memory of the session: weights, packed weights and, for every run, activations, scratch, and outputs until they are
  /// handed over (not memory that the caller bound). 0: no limit. If a run's arena does not fit, the session plans every node of the run:
  /// it reorders nodes, writes values to a file, or computes them twice. If that is not enough, the run fails before it begins, with
  /// Error(resource_exhausted) naming the smallest sufficient limit. A run that does not fit next to runs in progress waits. Sizes known
  /// only during a run are checked then; the error also names a limit for their upper bounds, if they have any. With a device, the limit is
  /// for its memory.
  size_t memory_limit_bytes = 0;
  /// Fraction, up to 1, to which the activations and scratch of a run are limited, relative to a run without this option. As with a limit,
  /// runs reorder nodes, write values to a file, and compute them twice. Applies to feeds of any shape; if no plan is small enough, the
  /// smallest is used. For trainers and joint modules it applies only to training steps. 0: no limit. Host only.
  double memory_fraction = 0;
  /// Fraction, up to 1, of a run's time that may be spent on recomputing values to save activations and scratch, with the same bits. Times
  /// are the planner's estimates; nothing is written to a file. Applies to the same runs as memory_fraction. -1: up to 0.1 for training, as
  /// long as one percent of the time saves four percent of that memory, and 0 otherwise. With parallel execution and with devices, only -1
  /// and 0 are allowed.
  double recompute_fraction = -1;
  std::string spill_folder;  ///< folder of the files that hold values for which memory is lacking; empty: the system's temporary folder
  std::shared_ptr<MemoryAccount> memory_account;  ///< account to which all memory of the session is charged; null: none
  bool use_mmap = true;                           ///< map the model's file (LoadOptions::use_mmap), if the session loads the model itself
  /// Share equal weights and packed weights between sessions of the process. Has no effect if `allocator` is set.
  bool share_weights = true;
  /// Folder of compiled models (docs/compiled-models.md). The first session writes the optimized graph and packed weights; later sessions
  /// with the same model, options, library and processor map them. Empty: none.
  std::string cache_dir;
  std::string compiled_model_filepath;  ///< file to which the compiled model is written (docs/compiled-models.md); empty: no file
  /// Deadline, in milliseconds from its start, of each run whose own options have none (RunOptions::deadline_ms); 0: none.
  int64_t deadline_ms = 0;
  bool strict_symbols = false;        ///< feeds that contradict a symbol of the model are an error, not only a warning
  bool set_denormal_as_zero = false;  ///< treat denormal numbers as zero, on the host
  bool enable_profiling = false;
  /// Count the time of each node in every run: Session::node_counters(). Costs about 10 ns per node.
  bool node_counters = false;
  std::string profile_file_prefix = "treadle_profile_";
  std::string optimized_model_filepath;  ///< file to which the optimized model is written; empty: no file
  /// Name, without a folder, of a file next to the optimized model for initializers of at least optimized_model_data_threshold bytes.
  /// Empty: they are stored in the model.
  std::string optimized_model_data_file;
  int64_t optimized_model_data_threshold = 1024;
  std::vector<std::string> disabled_passes;                 ///< names of passes to skip; `treadle options` lists them
  int64_t max_patches = INT64_MAX;                          ///< stop the graph optimizer after this many patches (to bisect a fault)
  std::map<std::string, int64_t> free_dimension_overrides;  ///< maps the name of a symbol to its extent
  std::map<std::string, int64_t> denotation_overrides;      ///< maps the denotation of an input's dimension ("DATA_BATCH") to an extent
  std::map<std::string, Tensor> initializers;               ///< values that replace the model's initializers of these names
  std::map<std::string, std::string> config;  ///< ONNX Runtime's session config entries; docs/options.md lists those with an effect
  /// Called after each pass that changed the graph, with its name, a description of the change, and the time in microseconds.
  std::function<void(std::string_view pass, const std::string& what, int64_t elapsed_us)> on_pass;
  /// Called with warnings about the model.
  std::function<void(const std::string&)> on_warning;
};

/// Cancels all runs whose options hold a copy of it. Any thread may call cancel(). A cancelled token cannot be reset.
class TREADLE_API CancelToken {
 public:
  CancelToken() : flag_(std::make_shared<std::atomic<bool>>(false)) {}
  void cancel() const noexcept { flag_->store(true); }
  bool cancelled() const noexcept { return flag_->load(); }
  /// Returns the flag that runs check; valid while any copy of the token exists.
  const std::atomic<bool>& flag() const noexcept { return *flag_; }

 private:
  std::shared_ptr<std::atomic<bool>> flag_;
};

/// Says which values make a run fail if a floating-point output of a node contains one.
enum class FiniteCheck : int { off = 0, nan = 1, nan_and_infinity = 2 };

/// The bytes that values use in the memory of one device, by allocator.
struct NodeMemory {
  std::string device;     ///< device where the node ran: "cpu", "sim"
  std::string allocator;  ///< name of the allocator
  size_t bytes = 0;
};

/// One execution of a node in a run. Times are in nanoseconds since the run began.
struct NodeStatistics {
  std::string name, op_type;
  int64_t scheduled_ns = 0;  ///< when the node could have begun: its operands existed and, in sequential execution, it was next
  int64_t start_ns = 0, end_ns = 0;
  uint64_t thread = 0;  ///< the system's id of the thread
  size_t output_bytes = 0;
  std::vector<NodeMemory> memory;  ///< bytes of the tensors among the outputs, one entry per device and allocator
};

struct RunMetadata {
  uint64_t run_id = 0, graph_id = 0;
  bool cached = true;  ///< false: the graph was compiled for this run
  int64_t duration_ns = 0;
  std::vector<NodeStatistics> nodes;  ///< ordered by their ends; nodes in bodies appear once per iteration
};
/// Sets an option by its name, from text; `treadle options` lists all options. Values of list options are appended.
/// @throws Error(not_found) for an unknown name; Error(invalid_argument) for an invalid value
TREADLE_API void set_option(SessionOptions& options, std::string_view name, const std::string& value);
/// Stores a config entry, and sets the option that its key stands for, if any. @throws Error(invalid_argument) as set_option()
TREADLE_API void add_config_entry(SessionOptions& options, const std::string& key, const std::string& value);

/// Options of a run, which several runs may share. Any thread may set `terminate`. If `terminate`, the token or Session::close() stops a
/// run, it throws Error(cancelled); after its deadline, Error(timed_out). Both happen at the next node or iteration of a loop. The session
/// stays usable.
struct TREADLE_API RunOptions {
  std::atomic<bool> terminate{false};
  std::optional<CancelToken> cancel_token;
  int64_t deadline_ms = 0;  ///< time from the start of the run; 0: no deadline
  std::string tag;
  std::map<std::string, std::string> config;
  /// Nodes (by name) or values to compute without fetching them. With targets, an empty list of outputs means no outputs.
  std::vector<std::string> targets;
  std::shared_ptr<ThreadPool> thread_pool;  ///< threads for this run, which uses at most as many of them as the session has
  /// Maps an output's name to an allocator for it. Outputs that are a feed or a constant, and strings, keep their memory. A name that is
  /// not an output of the run, or is bound to memory, is an error, both here and in output_devices.
  std::map<std::string, std::shared_ptr<Allocator>> output_allocators;
  /// Maps an output's name to the device on which it should be after the run, named as in SessionOptions::device. Strings stay on the host.
  std::map<std::string, std::string> output_devices;
  /// Adapters, whose parameters are fed in addition to the run's feeds. The run throws Error(invalid_argument) if a parameter is fed twice,
  /// or the model has no input or initializer of its name.
  std::vector<std::shared_ptr<const Adapter>> adapters;
  /// Ends the run with Error(invalid_argument), naming the first node with an output that is not finite, and the element.
  FiniteCheck check_finite = FiniteCheck::off;
  /// Folder for the inputs and outputs of matching nodes, as ONNX tensors: <folder>/<run id>/<step>_<node>_<in|out><i>.pb. Empty: none.
  std::string dump_folder;
  std::string dump_pattern = "*";  ///< shell pattern of node names (* and ?); an error if none matches
  /// Called at the end of a successful run, with its times and memory.
  std::function<void(const RunMetadata&)> on_metadata;
};

/// A value that a node reads or writes.
struct MonitorEvent {
  uint64_t run_id = 0;
  std::string_view value;          ///< name of the value in the model
  std::string_view node, op_type;  ///< empty for a feed, a constant, or a value determined by the feeds' shapes
  bool is_input = false;           ///< an input of the node, which has not run yet
  const Datum& datum;              ///< the value, in memory that the run reuses: copy it to keep it
};

/// Watches values of the main graph by name. The graph optimizer preserves these values.
struct Monitor {
  std::function<void(const MonitorEvent&)> callback;  ///< called on the run's threads, one at a time; an exception ends the run
  std::string pattern = "*";                          ///< shell pattern of value names (* and ?); an error if none matches
  bool inputs = false;                                ///< true: the callback is also called before each node that reads such a value
};

/// A run that had not ended when close() stopped waiting.
struct UnfinishedRun {
  uint64_t run_id = 0;
  std::string tag;
  int64_t elapsed_ms = 0;
};

/// Counts for two caches: compiled graphs (one per set of fed, fetched, target and monitored values) and bindings (one per set of extents).
struct CacheStatistics {
  int64_t hits = 0, misses = 0, evictions = 0, size = 0;
  int64_t binding_hits = 0, binding_misses = 0, memory_plans = 0;  ///< a run with the previous run's extents is neither hit nor miss
};

using ValueHandle = uint64_t;

class Session;

/// Inputs and outputs, bound by name before the runs, so that a run looks nothing up by name and allocates nothing.
class TREADLE_API IoBinding {
 public:
  explicit IoBinding(const Session& session);
  ~IoBinding();
  IoBinding(IoBinding&&) noexcept;
  IoBinding& operator=(IoBinding&&) noexcept;

  void bind_input(std::string_view name, Datum value);
  /// Binds an output. @param memory  memory that the output is written to; without it, the session allocates the output in every run
  void bind_output(std::string_view name, std::optional<Tensor> memory = std::nullopt);
  /// Leaves the output on the device, or copies it there. @param device  named as in SessionOptions. @throws Error(invalid_argument)
  void bind_output_to_device(std::string_view name, std::string_view device);
  void clear_inputs();
  void clear_outputs();
  /// Returns the outputs of the last run, in the order of binding.
  std::vector<Datum> outputs() const;
  std::vector<std::string> output_names() const;

 private:
  friend class Session;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A cache that partial runs share: it maps names to values, each of which is the only output of its node. One thread at a time may use it.
/// A value in the cache replaces the computation of its node; an undefined value is filled in by the first run that computes it.
using ValueCache = std::map<std::string, Datum, std::less<>>;

/// A run that stops at every `treadle.Yield` node. It may be resumed on another thread, interleaved with others, or abandoned.
class TREADLE_API PartialRun {
 public:
  ~PartialRun();  ///< abandons a run that has not finished
  PartialRun(PartialRun&&) noexcept;
  PartialRun& operator=(PartialRun&&) noexcept;

  /// Runs to the next Yield, to a node that reads an input not fed yet, or to the end. @return true at the end
  /// @throws Error(invalid_argument) if the run is already waiting for an input
  bool advance();
  /// Feeds inputs that were left out at the start, runs, and fetches values that have been computed.
  /// @param until    name of a node, as in advance_until(); empty: as far as possible
  /// @param fetches  names of outputs, or of the options' targets
  /// @return one value per fetch. @throws Error(invalid_argument) for an output that has not been computed by then
  std::vector<Datum> advance(std::string_view until, const std::map<std::string, Datum>& feeds, std::span<const std::string> fetches);
  /// Feeds an input that was left out at the start. Its extents must be those declared or known from other inputs.
  /// @throws Error(invalid_argument) for another name or type, or an input fed already
  void feed(std::string_view name, Datum value);
  /// Returns outputs that have been computed so far, even before the end.
  std::vector<Datum> fetch(std::span<const std::string> names) const;
  /// Runs until the node has run, or stops earlier, where advance() would stop. Does nothing if the node has run. @return true at the end
  /// @throws Error(not_found) if the optimized graph does not have the node
  bool advance_until(std::string_view node);
  /// Runs this many nodes of the optimized graph, or all that are left before the next Yield or the end (MXNet's PartialForward).
  /// @return steps_left() afterwards
  size_t advance_steps(size_t count = 1);
  /// Returns the number of nodes before the next Yield, a node that reads an input not fed yet, or the end.
  size_t steps_left() const;
  bool at_yield() const;
  /// At a Yield: returns the values that the Yield hands out, by name.
  std::vector<std::pair<std::string, Datum>> yielded() const;
  /// At a Yield: supplies one value per output of the Yield, and runs to the next Yield or the end.
  /// @return true at the end
  bool resume(std::span<const Datum> values);
  bool finished() const;
  /// At the end: returns the outputs, in the session's order.
  std::vector<Datum> outputs();
  const std::shared_ptr<ValueCache>& cache() const;

 private:
  friend class Session;
  struct Impl;
  explicit PartialRun(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

/// An input that gets the output of the previous run: a KV cache, or the hidden state of a recurrent network.
struct StatePair {
  std::string input, output;
};

/// Runs over one sequence: each run gets the states of the run before, without copies. Two buffers alternate between runs, each with
/// headroom for growth, so that steady runs allocate nothing. Concat(past, new) along the outermost axis appends in place; if rows grow
/// inside the state (heads before tokens), old rows move within its memory. Not thread-safe. Any number of these objects may use one
/// session, which must outlive them.
class TREADLE_API StatefulRun {
 public:
  /// Makes an object for runs of one sequence.
  /// @param initial  values of the paired inputs for the first run; memory that nothing else refers to may be overwritten. A state
  ///                 without an initial value begins as zeros, if its shape is fixed
  /// @throws Error(invalid_argument) for an unknown name, or a state that has neither a fixed shape nor an initial value
  StatefulRun(const Session& session, const std::vector<StatePair>& pairs, std::map<std::string, Datum> initial = {});
  ~StatefulRun();
  StatefulRun(StatefulRun&&) noexcept;
  StatefulRun& operator=(StatefulRun&&) noexcept;

  /// Runs once, and updates the states.
  /// @param feeds    values of the other inputs
  /// @param outputs  names of the outputs to return; empty: all that are not states
  /// @return one value per requested output. After an error, the states have their values from before the run
  std::vector<Datum> run(const std::map<std::string, Datum>& feeds, std::span<const std::string> outputs = {},
                         const RunOptions* options = nullptr);
  /// Returns the value for the paired input of the next run. Its memory is not reused while the caller holds it.
  Datum state(std::string_view input) const;
  /// Sets the value of a state. As with `initial` in the constructor, memory that nothing else refers to may be overwritten.
  void set_state(std::string_view input, Datum value);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct MemoryReport {
  size_t weight_bytes = 0, packed_bytes = 0, arena_bytes = 0;
  size_t arena_lower_bound_bytes = 0;  ///< the maximum of bytes alive in a step, or a higher bound if one was proved
  size_t arena_sum_bytes = 0;          ///< sum of all buffers' bytes: the size of the arena if no buffers shared memory
  size_t arena_in_order_bytes = 0;     ///< size of the arena if best fit in the order of execution planned it, as in ONNX Runtime
  size_t largest_node_bytes = 0;       ///< operands and scratch of the node that needs most of the arena: no run can do with less
};

/// A value that is alive at the step of the plan at which the most bytes are alive.
struct PeakTensor {
  std::string name;  ///< name of the value in the optimized graph, or of the node if it is scratch
  size_t size_bytes = 0;
  MemoryClass memory_class = MemoryClass::activations;
};

/// A model prepared for runs. Thread-safe: any number of threads may run one session at once.
class TREADLE_API Session {
 public:
  /// Prepares a model. @throws Error; not_implemented lists everything that is missing
  explicit Session(const Model& model, const SessionOptions& options = {});
  explicit Session(const std::string& path, const SessionOptions& options = {});
  ~Session();  ///< closes the session and waits as long as necessary
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  /// Runs the model.
  /// @param feeds    values by name: inputs, overridable initializers, and any other value of the main graph, which is then not computed
  /// @param outputs  names of outputs, or of any other value of the main graph; empty: all outputs. Only what these need is computed and
  ///                 must be fed
  /// @return one value per requested output
  /// @throws Error(invalid_argument) naming a feed that is missing, unknown, or of another type or shape
  std::vector<Datum> run(const std::map<std::string, Datum>& feeds, std::span<const std::string> outputs = {},
                         const RunOptions* options = nullptr) const;
  void run(IoBinding& binding, const RunOptions* options = nullptr) const;
  std::future<std::vector<Datum>> run_async(std::map<std::string, Datum> feeds, std::vector<std::string> outputs = {}) const;
  /// Begins a partial run.
  /// @param cache    its values are used; the optimizer preserves values with names in it. Null: a new one
  /// @param options  must outlive the run; the deadline counts from this call
  PartialRun partial_run(const std::map<std::string, Datum>& feeds, std::shared_ptr<ValueCache> cache = nullptr,
                         const RunOptions* options = nullptr) const;

  /// Cancels running runs and waits for them. Later runs end with Error(cancelled).
  /// @param timeout_ms  how long to wait; negative: until all have ended
  /// @return the runs that have not ended. A run that calls close() itself, from a callback, is not waited for
  std::vector<UnfinishedRun> close(int64_t timeout_ms = -1);
  bool closed() const;
  size_t runs_in_flight() const;

  /// Watches values in all runs that begin later. A monitor without a callback watches nothing.
  void set_monitor(Monitor monitor);

  /// Keeps a value in the session. The returned handle can be fed in place of the value.
  ValueHandle store(Datum value);
  /// Returns a stored value. @throws Error(not_found)
  Datum stored(ValueHandle handle) const;
  /// Removes a stored value. @throws Error(not_found)
  void erase(ValueHandle handle);
  size_t num_stored() const;

  CacheStatistics cache_statistics() const;

  const Model& model() const;
  const SessionOptions& options() const;
  std::vector<ValueInfo> inputs() const;
  std::vector<ValueInfo> outputs() const;
  std::vector<ValueInfo> overridable_initializers() const;

  /// Returns the graph as text: as read, optimized, as a list of instructions with placement and memory, or the device of each node.
  std::string to_text(std::string_view stage) const;  // "onnx", "optimized", "planned", "devices"
  /// Returns the simplified model as an encoded ONNX model, without fused operators, since each session fuses operators itself. With
  /// GraphOptimizationLevel::disable_all, returns the model as read.
  /// @throws Error(not_implemented) for a compiled model, which lacks the original graph
  std::string optimized_model() const;
  /// Returns the memory that is planned for the last run's extents. @pre at least one run
  MemoryReport memory() const;
  /// Returns the bytes that the session holds now, by class, and their peaks.
  MemoryStatistics memory_statistics() const;
  void reset_memory_peaks() const;
  /// Changes the memory limit: at once for later runs, at the next node for runs that can adapt. Keeps the plans for the last few limits.
  /// @throws Error(invalid_argument) if the session was made without a limit
  void set_memory_limit(size_t limit_bytes) const;
  /// Returns the node during which the most bytes of the arena are in use, and the values in the arena at that time, largest first.
  /// @pre at least one run
  std::pair<std::string, std::vector<PeakTensor>> memory_peak() const;
  /// Writes the profile so far, and returns its path. Turns profiling off.
  std::string end_profiling();
  /// Begins a profile of runs, and of parts of running runs, from now on; enable_profiling need not be set. Drops earlier records.
  void start_profiling();
  /// Pauses the profile: runs that begin while it is paused are not recorded.
  /// @throws Error(invalid_argument) without start_profiling() or enable_profiling
  void pause_profiling();
  void resume_profiling();
  /// Returns a profile of the runs that have ended since profiling began (treadle/profile.h). Running runs continue.
  Profile profile() const;
  /// Begins an additional profile. Any number may be active at once (treadle/profile.h).
  Profiler profiler(const ProfilerOptions& options);
  int64_t profiling_start_ns() const;
  /// Returns how often each node has run, and its times, over all runs since the session was made or reset_node_counters()
  /// (treadle/profile.h).
  /// @throws Error(invalid_argument) without SessionOptions::node_counters
  std::vector<NodeCounter> node_counters() const;
  /// Sets the counters to 0. Runs that have begun may still add times from before the call.
  void reset_node_counters() const;

 private:
  friend class IoBinding;
  friend class PartialRun;
  friend class StatefulRun;
  struct Impl;
  std::shared_ptr<Impl> impl_;  // shared with partial runs
};

/// Copies the elements to a device's memory, so that runs on the device read them in place.
/// @param device  named as in SessionOptions: "cpu", "sim", "sim:NAME", a plugin's. @throws Error(invalid_argument) for an unknown device,
/// or strings
TREADLE_API Tensor to_device(const Tensor& tensor, std::string_view device);
/// Returns the name of the device that holds the tensor, or "cpu"; the text is valid as long as the tensor. Tensor::clone() copies it to
/// the host.
TREADLE_API std::string_view device_of(const Tensor& tensor);

/// Returns the version, such as "0.1.0".
TREADLE_API std::string_view version();

}  // namespace treadle
