// Profiles: the time and memory that a session's runs used. treadle/profile_report.h interprets them.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "treadle/dtype.h"
#include "treadle/export.h"
#include "treadle/session.h"
#include "treadle/shape.h"

namespace treadle {

/// A value that a node reads or writes, as a profile describes it.
struct ProfiledOperand {
  std::string name;
  DType dtype = DType::undefined;
  std::optional<Shape> shape;  ///< shape for the extents of the last run; no value if it depends on data
  bool constant = false;
  std::string shares;    ///< name of the value whose bytes this one uses or overwrites; empty: it has bytes of its own
  int64_t row_step = 0;  ///< row stride in elements, if each row lies within a longer row of another value; 0: contiguous
  std::string value;     ///< a number or short list that is known without running: "0.5", "[2, -1]"; empty: unknown

  /// Returns the strides in elements, by axis; empty if the shape is unknown.
  std::vector<int64_t> strides() const;
};

/// A kernel of a node's operator that was not chosen for the node.
struct ProfiledUnusedKernel {
  std::string name;
  std::string why;  ///< the reason: the kernel declines the node, or comes after the chosen kernel
};

/// A step within a node's kernel, such as packing (ProfilerOptions::kernel_phases).
struct ProfiledKernelPhase {
  std::string name;
  int64_t calls = 0;            ///< number of calls in all recorded runs, on all threads
  std::vector<double> self_ns;  ///< per run: sum over threads, without nested phases
};

/// Properties of a node that are known without running it, after fusion and the choice of its kernel.
struct PlannedNode {
  std::string name, op_type;
  std::string kernel;                                ///< empty for If, Loop and Scan
  std::vector<ProfiledUnusedKernel> unused_kernels;  ///< other kernels of the operator (ProfilerOptions::passes)
  std::string forms;                                 ///< layouts of its packed weights, such as "F(4,3)" for Winograd's; may be empty
  int32_t parent = -1;                               ///< index of the node whose body contains this node; -1: the node is in the main graph
  std::vector<std::string> sources;                  ///< nodes of the original model that it replaces
  std::vector<std::string> layers;  ///< layers of the model that contain it, outermost first: "layer1", "layer1.0", "layer1.0.conv1"
  std::vector<std::string> passes;  ///< passes that produced it, in order (ProfilerOptions::passes)
  std::vector<ProfiledOperand> inputs, outputs;
  std::optional<double> flops, bytes;  ///< per call; no value if the operator declares no cost or a shape is unknown
  std::string phase;                   ///< part of a training step: "forward", "backward", "communication" or "optimizer"; otherwise empty
  std::vector<int32_t> forward;        ///< for a backward node: indices of forward nodes whose gradients it computes
  int64_t sequence = -1;               ///< forward node: its number among forward nodes; backward node: the number of its last forward node
  bool moves = false;                  ///< true: the node only moves elements and computes nothing
  bool between_devices = false;        ///< true: not a node of the graph, but a copy to another device
  std::string device;                  ///< name of the device that does the work, "gpu:0"; empty: the host
  size_t packed_bytes = 0;
};

/// A node, with the times of its executions.
struct ProfiledNode : PlannedNode {
  int64_t calls = 0;              ///< number of calls in all recorded runs
  std::vector<double> self_ns;    ///< per run: sum over all calls, without the nodes in its bodies
  std::vector<double> ready_ns;   ///< per run: from the run's begin until all inputs of the node exist; -1: not run. Main graph only
  std::vector<double> waited_ns;  ///< per run: from ready_ns until the node begins
  double barrier_ns = 0;          ///< in all recorded runs, part of self_ns: threads waiting at the ends of its loops
  std::vector<ProfiledKernelPhase> kernel_phases;  ///< ordered by their first begin
};

/// The time of one run. kernel_ns to after_ns sum up to duration_ns.
struct ProfiledRun {
  double start_ns = 0;     ///< time at which the run began, counted from the profile's begin
  double duration_ns = 0;  ///< time from the begin to the end of the run on the calling thread
  double kernel_ns = 0;    ///< time during which at least one node runs
  double wait_ns = 0;      ///< time spent waiting for other jobs
  double before_ns = 0;    ///< time before the first node: binding shapes, finding memory
  double between_ns = 0;   ///< time between nodes: dispatch, and the cost of recording
  double after_ns = 0;     ///< time after the last node
  double node_ns = 0;      ///< sum of the nodes' times on all threads
  double barrier_ns = 0;   ///< part of node_ns: threads waiting at the ends of nodes' loops
  double waited_ns = 0;    ///< sum over all nodes of the time for which they were ready but had not begun
  int64_t events = 0;
};

/// An interval of time on a thread, which a node or a wait took.
struct ProfiledEvent {
  int32_t node = -1;  ///< index of the node; -1: waiting for another job; -2 - s: a pool thread in ProfiledPoolThread::State s
  int32_t thread = 0;
  double start_ns = 0, duration_ns = 0;  ///< times in the run; `start_ns` counts from the run's begin
  int32_t phase = -1;    ///< index in the node's kernel_phases; -1: the node itself, or the part of it that a helping thread computes
  double waited_ns = 0;  ///< for a node: time from the moment when all its inputs existed until it began
};

/// The states of one thread of the pool, over all recorded runs. The times of the states sum up to the runs' duration.
struct ProfiledPoolThread {
  enum State : uint8_t { running, no_ready_work, barrier, asleep };
  static constexpr std::array<const char*, 4> kStateNames{"running", "no ready work", "barrier", "asleep"};
  int32_t thread = 0;                ///< number of the thread, as in ProfiledEvent
  bool calls = false;                ///< true: the thread calls runs; its times then cover only its own runs
  std::array<double, 4> state_ns{};  ///< time in each State; waiting for other jobs counts as asleep
};

/// The profile's clock and the wall clock at one moment.
struct ProfiledClockPair {
  double ns = 0;        ///< time since the profile began
  int64_t unix_ns = 0;  ///< nanoseconds since 1970
};

/// A buffer of the planned arena.
struct ProfiledBuffer {
  std::string name;  ///< name of the value, or of the node if the buffer is scratch
  MemoryClass memory_class = MemoryClass::activations;
  size_t size_bytes = 0, offset_bytes = 0;
  int32_t first = 0, last = 0;  ///< first and last step (index in Profile::steps) at which the buffer is alive
};

/// A range that the program marked (ProfileRange). One entry covers all calls of the range within the same surrounding ranges.
struct ProfiledRange {
  std::string name;
  int32_t parent = -1;          ///< index of the surrounding range on the same thread; -1: there is none
  bool python = false;          ///< true: a function called by Python (ProfilerOptions::python_calls)
  std::vector<double> call_ns;  ///< time of each call
  double self_ns = 0;           ///< time of all calls, without nested ranges
  double run_ns = 0;            ///< time of the recorded runs within all calls
};

/// An interval of a timeline: a call of a range, or a run.
struct ProfiledSpan {
  int32_t range = -1;  ///< index of the range; -1: the span is a run
  int32_t thread = 0;
  double start_ns = 0, duration_ns = 0;  ///< `start_ns` counts from the profile's begin
};

/// A moment that the program marked (mark_profile()).
struct ProfiledMark {
  std::string name;
  int32_t thread = 0;  ///< number of the thread, as in ProfiledEvent
  double ns = 0;       ///< time since the profile began
};

/// A phase of loading: reading the model, making the session, or binding the first extents.
struct ProfiledPhase {
  std::string name;
  int32_t parent = -1;                   ///< index of the surrounding phase; -1: there is none
  double start_ns = 0, duration_ns = 0;  ///< `start_ns` counts from the begin of the first phase
};

/// Counts the calls of a node and their times, in all runs (SessionOptions::node_counters).
struct TREADLE_API NodeCounter {
  struct Bucket {
    double low_ns = 0, high_ns = 0;  ///< bounds of the bucket: calls that took at least low_ns and less than high_ns
    int64_t count = 0;
  };
  std::string name, op_type;
  int32_t parent = -1;  ///< index of the node whose body contains this node; -1: the main graph
  int64_t calls = 0;
  double total_ns = 0;
  std::vector<Bucket> histogram;  ///< non-empty buckets, ascending; bounds are at most 25 % apart

