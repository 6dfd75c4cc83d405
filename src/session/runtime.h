// The environment of runs, shared by sessions, partial runs, trainers and joint modules.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/threads/thread_pool.h"
#include "core/trace/load_phases.h"
#include "core/trace/node_counters.h"
#include "core/trace/recorder.h"
#include "core/values/allocation.h"
#include "exec/memory/memory_gate.h"
#include "exec/run/run_control.h"
#include "session/attach.h"
#include "session/devices.h"
#include "session/executable.h"
#include "session/in_flight.h"
#include "session/profiling.h"
#include "treadle/hooks.h"
#include "treadle/profile.h"
#include "treadle/session.h"
#include "treadle/sharing.h"

namespace treadle {

/// The arguments of a whole run, besides its feeds.
struct RunRequest {
  std::span<const Datum> bound = {};  ///< empty, or one per output: memory that the caller supplies for the output (undefined: none)
  std::span<const exec::OutputMemory> memory = {};
  const RunOptions* options = nullptr;
  std::shared_ptr<const Monitor> monitor = nullptr;
  bool compiled = false;                             ///< the executable was compiled for this run, not taken from the cache
  std::optional<uint64_t> random_id = std::nullopt;  ///< seeds the random operators; none: the run's number does
  std::atomic<bool>* committed = nullptr;            ///< set when the run starts to overwrite the values that it updates
  std::shared_ptr<const void> held = nullptr;        ///< is released when the run has ended, which may be after its caller has returned
};

/// What a run is fed and what it returns.
struct RunValues {
  std::span<const Datum> feeds, results;
};
/// Returns the bytes of the elements of all tensors in the values, without the texts of strings.
size_t bytes_of(std::span<const Datum> values);

/// The environment of a client's runs: threads, devices, memory, job, recorder, and the list of runs in progress. It makes a run's
/// RunControl, and adds hooks, checks and accounting to the run. So a capability added here works for all kinds of runs.
struct Runtime {
  /// @param owner  name of the client in errors, such as "the session".
  Runtime(const SessionOptions& options, std::string owner);
  virtual ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// Returns the options that are the same for all programs; the caller adds those of its program.
  exec::ProgramOptions program_options() const;
  /// Returns the option's value, or its default for this mode.
  double recompute_fraction() const;
  /// Lowers the graph to a program for its own inputs and outputs.
  std::shared_ptr<Executable> make_executable(std::shared_ptr<const Graph> graph, const exec::ProgramOptions& lowering) const;
  /// Applies the memory limit, if there is one, and lists the client among those of the process. From then on other threads may call `trim`
  /// and const methods, so it must be the last step in making a client.
  void enlist(const Model& model, std::function<void()> trim);
  /// Must be the first step in a client's destructor: afterwards no other thread calls `trim`, profile_plan() or cache_statistics().
  void delist() noexcept;
  /// Changes the memory limit. @throws Error(invalid_argument) if the client was made without a memory limit.
  void set_memory_limit(size_t limit_bytes);
  using Executables = std::vector<std::shared_ptr<const Executable>>;  // all programs of a client, the main one first
  /// Starts the client's own profile, for runs that begin from now on. Discards what that profile has recorded before.
  void start_profiling(const ProfilerOptions& profiler_options);
  /// Returns the client's own profile. @throws Error(invalid_argument) unless it was started
  Profiling& profiling() const;
  /// Collects nodes, runs, times, buffers and memory for a profile.
  profile::ProfilePlan profile_plan(const Executables& executables, const Profiling& profiling) const;
  /// Returns what the caches of the client's programs have done. Thread-safe.
  virtual CacheStatistics cache_statistics() const = 0;
  /// Adds what the caches of bindings have done, and the number of programs.
  static void add_bindings(std::span<const std::shared_ptr<const Executable>> executables, CacheStatistics& sum);
  virtual profile::ProfilePlan profile_plan(const Profiling& profiling) const = 0;  ///< returns the plan for all graphs of the client
  /// Names nodes as onnxruntime's profiles do: a node without a name in the model is named by its operator and its position in the graph
  /// ("Relu_3").
  virtual void name_as_onnxruntime(std::vector<ProfiledNode>&) const {}
  /// Returns the counters of the nodes of all graphs, the main graph's first. @param kept  counters of programs that have been evicted
  /// @throws Error(invalid_argument) without SessionOptions::node_counters
  std::vector<NodeCounter> node_counters(const Executables& executables, const CountedNodes& kept = {}) const;
  void reset_node_counters(const Executables& executables) const;
  /// Writes all records as a trace. @return the file's path
  std::string end_profiling(const Executables& executables, TraceFormat format);
  /// Must be called when the client ends. Writes the recording of enable_profiling unless the profile has been read.
  void leave_profile(const Executables& executables, TraceFormat format) noexcept;

  /// Sets the monitor from the next run on; a monitor without a callback turns monitoring off.
  void set_monitor(Monitor made);
  /// Returns the monitor. Null: there is none.
  std::shared_ptr<const Monitor> current_monitor() const;

