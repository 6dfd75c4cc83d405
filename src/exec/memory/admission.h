// Records which runs share memory limits, and decides whether a run that waits for memory can expect other runs to free some.
//
// A run is in one of the states of Admission::Run::State. The last two columns tell who may wait for a run in that state to free memory:
//
//   state      the run …                                                     a queued run expects it    a waiting node expects it
//   nested     is a node of another run on this thread                       never                      never
//   stoppable  may stop at any time, until its caller continues it           never                      never
//   arriving   has begun, and its frame may hold memory that it can free     yes                        yes
//   queued     waits to be admitted, and holds nothing                       never                      never
//   inside     is admitted, and ends by itself                               yes                        yes
//   blocked    is inside, and at least one of its nodes waits                yes                        only if a node of it proceeds
//   left       has ended                                                     never                      never
//
//   transition       from                to         when
//   queue()          arriving            queued     the run has freed what it held, and is about to wait
//   enter()          arriving, queued    inside     the run has its memory, or needs none
//   WaitingNode()    inside              blocked    the first of its nodes waits
//   ~WaitingNode()   blocked             inside     the last of its nodes has stopped waiting
//   leave()          any                 left       the run has ended and freed its memory
//
// A nested run never waits, because the surrounding run could not end before the nested one. A stoppable run may wait for other runs.
// queue(), enter() and WaitingNode leave nested and stoppable runs in their states.
//
// A node "proceeds" if it takes its memory beyond the limit as soon as no other run is expected to free any. Such a node never fails, so
// its run ends. Nodes that would fail wait for that end.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>

#include "treadle/allocator.h"

namespace treadle::exec {

/// The states of all runs under one governor. Guarded by the governor's mutex, except for methods that say otherwise.
class Admission {
 public:
  class Run;
  class WaitingNode;

 private:
  static constexpr size_t kNumStates = 7;

  std::array<std::atomic<int>, kNumStates> runs_{};  // number of runs in each state
  int proceeding_nodes_ = 0;
  std::map<const MemoryAccount*, size_t> reserved_;  // reserved bytes, by session account
};

/// One run. Its methods are called by the thread that made it; its nodes may wait on any thread.
class Admission::Run {
 public:
  enum class State : uint8_t { nested, stoppable, arriving, queued, inside, blocked, left };

  /// Starts in the state nested if this thread is already executing another run that ends by itself. Needs no mutex.
  /// @param account         the account that the run allocates from; must outlive it
  /// @param ends_by_itself  false: the run is stoppable
  Run(Admission& admission, const MemoryAccount& account, bool ends_by_itself);
  ~Run() { leave(); }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  State state() const { return state_; }
  bool ends_by_itself() const { return state_ != State::nested && state_ != State::stoppable; }

  void queue();
  /// Moves the run to State::inside. Needs no mutex.
  void enter();
  /// Moves the run to State::left. Needs no mutex if the run has reserved nothing. Has no effect when called again.
  void leave();

  /// Reserves this many more bytes for later allocations of the run, until the run leaves.
  void reserve(size_t size_bytes);
  bool has_reserved() const { return reserved_bytes_ > 0; }
  /// Returns the bytes that other runs have reserved in the account and in its child accounts. Some of these bytes may be in use already.
  size_t reserved_by_others(const MemoryAccount& account) const;

  /// Returns true if another run can be expected to free memory. Call this first and look for free memory afterwards, so that no run that
  /// ends in between is missed. @pre queue() has been called, so that no two runs wait for each other.
  bool expects_others() const;

 private:
  friend class Admission::WaitingNode;
  int count(State state) const { return admission_.runs_[static_cast<size_t>(state)].load(); }
  bool is_counted() const;
  void move_to(State next);

  Admission& admission_;
  const MemoryAccount& account_;
  const uint32_t born_in_;  // the fork generation in which the run began: a forked child counts only its own runs
  State state_;
  int waiting_nodes_ = 0;
  size_t reserved_bytes_ = 0;
};

/// Marks that a node of a run waits for memory, while this object lives.
class Admission::WaitingNode {
 public:
  /// @param proceeds  true if the node will exceed the limit rather than fail
  WaitingNode(Run& run, bool proceeds);
  ~WaitingNode();
  WaitingNode(const WaitingNode&) = delete;
  WaitingNode& operator=(const WaitingNode&) = delete;

  /// See Run::expects_others().
  bool expects_others() const;

 private:
  Run& run_;
  const bool proceeds_;
};

}  // namespace treadle::exec
