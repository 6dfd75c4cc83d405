// Profiles: where the time and the memory of a session's runs went. `treadle profile` and Python's treadle.profile() are made of this.
#pragma once

#include <array>
#include <cstdint>
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

/// A value that a node reads or writes.
struct ProfiledOperand {
  std::string name;
  DType dtype = DType::undefined;
  std::optional<Shape> shape;  ///< of the last extents that were run; none if only the run knows it
  bool constant = false;
  std::string shares;    ///< the value whose bytes it is a view of, or is written over; empty: it has bytes of its own
  int64_t row_step = 0;  ///< elements from row to row, where it lies within the rows of another value; 0: rows follow each other
  std::string value;     ///< of a number, or a short list of them, that is known without running: "0.5", "[2, -1]"; empty: not known

  /// In elements, by axis; empty if the shape is not known.
  std::vector<int64_t> strides() const;
};

/// A kernel of a node's operator that does not compute the node.
struct ProfiledUnusedKernel {
  std::string name;
  std::string why;  ///< it declines the node, or another one goes before it
};

/// A step within a node's kernel, such as packing (ProfilerOptions::kernel_phases).
struct ProfiledKernelPhase {
  std::string name;
  int64_t calls = 0;            ///< in all recorded runs, on all threads
  std::vector<double> self_ns;  ///< per run: of all threads together, without the phases within
};

/// A node as it ran: after fusion, and with the kernel that was chosen.
struct ProfiledNode {
  std::string name, op_type;
  std::string kernel;                                ///< empty for If, Loop and Scan
  std::vector<ProfiledUnusedKernel> unused_kernels;  ///< the operator's others (ProfilerOptions::passes)
  std::string forms;                                 ///< of its packed weights, "F(4,3)"; may be empty
  int32_t parent = -1;                               ///< the node (index) whose body it is in
  std::vector<std::string> sources;                  ///< nodes of the model as read that it stands for
  std::vector<std::string> layers;  ///< of the model that it is in, outer ones first: "layer1", "layer1.0", "layer1.0.conv1"
  std::vector<std::string> passes;  ///< that made it what it is, in order (ProfilerOptions::passes)
  std::vector<ProfiledOperand> inputs, outputs;
  std::optional<double> flops, bytes;  ///< of one call; none if the operator does not say, or a shape is not known
  std::string phase;                   ///< of a training step: "forward", "backward", "communication" or "optimizer"; empty elsewhere
  std::vector<int32_t> forward;        ///< of a backward node: the forward nodes (indices) whose gradients it computes
  int64_t sequence = -1;               ///< of a forward node: its place among them; of a backward node: the last of its forward nodes'
  bool moves = false;                  ///< it computes nothing: elements go to other places
  bool between_devices = false;        ///< it is no node of the graph: a value is copied to another device
  size_t packed_bytes = 0;
  int64_t calls = 0;              ///< in all recorded runs
  std::vector<double> self_ns;    ///< per run: all calls together, without the nodes of its bodies
  std::vector<double> ready_ns;   ///< per run: from its begin until all that the node reads was there; -1: it did not run. Main graph only
  std::vector<double> waited_ns;  ///< per run: from then until the node began
  double barrier_ns = 0;          ///< in all recorded runs, part of self_ns: threads waited at the ends of its loops
  std::vector<ProfiledKernelPhase> kernel_phases;  ///< in the order of their first begin
};

/// Where one run's time went. The parts sum to duration_ns.
struct ProfiledRun {
  double start_ns = 0;     ///< since the recorder was made
  double duration_ns = 0;  ///< as the session's thread saw it
  double kernel_ns = 0;    ///< at least one node was running
  double wait_ns = 0;      ///< for other jobs
  double before_ns = 0;    ///< up to the first node: shapes bound, memory found
  double between_ns = 0;   ///< between nodes: dispatch, and what recording costs
  double after_ns = 0;     ///< behind the last node
  double node_ns = 0;      ///< of all nodes, on all threads
  double barrier_ns = 0;   ///< part of node_ns: threads waited at the ends of nodes' loops
  double waited_ns = 0;    ///< of all nodes: they were ready, and had not begun
  int64_t events = 0;
};

