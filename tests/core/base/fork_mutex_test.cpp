#include "core/base/fork_mutex.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace treadle {
namespace {

TEST(ForkMutex, IsFreeInAChildThoughAnotherThreadUsedItAtTheFork) {
  ForkMutex mutex;
  int first = 0, second = 0;  // equal whenever `mutex` is free
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) {
      std::lock_guard lock(mutex);
      ++first;
      for (int i = 0; i < 1000; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
      ++second;
    }
  });
  for (int i = 0; i < 50; ++i) {
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(30);  // kills the child if it waits for ever
      std::lock_guard lock(mutex);
      _exit(first == second ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), 0) << "the child saw the middle of a critical section";
  }
  stop = true;
  busy.join();
}

TEST(ForkMutex, ComeAndGoInAnyOrder) {
  std::vector<std::unique_ptr<ForkMutex>> mutexes;
  for (int i = 0; i < 5; ++i) mutexes.push_back(std::make_unique<ForkMutex>());
  for (size_t gone : {2u, 0u, 4u}) mutexes[gone].reset();
  pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(30);
    // The newest mutex is locked first, as fork() does it. Otherwise the thread sanitizer would report that locks are taken in different
    // orders.
    mutexes[3]->lock();
    mutexes[1]->lock();
    _exit(mutexes[1]->try_lock() ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(mutexes[1]->try_lock());
  mutexes[1]->unlock();
}

}  // namespace
}  // namespace treadle
