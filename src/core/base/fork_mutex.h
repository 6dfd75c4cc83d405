// Fork safety: a mutex that is free in a forked child, and a number that differs between parent and child.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>

namespace treadle {

/// Returns a number that is one higher in a forked child than in its parent. Only the thread that forked exists in the child.
uint32_t fork_generation() noexcept;

/// A mutex for short critical sections that call no foreign code and lock no other mutex. fork() waits until all threads have left them. So
/// in the child the mutex is free and the guarded data is consistent.
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
  ForkMutex *previous_ = nullptr, *next_ = nullptr;  // neighbors in a list of all objects in the process
};

/// Calls a function in every forked child, before fork() returns in the child. For mutexes that are held too long for fork() to wait: the
/// child must construct these, and the data that they guard, again.
class ForkReset {
 public:
  /// @param in_child  runs while the child has only this thread; must not allocate or lock
  explicit ForkReset(std::function<void()> in_child);
  ~ForkReset();
  ForkReset(const ForkReset&) = delete;
  ForkReset& operator=(const ForkReset&) = delete;

 private:
  friend struct ForkMutexes;
  const std::function<void()> in_child_;
  ForkReset *previous_ = nullptr, *next_ = nullptr;
};

/// For forked children: constructs a new object in place of one that a thread of the parent may have been changing. The old one is not
/// destroyed.
template <typename T>
void renew_in_child(T& object) {
  new (&object) T();
}

}  // namespace treadle
