// The report of a profile as a struct: how long each node took, what limits it, and how a run's time and memory were used. Tables, trees,
// pages and files are written from it; JSON files are read back into it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "treadle/export.h"
#include "treadle/profile.h"

namespace treadle {

/// Statistics of repeated measurements, in milliseconds.
struct ProfileTimes {
  double median = 0;
  /// 99 % confidence interval of the median; no value if there were too few measurements.
  std::optional<std::pair<double, double>> interval;
  double p10 = 0, p90 = 0, min = 0, max = 0;
};

/// A step within a node's kernel.
struct KernelPhaseReport {
  std::string name;
  double calls = 0;  ///< number of calls per run, on all threads
  ProfileTimes ms;   ///< per run: sum over threads, without nested phases
  double mean_ms = 0;
  double share = 0;  ///< share of the time of all phases of the node, 0 to 1
};

/// The reason why a pass of the optimizer did not change a node that nearly matched the pass's pattern.
struct PassRefusal {
  std::string pass, why;
};

/// A node and its times; nullopt: unknown. `sources` is empty if it would only repeat the node's name. Nameless operands are omitted.
struct NodeReport : PlannedNode {
  std::optional<double> calls;     ///< number of calls per run
  std::optional<ProfileTimes> ms;  ///< times per run
  std::optional<double> slack_ms;  ///< time by which the node may take longer without lengthening the critical path
  std::optional<double> ready_ms, waited_ms;
  std::optional<double> mean_ms;     ///< time per typical run
  std::optional<double> barrier_ms;  ///< per run: threads waiting at the ends of its loops
  std::optional<double> share;       ///< share of the run's time, 0 to 1
  std::vector<KernelPhaseReport> kernel_phases;
  std::optional<double> gflops, gb_per_s;
  std::string bound;                    ///< the limit: "compute" or "memory"
  std::optional<double> bound_ms;       ///< the least time that the machine could take (roofline model)
  std::optional<double> of_peak;        ///< bound_ms divided by the node's time
  std::string above_peak;               ///< why of_peak is above 1; empty if it is not
  std::optional<double> estimated_ms;   ///< for a plan that did not run: the least time that the machine could take
  std::vector<PassRefusal> left_alone;  ///< for a plan that did not run: reasons why passes did not change the node
};

/// Names, each with a number of bytes or a series of them, in a fixed order.
using NamedBytes = std::vector<std::pair<std::string, size_t>>;
using NamedSeries = std::vector<std::pair<std::string, std::vector<size_t>>>;

/// Bytes with a named owner. Classes of memory have the names of memory_class_name().
struct HoldingReport {
  std::string name;  ///< name of a value or a node; empty: unknown
  std::string memory_class;
  size_t bytes = 0;
};

/// Memory that was allocated during the profile.
struct MeasuredMemoryReport {
  struct Peak {
    double ms = 0;  ///< time since the profile began
    size_t bytes = 0;
    NamedBytes classes;
    std::vector<HoldingReport> holders;  ///< sorted, the largest first
    size_t more_holders = 0, more_holders_bytes = 0;
  };
  struct Timeline {
    size_t points = 0;  ///< number of recorded points; the timeline keeps only the highest point of each of its sections
    std::vector<double> ms;
    NamedSeries bytes;
  };
  struct Block : HoldingReport {
    uint64_t id = 0;
    double taken_ms = 0;
    std::optional<double> returned_ms;
  };
  struct Refusal : HoldingReport {
    double ms = 0;
  };
  int64_t events = 0;
  NamedBytes before;
  Peak peak;
  Timeline timeline;
  size_t num_blocks = 0;
  std::vector<Block> blocks;  ///< the largest ones, in order of allocation
  std::vector<Refusal> refused;
};

struct MemorySection {
  struct Class {
    std::string name;
    size_t bytes = 0, peak_bytes = 0;
  };
  struct Buffer {
    std::string name, memory_class;
    size_t bytes = 0, offset = 0;
    int32_t first = 0, last = 0;  ///< the first and the last step in which the value is alive
  };
  /// The first step at which the most bytes of the arena are alive.
  struct Peak {
    size_t step = 0;
    std::string node;
    size_t bytes = 0;
    std::vector<HoldingReport> values;  ///< sorted, the largest first
  };
  std::vector<Class> classes;
  size_t peak_bytes = 0, weight_bytes = 0, packed_bytes = 0;
  size_t arena_bytes = 0, arena_lower_bound_bytes = 0, arena_sum_bytes = 0;
  std::vector<int32_t> steps;  ///< index of the node that each step executes; `first` and `last` of buffers are such steps
  std::vector<Buffer> buffers;
  NamedSeries live;  ///< bytes alive at each step, by class
  std::optional<Peak> peak;
  std::optional<MeasuredMemoryReport> measured;
};

/// The events of one run, or the ranges and runs of the whole recording. Element i of each vector belongs to event i.
struct TimelineEvents {
  int64_t events = 0;         ///< number of events that were recorded; only the first ones are kept
  std::vector<int32_t> item;  ///< the value of ProfiledEvent::node or ProfiledSpan::range
  std::vector<int32_t> thread;
  std::vector<double> start_us, duration_us;
  std::vector<int32_t> phase;     ///< the value of ProfiledEvent::phase; empty if all are -1
  std::vector<double> waited_us;  ///< empty if no node waited
};

struct ProfileReport {
  struct Environment {
    std::string cpu;
    int usable_cpus = 0;
    std::string treadle;  ///< version of Treadle
    int64_t unix_time = 0;
    std::optional<int> threads;
    std::string options;
  };
  struct Runs {
    int64_t recorded = 0, warmup = 0;
    std::optional<ProfileTimes> ms, plain_ms;  ///< times of recorded runs, and of unrecorded ones
    std::optional<double> load_ms, first_run_ms;
  };
  struct Cost {
    double ns_per_event = 0, events_per_run = 0;
    uint64_t events_lost = 0;
    int64_t events_unknown = 0;
    std::optional<std::optional<double>> slowdown;  ///< no outer value: not measured; no inner value: no difference beyond the noise
  };
  struct Clock {
    std::vector<std::pair<double, int64_t>> pairs;  ///< milliseconds since the profile began, nanoseconds since 1970
    double set_ms = 0;                              ///< by how much the wall clock was adjusted during the profile
  };
  struct Peaks {
    struct Bandwidth {
      double bytes = 0, gb_per_s = 0;
    };
    int threads = 1;
    double gflops = 0;
    std::vector<Bandwidth> bandwidth;
    double spread = 0;      ///< see MachinePeaks
    bool busy = false;      ///< see MachinePeaks
    bool kept = false;      ///< see MachinePeaks
    std::string raised_by;  ///< see MachinePeaks
  };
  struct DevicePeaks {
    std::string device;  ///< "gpu:0"
    double gflops = 0;
    std::vector<Peaks::Bandwidth> bandwidth;
  };
  /// A part of the time of a typical run. The times of all parts sum up to the time of the run.
  struct Part {
    std::string id, title;
    double ms = 0, share = 0;
  };
  struct CriticalPath {
    double ms = 0, all_nodes_ms = 0;
    std::vector<int32_t> nodes;
  };
  struct Operator {
    std::string op;
    int64_t nodes = 0;
    double ms = 0, share = 0;
    std::optional<double> flops, gflops;
  };
  /// A layer of the model, or a phase of a training step. In `layers`, each layer follows the layer that contains it.
  struct Layer {
    std::string name;
    int32_t parent = -1;
    bool is_phase = false;
    int64_t nodes = 0;
    double ms = 0, self_ms = 0, share = 0;
  };
  struct Phase {
    std::string name;
    int64_t nodes = 0;
    double ms = 0, share = 0;
  };
  struct PoolThread {
    int32_t thread = 0;
    std::string name;
    bool calls = false;
    double ms = 0;
    std::array<double, 4> states{};  ///< share of each ProfiledPoolThread::State; the shares sum to 1
  };
  struct Load {
    std::string name;
    int32_t parent = -1;
    int64_t calls = 0;
    double start_ms = 0, ms = 0;
  };
  struct Range {
    std::string name;
    int32_t parent = -1;
    bool python = false;
    int64_t calls = 0;
    ProfileTimes ms;  ///< times of each call
    double total_ms = 0, self_ms = 0, runs_ms = 0;
  };
  struct Marks {
    int64_t events = 0;  ///< number of marks that were recorded; only the first ones are kept
    std::vector<std::string> name;
    std::vector<int32_t> thread;
    std::vector<double> ms;
  };
  struct Timeline {
    std::vector<std::string> threads;
    TimelineEvents median, slowest;
    std::optional<TimelineEvents> ranges;
  };

