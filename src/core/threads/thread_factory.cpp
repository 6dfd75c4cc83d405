#include "core/threads/thread_factory.h"

#include <memory>
#include <system_error>
#include <utility>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace treadle {
namespace {

thread_local const ThreadFactory* factory_here = nullptr;

struct Begin {
  PoolThreads::Work work;
  void* context;
  unsigned index;
  std::vector<int> processors;

  void run() const {
#if defined(__linux__)
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    for (const int processor : processors)
      if (processor < CPU_SETSIZE) CPU_SET(static_cast<size_t>(processor), &allowed);
    if (!processors.empty()) (void)pthread_setaffinity_np(pthread_self(), sizeof(allowed), &allowed);
#endif
    work(context, index);
  }
};

}  // namespace

ThreadFactoryScope::ThreadFactoryScope(const ThreadFactory& factory) : before_(std::exchange(factory_here, &factory)) {}
ThreadFactoryScope::~ThreadFactoryScope() { factory_here = before_; }
const ThreadFactory* ThreadFactoryScope::current() noexcept { return factory_here; }

void PoolThreads::start(int count, Work work, void* context) {
  own_.reserve(static_cast<size_t>(count)), made_.reserve(static_cast<size_t>(count));
  for (int i = 1; i <= count; ++i) {
    const auto place = static_cast<size_t>(i - 1);
    Begin begin{work, context, static_cast<unsigned>(i),
                place < factory_.processors.size() ? factory_.processors[place] : std::vector<int>()};
    if (factory_.create) {
      auto given = std::make_unique<Begin>(std::move(begin));
      made_.push_back(factory_.create([](void* argument) { std::unique_ptr<Begin>(static_cast<Begin*>(argument))->run(); }, given.get()));
      (void)given.release();
      continue;
    }
    try {
      own_.emplace_back([begin = std::move(begin)] { begin.run(); });
    } catch (const std::system_error&) {
      return;  // no error: a pool with fewer threads still computes everything
    }
  }
}

void PoolThreads::join() {
  for (std::thread& thread : own_) thread.join();
  for (void* thread : made_) factory_.join(thread);
}

}  // namespace treadle
