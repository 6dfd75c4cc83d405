// Admits runs when there is memory for them, for a session with a memory limit or for a job.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "core/values/allocation.h"
#include "exec/memory/governor.h"
#include "exec/memory/job_memory.h"
#include "exec/memory/memory_pass.h"
#include "treadle/allocator.h"

namespace treadle::exec {

/// The highest limits that an account and its parents have had during a run. A run may use that much even if a limit has been lowered
/// since, so that lowering a limit fails no run.
class HighestLimits {
 public:
  explicit HighestLimits(const MemoryAccount& account) : account_(account) {}

  /// Raises each recorded limit to the present limit if that is higher.
  void note();
  /// True if the highest limits leave room for this many more bytes.
  bool leave_room_for(size_t size_bytes) const;

 private:
  static constexpr size_t kMostAccounts = 8;  // maximum length of a chain of accounts, from the session's own to the outermost parent

  const MemoryAccount& account_;
  // The account's own limit first, then its parents'; 0: not recorded yet, SIZE_MAX: no limit.
  std::array<std::atomic<size_t>, kMostAccounts> limits_{};
};

/// Admits the runs of one session.
class MemoryGate final : MemoryKeeper {
 public:
  /// @param memory  runs allocate from this context; its account has the limit.
  /// @param trim    frees the memory of idle frames.
  /// @param job     owns the parent account; null: there is no job.
  MemoryGate(const AllocationContext& memory, std::string spill_folder, std::function<void()> trim,
             std::shared_ptr<JobMemory> job = nullptr);
  ~MemoryGate();
  MemoryGate(const MemoryGate&) = delete;
  MemoryGate& operator=(const MemoryGate&) = delete;

  void set_limit(size_t limit_bytes);

  class Pass;

 private:
  bool give_way(const MemoryAccount& full, const std::function<bool()>& enough) override;
  bool has_limit() const;
  const MemoryAccount& account() const { return *memory_.account; }
  Governor& governor() const { return job_ ? job_->governor() : *own_; }

  const AllocationContext memory_;
  const std::string spill_folder_;
  const std::function<void()> trim_;
  const std::shared_ptr<JobMemory> job_;
  const std::unique_ptr<Governor> own_;  // used by a session without a job
};

/// The MemoryPass of one run. It must be destroyed after the run has freed its memory, on the thread that made it.
class MemoryGate::Pass final : public MemoryPass, MemoryRoom {
 public:
  /// @param ends_by_itself  false: the caller may stop and continue the run at any time, so no other run waits for it.
  Pass(MemoryGate& gate, bool ends_by_itself);
  ~Pass() override;
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  bool may_reorder() const override { return run_.ends_by_itself(); }
  size_t arena_capacity(size_t output_bytes) const override;
  std::unique_lock<std::mutex> admit(size_t bytes, size_t later_bytes, const sharing::Interruption& interruption,
                                     const std::function<size_t()>& let_go) override;
  std::optional<std::unique_lock<std::mutex>> admit_now(size_t bytes) override;
  [[noreturn]] void refuse(const MemoryNeed& need) const override;
  uint64_t generation() const override;
  const AllocationContext* in_nodes() const override { return &in_nodes_; }
  std::string spill_folder() const override { return gate_.spill_folder_; }
  void moved(size_t size_bytes, uint64_t took_ns) override;

 private:
  struct Shortage {
    const MemoryAccount* account = nullptr;  // the account with too little room; null: no account lacks room
    size_t taken_bytes = 0;                  // bytes charged to `account` or promised to runs
  };

  bool charge(MemoryAccount& account, MemoryClass memory_class, size_t size_bytes) override;
  Shortage find_shortage(size_t bytes, size_t later_bytes) const;

  MemoryGate& gate_;
  const AllocationContext in_nodes_;
  mutable HighestLimits highest_limits_;
  Admission::Run run_;
  sharing::Interruption interruption_;  // ends waits of the run's nodes; empty before admit()
};

}  // namespace treadle::exec
