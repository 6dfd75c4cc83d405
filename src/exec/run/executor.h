// What runs a program: the host, or devices.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/fork_mutex.h"
#include "exec/program/ids.h"
#include "exec/run/run.h"

namespace treadle::exec {

class Executor;
class FramePool;
class Plans;
class Program;

/// Gives a run back to the executor that it is of, which must be there still.
struct GiveBack {
  Executor* executor = nullptr;
  void operator()(Run* run) const noexcept;
};
using RunHandle = std::unique_ptr<Run, GiveBack>;

/// A copy of a value between devices, as profiles know it.
struct DeviceCopy {
  uint32_t record_name = 0;  ///< of its records
  SlotId slot = kNoSlot;     ///< the value's
  std::string from, to;      ///< names of devices
};

/// Runs a program, and owns what its runs share and leave to those that follow.
class Executor {
 public:
  /// @param program  outlives the executor.
  explicit Executor(const Program& program);
  virtual ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  Plans& plans() const { return *plans_; }
  /// Runs on the host: the program's, or those of its bodies where devices run the rest.
  FramePool& frames() const { return *frames_; }

  /// A whole run. @throws Error; a Yield is one.
  virtual void run(std::span<const Datum> feeds, std::span<Datum> outputs, const RunControl& control, std::span<const Datum> bound = {},
                   std::span<const OutputMemory> memory = {}) = 0;
  /// A run that its caller starts, and that stops and goes on; several may be under way.
  virtual RunHandle take() = 0;
  virtual void give_back(std::unique_ptr<Run> run) noexcept = 0;
  /// Of every run, in the order in which they are issued; none on the host.
  virtual std::span<const DeviceCopy> copies() const noexcept { return {}; }

 private:
  const std::unique_ptr<Plans> plans_;
  const std::unique_ptr<FramePool> frames_;  // goes before the plans, whose bindings its frames hold
};

inline void GiveBack::operator()(Run* run) const noexcept { executor->give_back(std::unique_ptr<Run>(run)); }

/// Behind the last instruction: who asked for an end has one, whenever it was, but a run that has updated state says that it did.
/// @throws Error(cancelled or timed_out)
void check_at_end(const Program& program, const RunControl& control);

/// On the host. @param program  must outlive the executor.
std::unique_ptr<Executor> make_host_executor(const Program& program);

/// Runs that nobody uses right now. Thread-safe.
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
  /// Lets go of the memory of runs that nobody uses.
  void trim() noexcept {
    std::lock_guard lock(mutex_);
    for (const auto& run : idle_) run->trim();
  }

 private:
  ForkMutex mutex_;
  std::vector<std::unique_ptr<T>> idle_;  // with room for all runs, so that giving one back cannot fail
  size_t num_runs_ = 0;
};

}  // namespace treadle::exec