  exec::RunControl control(const RunOptions* run_options) const;
  /// Must be called when a run begins or continues: records the run from now on if a profile of this client is on.
  void set_recorder(exec::RunControl& control) const;

  /// Executes a whole run with hooks, monitor, checks, dumps, metadata and deadline.
  void execute(const std::shared_ptr<const Executable>& executable, std::span<const Datum> feeds, std::span<Datum> results,
               const RunRequest& request) const;

  /// Runs work() as one part of a run: registered as in progress, between hooks, inside compute_around(). With a deadline it runs on
  /// another thread, so that the caller can return in time.
  /// @param work  copyable; with a deadline it must own what it uses.
  /// @throws Error(timed_out) if the caller returned before `work` ended; `caller.left` is then true.
  /// @param values  counted as the run's inputs and outputs, if it ends without an error
  void call(const exec::RunControl& control, exec::Caller& caller, HookedRun hooked, std::function<void()> work,
            RunValues values = {}) const;

  /// Sets up this thread for `work`: allocation context, pool, the job's share, limit of threads per node, denormals, and the run's record.
  template <typename Work>
  void compute_around(const exec::RunControl& control, Work&& work) const;

  SessionOptions options;
  const std::string name;          // name of the owner in errors
  const std::shared_ptr<Job> job;  // null: the client belongs to no job
  SessionDevices devices;
  AllocationContext memory;                     // context of everything that the client allocates
  std::shared_ptr<exec::JobMemory> job_memory;  // host memory of the job; null without a job
  std::unique_ptr<exec::MemoryGate> gate;       // null unless there is a memory limit or a job
  std::shared_ptr<ThreadPool> pool;
  bool parallel = false;
  int intra_limit = 0, inter_limit = 0;  // see RunControl
  mutable std::atomic<uint64_t> num_runs{0};
  mutable LoadPhases load;  // times of reading the model and making the client
  /// Exists while a client is made: selects the client's memory for allocations, and times the phases.
  class Making {
   public:
    Making(const Runtime& runtime, const Model& model);

   private:
    const AllocationScope memory_;
    const LoadPhases::Scope scope_;
    const LoadPhases::Phase phase_;
  };
  /// Exists while another graph is made, on any thread. The time of making it is a phase of its own.
  class MakingFurther {
   public:
    /// @param what  name of the phase, such as "gradients"
    MakingFurther(const Runtime& runtime, std::string_view what);
    ~MakingFurther();
    MakingFurther(const MakingFurther&) = delete;
    MakingFurther& operator=(const MakingFurther&) = delete;

   private:
    const Runtime& runtime_;
    LoadPhases phases_;
    const AllocationScope memory_;
    const LoadPhases::Scope scope_;
    std::optional<LoadPhases::Phase> phase_;
  };
  /// Makes a client or a graph. If memory runs out, adds a description of the memory in use to the error, unless the error has one already.
  /// @param what  "the session", "the graph for predict"
  template <typename Make>
  decltype(auto) making(std::string_view what, Make&& make) const {
    try {
      return make();
    } catch (...) {
      rethrow_with_memory(what);
    }
  }
  /// The reason why profiles cannot name the passes that made a node; empty: they can name them.
  std::string names_no_passes;
  // Ids of recorded names, unique to this client.
  struct RecordNames {
    uint32_t run = Recorder::reserve_names(2), initialization = run + 1;
  };
  const RecordNames records;
  mutable std::atomic<int> num_recording{0};  // number of profiles of this client that are on; runs are recorded while it is above 0
  std::shared_ptr<Profiling> own_profiling;   // made by start_profiling() or the option enable_profiling
  mutable AttachedProfile attached;           // requested by another process
  std::atomic<uint64_t> monitor_number{0};    // number of the current monitor; 0: none
  const std::shared_ptr<RunsInFlight> in_flight = std::make_shared<RunsInFlight>(name);  // shared with runs whose caller has returned

 private:
  mutable std::mutex monitor_mutex_;
  std::shared_ptr<const Monitor> monitor_;
  uint64_t last_monitor_number_ = 0;

  void choose_threads();
  // call() without messages for the log.
  void call_untold(const exec::RunControl& control, exec::Caller& caller, HookedRun hooked, std::function<void()> work,
                   RunValues values) const;
  [[noreturn]] void rethrow_with_memory(std::string_view made) const;  // must be called in a catch clause
  std::unique_ptr<exec::Executor> make_executor(const exec::Program& program) const;
  void compute(const Executable& executable, std::span<const Datum> feeds, std::span<Datum> results, std::span<const Datum> bound,
               const exec::RunControl& control, std::span<const exec::OutputMemory> memory) const;
};

/// Fills in the allocators and devices that the options name, in the order of the outputs.
/// @throws Error(invalid_argument) for an output with both, or for an unknown device
void add_output_memory(const Executable& executable, const RunOptions* options, std::vector<exec::OutputMemory>& memory);

/// Removes the value's memory from the session's account, because the value now belongs to the caller.
void hand_over_all(const Datum& datum);

}  // namespace treadle
