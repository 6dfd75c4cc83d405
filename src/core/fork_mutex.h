// What survives a fork: a mutex that is free in the child, whatever other threads were doing, and a number that tells the two apart.
#pragma once

#include <cstdint>
#include <mutex>

namespace treadle {

/// Grows by one in every forked child, where no thread exists but the one that forked.
uint32_t fork_generation() noexcept;

/// For short critical sections that call nothing foreign and lock no other mutex: a fork waits until all of them are over, so the data
/// that they guard is whole in the child, and no thread that the child lacks holds one.
class ForkMutex {
 public:
  ForkMutex();
  ~ForkMutex();
  ForkMutex(const ForkMutex&) = delete;
  ForkMutex& operator=(const ForkMutex&) = delete;

  void lock() { mutex_.lock(); }
  bool try_lock() { return mutex_.try_lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  friend struct ForkMutexes;
  std::mutex mutex_;
  ForkMutex *previous_ = nullptr, *next_ = nullptr;  // all of the process
};

}  // namespace treadle