  std::string model, command, assumed_extents;
  Environment environment;
  Runs runs;
  std::optional<Cost> profiler;
  std::optional<Clock> clock;
  std::optional<Peaks> peaks;
  std::vector<DevicePeaks> device_peaks;
  std::vector<Part> where;
  std::optional<CriticalPath> critical_path;
  std::optional<double> waited_ms;  ///< sum of the nodes' waiting times
  std::vector<NodeReport> nodes;
  std::vector<Operator> operators;
  std::vector<Layer> layers;
  std::vector<Phase> phases;
  std::vector<PoolThread> pool;
  std::vector<Load> load;
  std::vector<Range> ranges;
  std::optional<Marks> marks;
  std::optional<MemorySection> memory;
  std::optional<std::vector<ProfileRemedy>> remedies;  ///< no value: no remedies were tried
  std::optional<Timeline> timeline;
};

/// Makes the report: sums the profile's times, and compares them with the machine's peaks if the context has them.
TREADLE_API ProfileReport report_profile(const Profile& profile, const ProfileContext& context = {});

/// Returns the report as a JSON document, whose fields docs/profiling.md lists.
TREADLE_API std::string profile_to_json(const ProfileReport& report);
enum class ProfileParts : uint8_t {
  all,
  without_timeline,  ///< omits the timeline, which makes up most of the file; only pages and JSON show it
};
/// Reads a report from JSON.
/// @param json  a text from profile_to_json(). @throws Error(invalid_argument) for other text
TREADLE_API ProfileReport read_profile(std::string_view json, ProfileParts parts = ProfileParts::all);

struct ProfileTableOptions {
  int top = 25;               ///< number of nodes shown; 0: all
  bool memory = false;        ///< true: also shows the arena's contents, per step and at the peak
  std::string sort = "time";  ///< order of the nodes: "time", "order", "calls", "gflops", "bandwidth", "peak", "name"
};
/// Returns a table of nodes. @throws Error(invalid_argument) for an unknown order
TREADLE_API std::string profile_to_table(const ProfileReport& report, const ProfileTableOptions& options = {});

struct ProfileTreeOptions {
  int depth = 0;      ///< levels below the run; 0: all
  bool nodes = true;  ///< true: also shows nodes, within their layers
};
/// Returns a run as a tree of step phases, model layers and nodes, each with its total time and the time outside of its children.
TREADLE_API std::string profile_to_tree(const ProfileReport& report, const ProfileTreeOptions& options = {});
/// Returns an HTML page that needs no network.
TREADLE_API std::string profile_to_html(const ProfileReport& report);
/// Returns CSV (RFC 4180) with a header and one line per node.
TREADLE_API std::string profile_to_csv(const ProfileReport& report);

/// Returns the contents of a report file. The path's extension selects the format: .json, .html, .csv, or a trace: .pftrace, .trace.json,
/// .folded, .speedscope.json, .onnxruntime.json.
/// @param profile  provides the events for traces; may be null for other formats
/// @throws Error(invalid_argument) for another extension, or for a trace without the profile's events.
TREADLE_API std::string profile_file(std::string_view path, const ProfileReport& report, const Profile* profile);
/// Checks that a path has an extension that profile_file() supports. @throws Error(invalid_argument) if not
TREADLE_API void check_profile_file(std::string_view path);

enum class Change : uint8_t { unchanged, faster, slower, unclear };

/// The result of comparing two medians.
struct TimeDifference {
  Change verdict = Change::unclear;
  double before_ms = 0, after_ms = 0;
  std::optional<std::pair<double, double>> change;  ///< interval of the change: -0.1 means 10 % less, 0.2 means 20 % more
};

struct ProfileDifference {
  struct Node : TimeDifference {
    std::string name, op_type;
    std::string plan;  ///< other differences of the node, such as kernel or shapes
  };
  double tolerance = 0;
  TimeDifference run;                                                     ///< the comparison of whole runs
  std::vector<Node> nodes;                                                ///< nodes of both profiles, changed ones first
  std::vector<std::pair<std::string, std::string>> environment;           ///< settings in which the environments of the two profiles differ
  std::vector<std::string> only_before, only_after;                       ///< names of nodes that only one of the profiles has
  std::vector<std::pair<std::string, std::pair<double, double>>> memory;  ///< names of memory sizes, each with its bytes before and after
  int64_t num_other_shapes = 0;                                           ///< number of nodes whose shapes differ
};
/// Compares two profiles, matching nodes by name. A node has changed if the 99 % intervals of its medians do not overlap. It is unchanged
/// if they allow no change above `tolerance`. Otherwise the verdict is unclear.
/// @throws Error(invalid_argument) if the tolerance is negative or NaN
TREADLE_API ProfileDifference compare_profiles(const ProfileReport& before, const ProfileReport& after, double tolerance = 0.03);
TREADLE_API std::string difference_to_table(const ProfileDifference& difference, const ProfileTableOptions& options = {});
TREADLE_API std::string difference_to_json(const ProfileDifference& difference);

}  // namespace treadle
