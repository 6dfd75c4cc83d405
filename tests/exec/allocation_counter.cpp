#include "tests/exec/allocation_counter.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
thread_local int64_t count = 0;
std::atomic<bool> armed{false}, fail_all{false};
std::atomic<int64_t> until_failure{0};

#ifndef TREADLE_SANITIZED
bool fails() {
  if (!armed.load(std::memory_order_relaxed)) return false;
  const int64_t left = until_failure.fetch_sub(1);
  return left == 0 || (left < 0 && fail_all.load());
}
#endif
}  // namespace

#ifndef TREADLE_SANITIZED
namespace {
void* counted(std::size_t size) {
  ++count;
  if (fails()) throw std::bad_alloc();
  if (void* memory = std::malloc(size ? size : 1)) return memory;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(std::size_t size) { return counted(size); }
void* operator new[](std::size_t size) { return counted(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace treadle::testing {
int64_t num_allocations() { return count; }

FailingNew::FailingNew(int64_t first, bool all) {
  until_failure = first;
  fail_all = all;
  armed = true;
}
FailingNew::~FailingNew() { armed = false; }
}  // namespace treadle::testing
