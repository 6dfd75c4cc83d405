// The values of a run in flight, and the locations of their bytes. Other classes change it: FeedBinder adds feeds, OutputStore places
// outputs, RunBudget moves values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/values/large_memory.h"
#include "exec/explain/run_shortage.h"
#include "exec/plan/binding.h"
#include "exec/plan/lodging.h"
#include "exec/program/program.h"
#include "treadle/datum.h"

namespace treadle::exec {

class Plans;
struct BudgetedPlan;
struct RunControl;

/// Prepares a held value for a node. If later instructions overwrite it (Slot::rewritten), its storage is marked as lent, so that a node
/// that keeps the value makes a copy.
Datum for_node(const Slot& slot, Datum value);

/// Returns a view of a whole root with another shape, or another dtype of the same width (BitCast).
Tensor whole_as(const Tensor& root, DType dtype, const Shape& shape);

class RunState {
 public:
  static constexpr size_t kAway = RunSnapshot::kAway;  ///< marks a buffer that is not in the arena now

  /// @param plans  the program's plans; must outlive the state
  explicit RunState(Plans& plans);
  ~RunState();
  RunState(const RunState&) = delete;
  RunState& operator=(const RunState&) = delete;

  const Program& program() const { return program_; }
  Plans& plans() const { return plans_; }
  const Binding& binding() const { return *binding_; }
  bool has_binding() const { return binding_ != nullptr; }
  /// Gets the binding for the symbols' values (indexed as the symbol table). @throws errors of Binding::bind()
  void take_binding(std::span<const int64_t> symbol_values, const RunControl& control);

  // Values. Feeds, outputs, and results of dynamic instructions are held; all others are in the arena.

  /// Returns the slot's value; undefined if it has not been computed.
  /// @param shared  the value outlives the node that reads it: returns a copy if it is in memory that the run reuses
  Datum value(SlotId slot, bool shared) const;
  /// The held value of a root slot; undefined if there is none.
  const Datum& held(SlotId slot) const { return held_[slot]; }
  /// Sets a feed before the state has a binding.
  void set_feed(SlotId slot, Datum datum) { held_[slot] = std::move(datum); }
  /// Makes `datum` the slot's held value. @throws Error(invalid_argument) if its shape is not the inferred one
  void hold(SlotId slot, Datum datum);
  /// Copies a value from a device to the host memory where nodes, outputs and observers expect it.
  void put(SlotId slot, const Datum& value);
  void drop(SlotId slot) { held_[slot] = Datum(); }
  /// Drops the held values that are read last by this instruction.
  void release(const Instruction& instruction) {
    for (uint32_t r = 0; r < instruction.num_releases; ++r) drop(program_.releases()[instruction.first_release + r]);
  }
  void drop_all() noexcept;
  /// Returns true if the memory overlaps a feed.
  bool is_fed(const Tensor& memory) const;

  // Memory: the arena, and pointers into it.

  /// Returns true if all pointers into the arena and to constants are up to date.
  bool is_placed() const { return generation_ == binding_->places_generation(); }
  /// False: the run has no arena, as devices compute all values and nothing reads them on the host.
  void set_uses_arena(bool on);
  /// Updates all pointers. Allocates a new arena if the present one is too small. @param exact  also if the present one is too large
  void place(bool exact);
  /// Points all operands with bytes of this root slot into the tensor.
  void point_at(SlotId slot, const Tensor& tensor);
  /// The pointers of an instruction's operands, inputs first.
  void** pointers(const Instruction& instruction) { return pointers_.data() + instruction.first_operand; }
  /// The scratch memory of an instruction whose kernel was bound before the run.
  void* scratch(const Instruction& instruction) const {
    if (budget_) [[unlikely]]
      return budgeted_scratch(instruction);
    return arena_->data() + binding_->offsets().offsets[instruction.scratch_buffer];
  }

  std::byte* arena() const { return arena_->data(); }
  bool has_arena() const { return arena_ != nullptr; }
  size_t arena_bytes() const { return arena_ ? arena_->size_bytes() : 0; }
  size_t needed_arena_bytes() const;
  /// Drops the arena. Callers that have gradients in it keep those bytes; the other bytes are freed.
  void drop_arena() noexcept;
  /// Moves the arena out of the state, so that its values can be copied to a new one.
  std::shared_ptr<LargeBlock> take_arena() noexcept;
  void give_arena(std::shared_ptr<LargeBlock> arena) noexcept;
  /// Frees an arena from take_arena(), with the exception that drop_arena() makes.
  void drop_former(std::shared_ptr<LargeBlock> arena) noexcept;
  /// Must be called at the start of a run. Drops the arena if a caller still has gradients of the previous run in it. @return true if so
  bool drop_lent_arena() noexcept;
  /// Returns true if the arena can be resized in place.
  bool can_resize_arena() const { return arena_ && arena_->can_resize() && !arena_is_lent(); }
  /// Sets whether gradients may be in the arena (Lodgings), which may make it larger.
  void set_lodges(bool on);
  /// Returns memory in the arena for one of Program::preallocated(). It keeps the arena alive independently of this state. Null if the
  /// arena has no room for it.
  std::shared_ptr<Storage> lodge(size_t preallocated, size_t size_bytes);
  /// Resizes the arena in place. All pointers into it are invalid until place().
  /// @return false if there is not enough memory; nothing has changed then
  bool resize_arena(size_t size_bytes) noexcept;

  /// The budgeted plan that the run follows; null: the binding's offsets.
  const std::shared_ptr<const BudgetedPlan>& budget() const { return budget_; }
  void set_budget(std::shared_ptr<const BudgetedPlan> plan);
  /// The present offset of a buffer in the arena, or kAway.
  size_t place_of(BufferId buffer) const { return budget_ ? places_[buffer] : binding_->offsets().offsets[buffer]; }
  void set_place(BufferId buffer, size_t offset) { places_[buffer] = offset; }

  /// Returns a snapshot of the run's memory for the text of an error. @pre has_binding()
  RunSnapshot snapshot(const RunControl& control) const;

 private:
  bool arena_is_lent() const;
  Tensor piece_of(SlotId slot, const Tensor& root) const;
  Tensor in_arena(SlotId slot) const;
  void* budgeted_scratch(const Instruction& instruction) const;

  Plans& plans_;
  const Program& program_;
  std::shared_ptr<const Binding> binding_;
  std::vector<void*> pointers_;  // address of each operand
  IdVector<SlotId, Datum> held_;
  std::shared_ptr<LargeBlock> arena_;
  const Lodgings& lodgings() const;
  bool uses_arena_ = true, lodges_ = false;
  mutable std::optional<Lodgings> lodgings_;  // valid for the binding and the budget that the next two members identify
  mutable uint64_t lodgings_generation_ = 0;
  mutable std::shared_ptr<const BudgetedPlan> lodgings_budget_;
  std::vector<LargeBlock::Range> lodged_;  // parts of the arena that lodge() has given out in this run
  uint64_t generation_ = 0;                // identifies the binding that the pointers were made for; 0: none
  std::shared_ptr<const BudgetedPlan> budget_;
  IdVector<BufferId, size_t> places_;  // present offset of each buffer, if the run follows a budgeted plan
};

}  // namespace treadle::exec
