// The values of one run in flight. A frame outlives a call, so that a run can stop at a Yield and resume.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/fork_mutex.h"
#include "exec/binding.h"
#include "exec/program.h"
#include "exec/slide.h"
#include "graph/evaluate.h"
#include "treadle/datum.h"

namespace treadle {
class Allocator;
class Recorder;
struct AllocationContext;
namespace memory {
class SpillFile;
}
namespace sharing {
class JobState;
class Turn;
struct Interruption;
}  // namespace sharing
}  // namespace treadle

namespace treadle::exec {

class Frame;
class MemoryPass;
struct BudgetedPlan;
struct ParallelState;

/// Watches a run: called around every instruction, those of bodies included, on the thread that runs it; by several threads at once where
/// the executor is parallel. What it throws ends the run.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void before(const Frame& frame, const Instruction& instruction) = 0;
  virtual void after(const Frame& frame, const Instruction& instruction) = 0;
};

/// Between a run and a caller who may leave before it ends, because a kernel does not return.
struct Caller {
  std::mutex mutex;                             ///< held while anything is touched that belongs to the caller: flags, callbacks
  bool left = false;                            ///< from then on nothing is
  std::atomic<const Node*> under_way{nullptr};  ///< the last node that was begun
};

/// A held value for a node of a run: on loan where it is written over later, so that a node which keeps it makes a copy.
Datum for_node(const Slot& slot, Datum value);

/// What has all bytes of a root: with other extents, or of another dtype as wide (BitCast, a table of bytes in place).
Tensor whole_as(const Tensor& root, DType dtype, const Shape& shape);

/// How a run is done, apart from what it computes.
struct RunControl {
  ThreadPool* pool = nullptr;
  // True: stop before the next instruction, or the next iteration of a loop. Of the run's options, its token, and the session.
  const std::atomic<bool>* cancel = nullptr;
  const std::atomic<bool>* token = nullptr;
  const std::atomic<bool>* closing = nullptr;
  std::optional<std::chrono::steady_clock::time_point> deadline;
  Recorder* recorder = nullptr;
  Observer* observer = nullptr;
  Caller* caller = nullptr;                   ///< null: it stays until the end
  uint64_t run_id = 0;                        ///< what randomness depends on, besides seed and node
  const AllocationContext* memory = nullptr;  ///< for threads other than the run's own, which has a scope
  MemoryPass* pass = nullptr;                 ///< of a session with a memory limit
  int max_threads = 0;                        ///< what bindings are made for: of the largest pool that runs may use; 0: of `pool`
  int intra_op_threads = 0;                   ///< of one node, in the parallel executor; 0: all of the pool
  sharing::JobState* job = nullptr;           ///< what the run gives way for, and how much time it may take
  bool denormals_as_zero = false;             ///< for threads other than the run's own, which is in that mode
  int inter_op_threads = 0;                   ///< nodes at once, in the parallel executor; 0: as many as the pool has threads, 1: in order

  bool watched() const { return recorder || observer || deadline || caller; }
  /// Calls what belongs to the caller, unless it has left. @throws Error(timed_out)
  template <typename Callback>
  void call(Callback&& callback) const {
    if (!caller) return callback();
    std::lock_guard lock(caller->mutex);
    if (caller->left) throw_left();
    callback();
  }
  bool stop_requested() const {
    return (cancel && cancel->load(std::memory_order_relaxed)) || (token && token->load(std::memory_order_relaxed)) ||
           (closing && closing->load(std::memory_order_relaxed));
  }
  /// What check() looks at, as an answer, for who must not throw: kernels that go on elsewhere. True once the caller has left.
  bool stopping() const {
    auto now = [&] { return stop_requested() || (deadline && std::chrono::steady_clock::now() > *deadline); };
    if (!caller) return now();
    std::lock_guard lock(caller->mutex);
    return caller->left || now();
  }
  /// @throws Error(cancelled or timed_out)
  void check() const {
    if (caller)
      call([&] { check_closely(); });
    else if (stop_requested() || deadline)
      check_closely();
  }
  void check_closely() const;
  [[noreturn]] static void throw_left();
  /// For waits: check(), called from time to time. Holds a pointer to this.
  sharing::Interruption interruption() const;
};