/// A stretch of time on a thread.
struct ProfiledEvent {
  int32_t node = -1;  ///< index; -1: waiting for another job; -2 - s: the thread of the pool was in ProfiledPoolThread::State s
  int32_t thread = 0;
  double start_ns = 0, duration_ns = 0;  ///< since the run began
  int32_t phase = -1;                    ///< of the node's kernel_phases; -1: the node, or a helper's part in it
  double waited_ns = 0;                  ///< of a node: since all that it reads was there
};

/// What a thread that takes part in loops or nodes did, over all recorded runs. The states sum to their length.
struct ProfiledPoolThread {
  enum State : uint8_t { running, no_ready_work, barrier, asleep };
  static constexpr std::array<const char*, 4> kStateNames{"running", "no ready work", "barrier", "asleep"};
  int32_t thread = 0;                ///< as in ProfiledEvent
  bool calls = false;                ///< runs are called on it: its times are of its own runs
  std::array<double, 4> state_ns{};  ///< by State. Waiting for other jobs is asleep
};

/// The profile's clock against the wall clock at one moment.
struct ProfiledClockPair {
  double ns = 0;        ///< since the profile began
  int64_t unix_ns = 0;  ///< since 1970
};

/// A buffer of the planned arena.
struct ProfiledBuffer {
  std::string name;  ///< of the value; of the node where it is scratch
  MemoryClass memory_class = MemoryClass::activations;
  size_t size_bytes = 0, offset_bytes = 0;
  int32_t first = 0, last = 0;  ///< nodes during which it is alive, both inclusive
};

/// A range that the program marked (ProfileRange): all of its calls with the same ranges around them.
struct ProfiledRange {
  std::string name;
  int32_t parent = -1;          ///< the range (index) around it on its thread
  bool python = false;          ///< a function that Python called (ProfilerOptions::python_calls)
  std::vector<double> call_ns;  ///< of each call
  double self_ns = 0;           ///< of all calls, without the ranges in them
  double run_ns = 0;            ///< of all calls: recorded runs in them
};

/// A range or a run, where a timeline shows it.
struct ProfiledSpan {
  int32_t range = -1;  ///< index; -1: a run
  int32_t thread = 0;
  double start_ns = 0, duration_ns = 0;  ///< since the profile began
};

/// A moment that the program marked (mark_profile()).
struct ProfiledMark {
  std::string name;
  int32_t thread = 0;  ///< as in ProfiledEvent
  double ns = 0;       ///< since the profile began
};

/// A part of loading: of reading the model, making the session, or binding the first extents.
struct ProfiledPhase {
  std::string name;
  int32_t parent = -1;                   ///< the phase (index) that it is part of
  double start_ns = 0, duration_ns = 0;  ///< since the first phase began
};

/// How long a node took in all runs that counted (SessionOptions::node_counters).
struct TREADLE_API NodeCounter {
  struct Bucket {
    double low_ns = 0, high_ns = 0;  ///< runs that took [low_ns, high_ns)
    int64_t count = 0;
  };
  std::string name, op_type;
  int32_t parent = -1;  ///< the node (index) whose body it is in
  int64_t calls = 0;
  double total_ns = 0;
  std::vector<Bucket> histogram;  ///< those that are not empty, ascending; bounds at most 25 % apart

  double mean_ns() const { return calls > 0 ? total_ns / static_cast<double>(calls) : 0; }
  /// Interpolated within a bucket; 0 if it never ran. @param part  0.5 for the median
  double quantile_ns(double part) const;
};
/// A list of objects: name, op, parent, calls, total_ms, mean_us, p50_us, p90_us, p99_us, histogram of [low_ns, high_ns, count].
TREADLE_API std::string node_counters_to_json(const std::vector<NodeCounter>& counters);

/// Bytes that somebody holds.
struct MemoryHolding {
  std::string name;  ///< of a value, or of the node that took them; empty: not known
  MemoryClass memory_class = MemoryClass::other;
  size_t size_bytes = 0;
};

