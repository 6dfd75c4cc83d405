// Where a pool's threads come from, if a program makes them itself, and which processors they run on.
#pragma once

#include <functional>
#include <thread>
#include <vector>

namespace treadle {

struct ThreadFactory {
  using Work = void (*)(void* argument);
  /// Starts a thread that calls work(argument). Throws if it cannot. Empty: the threads are the library's.
  std::function<void*(Work work, void* argument)> create;
  std::function<void(void* thread)> join;
  /// Of each of the pool's own threads, numbers of processors from 0. Empty: any. A thread that may not run on them runs where it may.
  std::vector<std::vector<int>> processors;
};

/// Pools that the calling thread makes while it lives have such threads, from the start on.
class ThreadFactoryScope {
 public:
  explicit ThreadFactoryScope(const ThreadFactory& factory);
  ~ThreadFactoryScope();
  ThreadFactoryScope(const ThreadFactoryScope&) = delete;
  ThreadFactoryScope& operator=(const ThreadFactoryScope&) = delete;
  /// Of the calling thread; null: none.
  static const ThreadFactory* current() noexcept;

 private:
  const ThreadFactory* before_;
};

/// The threads of one pool.
class PoolThreads {
 public:
  using Work = void (*)(void* context, unsigned index);
  explicit PoolThreads(ThreadFactory factory) : factory_(std::move(factory)) {}
  /// Threads 1 to `count`. Where the system has no more, they are fewer. @throws what the factory throws, behind those that it has started
  void start(int count, Work work, void* context);
  void join();

 private:
  ThreadFactory factory_;
  std::vector<std::thread> own_;
  std::vector<void*> made_;
};

}  // namespace treadle
