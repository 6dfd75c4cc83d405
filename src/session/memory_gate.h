// Lets runs of a session with a memory limit begin when there is room for them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "exec/budget.h"
#include "exec/frame.h"
#include "treadle/allocator.h"

namespace treadle {

class MemoryGate {
 public:
  /// @param trim  frees what idle frames hold.
  MemoryGate(std::shared_ptr<MemoryAccount> account, std::string spill_folder, std::function<void()> trim)
      : account_(std::move(account)), spill_folder_(std::move(spill_folder)), trim_(std::move(trim)) {}

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
    [[noreturn]] void refuse(size_t arena_bytes, size_t output_bytes, const exec::RunMemory& beside) const override;
    uint64_t generation() const override { return gate_.generation_.load(std::memory_order_relaxed); }
    std::string spill_folder() const override { return gate_.spill_folder_; }

   private:
    MemoryGate& gate_;
    const bool waits_;
    bool arrived_ = false, inside_ = false;
    size_t later_bytes_ = 0;
  };

 private:
  size_t standing_bytes() const;  // of weights and the like, which every run finds there
  const std::shared_ptr<MemoryAccount> account_;
  const std::string spill_folder_;
  const std::function<void()> trim_;
  std::mutex mutex_;
  std::condition_variable left_;
  int arriving_ = 0;        // runs on their way to the gate: their frames may hold memory that they let go, or come in with
  int inside_ = 0;          // runs that will leave by themselves
  size_t later_bytes_ = 0;  // what runs that were let in may yet take; some of it may be in use already
  std::atomic<uint64_t> generation_{0};
};

}  // namespace treadle