/// Where a run may put an output whose extents the feeds' shapes determine, if it is not bound.
struct OutputMemory {
  std::shared_ptr<Storage> storage;      ///< used if it is large enough
  bool reusable = false;                 ///< new memory is made larger than needed: it will come back for outputs that grow
  std::shared_ptr<Allocator> allocator;  ///< where new memory comes from; null: from where all memory of the run comes
  int appends_to = -1;                   ///< a feed that the output begins with, in memory that may be written behind its end
  int grows_from = -1;  ///< a feed whose memory nobody else has: its rows may be moved within it if they are the output's (Slide)
};

class Frame {
 public:
  explicit Frame(const Program& program);
  ~Frame();

  /// Takes the feeds, finds the binding and readies every pointer. Allocates nothing if the binding is the one of the last run.
  /// @param feeds    one per input of the program; an undefined Datum where the program has an input that is not fed is an error.
  /// @param bound    empty, or one per output: memory that the caller wants the output in (undefined: none).
  /// @param parent_values  of a body: the symbols' values of the run around it; empty otherwise.
  /// @param memory   empty, or one per output.
  /// @throws Error naming the feed, its type and what was expected.
  void start(std::span<const Datum> feeds, std::span<const Datum> bound, const RunControl& control,
             std::span<const int64_t> parent_values = {}, std::span<const OutputMemory> memory = {});

  /// Runs from the program counter until a Yield, the instruction `stop`, or the end. @return true at the end.
  bool advance(size_t stop = SIZE_MAX);
  bool finished() const { return pc_ == program_.instructions().size(); }
  bool at_yield() const { return !finished() && yield().is_yield; }
  /// The instruction that is next.
  size_t position() const { return pc_; }
  /// Instructions from the program counter to the next Yield, or the end.
  size_t steps_left() const;
  /// advance() over so many instructions. @return steps_left() then.
  size_t advance_steps(size_t count) {
    advance(pc_ + std::min(count, steps_left()));
    return steps_left();
  }

  /// Values of instructions with one output, by name. One that is there replaces the computation; an undefined one is filled in when the
  /// instruction has run. Outlives the frame's runs; null: none.
  using Cache = std::map<std::string, Datum, std::less<>>;
  void set_cache(std::shared_ptr<Cache> cache) { cache_ = std::move(cache); }

  /// Stopped at a Yield: the values handed out, and what to hand in before advance() goes on.
  const Instruction& yield() const { return program_.instructions()[pc_]; }
  std::vector<Datum> yielded();
  void resume(std::span<const Datum> values);

  /// After the end: the outputs, one per output of the program. The frame keeps none of them.
  /// @param memory  as for start().
  void take_outputs(std::span<Datum> outputs, std::span<const OutputMemory> memory = {});
  /// After an error: feeds whose rows have been moved within their memory are as they were.
  void restore_feeds();
  /// Drops everything that the run holds (after the end, or an error).
  void clear();

  const Program& program() const { return program_; }
  const Binding& binding() const { return *binding_; }
  /// The plan that the run keeps its budget with; null if it needs none.
  const BudgetedPlan* budget() const { return budget_.get(); }
  size_t arena_bytes() const { return arena_ ? arena_->size_bytes() : 0; }
  /// Lets go of the arena, between runs.
  void trim() noexcept;
  RunControl& control() { return control_; }
  const RunControl& control() const { return control_; }
  /// For observers: the value as it is now; it lies in memory that the run uses again. Undefined if nothing has been computed.
  Datum value(int32_t slot) const { return datum_of(slot, /*shared=*/false); }
  /// For executors that compute elsewhere: the host's copy of a computed value, where take_outputs() and observers find it.
  /// @param slot  a root slot in the arena, or held.
  void put(int32_t slot, const Datum& value);

