// Lets runs of sessions with a memory limit begin when there is room for them.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "core/fork_mutex.h"
#include "exec/memory/budget.h"
#include "exec/memory/governor.h"
#include "exec/run/run_control.h"
#include "sharing/memory_watch.h"
#include "treadle/allocator.h"
#include "treadle/sharing.h"

namespace treadle {

/// The host's memory of a job in this process: an account above those of its sessions and trainers, with the job's limit.
class JobMemory final : public sharing::MemoryWatch::Client {
 public:
  /// The same one for as long as any session of the job holds it.
  static std::shared_ptr<JobMemory> of(const std::shared_ptr<Job>& job);
  explicit JobMemory(std::shared_ptr<Job> job);
  ~JobMemory() override;

  const std::shared_ptr<MemoryAccount>& account() const { return account_; }
  exec::Governor& governor() { return governor_; }
  /// Changes with the limits that the job has in the table.
  uint64_t changes() const;
  /// Takes the limit over from the table.
  void follow();
  /// Says in the table how much the job holds.
  void report();
  /// What runs wrote to files or read back.
  void moved(size_t size_bytes, uint64_t took_ns);
  void limit_changed(bool may_wait) override;

 private:
  const std::shared_ptr<Job> job_;
  const std::shared_ptr<MemoryAccount> account_;
  exec::Governor governor_;
  ForkMutex report_mutex_;
  uint64_t reported_ = 0, reported_id_ = 0;  // bytes, and the job's id: another one in a forked child
};

class MemoryGate {
 public:
  /// @param trim  frees what idle frames hold.
  /// @param job   of the account above `account`; null: none.
  MemoryGate(std::shared_ptr<MemoryAccount> account, std::string spill_folder, std::function<void()> trim,
             std::shared_ptr<JobMemory> job = nullptr);
  ~MemoryGate();
  MemoryGate(const MemoryGate&) = delete;
  MemoryGate& operator=(const MemoryGate&) = delete;

  void set_limit(size_t limit_bytes);

  /// One run's way through; what it took is free again when it ends.
  class Pass final : public exec::MemoryPass {
   public:
    /// @param waits  false: a run that has no room now fails, as nobody can tell when there will be.
    Pass(MemoryGate& gate, bool waits);
    ~Pass() override;
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

    bool may_reorder() const override { return waits_; }
    size_t arena_capacity(size_t output_bytes) const override;
    std::unique_lock<std::mutex> admit(size_t bytes, size_t later_bytes, const exec::RunControl& control) override;
    std::optional<std::unique_lock<std::mutex>> admit_now(size_t bytes) override;
    [[noreturn]] void refuse(size_t arena_bytes, size_t output_bytes, const exec::RunMemory& beside) const override;
    uint64_t generation() const override;
    std::string spill_folder() const override { return gate_.spill_folder_; }
    void moved(size_t size_bytes, uint64_t took_ns) override;

   private:
    MemoryGate& gate_;
    const bool waits_;
    bool arrived_ = false, inside_ = false;
    size_t later_bytes_ = 0;

    bool nobody_leaves() const;
    size_t others_later_bytes(const MemoryAccount& account) const;
    std::pair<const MemoryAccount*, size_t> full_account(size_t bytes, size_t later_bytes) const;
  };

 private:
  bool limited() const;
  exec::Governor& governor() const { return job_ ? job_->governor() : *own_; }

  const std::shared_ptr<MemoryAccount> account_;
  const std::string spill_folder_;
  const std::function<void()> trim_;
  const std::shared_ptr<JobMemory> job_;
  const std::unique_ptr<exec::Governor> own_;  // of a session without a job
};

}  // namespace treadle