  double mean_ns() const { return calls > 0 ? total_ns / static_cast<double>(calls) : 0; }
  /// Returns a quantile of the times of calls, interpolated within a bucket; 0 if the node never ran.
  /// @param part  the part of the calls that take less time; 0.5: the median
  double quantile_ns(double part) const;
};
/// Returns a JSON list of objects: name, op, parent, calls, total_ms, mean_us, p50_us, p90_us, p99_us, histogram of [low_ns, high_ns,
/// count].
TREADLE_API std::string node_counters_to_json(const std::vector<NodeCounter>& counters);

/// An amount of memory and the value or node that holds it.
struct MemoryHolding {
  std::string name;  ///< name of a value, or of the node that took the memory; empty: unknown
  MemoryClass memory_class = MemoryClass::other;
  size_t size_bytes = 0;
};

/// A block that was allocated while memory was recorded.
struct ProfiledBlock {
  uint64_t id = 0;  ///< unique number of the block, since addresses may repeat
  MemoryClass memory_class = MemoryClass::other;
  std::string holder;  ///< a name like MemoryHolding::name
  size_t size_bytes = 0;
  double taken_ns = 0;                ///< time since the profile began
  std::optional<double> returned_ns;  ///< no value: not freed yet
};

/// Actual allocations (ProfilerOptions::memory), as opposed to the plan.
struct MeasuredMemory {
  using ClassBytes = std::array<size_t, kNumMemoryClasses>;
  struct Point {
    double ns = 0;  ///< time since the profile began
    ClassBytes bytes{};
  };
  struct Refusal {
    double ns = 0;
    size_t size_bytes = 0;
    MemoryClass memory_class = MemoryClass::other;
    std::string holder;  ///< the node or value for which the memory was requested
  };
  int64_t num_events = 0;
  ClassBytes before{};          ///< bytes when the profile began
  std::vector<Point> timeline;  ///< one point after each event
  double peak_ns = 0;
  size_t peak_bytes = 0;
  ClassBytes at_peak{};
  std::vector<MemoryHolding> holders_at_peak;  ///< sorted, the largest first
  std::vector<ProfiledBlock> blocks;           ///< sorted by the order of allocation
  std::vector<Refusal> refused;
};

struct ProfileTrace;  ///< contains all single events; internal to the library

struct Profile {
  std::vector<ProfiledNode> nodes;
  std::vector<ProfiledRun> runs;
  std::vector<ProfiledEvent> median_run, slowest_run;  ///< the timelines of these two runs
  std::vector<std::string> threads;                    ///< names of the threads, indexed by ProfiledEvent::thread
  std::vector<ProfiledPoolThread> pool;                ///< pool threads that took part in runs; empty if runs used one thread
  std::vector<ProfiledClockPair> clock;                ///< pairs of the profile's clock and the wall clock, about one per second
  std::vector<ProfiledBuffer> buffers;                 ///< buffers of the main graph
  std::vector<int32_t> steps;  ///< index of the node that each step executes; `first` and `last` of buffers are such steps
  MemoryReport memory;
  MemoryStatistics memory_statistics;
  std::optional<MeasuredMemory> measured_memory;  ///< set only if ProfilerOptions::memory is set
  std::vector<ProfiledPhase> load;                ///< sorted so that a phase follows the phase that surrounds it
  std::vector<ProfiledRange> ranges;              ///< sorted so that a range follows the range that surrounds it
  std::vector<ProfiledSpan> spans;                ///< a limited number of spans from the beginning; empty without ranges and marks
  std::vector<ProfiledMark> marks;                ///< sorted by time
  uint64_t events_lost = 0;                       ///< number of events that were dropped because the recorder's capacity was reached
  int64_t events_unknown = 0;                     ///< events of graphs that the session no longer holds
  double ns_per_event = 0;                        ///< cost of recording one event, measured when the profile was made
  std::string cpu;                                ///< processor that was used; empty: unknown
  int num_threads = 0;                            ///< number of threads that share a node's work; 0: unknown
  bool float32 = true;                            ///< true: products are computed in float32; false: in another precision
  std::shared_ptr<const ProfileTrace> trace;      ///< the events that profile_to_trace() writes
};

struct ProfilerOptions {
  /// Capacity in events of 24 bytes, for the whole process. With several profiles at once, the largest capacity applies.
  uint64_t max_events = 50'000'000;
  /// When the capacity is reached: true: the oldest events are dropped; false: new ones. Profile::events_lost counts dropped events, and
  /// runs with missing events are omitted. With several profiles at once, true applies only if all set it.
  bool keep_last = false;
  bool memory = false;  ///< true: also records every block of memory that is taken or returned
  /// If true, also records phases within kernels (packing, products, epilogues and others) per thread. Some kernels mark no phases.
  bool kernel_phases = false;
  /// Also record calls reported by an interpreter (ProfileRange::end_call): Python's, with treadle.profile(python_calls=True).
  bool python_calls = false;
  /// File to stream events to, a few times per second. Streamed events are removed from memory, so a recording may have any length, and
  /// survive a crash of the process. read_profile_recording() reads the file. If writing fails, recording stops, runs continue, and
  /// profile() and flush() throw the error. Cannot be combined with keep_last.
  std::string stream_to;
  /// Record in each node the passes that made it, and why its operator's other kernels were not chosen. For this, the graph is optimized
  /// again when the profile is made. Sessions of compiled models have no passes to name.
  bool passes = false;
};

/// Records the runs of the session, trainer or joint module whose profiler() returned it, from that call on. Several profilers do not
/// affect each other. Thread-safe. The destructor frees the records.
class TREADLE_API Profiler {
 public:
  Profiler(Profiler&&) noexcept;
  Profiler& operator=(Profiler&&) noexcept;
  ~Profiler();

