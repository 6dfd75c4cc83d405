#include "exec/memory/admission.h"

#include <utility>

#include "core/base/fork_mutex.h"
#include "exec/memory/governor.h"

namespace treadle::exec {
namespace {

thread_local int runs_of_thread = 0;  // number of runs in progress on this thread, except stoppable and nested ones

}  // namespace

Admission::Run::Run(Admission& admission, const MemoryAccount& account, bool ends_by_itself)
    : admission_(admission),
      account_(account),
      born_in_(fork_generation()),
      state_(runs_of_thread > 0 ? State::nested
             : ends_by_itself   ? State::arriving
                                : State::stoppable) {
  if (state_ == State::arriving) ++runs_of_thread;
  ++admission_.runs_[static_cast<size_t>(state_)];
}

bool Admission::Run::is_counted() const { return born_in_ == fork_generation(); }

// Counts the run in its next state before removing it from the present one. Readers look at the earlier state first and never miss a run.
void Admission::Run::move_to(State next) {
  if (is_counted()) {
    ++admission_.runs_[static_cast<size_t>(next)];
    --admission_.runs_[static_cast<size_t>(state_)];
  }
  state_ = next;
}

void Admission::Run::queue() {
  if (state_ == State::arriving) move_to(State::queued);
}

void Admission::Run::enter() {
  if (state_ == State::arriving || state_ == State::queued) move_to(State::inside);
}

void Admission::Run::leave() {
  if (state_ == State::left) return;
  if (has_reserved() && is_counted()) {
    const auto own = admission_.reserved_.find(&account_);
    if ((own->second -= reserved_bytes_) == 0) admission_.reserved_.erase(own);
  }
  if (ends_by_itself()) --runs_of_thread;
  reserved_bytes_ = 0;
  move_to(State::left);
}

void Admission::Run::reserve(size_t size_bytes) {
  if (size_bytes == 0) return;
  admission_.reserved_[&account_] += size_bytes;
  reserved_bytes_ += size_bytes;
}

size_t Admission::Run::reserved_by_others(const MemoryAccount& account) const {
  size_t bytes = 0;
  for (const auto& [of, reserved] : admission_.reserved_)
    if (counts_for(*of, account)) bytes += reserved;
  return is_counted() && counts_for(account_, account) ? bytes - reserved_bytes_ : bytes;
}

bool Admission::Run::expects_others() const {
  if (state_ == State::nested) return false;
  int others = 0;
  for (const State state : {State::arriving, State::inside, State::blocked}) others += count(state) - (state == state_ ? 1 : 0);
  return others > 0;
}

Admission::WaitingNode::WaitingNode(Run& run, bool proceeds) : run_(run), proceeds_(proceeds) {
  if (run_.waiting_nodes_++ == 0 && run_.state_ == Run::State::inside) run_.move_to(Run::State::blocked);
  if (proceeds_) ++run_.admission_.proceeding_nodes_;
}

Admission::WaitingNode::~WaitingNode() {
  if (--run_.waiting_nodes_ == 0 && run_.state_ == Run::State::blocked) run_.move_to(Run::State::inside);
  if (proceeds_) --run_.admission_.proceeding_nodes_;
}

bool Admission::WaitingNode::expects_others() const {
  if (run_.state_ == Run::State::nested) return false;
  for (const Run::State state : {Run::State::arriving, Run::State::inside})
    if (run_.count(state) > 0) return true;
  return !proceeds_ && run_.admission_.proceeding_nodes_ > 0;
}

}  // namespace treadle::exec
