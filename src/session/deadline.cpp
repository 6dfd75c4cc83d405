#include "session/deadline.h"

#include <fmt/format.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/fork_mutex.h"
#include "graph/op_def.h"
#include "treadle/error.h"

namespace treadle {
namespace {

constexpr std::chrono::milliseconds kGrace{5};
constexpr std::chrono::seconds kIdle{5};  // an idle thread ends after this time

/// A piece of work, and the means to wait until it has been done.
struct Errand {
  std::function<void()> work;
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;

  void run() {
    work();
    work = nullptr;  // destroys the objects that the work owns before the caller learns that it has ended
    std::lock_guard lock(mutex);
    done = true;
    changed.notify_all();
  }
};

/// Threads that execute work for callers with a deadline. A thread whose work hangs becomes available again when the work returns.
class Helpers {
 public:
  static Helpers& all() {
    static auto* helpers = new Helpers;  // never destroyed, as its threads may outlive static objects
    return *helpers;
  }

  void start(std::shared_ptr<Errand> job) {
    {
      std::lock_guard lock(mutex_);
      if (generation_ != fork_generation()) {  // after fork() the child has none of the parent's threads
        new std::vector<Helper*>(std::move(idle_));
        idle_.clear();
        generation_ = fork_generation();
      }
      if (!idle_.empty()) {
        Helper* helper = idle_.back();
        idle_.pop_back();
        helper->job = std::move(job);
        helper->wake.notify_one();
        return;
      }
      // Reserves space now, so that a thread can add itself to idle_ without allocating.
      idle_.reserve(idle_.capacity() < ++num_threads_ ? 2 * num_threads_ : idle_.capacity());
    }
    try {
      std::thread([this, job]() mutable { serve(std::move(job)); }).detach();
    } catch (...) {
      std::lock_guard lock(mutex_);
      --num_threads_;
      throw Error(ErrorCode::resource_exhausted, "there is no thread for a run with a deadline");
    }
  }

 private:
  struct Helper {
    std::condition_variable wake;
    std::shared_ptr<Errand> job;
  };

  void serve(std::shared_ptr<Errand> job) {
    Helper self;
    for (;;) {
      job->run();
      job.reset();
      std::unique_lock lock(mutex_);
      idle_.push_back(&self);
      if (!self.wake.wait_for(lock, kIdle, [&] { return self.job != nullptr; })) {
        std::erase(idle_, &self);
        --num_threads_;
        return;
      }
      job = std::move(self.job);
    }
  }

  std::mutex mutex_;
  std::vector<Helper*> idle_;
  size_t num_threads_ = 0;
  uint32_t generation_ = fork_generation();
};

}  // namespace

bool run_until(std::chrono::steady_clock::time_point deadline, exec::Caller& caller, std::function<void()> work) {
  auto job = std::make_shared<Errand>();
  job->work = std::move(work);
  Helpers::all().start(job);
  {
    std::unique_lock lock(job->mutex);
    if (job->changed.wait_until(lock, deadline + kGrace, [&] { return job->done; })) return true;
  }
  {
    std::lock_guard lock(caller.mutex);  // waits until a callback of the caller has ended
    caller.left = !caller.committing;
  }
  if (!caller.left) {
    std::unique_lock lock(job->mutex);
    job->changed.wait(lock, [&] { return job->done; });
    return true;
  }
  std::lock_guard lock(job->mutex);
  if (job->done) caller.left = false;  // the work ended between the two locks
  return job->done;
}

void throw_left(const exec::Caller& caller) {
  const Node* const node = caller.under_way.load();
  Error error(ErrorCode::timed_out,
              node ? "the run passed its deadline, and the node has not returned yet"
                   : "the run passed its deadline, and has not ended yet: it is between nodes, or waits for their work on a device");
  if (node) error.add_context(describe(*node) + ", while running");
  throw error;
}

}  // namespace treadle
