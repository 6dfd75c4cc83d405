// The values of a run in flight, and where their bytes are. It executes nothing and decides nothing: feeds come in by FeedBinder, outputs
// are placed by OutputStore, values are moved by RunBudget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/large_memory.h"
#include "exec/explain/run_shortage.h"
#include "exec/plan/binding.h"
#include "exec/plan/lodging.h"
#include "exec/program/program.h"
#include "treadle/datum.h"

namespace treadle::exec {

class Plans;
struct BudgetedPlan;
struct RunControl;

/// A held value for a node of a run: on loan where it is written over later, so that a node which keeps it makes a copy.
Datum for_node(const Slot& slot, Datum value);

/// What has all bytes of a root: with other extents, or of another dtype as wide (BitCast, a table of bytes in place).
Tensor whole_as(const Tensor& root, DType dtype, const Shape& shape);

class RunState {
 public:
  static constexpr size_t kAway = RunSnapshot::kAway;  ///< the place of a buffer that is not in the arena at the moment

  /// @param plans  of the program; outlive the state.
  explicit RunState(Plans& plans);
  ~RunState();
  RunState(const RunState&) = delete;
  RunState& operator=(const RunState&) = delete;

  const Program& program() const { return program_; }
  Plans& plans() const { return plans_; }
  const Binding& binding() const { return *binding_; }
  bool has_binding() const { return binding_ != nullptr; }
  /// Takes the binding for the symbols' values (indexed as the symbol table). @throws Error as Binding::bind.
  void take_binding(std::span<const int64_t> symbol_values, const RunControl& control);

  // Values. Held are feeds, outputs, and what is bound in the run; all others lie in the arena.

  /// Undefined if nothing has been computed.
  /// @param shared  the value outlives the node that asks: a copy where it lies in memory that the run uses again.
  Datum value(SlotId slot, bool shared) const;
  /// Of a root slot; undefined unless held.
  const Datum& held(SlotId slot) const { return held_[slot]; }
  /// A feed, before there is a binding.
  void set_feed(SlotId slot, Datum datum) { held_[slot] = std::move(datum); }
  /// @throws Error(invalid_argument) if the shape is not the inferred one.
  void hold(SlotId slot, Datum datum);
  /// For executors that compute elsewhere: a copy, where nodes, outputs and observers find it.
  void put(SlotId slot, const Datum& value);
  void drop(SlotId slot) { held_[slot] = Datum(); }
  /// What nobody reads any more once the instruction has run.
  void release(const Instruction& instruction) {
    for (uint32_t r = 0; r < instruction.num_releases; ++r) drop(program_.releases()[instruction.first_release + r]);
  }
  void drop_all() noexcept;
  /// True if some of the bytes are a feed's.
  bool is_fed(const Tensor& memory) const;

  // Bytes.

  /// Whether all pointers into the arena and to constants are right.
  bool is_placed() const { return generation_ == binding_->places_generation(); }
  /// Whether anything comes to lie in the arena; false: all of it is computed elsewhere, and nobody looks. There is none then.
  void set_uses_arena(bool on);
  /// Makes them right; the arena is renewed if it is too small.
  /// @param exact  also if it is too large.
  void place(bool exact);
  /// Operands that have the slot's bytes, or some of them, are found there.
  void point_at(SlotId slot, const Tensor& tensor);
  /// Of an instruction's operands, inputs first.
  void** pointers(const Instruction& instruction) { return pointers_.data() + instruction.first_operand; }
  /// Of an instruction that is bound ahead.
  void* scratch(const Instruction& instruction) const {
    if (budget_) [[unlikely]]
      return budgeted_scratch(instruction);
    return arena_->data() + binding_->offsets().offsets[instruction.scratch_buffer];
  }

  std::byte* arena() const { return arena_->data(); }
  bool has_arena() const { return arena_ != nullptr; }
  size_t arena_bytes() const { return arena_ ? arena_->size_bytes() : 0; }
  size_t needed_arena_bytes() const;
  /// Who has a part of it keeps that, and nothing else of it.
  void drop_arena() noexcept;
  /// The arena as it is, for who copies values out of it; there is none then.
  std::shared_ptr<LargeBlock> take_arena() noexcept;
  void give_arena(std::shared_ptr<LargeBlock> arena) noexcept;
  /// Of an arena that was taken: as drop_arena().
  void drop_former(std::shared_ptr<LargeBlock> arena) noexcept;
  /// Of a run that begins: an arena of which somebody has a part since the run before is dropped. @return whether that was so
  bool drop_lent_arena() noexcept;
  /// Whether the arena can have another size and keep what is in it.
  bool can_resize_arena() const { return arena_ && arena_->can_resize() && !arena_is_lent(); }
  /// Whether gradients may lie in the arena (Lodgings), which then is as large as that takes.
  void set_lodges(bool on);
  /// Memory in the arena for one of Program::preallocated(), which keeps the arena, whatever becomes of this state; null: there is none.
  std::shared_ptr<Storage> lodge(size_t preallocated, size_t size_bytes);
  /// All pointers into it are wrong then, until place(). @return false if there is no room; nothing has changed.
  bool resize_arena(size_t size_bytes) noexcept;

  /// The plan that places follow, where a run keeps to a budget; null: the binding's offsets.
  const std::shared_ptr<const BudgetedPlan>& budget() const { return budget_; }
  void set_budget(std::shared_ptr<const BudgetedPlan> plan);
  /// Offset of a buffer in the arena, or kAway.
  size_t place_of(BufferId buffer) const { return budget_ ? places_[buffer] : binding_->offsets().offsets[buffer]; }
  void set_place(BufferId buffer, size_t offset) { places_[buffer] = offset; }

  /// What the run has, for the text of an error. @pre has_binding()
  RunSnapshot snapshot(const RunControl& control) const;

 private:
  bool arena_is_lent() const;
  Tensor piece_of(SlotId slot, const Tensor& root) const;
  Tensor in_arena(SlotId slot) const;
  void* budgeted_scratch(const Instruction& instruction) const;

  Plans& plans_;
  const Program& program_;
  std::shared_ptr<const Binding> binding_;
  std::vector<void*> pointers_;  // per operand
  IdVector<SlotId, Datum> held_;
  std::shared_ptr<LargeBlock> arena_;
  const Lodgings& lodgings() const;
  bool uses_arena_ = true, lodges_ = false;
  mutable std::optional<Lodgings> lodgings_;  // of the binding's places_generation() and the budget as follows
  mutable uint64_t lodgings_generation_ = 0;
  mutable std::shared_ptr<const BudgetedPlan> lodgings_budget_;
  std::vector<LargeBlock::Range> lodged_;  // of the arena: what lodge() gave in this run
  uint64_t generation_ = 0;                // of the binding that the pointers were made for; 0: none
  std::shared_ptr<const BudgetedPlan> budget_;
  IdVector<BufferId, size_t> places_;  // of a run with a budget
};

}  // namespace treadle::exec