/// A block that was taken while memory was recorded.
struct ProfiledBlock {
  uint64_t id = 0;  ///< of no other block, whatever address it has
  MemoryClass memory_class = MemoryClass::other;
  std::string holder;  ///< as MemoryHolding::name
  size_t size_bytes = 0;
  double taken_ns = 0;                ///< since the profile began
  std::optional<double> returned_ns;  ///< none: it is still there
};

/// What was really allocated (ProfilerOptions::memory), beside what the plan says.
struct MeasuredMemory {
  using ClassBytes = std::array<size_t, kNumMemoryClasses>;
  struct Point {
    double ns = 0;  ///< since the profile began
    ClassBytes bytes{};
  };
  struct Refusal {
    double ns = 0;
    size_t size_bytes = 0;
    MemoryClass memory_class = MemoryClass::other;
    std::string holder;  ///< who asked
  };
  int64_t num_events = 0;
  ClassBytes before{};          ///< when the profile began
  std::vector<Point> timeline;  ///< after each event
  double peak_ns = 0;
  size_t peak_bytes = 0;
  ClassBytes at_peak{};
  std::vector<MemoryHolding> holders_at_peak;  ///< the largest first
  std::vector<ProfiledBlock> blocks;           ///< in the order of their taking
  std::vector<Refusal> refused;
};

struct ProfileTrace;  ///< every single event; what it is made of is the library's business

struct Profile {
  std::vector<ProfiledNode> nodes;
  std::vector<ProfiledRun> runs;
  std::vector<ProfiledEvent> median_run, slowest_run;  ///< timelines
  std::vector<std::string> threads;                    ///< names, by the events' number
  std::vector<ProfiledPoolThread> pool;                ///< threads that were seen; empty if runs had one thread
  std::vector<ProfiledClockPair> clock;                ///< about one a second
  std::vector<ProfiledBuffer> buffers;                 ///< of the main graph
  std::vector<int32_t> steps;                          ///< nodes in the order that the buffers' `first` and `last` count
  MemoryReport memory;
  MemoryStatistics memory_statistics;
  std::optional<MeasuredMemory> measured_memory;  ///< if it was asked for
  std::vector<ProfiledPhase> load;                ///< a phase stands behind the one around it
  std::vector<ProfiledRange> ranges;              ///< a range stands behind the one around it
  std::vector<ProfiledSpan> spans;                ///< the first of them; empty without ranges and marks
  std::vector<ProfiledMark> marks;                ///< in the order of time
  uint64_t events_lost = 0;                       ///< beyond what the recorder holds
  int64_t events_unknown = 0;                     ///< of graphs that the session holds no more
  double ns_per_event = 0;                        ///< what recording one costs, measured when the profile was taken
  std::string cpu;                                ///< the processor that it ran on; empty: not known
  int num_threads = 0;                            ///< that share a node's work; 0: not known
  bool float32 = true;                            ///< false: products are computed in other numbers
  std::shared_ptr<const ProfileTrace> trace;      ///< for profile_to_trace()
};

struct ProfilerOptions {
  /// Room for so many events of 24 bytes, of the whole process. Of several profiles at once the largest room counts.
  uint64_t max_events = 50'000'000;
  /// When there is no more room: true: the oldest events go; false: new ones are not recorded. Either way Profile::events_lost counts
  /// them, and runs that lack events are left out. Of several profiles at once all must say true.
  bool keep_last = false;
  bool memory = false;  ///< also every block of memory that is taken or given back
  /// Also what kernels do: packing, products, epilogues and others, on each thread. Kernels that mark no phases have none.
  bool kernel_phases = false;
  /// Also calls that an interpreter tells of (ProfileRange::end_call): Python's, with treadle.profile(python_calls=True).
  bool python_calls = false;
  /// A file to which events are written while they are recorded, a few times a second. The memory that they take is given back, so that a
  /// recording may be of any length; what a process has written is there however it ends. read_profile_recording() reads it. If the file
  /// cannot be written any more, recording stops, runs go on, and profile() and flush() say why. Does not go with keep_last.
  std::string stream_to;
  /// Nodes name the passes that made them, and say why other kernels of their operators do not compute them. The graph is optimised once
  /// more when the profile is made. Sessions of a compiled model have none to name.
  bool passes = false;
};