 private:
  friend class DynamicInstruction;
  friend class ParallelRun;
  void execute_one(const Instruction& instruction, size_t index, Evaluator& evaluator, sharing::Turn& turn);
  void drop(int32_t slot) { held_[static_cast<size_t>(slot)] = Datum(); }
  ParallelState& parallel_state();
  void bind_feeds(std::span<const Datum> feeds);
  void choose_budget(bool begins);
  std::unique_lock<std::mutex> begin_within_limit();
  template <typename Admit>
  std::unique_lock<std::mutex> room_for_budget(bool begins, Admit&& admit);
  bool may_reorder() const;
  size_t index_at(size_t step) const;  // of a run that may have a budget: the instruction
  std::unique_lock<std::mutex> make_room();
  void move_values();
  void recompute(const BudgetedPlan& plan, size_t first, size_t count);
  void write_out(size_t file_offset, size_t offset, size_t size_bytes);
  void read_back(size_t file_offset, size_t offset, size_t size_bytes);
  bool follow_limit();
  size_t output_bytes() const;
  bool is_away_without_copy(size_t buffer) const;
  void ready_pointers();
  void execute(const Instruction& instruction, Evaluator& evaluator);
  void execute_watched(const Instruction& instruction, Evaluator& evaluator);
  void execute_cached(const Instruction& instruction);
  void release(const Instruction& instruction);
  void renew_buffers(size_t instruction);
  [[noreturn]] void rethrow_from(const Instruction& instruction) const;
  Tensor make_output(int32_t slot, std::span<const OutputMemory> memory) const;
  Tensor make_beside_feed(int32_t slot, std::span<const OutputMemory> memory);
  void hold(int32_t slot, Datum datum);
  bool is_fed(const Tensor& memory) const;  // some of its bytes are a feed's
  void verify_outputs_over_feeds() const;
  void point_at(int32_t slot, const Tensor& tensor);  // all operands that have the slot's bytes, or some of them
  Datum datum_of(int32_t slot, bool shared) const;

  const Program& program_;
  RunControl control_;
  std::shared_ptr<const Binding> binding_;
  uint64_t generation_ = 0;  // of the binding that the pointers were readied for
  std::vector<int64_t> symbol_values_;
  std::vector<void*> pointers_;                               // per operand
  std::vector<Datum> held_;                                   // per slot: feeds and held values
  std::vector<Datum> bound_;                                  // per output
  std::list<Slide> slides_;                                   // of feeds that an output may grow from
  std::vector<std::pair<const Slide*, std::byte*>> sliding_;  // of this run, and where their feeds begin
  std::shared_ptr<Storage> arena_;
  Evaluator evaluator_;  // for instructions bound in the run
  size_t pc_ = 0;
  std::shared_ptr<Cache> cache_;
  std::unique_ptr<ParallelState> parallel_state_;

  // Of a run that keeps to a budget.
  static constexpr size_t kAway = SIZE_MAX;
  std::shared_ptr<const BudgetedPlan> budget_;
  uint64_t limit_generation_ = 0;  // of the limit that the plan was chosen for
  size_t later_bytes_ = 0;         // beside arena and outputs, when nodes ask for them
  bool capped_ = false;            // there is a limit
  static constexpr size_t kNeverMoved = SIZE_MAX;
  size_t moved_before_ = kNeverMoved;  // the instruction whose moves have been done
  std::vector<size_t> where_;          // per buffer: its offset now, or kAway
  std::vector<void*> replay_pointers_;
  std::unique_ptr<memory::SpillFile> spill_file_;
};

/// Frames of a program that no run uses right now.
class FramePool {
 public:
  std::unique_ptr<Frame> take(const Program& program);
  void give_back(std::unique_ptr<Frame> frame) noexcept;
  /// Lets go of the arenas of frames that no run uses.
  void trim() noexcept;

 private:
  ForkMutex mutex_;
  std::vector<std::unique_ptr<Frame>> idle_;  // with room for all frames, so that giving one back cannot fail
  size_t num_frames_ = 0;
};

/// Runs a whole program. @throws Error; a Yield in it is an error (use a Frame).
void run(const Program& program, std::span<const Datum> feeds, std::span<Datum> outputs, const RunControl& control,
         std::span<const Datum> bound = {}, std::span<const int64_t> parent_values = {}, std::span<const OutputMemory> memory = {});

}  // namespace treadle::exec
