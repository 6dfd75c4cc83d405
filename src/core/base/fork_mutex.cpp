#include "core/base/fork_mutex.h"

#include <atomic>
#include <utility>

#if defined(__unix__)
#include <pthread.h>
#endif

namespace treadle {
namespace {

std::atomic<uint32_t> forks{0};

}  // namespace

uint32_t fork_generation() noexcept {
#if defined(__unix__)
  static const int registered = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  (void)registered;
#endif
  return forks.load(std::memory_order_relaxed);
}

/// The lists of all ForkMutex and ForkReset objects. Never destroyed, since a static ForkMutex may outlive objects of this file.
struct ForkMutexes {
  std::mutex mutex;
  ForkMutex* first = nullptr;
  ForkReset* first_reset = nullptr;

  static ForkMutexes& all() {
    static auto* all = new ForkMutexes;
    return *all;
  }

  ForkMutexes() {
#if defined(__unix__)
    pthread_atfork([] { all().lock(); }, [] { all().unlock(); }, [] { all().start_child(); });
#endif
  }

  void lock() {
    mutex.lock();
    for (ForkMutex* one = first; one; one = one->next_) one->mutex_.lock();
  }
  void unlock() {
    for (ForkMutex* one = first; one; one = one->next_) one->mutex_.unlock();
    mutex.unlock();
  }

  void start_child() {
    unlock();
    for (ForkReset* one = first_reset; one; one = one->next_) one->in_child_();
  }

  template <typename T>
  void add(T& one, T*& list) {
    std::lock_guard guard(mutex);
    one.next_ = list;
    if (list) list->previous_ = &one;
    list = &one;
  }
  template <typename T>
  void remove(T& one, T*& list) {
    std::lock_guard guard(mutex);
    (one.previous_ ? one.previous_->next_ : list) = one.next_;
    if (one.next_) one.next_->previous_ = one.previous_;
  }
};

ForkMutex::ForkMutex() { ForkMutexes::all().add(*this, ForkMutexes::all().first); }
ForkMutex::~ForkMutex() { ForkMutexes::all().remove(*this, ForkMutexes::all().first); }

ForkReset::ForkReset(std::function<void()> in_child) : in_child_(std::move(in_child)) {
  ForkMutexes::all().add(*this, ForkMutexes::all().first_reset);
}
ForkReset::~ForkReset() { ForkMutexes::all().remove(*this, ForkMutexes::all().first_reset); }

}  // namespace treadle
