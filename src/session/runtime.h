// The surroundings of runs, the same for all that runs: sessions, partial runs, trainers, joint modules.
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

#include "core/allocation.h"
#include "core/load_phases.h"
#include "core/node_counters.h"
#include "core/recorder.h"
#include "core/thread_pool.h"
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

/// What a whole run is given besides its feeds.
struct RunRequest {
  std::span<const Datum> bound = {};  ///< empty, or per output: memory that the caller wants it in (undefined: none)
  std::span<const exec::OutputMemory> memory = {};
  const RunOptions* options = nullptr;
  std::shared_ptr<const Monitor> monitor = nullptr;
  bool compiled = false;                             ///< the executable was made for this run
  std::optional<uint64_t> random_id = std::nullopt;  ///< what randomness depends on; none: the run's number
  std::atomic<bool>* committed = nullptr;            ///< set when the run begins to write over what it updates
  std::shared_ptr<const void> held = nullptr;        ///< let go when the run has ended, which may be after its caller has left
};

/// Threads, devices, memory, job, recorder, and the register of runs in flight. It makes a run's RunControl, and calls the run with all
/// that stands around it; who has a capability here has it for every way of running.
struct Runtime {
  /// @param owner  whose memory it is, in errors: "the session".
  Runtime(const SessionOptions& options, std::string owner);
  virtual ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// Of options that all programs have; the caller adds its own.
  exec::ProgramOptions program_options() const;
  /// The option, or what it is by default.
  double recompute_fraction() const;
  /// Lowers the graph, for its inputs and outputs.
  std::shared_ptr<Executable> make_executable(std::shared_ptr<const Graph> graph, const exec::ProgramOptions& lowering) const;
  /// From now on runs keep to the limit of memory, if there is one, and others may call `trim`. Last in the making of a client.
  void keep_limits(std::function<void()> trim);
  /// First in its end: then nobody calls `trim` or profile_plan().
  void let_limits_go() {
    attached.end();
    gate.reset();
  }
  /// @throws Error(invalid_argument) if there was none from the beginning.
  void set_memory_limit(size_t limit_bytes);
  using Executables = std::vector<std::shared_ptr<const Executable>>;  // of a client, the main one first
  /// Begins the client's own profile, of the runs that begin from now on; what it had recorded is forgotten.
  void start_profiling(const ProfilerOptions& profiler_options);
  /// The client's own. @throws Error(invalid_argument) unless it was started
  Profiling& profiling() const;
  /// Nodes, runs, times, buffers and memory.
  profile::ProfilePlan profile_plan(const Executables& executables, const Profiling& profiling) const;
  virtual profile::ProfilePlan profile_plan(const Profiling& profiling) const = 0;  ///< of all graphs that there are
  /// Of the graphs' nodes, those of the main one first. @throws Error(invalid_argument) without SessionOptions::node_counters
  /// @param kept  of graphs that are no more
  std::vector<NodeCounter> node_counters(const Executables& executables, const CountedNodes& kept = {}) const;
  void reset_node_counters(const Executables& executables) const;
  /// Writes what has been recorded, as a trace. @return the file's path
  std::string end_profiling(const Executables& executables, TraceFormat format);
  /// At the client's end: writes what enable_profiling has recorded and nobody has asked for.
  void leave_profile(const Executables& executables, TraceFormat format) noexcept;

  /// From the next run on; one without a callback watches nothing.
  void set_monitor(Monitor made);
  /// Null: none.
  std::shared_ptr<const Monitor> current_monitor() const;

  exec::RunControl control(const RunOptions* run_options) const;
  /// Of a run that begins, or goes on: it is recorded from now on if a profile of this client is on.
  void set_recorder(exec::RunControl& control) const;

  /// A whole run: hooks, monitor, checks, dumps, metadata, deadline.
  void execute(const std::shared_ptr<const Executable>& executable, std::span<const Datum> feeds, std::span<Datum> results,
               const RunRequest& request) const;

  /// Calls work() with what stands around a part of a run: the register of runs in flight, hooks, and compute_around(). With a deadline
  /// work takes place on a thread beside the caller's, who goes on when the time is over.
  /// @param work  copyable; with a deadline it owns what it uses.
  /// @throws Error(timed_out) if the caller has left it behind, and `caller.left` says so.
  void call(const exec::RunControl& control, exec::Caller& caller, HookedRun hooked, std::function<void()> work) const;

  /// Allocation, pool, job, threads a node, denormals, record of the run: around work on this thread.
  template <typename Work>
  void compute_around(const exec::RunControl& control, Work&& work) const;

  SessionOptions options;
  const std::string name;          // of the owner
  const std::shared_ptr<Job> job;  // null: none
  SessionDevices devices;
  AllocationContext memory;                     // of all that is allocated
  std::shared_ptr<exec::JobMemory> job_memory;  // on the host, in a job
  std::unique_ptr<exec::MemoryGate> gate;       // with a limit, or in a job
  std::shared_ptr<ThreadPool> pool;
  bool parallel = false;
  int intra_limit = 0, inter_limit = 0;  // as of RunControl
  mutable std::atomic<uint64_t> num_runs{0};
  mutable LoadPhases load;  // reading the model and making the client
  /// Around the making of a client: its memory, and its phases.
  class Making {
   public:
    Making(const Runtime& runtime, const Model& model);

   private:
    const AllocationScope memory_;
    const LoadPhases::Scope scope_;
    const LoadPhases::Phase phase_;
  };
  /// Around the making of a further graph, on any thread: a phase of loading of its own.
  class MakingFurther {
   public:
    /// @param what  "gradients"
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
  /// Makes a client or a graph: where memory runs out, the error says what there is, if it does not yet.
  /// @param what  "the session", "the graph for predict"
  template <typename Make>
  decltype(auto) making(std::string_view what, Make&& make) const {
    try {
      return make();
    } catch (...) {
      rethrow_with_memory(what);
    }
  }
  /// Why profiles cannot name the passes that made a node; empty: they can.
  std::string names_no_passes;
  // Names of records: of no other client.
  struct RecordNames {
    uint32_t run = Recorder::reserve_names(2), initialization = run + 1;
  };
  const RecordNames records;
  mutable std::atomic<int> num_recording{0};  // profiles of this client that are on: while there are any, runs are recorded
  std::shared_ptr<Profiling> own_profiling;   // of start_profiling() and enable_profiling
  mutable AttachedProfile attached;           // that another process asked for
  std::atomic<uint64_t> monitor_number{0};    // of the one that is set; 0: none
  const std::shared_ptr<RunsInFlight> in_flight = std::make_shared<RunsInFlight>();  // runs whose caller has left share it

 private:
  mutable std::mutex monitor_mutex_;
  std::shared_ptr<const Monitor> monitor_;
  uint64_t last_monitor_number_ = 0;

  void choose_threads();
  [[noreturn]] void rethrow_with_memory(std::string_view made) const;  // in a catch clause
  std::unique_ptr<exec::Executor> make_executor(const exec::Program& program) const;
  void compute(const Executable& executable, std::span<const Datum> feeds, std::span<Datum> results, std::span<const Datum> bound,
               const exec::RunControl& control, std::span<const exec::OutputMemory> memory) const;
};

/// The allocators and devices that the options name, for outputs in order.
/// @throws Error(invalid_argument) for an output with both, and a device that there is not
void add_output_memory(const Executable& executable, const RunOptions* options, std::vector<exec::OutputMemory>& memory);

/// What leaves the session is not its memory any more.
void hand_over_all(const Datum& datum);

}  // namespace treadle
