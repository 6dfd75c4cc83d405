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

/// Repeated measurements, in milliseconds.
struct ProfileTimes {
  double median = 0;
  std::optional<std::pair<double, double>> interval;  ///< where the median of all possible runs is, at 99 %; none if there were too few
  double p10 = 0, p90 = 0, min = 0, max = 0;
};

/// A step within a node's kernel.
struct KernelPhaseReport {
  std::string name;
  double calls = 0;  ///< in one run, on all threads
  ProfileTimes ms;   ///< of a run, all threads together, without the phases within
  double mean_ms = 0;
  double share = 0;  ///< of the node's phases, 0 to 1
};

/// Why a pass of the optimiser left a node as it was, although it had looked closer.
struct PassRefusal {
  std::string pass, why;
};

/// A node as it ran. What is not known is absent. `sources` is empty where it is the node's own name alone, and operands have names.
struct NodeReport : PlannedNode {
  std::optional<double> calls;     ///< in one run
  std::optional<ProfileTimes> ms;  ///< of a run
  std::optional<double> slack_ms;  ///< by how much it might take longer before the critical path does
  std::optional<double> ready_ms, waited_ms;
  std::optional<double> mean_ms;     ///< of a typical run
  std::optional<double> barrier_ms;  ///< of a run: threads waited at the ends of its loops
  std::optional<double> share;       ///< of the run, 0 to 1
  std::vector<KernelPhaseReport> kernel_phases;
  std::optional<double> gflops, gb_per_s;
  std::string bound;                    ///< "compute" or "memory"
  std::optional<double> bound_ms;       ///< the least time that the machine could take
  std::optional<double> of_peak;        ///< that over the node's time
  std::optional<double> estimated_ms;   ///< of a plan that did not run: the least time
  std::vector<PassRefusal> left_alone;  ///< likewise: by passes
};

/// Names, each with a number of bytes or with a series of them, in a fixed order of names.
using NamedBytes = std::vector<std::pair<std::string, size_t>>;
using NamedSeries = std::vector<std::pair<std::string, std::vector<size_t>>>;

/// Bytes with a named owner. Classes of memory have the names of memory_class_name().
struct HoldingReport {
  std::string name;  ///< of a value or a node; empty: not known
  std::string memory_class;
  size_t bytes = 0;
};

/// Memory that was allocated during the profile.
struct MeasuredMemoryReport {
  struct Peak {
    double ms = 0;  ///< since the profile began
    size_t bytes = 0;
    NamedBytes classes;
    std::vector<HoldingReport> holders;  ///< the largest first
    size_t more_holders = 0, more_holders_bytes = 0;
  };
  struct Timeline {
    size_t points = 0;  ///< that there were: of each stretch the one with the most bytes is here
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
  std::vector<Block> blocks;  ///< the largest, in the order of their taking
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
    int32_t first = 0, last = 0;  ///< steps, both inclusive
  };
  /// The first step at which most of the arena is alive.
  struct Peak {
    size_t step = 0;
    std::string node;
    size_t bytes = 0;
    std::vector<HoldingReport> values;  ///< the largest first
  };
  std::vector<Class> classes;
  size_t peak_bytes = 0, weight_bytes = 0, packed_bytes = 0;
  size_t arena_bytes = 0, arena_lower_bound_bytes = 0, arena_sum_bytes = 0;
  std::vector<int32_t> steps;  ///< nodes in the order that the buffers count
  std::vector<Buffer> buffers;
  NamedSeries live;  ///< bytes alive at each step, by class
  std::optional<Peak> peak;
  std::optional<MeasuredMemoryReport> measured;
};

/// The events of one run, or the ranges and runs of the whole recording, by column.
struct TimelineEvents {
  int64_t events = 0;         ///< that there were: the first of them are here
  std::vector<int32_t> item;  ///< as ProfiledEvent::node, or ProfiledSpan::range
  std::vector<int32_t> thread;
  std::vector<double> start_us, duration_us;
  std::vector<int32_t> phase;     ///< empty if no event has one
  std::vector<double> waited_us;  ///< empty if no node waited
};

