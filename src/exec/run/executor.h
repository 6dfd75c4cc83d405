// The interface of executors, which run a program on the host or on devices.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fork_mutex.h"
#include "exec/program/ids.h"
#include "exec/run/run.h"

namespace treadle::exec {

class Executor;
class FramePool;
class Plans;
class Program;

/// Deleter of a handle: returns a run to its executor, which must outlive the run.
struct GiveBack {
  Executor* executor = nullptr;
  void operator()(Run* run) const noexcept;
};
using RunHandle = std::unique_ptr<Run, GiveBack>;

/// A copy of a value between devices, for profiles.
struct DeviceCopy {
  uint32_t record_name = 0;  ///< id of the name under which the recorder records the copy
  SlotId slot = kNoSlot;     ///< slot of the copied value
  std::string from, to;      ///< names of the devices
};

/// Runs a program. Owns what all runs of the program share: plans, and pools of idle runs.
class Executor {
 public:
  /// @param program  must outlive the executor
  explicit Executor(const Program& program);
  virtual ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  Plans& plans() const { return *plans_; }
  /// Returns the pool of frames for runs on the host. If devices run the program, only the bodies use this pool.
  FramePool& frames() const { return *frames_; }

  /// Executes the program from beginning to end. @throws Error of the first node that fails, or an Error if the program stops at a Yield
  virtual void run(std::span<const Datum> feeds, std::span<Datum> outputs, const RunControl& control, std::span<const Datum> bound = {},
                   std::span<const OutputMemory> memory = {}) = 0;
  /// Returns an idle run, which the caller starts and advances. Several may be in progress at the same time.
  virtual RunHandle take() = 0;
  virtual void give_back(std::unique_ptr<Run> run) noexcept = 0;
  /// Returns the copies between devices that every run makes, in the order of issue; empty for runs on the host.
  virtual std::span<const DeviceCopy> copies() const noexcept { return {}; }

 private:
  const std::unique_ptr<Plans> plans_;
  const std::unique_ptr<FramePool> frames_;  // destroyed before plans_, because frames hold bindings of the plans
};

inline void GiveBack::operator()(Run* run) const noexcept { executor->give_back(std::unique_ptr<Run>(run)); }

/// Must be called after the last instruction. If the run has been cancelled or timed out, it fails now, unless it has updated state.
/// @throws Error(cancelled or timed_out)
void check_at_end(const Program& program, const RunControl& control);

/// Makes an executor that runs on the host. @param program must outlive the executor
std::unique_ptr<Executor> make_host_executor(const Program& program);

/// A pool of idle runs. Thread-safe.
template <typename T>
class RunPool {
 public:
  template <typename Make>
  std::unique_ptr<T> take(Make&& make) {
    {
      std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<T> run = std::move(idle_.back());
        idle_.pop_back();
        return run;
      }
      if (idle_.capacity() <= num_runs_) idle_.reserve(2 * num_runs_ + 4);
      ++num_runs_;
    }
    try {
      return make();
    } catch (...) {
      std::lock_guard lock(mutex_);
      --num_runs_;
      throw;
    }
  }
  void give_back(std::unique_ptr<T> run) noexcept {
    run->clear();
    std::lock_guard lock(mutex_);
    idle_.push_back(std::move(run));
  }
  /// Frees the memory that idle runs keep.
  void trim() noexcept {
    std::lock_guard lock(mutex_);
    for (const auto& run : idle_) run->trim();
  }

 private:
  ForkMutex mutex_;
  std::vector<std::unique_ptr<T>> idle_;  // has room for all runs, so give_back() cannot fail
  size_t num_runs_ = 0;
};

}  // namespace treadle::exec
