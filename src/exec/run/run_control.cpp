#include "exec/run/run_control.h"

#include "sharing/turn.h"
#include "treadle/error.h"

namespace treadle::exec {

const MemoryAccount* RunControl::account() const { return memory ? memory->account.get() : nullptr; }

void RunControl::check_closely() const {
  if (cancel && cancel->load(std::memory_order_relaxed))
    throw Error(ErrorCode::cancelled, "Exiting due to terminate flag being set to true: the run was cancelled");
  if (token && token->load(std::memory_order_relaxed)) throw Error(ErrorCode::cancelled, "the run was cancelled by its token");
  if (closing && closing->load(std::memory_order_relaxed)) throw Error(ErrorCode::cancelled, "the session was closed");
  if (deadline && std::chrono::steady_clock::now() > *deadline) throw Error(ErrorCode::timed_out, "the run passed its deadline");
}

void RunControl::commit() const {
  check();
  if (caller) call([&] { caller->committing = true; });
  if (committed) committed->store(true);
}

void RunControl::throw_left() { throw Error(ErrorCode::timed_out, "the run passed its deadline, and its caller has left"); }
sharing::Interruption RunControl::interruption() const {
  return {[](const void* control) { static_cast<const RunControl*>(control)->check(); }, this};
}

}  // namespace treadle::exec
