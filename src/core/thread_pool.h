// A pool of threads that share parallel loops. The caller always takes part and never waits for a chunk that nobody has claimed.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace treadle {

/// Work that comes piece by piece while it is under way (nodes that become ready), offered to a pool's idle workers.
/// Its owner takes part, and never waits for a piece that nobody has claimed.
class TaskSource {
 public:
  /// Claims and runs one piece; false if there is none. Called by any number of threads at once; must not throw.
  virtual bool run_one() = 0;

 protected:
  TaskSource() = default;
  ~TaskSource() = default;

 private:
  friend class ThreadPool;
  int slot_ = -1;
};

/// What a thread does between the chunks of its loops, if it is told to: gives way to somebody, inside a node that takes long. Helpers then
/// leave the loop, so that only its owner waits.
class LoopBreak {
 public:
  virtual bool wanted() const noexcept = 0;
  virtual void take() = 0;  ///< waits; what it throws ends the loop

 protected:
  LoopBreak() = default;
  ~LoopBreak() = default;
};

/// While it lives, `loop_break` is asked between the chunks of loops that this thread begins. No lock may be held that whom it waits for
/// may want. Null: none.
class LoopBreakScope {
 public:
  explicit LoopBreakScope(LoopBreak* loop_break);
  ~LoopBreakScope();
  LoopBreakScope(const LoopBreakScope&) = delete;
  LoopBreakScope& operator=(const LoopBreakScope&) = delete;
  /// Of the calling thread.
  static LoopBreak* current() noexcept;

 private:
  LoopBreak* before_;
};

class ThreadPool {
 public:
  /// @param num_threads  including the caller; 1 starts no thread; 0 takes the number of usable CPUs (affinity and cgroup quota).
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const noexcept;
  /// What a thread takes up after a chunk of a loop that this thread begins now is about so many chunks ahead of it.
  int64_t chunks_ahead() const noexcept;

  /// The process's shared pool, made at the first call.
  static const std::shared_ptr<ThreadPool>& shared();

  /// Calls `fn(begin, end)` on disjoint chunks that cover [0, n), each a multiple of `grain` long (the last may be shorter); returns
  /// when all are done. Chunk bounds depend on n and grain only, so that results never depend on the number of threads.
  /// The caller begins with the first chunk and goes on from there, the others behind its share of them, so that loops over the same
  /// rows find in a core's cache what the one before has left there.
  /// The first exception reaches the caller after the chunks under way have ended; those that nobody has begun are dropped.
  /// Loops may nest. The pool works in a forked child, but not for a loop that was under way in the forking thread.
  template <typename Fn>
  void parallel_for(int64_t n, int64_t grain, Fn&& fn) {
    run(
        n, grain, [](void* context, int64_t begin, int64_t end) { (*static_cast<std::remove_reference_t<Fn>*>(context))(begin, end); },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

  /// Offers a source to the workers. False if the table of regions is full or the pool has no other thread: then the owner works alone.
  bool attach(TaskSource& source);
  /// There is a piece to claim; wakes workers that sleep. Only between attach and detach.
  void announce(TaskSource& source);
  /// Returns when no worker is inside.
  void detach(TaskSource& source);
  /// Waits until `done(context)` is true, and helps with parallel loops meanwhile. Whoever makes it true calls nudge().
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

/// A run under way on the thread that made it. With n of them, loops get n - 1 helpers fewer: a pool has as many threads as there are CPUs,
/// so that a helper beside that many busy callers would take its chunk, lose its CPU, and be waited for. From as many callers on as the
/// pool has threads, each computes alone. On one thread, those inside of the first count as one.
class PoolCaller {
 public:
  explicit PoolCaller(ThreadPool* pool);
  ~PoolCaller();
  PoolCaller(const PoolCaller&) = delete;
  PoolCaller& operator=(const PoolCaller&) = delete;

  /// While it lives, the thread's run does not count: it sleeps.
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
  ThreadPool* pool_;  // null: does not count
};

/// While it lives, loops that this thread begins use at most `max_threads` threads of any pool, this one included. A loop nested in
/// such a loop stays on its thread, so that the limit holds for the whole. Limits nest; the smallest counts.
class ParallelLimit {
 public:
  explicit ParallelLimit(int max_threads);
  ~ParallelLimit();
  ParallelLimit(const ParallelLimit&) = delete;
  ParallelLimit& operator=(const ParallelLimit&) = delete;

 private:
  int before_;
};

/// As ThreadPool::chunks_ahead; 1 without a pool.
inline int64_t chunks_ahead(const ThreadPool* pool) { return pool ? pool->chunks_ahead() : 1; }

/// As ThreadPool::parallel_for; without a pool, or for a single chunk, the caller does it all, in the same chunks.
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
