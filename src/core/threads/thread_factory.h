// Lets a program create the threads of a pool itself, and choose the processors that they run on.
#pragma once

#include <functional>
#include <thread>
#include <vector>

namespace treadle {

struct ThreadFactory {
  using Work = void (*)(void* argument);
  /// Starts a thread that calls work(argument); throws if it cannot. Returns a handle for `join`. Empty: the library makes the threads.
  std::function<void*(Work work, void* argument)> create;
  std::function<void(void* thread)> join;
  /// For each thread of the pool, except the caller's, the processors (from 0) that it may run on. Empty: any. A thread is not restricted
  /// if the system allows it none of these.
  std::vector<std::vector<int>> processors;
};

/// While this object exists, pools that the calling thread makes create their threads with the factory.
class ThreadFactoryScope {
 public:
  explicit ThreadFactoryScope(const ThreadFactory& factory);
  ~ThreadFactoryScope();
  ThreadFactoryScope(const ThreadFactoryScope&) = delete;
  ThreadFactoryScope& operator=(const ThreadFactoryScope&) = delete;
  /// Returns the calling thread's factory; null: none is set.
  static const ThreadFactory* current() noexcept;

 private:
  const ThreadFactory* before_;
};

/// The threads of one pool.
class PoolThreads {
 public:
  using Work = void (*)(void* context, unsigned index);
  explicit PoolThreads(ThreadFactory factory) : factory_(std::move(factory)) {}
  /// Starts threads 1 to `count`, or fewer if the system has no more. @throws errors of the factory; threads already started keep running
  void start(int count, Work work, void* context);
  void join();

 private:
  ThreadFactory factory_;
  std::vector<std::thread> own_;
  std::vector<void*> made_;
};

}  // namespace treadle
