// Keeps the first error of a run that uses several threads.
#pragma once

#include <atomic>
#include <exception>
#include <mutex>
#include <utility>

#include "exec/program/ids.h"

namespace treadle::exec {

/// Keeps the first error and drops later ones. Threads call stopped() before they begin new work. When all work has ended, the run rethrows
/// the error.
class FirstError {
 public:
  bool stopped() const noexcept { return stopped_.load(); }
  /// @param at  the instruction that failed; kNoInstruction if the error did not come from an instruction
  void note(std::exception_ptr error, InstructionId at = kNoInstruction) noexcept {
    std::lock_guard lock(mutex_);
    if (!error_) {
      error_ = std::move(error);
      at_ = at;
    }
    stopped_.store(true);
  }
  /// Stops the run without recording an error.
  void stop() noexcept { stopped_.store(true); }
  /// Discards the error. @pre no thread works for the run
  void reset(bool stopped = false) noexcept {
    error_ = nullptr;
    at_ = kNoInstruction;
    stopped_.store(stopped);
  }
  /// Returns the error and discards it; null if there is none. @pre no thread works for the run
  std::exception_ptr take() noexcept {
    std::lock_guard lock(mutex_);
    return std::exchange(error_, nullptr);
  }
  /// The instruction that failed, valid even after take(); kNoInstruction if the error came from elsewhere.
  InstructionId at() const noexcept { return at_; }

 private:
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  std::exception_ptr error_;
  InstructionId at_ = kNoInstruction;
};

}  // namespace treadle::exec
