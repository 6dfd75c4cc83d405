// Lets runs of sessions with a memory limit begin when there is room for them.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "core/allocation.h"
#include "exec/memory/governor.h"
#include "exec/memory/job_memory.h"
#include "exec/memory/memory_pass.h"
#include "treadle/allocator.h"

namespace treadle::exec {

class MemoryGate final : MemoryKeeper {
 public:
  /// @param memory  what runs allocate from: its account has the limit.
  /// @param trim    frees what idle frames hold.
  /// @param job     of the account above that one; null: none.
  MemoryGate(const AllocationContext& memory, std::string spill_folder, std::function<void()> trim,
             std::shared_ptr<JobMemory> job = nullptr);
  ~MemoryGate();
  MemoryGate(const MemoryGate&) = delete;
  MemoryGate& operator=(const MemoryGate&) = delete;

  void set_limit(size_t limit_bytes);

  /// One run's way through; what it took is free again when it ends.
  class Pass final : public MemoryPass, MemoryRoom {
   public:
    /// @param ends_by_itself  false: its caller stops it and goes on as he likes, so that nobody waits for it.
    Pass(MemoryGate& gate, bool ends_by_itself);
    ~Pass() override;
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

    bool may_reorder() const override { return ends_by_itself_; }
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
    static constexpr size_t kMostAccounts = 8;  // in a row above one another

    bool charge(MemoryAccount& account, MemoryClass memory_class, size_t size_bytes) override;
    bool had_room(size_t size_bytes) const;
    void see_limits() const;

    MemoryGate& gate_;
    const bool is_within_run_;  // of this thread: that one waits for this one
    const bool ends_by_itself_;
    const AllocationContext in_nodes_;
    bool arrived_ = false, inside_ = false;
    size_t later_bytes_ = 0;
    int waiting_nodes_ = 0;                                                    // under the governor's mutex
    sharing::Interruption interruption_;                                       // ends waits of its nodes; no check: it has not been let in
    mutable std::array<std::atomic<size_t>, kMostAccounts> highest_limits_{};  // that the run has seen; 0: not yet

    bool nobody_leaves() const;
    size_t others_later_bytes(const MemoryAccount& account) const;
    std::pair<const MemoryAccount*, size_t> full_account(size_t bytes, size_t later_bytes) const;
  };

 private:
  bool give_way(const MemoryAccount& full, const std::function<bool()>& enough) override;
  bool limited() const;
  Governor& governor() const { return job_ ? job_->governor() : *own_; }

  const AllocationContext memory_;
  const std::shared_ptr<MemoryAccount>& account_ = memory_.account;
  const std::string spill_folder_;
  const std::function<void()> trim_;
  const std::shared_ptr<JobMemory> job_;
  const std::unique_ptr<Governor> own_;  // of a session without a job
};

}  // namespace treadle::exec
