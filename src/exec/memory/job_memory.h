// The memory of a job in this process, on the host and on devices: accounts above those of its sessions and trainers.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "core/fork_mutex.h"
#include "exec/memory/governor.h"
#include "sharing/memory_watch.h"
#include "sharing/turn.h"
#include "treadle/allocator.h"

namespace treadle::exec {

class JobMemory final : public sharing::MemoryWatch::Client {
 public:
  /// The same one for as long as any session of the job holds it.
  static std::shared_ptr<JobMemory> of(const std::shared_ptr<sharing::JobState>& job);
  explicit JobMemory(std::shared_ptr<sharing::JobState> job);
  ~JobMemory() override;

  /// Of sessions on the host.
  const std::shared_ptr<MemoryAccount>& account() const { return account_; }
  const std::shared_ptr<MemoryAccount>& on_devices() const { return places_[0].account; }
  /// Of sessions on the host, and of what devices have no room for. Such values are there when they are charged: the account refuses none.
  const std::shared_ptr<MemoryAccount>& on_host() const { return places_[1].account; }
  const std::shared_ptr<MemoryAccount>& in_files() const { return places_[2].account; }
  /// For on_host(). @return UINT64_MAX if there is none
  uint64_t host_limit() const;
  bool keeps_host_limit() const { return on_host()->bytes() <= host_limit(); }

  Governor& governor() { return governor_; }
  /// Takes the limits over from the table, if they are others.
  void follow();
  /// Says in the table how much the job holds.
  void report();
  /// What runs moved between memories, or to files and back, and how long they waited for it.
  void moved(size_t size_bytes, uint64_t took_ns);
  void limit_changed(bool may_wait) override;

 private:
  struct Place {
    std::shared_ptr<MemoryAccount> account;
    std::atomic<uint64_t> sharing::JobSlot::*in_table;
    uint64_t reported = 0;
  };
  using Limits = std::pair<uint64_t, uint64_t>;  // of on_devices() and of account(); 0: none
  Limits in_table() const;
  void take_over(const Limits& limits);
  sharing::JobSlot& slot() const { return job_->slot(); }

  const std::shared_ptr<sharing::JobState> job_;
  std::array<Place, 3> places_;
  const std::shared_ptr<MemoryAccount> account_;
  Governor governor_;
  ForkMutex report_mutex_;
  uint64_t reported_id_ = 0;  // the job's: another one in a forked child
};

}  // namespace treadle::exec
