#include "core/fork_mutex.h"

#include <atomic>

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

/// The list of all, never destroyed: a mutex with static storage may outlive whatever this file could destroy.
struct ForkMutexes {
  std::mutex mutex;
  ForkMutex* first = nullptr;

  static ForkMutexes& all() {
    static auto* all = new ForkMutexes;
    return *all;
  }

  ForkMutexes() {
#if defined(__unix__)
    pthread_atfork([] { all().lock(); }, [] { all().unlock(); }, [] { all().unlock(); });
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

  void add(ForkMutex& one) {
    std::lock_guard guard(mutex);
    one.next_ = first;
    if (first) first->previous_ = &one;
    first = &one;
  }
  void remove(ForkMutex& one) {
    std::lock_guard guard(mutex);
    (one.previous_ ? one.previous_->next_ : first) = one.next_;
    if (one.next_) one.next_->previous_ = one.previous_;
  }
};

ForkMutex::ForkMutex() { ForkMutexes::all().add(*this); }
ForkMutex::~ForkMutex() { ForkMutexes::all().remove(*this); }

}  // namespace treadle
