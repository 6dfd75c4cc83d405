#include "tests/exec/allocation_counter.h"

#include <cstdlib>
#include <new>

namespace {
thread_local int64_t count = 0;
}  // namespace

#ifndef TREADLE_SANITIZED
namespace {
void* counted(std::size_t size) {
  ++count;
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
}  // namespace treadle::testing
