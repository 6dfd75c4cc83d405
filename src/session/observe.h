// Observes a run for its options (checks, dumps, statistics) and for the session's monitor.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "exec/run/frame.h"
#include "session/session_impl.h"

namespace treadle {

/// Calls the monitor, checks for values that are not finite, writes dumps, and collects statistics. Made for one run.
class RunObserver final : public exec::Observer {
 public:
  /// @param options  options of the run; may be null.
  /// @param monitor  may be null.
  /// @param memory   allocation context of the session or other client; the statistics name its allocator.
  RunObserver(const Executable& executable, const RunOptions* options, const Monitor* monitor, uint64_t run_id,
              const AllocationContext& memory);

  static bool needed(const RunOptions* options, const Monitor* monitor) {
    return monitor || (options && (options->check_finite != FiniteCheck::off || !options->dump_folder.empty() || options->on_metadata));
  }

  void ready(const exec::RunState& state, const exec::Instruction& instruction) override;
  void before(const exec::RunState& state, const exec::Instruction& instruction) override;
  void after(const exec::RunState& state, const exec::Instruction& instruction, const Device* device) override;

  /// Calls options.on_metadata with the statistics, if it is set.
  /// @param compiled  whether the program was compiled for this run
  void finish(bool compiled);

 private:
  void monitor_outside_nodes(const exec::RunState& state);
  void call_monitor(const exec::RunState& state, const exec::Instruction* instruction, exec::SlotId slot, bool is_input);
  void check_finite(const exec::RunState& state, const exec::Instruction& instruction) const;
  void dump(const exec::RunState& state, const exec::Instruction& instruction, bool inputs);
  int64_t now_ns() const;
  NodeStatistics statistics_of(const exec::RunState& state, const exec::Instruction& instruction, const Device* device);

  const Executable& executable_;
  const RunOptions* options_;
  const Monitor* monitor_;
  const uint64_t run_id_;
  const AllocationContext& memory_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();

  std::mutex mutex_;  // needed because parallel executors call before() and after() from several threads
  bool begun_ = false;
  int64_t next_step_ = 0;
  using Key = std::pair<const exec::RunState*, const exec::Instruction*>;
  std::map<Key, int64_t> steps_;           // numbers of the nodes in progress, used in the names of their dump files
  std::map<Key, int64_t> ready_, starts_;  // when each node in progress became ready, and when it started, in ns since start_
  RunMetadata metadata_;
};

}  // namespace treadle