  /// Runs that begin while paused are omitted. Runs in progress are recorded to their end.
  void pause();
  void resume();
  /// Returns a profile of runs that have ended. @throws Error(io_error) if the file ProfilerOptions::stream_to could not be written
  Profile profile() const;
  /// Writes all events up to now to the file ProfilerOptions::stream_to. @throws Error(io_error) if it could not be written
  void flush();

  struct Impl;
  explicit Profiler(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

/// Reads a profile from a file that ProfilerOptions::stream_to wrote, as far as it was written. The profile includes single events.
/// @throws Error(not_found, io_error); Error(invalid_argument) for other files
TREADLE_API Profile read_profile_recording(const std::string& path);

/// Marks a range of the program, from here to the end of the block, in all open profiles of the process. Ranges nest, on any thread. Costs
/// one load if no profile is open.
///   treadle::ProfileRange range("load batch");
class TREADLE_API ProfileRange {
 public:
  explicit ProfileRange(std::string_view name) noexcept;
  ~ProfileRange();
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;

  /// The functions below are for language bindings, which store the ids of names. begin() returns a time, or 0 if no profile is open.
  static uint64_t begin() noexcept;
  static bool is_recorded() noexcept;
  static uint32_t name_id(std::string_view name);
  /// Also records the name at once, so that a profile made while the range is open includes it. end() takes the same name.
  static uint64_t begin(uint32_t name_id) noexcept;
  static void end(uint32_t name_id, uint64_t begin) noexcept;
  /// Records a call made by an interpreter, in profiles with ProfilerOptions::python_calls.
  /// @param begin, end      times from begin()
  /// @param system_thread  system id of the calling thread; 0: this thread
  static void end_call(uint32_t name_id, uint64_t begin, uint64_t end, int64_t system_thread = 0) noexcept;
  /// Records that a call is open since `begin`, so that profiles made before end_call() include it.
  static void call_is_open(uint32_t name_id, uint64_t begin, int64_t system_thread) noexcept;

 private:
  uint64_t start_;
  uint32_t name_ = 0;
};

/// Marks this moment in all open profiles of the process. Costs one load if there are none.
///   treadle::mark_profile("epoch 3");
TREADLE_API void mark_profile(std::string_view name) noexcept;

/// The machine's peak speeds, measured by dedicated loops.
struct TREADLE_API MachinePeaks {
  int threads = 1;
  double flops_per_second = 0;  ///< float32 multiply-adds, each counted as two, in vector registers or AMX tiles
  /// Bandwidth of copies of several sizes, ascending: pairs of the bytes that a copy touches, and the bytes that it reads and writes per
  /// second. Small copies fit in caches.
  std::vector<std::pair<double, double>> bytes_per_second;
  double spread = 0;      ///< by how much the slowest round of the multiply-adds was below the fastest one, as a part of it
  bool busy = false;      ///< other programs used the processors during the measurement, so the rates may be too low
  bool kept = false;      ///< the rates were measured earlier, and are kept for the machine
  std::string raised_by;  ///< a node of the profile that was faster than the multiply-adds; flops_per_second is its rate. Empty: none

  /// Returns the bandwidth for a node, by interpolation. @param bytes  number of bytes that the node reads and writes
  double bandwidth(double bytes) const;
  /// The minimum time for this work (roofline model). 0 if nothing was measured.
  double bound_ns(double flops, double bytes) const;
};

/// Returns the peak speeds of this machine. They are measured once, which takes about 0.2 s, and kept in the user's cache folder
/// ($XDG_CACHE_HOME/treadle, or ~/.cache/treadle) for each processor, instruction set and number of threads. A measurement while other
/// programs used the processors is replaced by the next one. TREADLE_PEAKS=measure measures always, and keeps nothing.
/// @param num_threads  number of threads; 0: the usable CPUs
TREADLE_API MachinePeaks measure_machine_peaks(int num_threads);

/// A change of settings or of the model that was tried, and its effect.
struct ProfileRemedy {
  std::string title;           ///< a text such as "use 2 threads"
  std::string evidence;        ///< the measurements that support the remedy
  std::string command;         ///< command that applies it
  double effect = 0;           ///< fraction of the time or memory that it saves
  std::string saves = "time";  ///< what the remedy saves: "time" of a run, "memory", or "load time"
};

/// Additional information for a report. Empty parts are omitted.
struct ProfileContext {
  std::string model, command, options;
  int64_t warmup_runs = 0;
  double load_ms = 0, first_run_ms = 0;  ///< 0 if not measured
  std::vector<double> call_ns;           ///< duration of the session's call for each recorded run, as the caller sees it
  std::vector<double> plain_ns;          ///< durations of calls that were made between the recorded ones, without recording
  MachinePeaks peaks;
  std::map<std::string, MachinePeaks> device_peaks;  ///< by PlannedNode::device; nodes on other devices are not compared with peaks
  bool peaks_hold = true;                            ///< false: products use another precision than the float32 of the peaks
  std::string assumed_extents;                       ///< extents that were assumed for inputs: "N=1, images axis 2=1"
  bool remedies_tried = false;
  std::vector<ProfileRemedy> remedies;  ///< sorted, the largest effect first
};

/// Sets `peaks` and `peaks_hold` for a profile's threads and precision, and `device_peaks` for the devices that its nodes ran on, if these
/// can be measured. Leaves all of them empty if the profile is from another processor.
TREADLE_API void measure_peaks_for(const Profile& profile, ProfileContext& context);

enum class TraceFormat : uint8_t {
  perfetto,     ///< Perfetto's protobuf (.pftrace), the best format for ui.perfetto.dev
  chrome,       ///< Chrome's JSON, with PyTorch's terms
  folded,       ///< collapsed stacks, for flame graphs
  speedscope,   ///< the JSON that www.speedscope.app reads
  onnxruntime,  ///< JSON with ONNX Runtime's terms
};
/// Exports all events as a trace. @throws Error(invalid_argument) for a profile that was not recorded in this process
TREADLE_API std::string profile_to_trace(const Profile& profile, TraceFormat format);

}  // namespace treadle
