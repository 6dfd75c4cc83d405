// A run in flight on the host: its values, and the program counter.
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
#include "exec/executor.h"
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

/// A held value for a node of a run: on loan where it is written over later, so that a node which keeps it makes a copy.
Datum for_node(const Slot& slot, Datum value);

/// What has all bytes of a root: with other extents, or of another dtype as wide (BitCast, a table of bytes in place).
Tensor whole_as(const Tensor& root, DType dtype, const Shape& shape);

/// A run on the host. Its steps are instructions, one after the other; exec::run() has them at once where that pays (parallel.h).
class Frame final : public Run {
 public:
  explicit Frame(const Program& program);
  ~Frame() override;

  void start(std::span<const Datum> feeds, std::span<const Datum> bound, const RunControl& control,
             std::span<const OutputMemory> memory) override {
    start(feeds, bound, control, memory, {});
  }
  /// @param parent_values  of a body: the symbols' values of the run around it.
  void start(std::span<const Datum> feeds, std::span<const Datum> bound, const RunControl& control, std::span<const OutputMemory> memory,
             std::span<const int64_t> parent_values);
  void set_cache(std::shared_ptr<ValueCache> cache) override { cache_ = std::move(cache); }

  bool advance(size_t steps = SIZE_MAX) override;
  size_t steps_left() const override;
  size_t steps_through(size_t instruction) const override { return instruction < pc_ ? 0 : instruction + 1 - pc_; }
  bool finished() const override { return pc_ == program_.instructions().size(); }

  const Instruction* yield() const override {
    return !finished() && program_.instructions()[pc_].is_yield ? &program_.instructions()[pc_] : nullptr;
  }
  std::vector<Datum> yielded() override;
  void resume(std::span<const Datum> values) override;

  void take_outputs(std::span<Datum> outputs) override;
  /// After an error: feeds whose rows have been moved within their memory are as they were.
  void restore_feeds();
  void clear() noexcept override;
  void trim() noexcept override;

  const Program& program() const { return program_; }
  const Binding& binding() const { return *binding_; }
  /// The plan that the run keeps its budget with; null if it needs none.
  const BudgetedPlan* budget() const { return budget_.get(); }
  size_t arena_bytes() const { return arena_ ? arena_->size_bytes() : 0; }
  const RunControl& control() const override { return control_; }
  /// For observers: the value as it is now; it lies in memory that the run uses again. Undefined if nothing has been computed.
  Datum value(int32_t slot) const { return datum_of(slot, /*shared=*/false); }
  /// For executors that compute elsewhere: the host's copy of a computed value, where take_outputs() and observers find it.
  /// @param slot  a root slot in the arena, or held.
  void put(int32_t slot, const Datum& value);

 private:
  friend class ParallelRun;
  class Operands;
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
  void execute_dynamic(const Instruction& instruction, Evaluator& evaluator);
  void execute_watched(const Instruction& instruction, Evaluator& evaluator);
  void record(const Instruction& instruction, uint64_t start, uint64_t end) const;
  void execute_cached(const Instruction& instruction);
  void check_before(size_t index);
  void release(const Instruction& instruction);
  void renew_buffers(size_t instruction);
  [[noreturn]] void rethrow_from(const Instruction& instruction) const;
  Tensor make_output(int32_t slot) const;
  Tensor make_beside_feed(int32_t slot);
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
  std::vector<OutputMemory> memory_;                          // likewise
  std::list<Slide> slides_;                                   // of feeds that an output may grow from
  std::vector<std::pair<const Slide*, std::byte*>> sliding_;  // of this run, and where their feeds begin
  std::shared_ptr<Storage> arena_;
  Evaluator evaluator_;  // for instructions bound in the run
  size_t pc_ = 0;
  std::atomic<bool> committed_ = false;  // updates have begun
  std::shared_ptr<ValueCache> cache_;
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

class FramePool final : public RunPool<Frame> {};

/// Runs a whole program on the host. @throws Error; a Yield in it is one.
void run(const Program& program, std::span<const Datum> feeds, std::span<Datum> outputs, const RunControl& control,
         std::span<const Datum> bound = {}, std::span<const OutputMemory> memory = {}, std::span<const int64_t> parent_values = {});

}  // namespace treadle::exec
