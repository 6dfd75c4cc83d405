// What survives a fork: a mutex that is free in the child, whatever other threads were doing, and a number that tells the two apart.
#pragma once

#include <cstdint>
#include <functional>
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

/// Calls a function in every forked child, before fork() returns there: for what is locked too long to make a fork wait. A mutex that a
/// thread of the parent holds, or waits with, has to be made anew in the child, with what it guards.
class ForkReset {
 public:
  /// @param in_child  runs where no other thread exists; it must not allocate or lock.
  explicit ForkReset(std::function<void()> in_child);
  ~ForkReset();
  ForkReset(const ForkReset&) = delete;
  ForkReset& operator=(const ForkReset&) = delete;

 private:
  friend struct ForkMutexes;
  const std::function<void()> in_child_;
  ForkReset *previous_ = nullptr, *next_ = nullptr;
};

/// In the child of a fork: a new object in the place of one that a thread of the parent may have been changing. The old one is left as it
/// is.
template <typename T>
void renew_in_child(T& object) {
  new (&object) T();
}

}  // namespace treadle