/// Records the runs of a session, a trainer or a joint module (their `profiler()`), from its making on. Several at once do not disturb each
/// other. Thread-safe. What it recorded is given back when it goes.
class TREADLE_API Profiler {
 public:
  Profiler(Profiler&&) noexcept;
  Profiler& operator=(Profiler&&) noexcept;
  ~Profiler();

  /// Runs that begin while it is paused are not of the profile. Those under way are recorded to their end.
  void pause();
  void resume();
  /// Of the runs that have ended so far. @throws Error(io_error) if the file of ProfilerOptions::stream_to could not be written
  Profile profile() const;
  /// What has been recorded so far is in the file of ProfilerOptions::stream_to. @throws Error(io_error) if it could not be written
  void flush();

  struct Impl;
  explicit Profiler(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

/// A profile that was written with ProfilerOptions::stream_to, up to what had been written when it ended. It has its single events.
/// @throws Error(not_found, io_error), Error(invalid_argument) for other files
TREADLE_API Profile read_profile_recording(const std::string& path);

/// Marks a range of the program, from here to the end of the block, in all profiles that are being taken in the process. Ranges nest, on
/// any thread. Costs a load where no profile is being taken.
///   treadle::ProfileRange range("load batch");
class TREADLE_API ProfileRange {
 public:
  explicit ProfileRange(std::string_view name) noexcept;
  ~ProfileRange();
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;

  /// For bindings, which keep what names are: 0 where no profile is being taken.
  static uint64_t begin() noexcept;
  static bool is_recorded() noexcept;
  static uint32_t name_id(std::string_view name);
  /// Also says the name at once: a range that is open when a profile is made is in it, up to then. end() has the same name.
  static uint64_t begin(uint32_t name_id) noexcept;
  static void end(uint32_t name_id, uint64_t begin) noexcept;
  /// A call of an interpreter that records them: of profiles with ProfilerOptions::python_calls.
  /// @param begin, end      as begin() gave them
  /// @param system_thread  0: this one; else the system's number of the thread that the call was on
  static void end_call(uint32_t name_id, uint64_t begin, uint64_t end, int64_t system_thread = 0) noexcept;
  /// That a call of that thread, which began then, is under way: a profile that is made before end_call() has it.
  static void call_is_open(uint32_t name_id, uint64_t begin, int64_t system_thread) noexcept;

 private:
  uint64_t start_;
  uint32_t name_ = 0;
};

/// Marks this moment in all profiles that are being taken in the process. Costs a load where none is.
///   treadle::mark_profile("epoch 3");
TREADLE_API void mark_profile(std::string_view name) noexcept;

/// What this machine reaches in loops that do nothing else.
struct TREADLE_API MachinePeaks {
  int threads = 1;
  double flops_per_second = 0;  ///< float32 multiply-adds, counted as two, in registers or by tiles of AMX
  /// Bytes read and written per second by a copy, by the bytes that it touches: small ones stay in caches. Ascending.
  std::vector<std::pair<double, double>> bytes_per_second;

  /// Interpolated. @param bytes  that a node reads and writes
  double bandwidth(double bytes) const;
  /// The least time for so much work (roofline). 0 if nothing was measured.
  double bound_ns(double flops, double bytes) const;
};

/// Takes about 0.2 s. @param num_threads  0: the CPUs that the process may use
TREADLE_API MachinePeaks measure_machine_peaks(int num_threads);

/// A change that was tried, and what it did.
struct ProfileRemedy {
  std::string title;           ///< "use 2 threads"
  std::string evidence;        ///< what was measured
  std::string command;         ///< that applies it
  double effect = 0;           ///< part of it that it saves
  std::string saves = "time";  ///< "time" of a run, "memory", or "load time"
};

/// What a report says besides the profile. Empty parts are left out.
struct ProfileContext {
  std::string model, command, options;
  int64_t warmup_runs = 0;
  double load_ms = 0, first_run_ms = 0;  ///< 0: not measured
  std::vector<double> call_ns;           ///< per recorded run: the whole call of the session, seen from outside
  std::vector<double> plain_ns;          ///< calls between them that were not recorded
  MachinePeaks peaks;
  bool peaks_hold = true;       ///< false: products are computed in other numbers than the float32 of the peaks
  std::string assumed_extents;  ///< of the inputs, which nobody gave: "N=1, images axis 2=1"
  bool remedies_tried = false;
  std::vector<ProfileRemedy> remedies;  ///< those with the largest effect first
};

/// Sets `peaks` and `peaks_hold` for the threads and numbers that a profile was taken with. None of a profile of another processor.
TREADLE_API void measure_peaks_for(const Profile& profile, ProfileContext& context);

/// The report as JSON: docs/profiling.md has the fields. Tables, pages and comparisons are made of it.
TREADLE_API std::string profile_to_json(const Profile& profile, const ProfileContext& context = {});

struct ProfileTableOptions {
  int top = 25;               ///< nodes shown; 0: all
  bool memory = false;        ///< also what the arena holds, step by step and at its peak
  std::string sort = "time";  ///< "time", "order", "calls", "gflops", "bandwidth", "name"
};
/// @param json  of profile_to_json(). @throws Error(invalid_argument) for other text, or an unknown order.
TREADLE_API std::string profile_to_table(std::string_view json, const ProfileTableOptions& options = {});

struct ProfileTreeOptions {
  int depth = 0;      ///< levels below the run; 0: all
  bool nodes = true;  ///< also nodes, within their layers
};
/// A run as a tree: phases of a step, layers of the model, nodes, each with its time and what of it is its own.
/// @param json  of profile_to_json(). @throws Error(invalid_argument) for other text
TREADLE_API std::string profile_to_tree(std::string_view json, const ProfileTreeOptions& options = {});
/// One page that needs no network. @param json  of profile_to_json(), or what `treadle explain --json` prints
TREADLE_API std::string profile_to_html(std::string_view json);
/// A line for each node, with a header: RFC 4180.
TREADLE_API std::string profile_to_csv(std::string_view json);

enum class TraceFormat : uint8_t {
  perfetto,     ///< Perfetto's protobuf, .pftrace: the one to prefer for ui.perfetto.dev
  chrome,       ///< Chrome's JSON in the words of PyTorch's profiler
  folded,       ///< collapsed stacks, for flame graphs
  speedscope,   ///< JSON of www.speedscope.app
  onnxruntime,  ///< JSON in the words of ONNX Runtime's profile
};
/// Every event of the profile. @throws Error(invalid_argument) for a profile that was not recorded in this process.
TREADLE_API std::string profile_to_trace(const Profile& profile, TraceFormat format);

/// The contents of a file, by the end of its name: .json, .html, .csv, or a trace: .pftrace, .trace.json, .folded, .speedscope.json,
/// .onnxruntime.json.
/// @param json     of profile_to_json()
/// @param profile  for traces; may be null
/// @throws Error(invalid_argument) for another name, or for a trace without the profile's events.
TREADLE_API std::string profile_file(std::string_view path, std::string_view json, const Profile* profile);
/// @throws Error(invalid_argument) for a name that profile_file() does not know.
TREADLE_API void check_profile_file(std::string_view path);

enum class Change : uint8_t { unchanged, faster, slower, unclear };

struct ProfileDifference {
  Change run = Change::unclear;  ///< of whole runs
  std::string text;              ///< the table
  std::string json;
};
/// Matches nodes by name. A node has changed if the intervals of its medians (99 %) lie apart; it is unchanged if they allow no more than
/// `tolerance`; otherwise nobody can tell.
/// @throws Error(invalid_argument)
TREADLE_API ProfileDifference compare_profiles(std::string_view before, std::string_view after, double tolerance = 0.03,
                                               const ProfileTableOptions& options = {});

}  // namespace treadle
