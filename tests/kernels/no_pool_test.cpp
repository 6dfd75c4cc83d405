// Lets the kernel tests, which pass no pool, link before the pool is there. Weak: the real ones win.
#include "core/thread_pool.h"

namespace treadle {
__attribute__((weak)) int ThreadPool::num_threads() const noexcept { return 1; }
__attribute__((weak)) void ThreadPool::run(int64_t n, int64_t, Body body, void* context) { body(context, 0, n); }
}  // namespace treadle
