#include "exec/run/run_control.h"

#include "core/threads/thread_pool.h"
#include "core/values/allocation.h"
#include "sharing/turn.h"
#include "treadle/error.h"

namespace treadle::exec {

const MemoryAccount* RunRoom::account() const { return context ? context->account.get() : nullptr; }

int RunThreads::most() const { return max_threads > 0 ? max_threads : pool ? pool->num_threads() : 1; }

void RunStop::check_closely() const {
  if (cancel && cancel->load(std::memory_order_relaxed))
    throw Error(ErrorCode::cancelled, "Exiting due to terminate flag being set to true: the run was cancelled");
  if (token && token->load(std::memory_order_relaxed)) throw Error(ErrorCode::cancelled, "the run was cancelled by its token");
  if (closing && closing->load(std::memory_order_relaxed)) throw Error(ErrorCode::cancelled, "the session was closed");
  if (deadline && std::chrono::steady_clock::now() > *deadline) throw Error(ErrorCode::timed_out, "the run passed its deadline");
}

void RunStop::commit() const {
  check();
  if (caller) call([&] { caller->committing = true; });
  if (committed) committed->store(true);
}

void RunStop::throw_left() { throw Error(ErrorCode::timed_out, "the run passed its deadline, and its caller has left"); }
sharing::Interruption RunStop::interruption() const {
  return {[](const void* stop) { static_cast<const RunStop*>(stop)->check(); }, this};
}

}  // namespace treadle::exec
