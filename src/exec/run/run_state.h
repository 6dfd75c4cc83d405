// The values of a run, and the locations of their bytes. Other classes change this state: FeedBinder adds feeds, OutputStore places
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

/// Prepares a held value for use by a node. If later instructions overwrite the value (Slot::rewritten), marks its storage as lent. A node
/// that keeps the value then makes a copy.
Datum for_node(const Slot& slot, Datum value);

/// Returns a view of all bytes of the tensor `root`, with another shape or with another dtype of the same width (as for BitCast).
Tensor whole_as(const Tensor& root, DType dtype, const Shape& shape);

class RunState {
 public:
  static constexpr size_t kAway = RunSnapshot::kAway;  ///< marks a buffer that is not in the arena now

  /// @param plans  plans of the program; must outlive the state
  explicit RunState(Plans& plans);
  ~RunState();
  RunState(const RunState&) = delete;
  RunState& operator=(const RunState&) = delete;

  const Program& program() const { return program_; }
  Plans& plans() const { return plans_; }
  const Binding& binding() const { return *binding_; }
  bool has_binding() const { return binding_ != nullptr; }
  /// Gets the binding for these values of the symbols (one per entry of the symbol table). @throws errors of Binding::bind()
  void take_binding(std::span<const int64_t> symbol_values, const RunControl& control);

  // Values. Feeds, outputs and results of dynamic instructions are in memory of their own (held); all others are in the arena.

  /// Returns the slot's value; undefined if it has not been computed.
  /// @param shared  true if the value is used after the reading node has ended; it is then copied if the run reuses its memory
  Datum value(SlotId slot, bool shared) const;
  /// The held value of a root slot (a slot with bytes of its own); undefined if there is none.
  const Datum& held(SlotId slot) const { return held_[slot]; }
  /// Sets a feed before the state has a binding.
  void set_feed(SlotId slot, Datum datum) { held_[slot] = std::move(datum); }
  /// Stores `datum` as the slot's held value. @throws Error(invalid_argument) if its shape differs from the inferred one
  void hold(SlotId slot, Datum datum);
  /// Copies a value from a device to the host memory in which nodes, outputs and observers expect it.
  void put(SlotId slot, const Datum& value);
  void drop(SlotId slot) { held_[slot] = Datum(); }
  /// Drops the held values for which this instruction is the last reader.
  void release(const Instruction& instruction) {
    for (uint32_t r = 0; r < instruction.num_releases; ++r) drop(program_.releases()[instruction.first_release + r]);
  }
  void drop_all() noexcept;
  /// Returns true if the memory overlaps a feed.
  bool is_fed(const Tensor& memory) const;

  // Memory: the arena, and the pointers to operands.

  /// Returns true if all pointers to the arena and to constants are up to date.
  bool is_placed() const { return generation_ == binding_->places_generation(); }
  /// If `on` is false, the run has no arena, because devices compute all values and nothing reads them on the host.
  void set_uses_arena(bool on);
  /// Updates all pointers. Allocates a new arena if the present one is too small. @param exact  true: also if the arena is too large
  void place(bool exact);
  /// Makes the pointers of all operands that share the bytes of this root slot point into the tensor, which now has these bytes.
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
  /// Drops the arena. If callers still hold gradients in it, only the bytes of these gradients stay allocated.
  void drop_arena() noexcept;
  /// Moves the arena out of the state, so that its values can be copied to a new one.
  std::shared_ptr<LargeBlock> take_arena() noexcept;
  void give_arena(std::shared_ptr<LargeBlock> arena) noexcept;
  /// Frees an arena that take_arena() has returned. As with drop_arena(), gradients that callers still hold stay allocated.
  void drop_former(std::shared_ptr<LargeBlock> arena) noexcept;
  /// Must be called at the start of a run. Drops the arena if a caller still holds gradients of the previous run in it. @return true if so
  bool drop_lent_arena() noexcept;
  /// Returns true if the arena can be resized in place.
  bool can_resize_arena() const { return arena_ && arena_->can_resize() && !arena_is_lent(); }
  /// Sets whether gradients that the run hands out may be in the arena (Lodgings). That may make the arena larger.
  void set_lodges(bool on);
  /// Returns memory in the arena for a slot, given its index in Program::preallocated(). The memory keeps the arena allocated even after
  /// this state has dropped it. Null if the arena has no room.
  std::shared_ptr<Storage> lodge(size_t preallocated, size_t size_bytes);
  /// Resizes the arena in place. All pointers to it are invalid until place() is called.
  /// @return false if there is too little memory; then nothing has changed
  bool resize_arena(size_t size_bytes) noexcept;

  /// The budgeted plan that the run follows; null: the run uses the binding's offsets.
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
  mutable std::optional<Lodgings> lodgings_;  // valid for the binding and budget in the next two members
  mutable uint64_t lodgings_generation_ = 0;
  mutable std::shared_ptr<const BudgetedPlan> lodgings_budget_;
  std::vector<LargeBlock::Range> lodged_;  // parts of the arena that lodge() has handed out in this run
  uint64_t generation_ = 0;                // identifies the binding for which the pointers were set; 0: none
  std::shared_ptr<const BudgetedPlan> budget_;
  IdVector<BufferId, size_t> places_;  // for a run with a budgeted plan: the present offset of each buffer
};

}  // namespace treadle::exec
