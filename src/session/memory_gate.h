// Lets runs of sessions with a memory limit begin when there is room for them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "core/fork_mutex.h"
#include "exec/memory/budget.h"
#include "exec/run/run_control.h"
#include "sharing/memory_watch.h"
#include "treadle/allocator.h"
#include "treadle/sharing.h"

namespace treadle {

class MemoryGate;

/// What the runs of a session, or of all sessions of a job on the host, wait for. Where there is no limit nobody takes the mutex.
struct MemoryQueue {
  std::mutex mutex;
  std::condition_variable left;
  std::atomic<int> arriving{0};  // runs on their way in: their frames may hold memory that they let go, or come in with
  std::atomic<int> inside{0};    // runs that will leave by themselves
  std::atomic<uint64_t> generation{0};
  std::list<const std::function<void()>*> trims;  // free what idle frames hold
  // By session: what runs that were let in may yet take; some of it may be in use already. Under the mutex.
  std::map<const MemoryGate*, size_t> later_bytes;
  void trim_all() const {
    for (const auto* trim : trims) (*trim)();
  }
  void add(const std::function<void()>& trim);
  void remove(const std::function<void()>& trim);

 private:
  ForkMutex trims_mutex_;  // a fork waits until the list is whole
  // A forked child lacks the threads whose runs were counted, and the one that held the mutex.
  const ForkReset reset_{[this] {
    renew_in_child(mutex);
    renew_in_child(left);
    renew_in_child(later_bytes);
    arriving = inside = 0;
  }};
};

/// The host's memory of a job in this process: an account above those of its sessions and trainers, with the job's limit.
class JobMemory final : public sharing::MemoryWatch::Client {
 public:
  /// The same one for as long as any session of the job holds it.
  static std::shared_ptr<JobMemory> of(const std::shared_ptr<Job>& job);
  explicit JobMemory(std::shared_ptr<Job> job);
  ~JobMemory() override;

  const std::shared_ptr<MemoryAccount>& account() const { return account_; }
  MemoryQueue& queue() { return queue_; }
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
  MemoryQueue queue_;
  ForkMutex report_mutex_;
  uint64_t reported_ = 0, reported_id_ = 0;  // bytes, and the job's id: another one in a forked child
};

class MemoryGate {
 public:
  /// @param trim  frees what idle frames hold.
  /// @param job   whose limit counts besides that of `account`, its own account being above; null: none.
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

    size_t others_later_bytes(const MemoryAccount& account) const;
    std::pair<const MemoryAccount*, size_t> full_account(size_t bytes, size_t later_bytes) const;
  };

 private:
  // The accounts whose limits count.
  template <typename Visit>
  void visit_accounts(Visit&& visit) const {
    visit(*account_);
    if (job_) visit(*job_->account());
  }
  bool limited() const;
  MemoryQueue& queue() const { return job_ ? job_->queue() : *own_; }

  const std::shared_ptr<MemoryAccount> account_;
  const std::string spill_folder_;
  const std::function<void()> trim_;
  const std::shared_ptr<JobMemory> job_;
  const std::unique_ptr<MemoryQueue> own_;  // of a session without a job
};

}  // namespace treadle
