// The memory of a job in this process, on host and devices. Its accounts are the parents of the accounts of its sessions and trainers.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "core/base/fork_mutex.h"
#include "exec/memory/governor.h"
#include "sharing/memory_watch.h"
#include "sharing/turn.h"
#include "treadle/allocator.h"

namespace treadle::exec {

/// Logs that bytes moved. @param where  between which memories
void tell_move(std::string_view where, size_t size_bytes, uint64_t took_ns);

class JobMemory final : public sharing::MemoryWatch::Client {
 public:
  /// Returns the job's object. All sessions of the job in this process share it.
  static std::shared_ptr<JobMemory> of(const std::shared_ptr<sharing::JobState>& job);
  explicit JobMemory(std::shared_ptr<sharing::JobState> job);
  ~JobMemory() override;

  /// The account for sessions on the host. It has the job's limit.
  const std::shared_ptr<MemoryAccount>& account() const { return account_; }
  const std::shared_ptr<MemoryAccount>& on_devices() const { return places_[0].account; }
  /// The account for memory on the host of sessions that run on devices: values that do not fit into device memory. Such values exist
  /// before their bytes are charged, so a limit of this account could not prevent them; host_limit() is checked instead.
  const std::shared_ptr<MemoryAccount>& on_host() const { return places_[1].account; }
  const std::shared_ptr<MemoryAccount>& in_files() const { return places_[2].account; }
  /// The limit for on_host() in bytes; UINT64_MAX: none.
  uint64_t host_limit() const;
  bool keeps_host_limit() const { return on_host()->bytes() <= host_limit(); }

  Governor& governor() { return governor_; }
  /// Applies limits that have changed in the table of jobs.
  void follow();
  /// Writes the number of bytes that the job uses to the table.
  void report();
  /// Counts bytes that runs moved between memories, or to and from files, and how long the runs waited for the moves.
  void moved(size_t size_bytes, uint64_t took_ns);
  void limit_changed(bool may_wait) override;

 private:
  struct Place {
    std::shared_ptr<MemoryAccount> account;
    std::atomic<uint64_t> sharing::JobSlot::*in_table;
    uint64_t reported = 0;
  };
  using Limits = std::pair<uint64_t, uint64_t>;  // limits for on_devices() and for account(), in bytes; 0: no limit
  Limits in_table() const;
  void take_over(const Limits& limits);
  sharing::JobSlot& slot() const { return job_->slot(); }

  const std::shared_ptr<sharing::JobState> job_;
  std::array<Place, 3> places_;
  const std::shared_ptr<MemoryAccount> account_;
  Governor governor_;
  ForkMutex report_mutex_;
  uint64_t reported_id_ = 0;  // id of the job that was reported last; a forked child is another job
};

}  // namespace treadle::exec
