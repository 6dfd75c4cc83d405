// What a run must do for its job when several jobs share the device: at its begin and end, and before every node.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/base/fork_mutex.h"
#include "core/threads/thread_pool.h"
#include "sharing/job_table.h"

namespace treadle {
class Recorder;
}

namespace treadle::sharing {

/// A job of this process. After a fork, the child's runs belong to another job, with another slot.
class JobState {
 public:
  explicit JobState(const JobOptions& options);
  ~JobState();
  JobState(const JobState&) = delete;
  JobState& operator=(const JobState&) = delete;

  JobSlot& slot() {
    if (generation_.load(std::memory_order_acquire) != claimed_in(fork_generation())) [[unlikely]]
      claim_in_child();
    return page_.slots[index_];
  }
  int index() {
    slot();
    return index_;
  }
  Page& page() { return page_; }
  void set(const JobChange& change) { apply(page_, index(), change); }

  /// Idle time in nanoseconds that ended runs still owe to keep to the share; negative: they slept too long.
  std::atomic<int64_t> owed_ns{0};
  std::atomic<uint32_t> account_word{0};  ///< value of JobSlot::word for which owed_ns is counted; a new value resets owed_ns

 private:
  // Values of generation_ in the process with this fork_generation(). Claimed: the process has a slot. Claiming: one of its threads is
  // claiming a slot, and the others wait for that.
  static uint32_t claiming_in(uint32_t generation) { return 2 * generation + 1; }
  static uint32_t claimed_in(uint32_t generation) { return 2 * generation + 2; }
  void claim(const JobOptions& options);
  void claim_in_child();

  Page& page_;
  int index_ = 0;
  std::atomic<uint32_t> generation_{0};
};

/// A check that threads call every few milliseconds while they wait. It throws if the run must end.
struct Interruption {
  void (*check)(const void* context) = nullptr;
  const void* context = nullptr;
};

/// Registers a run in the table, measures it, and lowers its thread's priority if the job is opportunistic. Does nothing for a null job.
class RunScope {
 public:
  RunScope(JobState* job, int threads);
  ~RunScope();
  RunScope(const RunScope&) = delete;
  RunScope& operator=(const RunScope&) = delete;

 private:
  JobState* job_;
  uint64_t start_ns_ = 0;
  int policy_before_ = -1;              // the thread's previous scheduling policy, if it was changed
  LoopBreakScope outer_runs_{nullptr};  // a run inside a node of another run does not yield on behalf of that run
};

/// Does what a run's job requires before each node of the run. Bodies of control flow use the turn of their node if they run on its thread.
class Turn final : LoopBreak {
 public:
  /// @param recorder  records idle time of the run; may be null
  Turn(JobState* job, Recorder* recorder, uint16_t record_run, Interruption interruption) {
    if (job) [[unlikely]]
      begin(job, recorder, record_run, interruption);
  }
  ~Turn() {
    if (state_.job) [[unlikely]]
      end();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  /// Returns true if before_node() has anything to do. Reads only one word.
  bool has_duty() const { return (word_->load(std::memory_order_relaxed) & kAnyDuty) != 0; }
  void before_node(const NodeHint& hint) {
    if (has_duty()) [[unlikely]]
      current_->act(hint);
  }
  /// Returns true if the job yields to guaranteed jobs.
  bool gives_way() const { return (word_->load(std::memory_order_relaxed) & kGivesWay) != 0; }
  /// For loops inside a node: an opportunistic job yields between the chunks of loops, too. Null if the job does not yield.
  LoopBreak* within_node() { return gives_way() ? current_ : nullptr; }

 private:
  struct State {
    JobState* job = nullptr;
    JobSlot* slot = nullptr;
    Recorder* recorder = nullptr;
    uint16_t record_run = 0;
    Interruption interruption;
    uint64_t boundary_ns = 0;  // time at which the current node began, if it counts as busy
    int64_t owed_ns = 0;
    uint32_t seen = 0;  // value of JobSlot::word for which owed_ns is counted; 0: none yet
    NodeHint hint;      // facts about the current node
  };

  void begin(JobState* job, Recorder* recorder, uint16_t record_run, Interruption interruption);
  void end();
  void act(const NodeHint& hint);
  void open_account(uint32_t word);
  void account(uint64_t now);
  void sleep_off(uint64_t now);
  void wait_suspended();
  bool wanted() const noexcept override { return (state_.slot->word.load(std::memory_order_relaxed) & kGivesWay) != 0 && must_give_way(); }
  void take() override { give_way(); }
  bool must_give_way() const noexcept;
  void give_way();
  template <typename Wait>
  void away(const char* what, std::atomic<uint64_t>& counter, Wait&& wait);

  static const std::atomic<uint32_t> kNothing;
  static thread_local constinit Turn* of_thread_;

  const std::atomic<uint32_t>* word_ = &kNothing;
  Turn* current_ = nullptr;  // either this object, or the turn of the node in which this run is nested
  Turn* outer_ = nullptr;    // the thread's turn before this one
  State state_;
};

}  // namespace treadle::sharing