struct ProfileReport {
  struct Environment {
    std::string cpu;
    int usable_cpus = 0;
    std::string treadle;  ///< version
    int64_t unix_time = 0;
    std::optional<int> threads;
    std::string options;
  };
  struct Runs {
    int64_t recorded = 0, warmup = 0;
    std::optional<ProfileTimes> ms, plain_ms;  ///< recorded, and not recorded
    std::optional<double> load_ms, first_run_ms;
  };
  struct Cost {
    double ns_per_event = 0, events_per_run = 0;
    uint64_t events_lost = 0;
    int64_t events_unknown = 0;
    std::optional<std::optional<double>> slowdown;  ///< absent: not measured; empty: none beyond the noise
  };
  struct Clock {
    std::vector<std::pair<double, int64_t>> pairs;  ///< milliseconds since the profile began, nanoseconds since 1970
    double set_ms = 0;                              ///< by how much the wall clock was set meanwhile
  };
  struct Peaks {
    struct Bandwidth {
      double bytes = 0, gb_per_s = 0;
    };
    int threads = 1;
    double gflops = 0;
    std::vector<Bandwidth> bandwidth;
  };
  /// A part of a typical run. The parts sum to the whole.
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
  /// A layer of the model, or a phase of a training step. It stands behind the one around it.
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
    std::array<double, 4> states{};  ///< by ProfiledPoolThread::State: parts that sum to 1
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
    ProfileTimes ms;  ///< of a call
    double total_ms = 0, self_ms = 0, runs_ms = 0;
  };
  struct Marks {
    int64_t events = 0;  ///< that there were: the first of them are here
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
  std::vector<Part> where;
  std::optional<CriticalPath> critical_path;
  std::optional<double> waited_ms;  ///< of all nodes
  std::vector<NodeReport> nodes;
  std::vector<Operator> operators;
  std::vector<Layer> layers;
  std::vector<Phase> phases;
  std::vector<PoolThread> pool;
  std::vector<Load> load;
  std::vector<Range> ranges;
  std::optional<Marks> marks;
  std::optional<MemorySection> memory;
  std::optional<std::vector<ProfileRemedy>> remedies;  ///< absent: none were tried
  std::optional<Timeline> timeline;
};

/// Makes the report: sums the profile's times, and compares them with the machine's peaks if the context has them.
TREADLE_API ProfileReport report_profile(const Profile& profile, const ProfileContext& context = {});

/// docs/profiling.md has the fields.
TREADLE_API std::string profile_to_json(const ProfileReport& report);
enum class ProfileParts : uint8_t {
  all,
  without_timeline,  ///< of a million events it is nearly all of the text; only pages and JSON show it
};
/// @param json  of profile_to_json(). @throws Error(invalid_argument) for other text
TREADLE_API ProfileReport read_profile(std::string_view json, ProfileParts parts = ProfileParts::all);

struct ProfileTableOptions {
  int top = 25;               ///< nodes shown; 0: all
  bool memory = false;        ///< also the arena's contents, per step and at the peak
  std::string sort = "time";  ///< "time", "order", "calls", "gflops", "bandwidth", "peak", "name"
};
/// @throws Error(invalid_argument) for an unknown order
TREADLE_API std::string profile_to_table(const ProfileReport& report, const ProfileTableOptions& options = {});

struct ProfileTreeOptions {
  int depth = 0;      ///< levels below the run; 0: all
  bool nodes = true;  ///< also nodes, within their layers
};
/// A run as a tree of step phases, model layers and nodes, each with its total time and the time outside of its children.
TREADLE_API std::string profile_to_tree(const ProfileReport& report, const ProfileTreeOptions& options = {});
/// One page that needs no network.
TREADLE_API std::string profile_to_html(const ProfileReport& report);
/// A line for each node, with a header: RFC 4180.
TREADLE_API std::string profile_to_csv(const ProfileReport& report);

/// The contents of a file, by the end of its name: .json, .html, .csv, or a trace: .pftrace, .trace.json, .folded, .speedscope.json,
/// .onnxruntime.json.
/// @param profile  for traces; may be null
/// @throws Error(invalid_argument) for another name, or for a trace without the profile's events.
TREADLE_API std::string profile_file(std::string_view path, const ProfileReport& report, const Profile* profile);
/// @throws Error(invalid_argument) for a name that profile_file() does not know.
TREADLE_API void check_profile_file(std::string_view path);

enum class Change : uint8_t { unchanged, faster, slower, unclear };

/// Two medians side by side.
struct TimeDifference {
  Change verdict = Change::unclear;
  double before_ms = 0, after_ms = 0;
  std::optional<std::pair<double, double>> change;  ///< interval: -0.1 means 10 % less, 0.2 means 20 % more
};

struct ProfileDifference {
  struct Node : TimeDifference {
    std::string name, op_type;
    std::string plan;  ///< what else is different: kernel, shapes
  };
  double tolerance = 0;
  TimeDifference run;                                                     ///< whole runs
  std::vector<Node> nodes;                                                ///< that are in both: first those that have changed
  std::vector<std::pair<std::string, std::string>> environment;           ///< what both were taken with, where it differs
  std::vector<std::string> only_before, only_after;                       ///< names of nodes
  std::vector<std::pair<std::string, std::pair<double, double>>> memory;  ///< bytes before and after
  int64_t num_other_shapes = 0;                                           ///< nodes that do other work
};
/// Matches nodes by name. A node has changed if the 99 % intervals of its medians do not overlap. It is unchanged if they allow no change
/// above `tolerance`. Otherwise the verdict is unclear.
/// @throws Error(invalid_argument)
TREADLE_API ProfileDifference compare_profiles(const ProfileReport& before, const ProfileReport& after, double tolerance = 0.03);
TREADLE_API std::string difference_to_table(const ProfileDifference& difference, const ProfileTableOptions& options = {});
TREADLE_API std::string difference_to_json(const ProfileDifference& difference);

}  // namespace treadle
