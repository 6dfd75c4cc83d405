// A pool of threads that share parallel loops. The caller takes part, and never waits for a chunk that no thread has claimed.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace treadle {

/// A source of tasks that appear one by one, such as nodes that become ready. It is offered to a pool's idle workers. Its owner takes part,
/// and never waits for a task that no thread has claimed.
class TaskSource {
 public:
  /// Claims and runs one task. Returns false if there is none. Called by several threads at once; must not throw.
  virtual bool run_one() = 0;

 protected:
  TaskSource() = default;
  ~TaskSource() = default;

 private:
  friend class ThreadPool;
  int slot_ = -1;
};

/// Lets a thread pause between the chunks of its loops, to let others compute within a long node. Helpers then leave the loop, so that only
/// the thread that began it waits.
class LoopBreak {
 public:
  virtual bool wanted() const noexcept = 0;
  virtual void take() = 0;  ///< waits as long as necessary; an exception ends the loop

 protected:
  LoopBreak() = default;
  ~LoopBreak() = default;
};

/// While an object of this class lives, `loop_break` is called between chunks of loops that this thread begins. The thread must hold no
/// lock that is needed by threads for which the break waits. Null: no breaks.
class LoopBreakScope {
 public:
  explicit LoopBreakScope(LoopBreak* loop_break);
  ~LoopBreakScope();
  LoopBreakScope(const LoopBreakScope&) = delete;
  LoopBreakScope& operator=(const LoopBreakScope&) = delete;
  /// Returns the calling thread's LoopBreak; null: none.
  static LoopBreak* current() noexcept;

 private:
  LoopBreak* before_;
};

class ThreadPool {
 public:
  /// Makes a pool. @param num_threads  including the caller; 1: only the caller; 0: the number of usable CPUs (affinity and cgroup quota)
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const noexcept;
  /// Returns about how many chunks lie between two consecutive chunks of a thread, in a loop that this thread begins now.
  int64_t chunks_ahead() const noexcept;

  /// The process's shared pool, made at the first call.
  static const std::shared_ptr<ThreadPool>& shared();

  /// Calls `fn(begin, end)` for disjoint chunks that cover [0, n), and returns when all are done. Chunks are multiples of `grain` long,
  /// except for the last. Their bounds depend only on n and grain, so results do not depend on the number of threads. The caller takes the
  /// first chunks and helpers the later ones, so that in consecutive loops over the same rows each core finds its rows in its cache. The
  /// first exception is rethrown after running chunks have ended; chunks that have not begun are dropped. Loops may nest. The pool works in
  /// a forked child, but a loop that was running in the forking thread does not continue there.
  template <typename Fn>
  void parallel_for(int64_t n, int64_t grain, Fn&& fn) {
    run(
        n, grain, [](void* context, int64_t begin, int64_t end) { (*static_cast<std::remove_reference_t<Fn>*>(context))(begin, end); },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

  /// Offers a source to the workers. Returns false if the table of regions is full or no worker is free: the owner then works alone.
  bool attach(TaskSource& source);
  /// Announces a task to claim, and wakes sleeping workers. @pre attached
  void announce(TaskSource& source);
  /// Withdraws a source that attach() has offered. Returns when no worker uses it any more.
  void detach(TaskSource& source);
  /// Helps with other parallel loops, or sleeps, until `done(context)` is true. The thread that makes it true calls nudge().
  void help_until(bool (*done)(void*), void* context);
  void nudge();

 private:
  using Body = void (*)(void* context, int64_t begin, int64_t end);
  void run(int64_t n, int64_t grain, Body body, void* context);
  friend class PoolCaller;
  void count_callers(int difference);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Counts the runs that use the pool at once; each run has one object on its thread. With n such callers, loops get n - 1 helpers fewer.
/// The reason: the pool has as many threads as CPUs, so a helper beside n busy callers would lose its CPU in the middle of a chunk, and the
/// loop would wait for it. If there are as many callers as threads, each works alone. Nested objects on one thread count once.
class PoolCaller {
 public:
  explicit PoolCaller(ThreadPool* pool);
  ~PoolCaller();
  PoolCaller(const PoolCaller&) = delete;
  PoolCaller& operator=(const PoolCaller&) = delete;

  /// While an object of this class lives, the thread's run is not counted, because it sleeps.
  class Away {
   public:
    Away();
    ~Away();
    Away(const Away&) = delete;
    Away& operator=(const Away&) = delete;

   private:
    ThreadPool* pool_;
  };

 private:
  ThreadPool* pool_;  // null: this object does not count
};

/// While an object lives, loops that this thread begins use at most `max_threads` threads of any pool, including this one. Loops nested in
/// them stay on their thread, so that the limit holds overall. Limits nest; the smallest applies.
class ParallelLimit {
 public:
  explicit ParallelLimit(int max_threads);
  ~ParallelLimit();
  ParallelLimit(const ParallelLimit&) = delete;
  ParallelLimit& operator=(const ParallelLimit&) = delete;

 private:
  int before_;
};

/// Like ThreadPool::chunks_ahead(); 1 without a pool.
inline int64_t chunks_ahead(const ThreadPool* pool) { return pool ? pool->chunks_ahead() : 1; }

/// Does what ThreadPool::parallel_for() does. Without a pool, or for a single chunk, the caller runs the same chunks alone.
template <typename Fn>
void parallel_for(ThreadPool* pool, int64_t n, int64_t grain, Fn&& fn) {
  if (n <= 0) return;
  if (grain < 1) grain = 1;
  if (pool && n > grain && pool->num_threads() > 1) return pool->parallel_for(n, grain, fn);
  LoopBreak* loop_break = n > grain ? LoopBreakScope::current() : nullptr;
  for (int64_t begin = 0; begin < n; begin = grain < n - begin ? begin + grain : n) {
    if (loop_break && loop_break->wanted()) [[unlikely]]
      loop_break->take();
    fn(begin, grain < n - begin ? begin + grain : n);
  }
}

}  // namespace treadle
