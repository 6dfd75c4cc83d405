// A binding: the shapes, bound kernels and arena offsets of a program for one set of input extents. Also the cache of bindings.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/base/fork_mutex.h"
#include "exec/plan/binding_budgets.h"
#include "exec/plan/node_costs.h"
#include "exec/plan/offset_plan.h"
#include "exec/plan/parameter_versions.h"
#include "exec/plan/proof.h"
#include "exec/program/program.h"
#include "treadle/tensor.h"

namespace treadle {
class ThreadPool;
}

namespace treadle::exec {

class Plans;
struct BudgetedPlan;

class Binding {
 public:
  /// @param plans  the plans of the program to bind; must outlive this object
  explicit Binding(Plans& plans);

  /// Evaluates all extents, binds kernels and plans offsets. Allocates nothing if the object has been bound before and an earlier plan of
  /// offsets fits.
  /// @param symbol_values  one value per entry of the symbol table; only those in ProgramExtents::symbols are read.
  /// @param bucketed  true: plan offsets for rounded-up extents (bucketed_sizes()), so that they stay valid while extents grow.
  /// @param pool  threads that pack weights when the object is bound for the first time; null: the calling thread packs them.
  /// @throws Error naming the node whose kernel does not accept its shapes
  void bind(std::span<const int64_t> symbol_values, int max_threads, bool bucketed, ThreadPool* pool,
            std::shared_ptr<const ParameterVersion> parameters = nullptr);

  /// Notes that a later run has the same extents again. Then it pays to search for better plans (BindingBudgets::affordable()).
  void note_return() const {
    if (!came_back()) came_back_.store(true, std::memory_order_relaxed);
  }
  bool came_back() const { return came_back_.load(std::memory_order_relaxed); }

  const Program& program() const { return program_; }
  const Shape& shape(SlotId slot) const { return shapes_[slot]; }
  const void* state(const Instruction& instruction) const { return state_.get() + instruction.state_offset; }
  /// Weights packed by the instruction's kernel, for the version parameters(); null if the kernel has packed nothing.
  const PackedState* packed(const Instruction& instruction) const {
    return instruction.versioned < 0 ? instruction.packed.get()
                                     : parameters_->packed[static_cast<size_t>(instruction.versioned)].state.get();
  }
  /// The elements of a root slot (one with bytes of its own) that is a constant, a parameter or computed from parameters.
  const Datum& constant(SlotId slot) const {
    const bool is_parameter = parameters_ && parameters_->constants[slot].defined();
    return is_parameter ? parameters_->constants[slot] : program_.constant(slot);
  }
  /// The version of the parameters that runs with this binding read; null if the program has no parameters that may change.
  const std::shared_ptr<const ParameterVersion>& parameters() const { return parameters_; }
  const Tensor& known(SlotId slot) const { return known_[slot]; }
  /// The row stride, in elements, for which the kernel of this operand was bound; 0: contiguous.
  int64_t operand_step(size_t operand) const { return operand_steps_.empty() ? 0 : operand_steps_[operand]; }
  /// Offset in bytes of the slot within its root slot, the value whose memory it shares.
  size_t piece_offset(SlotId slot) const { return piece_offsets_.empty() ? 0 : piece_offsets_[slot]; }
  const OffsetPlan& offsets() const { return *offsets_; }
  IdSpan<BufferId, const size_t> buffer_sizes() const { return sizes_; }
  /// Returns the sizes of the buffers for other values of the symbols, in bytes. Scratch sizes stay as they are, because only kernels know
  /// them.
  /// @throws Error if the extents contradict each other
  IdVector<BufferId, size_t> buffer_sizes_for(std::vector<int64_t> values) const;
  /// Shapes and dtypes of an instruction's operands, inputs first. An absent operand has the shape of a scalar and no dtype.
  std::span<const Shape* const> operand_shapes(const Instruction& instruction) const { return of(instruction, operand_shapes_); }
  std::span<const DType> operand_dtypes(const Instruction& instruction) const { return of(instruction, operand_dtypes_); }
  std::span<const int64_t> values() const { return values_; }
  /// Estimated costs of nodes. Available only if the program runs nodes in parallel or its runs belong to a job.
  const NodeCosts& costs() const { return costs_; }
  /// Plans that need less memory than offsets().
  BindingBudgets& budgets() const { return budgets_; }
  /// Returns a number that changes with every bind(). No other binding in the process has the same number.
  uint64_t generation() const { return generation_; }
  /// Returns the bytes of a slot's value. @pre the extents are known before the run (Slot::static_shape)
  size_t bytes_of(SlotId slot) const;
  /// The record of whether the plan has been verified. With verify_plans, the first run with this binding verifies it (exec/verify).
  const Proof& proof() const { return proof_; }
  /// A number that changes if bind() moves a value in the arena. A run compares it to find out whether its pointers are still valid.
  uint64_t places_generation() const { return places_generation_; }

 private:
  friend struct BindingCache;
  void evaluate();
  void compare_extents() const;
  void pack_ahead(int max_threads, ThreadPool* pool);
  void bind_all(ThreadPool* pool);
  void bind_again();
  void bind_instruction(const Instruction& instruction, int max_threads);
  bool place_pieces();  // returns true if the offset of a value in the arena has changed
  void place(bool bucketed);
  template <typename T>
  static std::span<const T> of(const Instruction& instruction, const std::vector<T>& operands) {
    return std::span(operands).subspan(instruction.first_operand, static_cast<size_t>(instruction.num_inputs) + instruction.num_outputs);
  }
  const Tensor* elements_of(SlotId slot) const;
  void take_parameters(std::shared_ptr<const ParameterVersion> parameters);

  Plans& plans_;
  const Program& program_;
  std::shared_ptr<const ParameterVersion> parameters_;
  std::vector<int64_t> values_;  // values of the symbol table's expressions
  IdVector<SlotId, Shape> shapes_;
  IdVector<SlotId, Tensor> known_;  // elements of the slots with LocationKind::known
  // The instructions and buffers that depend on symbols. All others are bound only once.
  std::vector<const Instruction*> varying_;
  std::vector<BufferId> varying_buffers_;
  IdVector<SlotId, uint8_t> changed_;  // 1 if the shape or the known elements differ from the previous bind()
  std::vector<const Shape*> operand_shapes_;
  std::vector<DType> operand_dtypes_;
  std::vector<const Tensor*> operand_values_;
  std::vector<int64_t> operand_steps_;  // Slot::row_step of each operand; empty if all are 0
  std::unique_ptr<std::byte[]> state_;
  IdVector<BufferId, size_t> sizes_;        // sizes in bytes
  IdVector<SlotId, size_t> piece_offsets_;  // offsets in bytes within the slot whose bytes are shared; empty: no slot lies within another
  std::shared_ptr<const OffsetPlan> offsets_;
  uint64_t generation_ = 0, places_generation_ = 0;
  bool bound_before_ = false;
  Proof proof_;
  mutable std::atomic<bool> came_back_ = false;
  int max_threads_ = 0;
  NodeCosts costs_;
  mutable BindingBudgets budgets_;
};

/// The most recently used bindings of a program, found by the values of its symbols. Thread-safe. A binding that a run holds never changes.
struct BindingCache {
  static constexpr size_t kCapacity = 16;

  /// @param plans  the plans of the program, which own this cache
  explicit BindingCache(Plans& plans) : owner_(plans) {}

  /// Returns a binding for these values, with the current version of the parameters. If there is none, reuses an unused binding or makes a
  /// new one.
  /// @param pool      as in Binding::bind()
  /// @param previous  the caller's previous binding, which may be reused if nothing else refers to it.
  std::shared_ptr<const Binding> get(std::span<const int64_t> symbol_values, int max_threads, ThreadPool* pool = nullptr,
                                     std::shared_ptr<const Binding> previous = {});
  /// Called before a new version of the parameters is made: unused bindings release the old version, which frees its memory.
  void let_parameters_go();
  /// Returns a binding to the cache, under the cache's lock. While the caller holds it, no thread can bind it to other extents.
  void let_go(std::shared_ptr<const Binding> binding);

  struct Statistics {
    int64_t hits = 0, misses = 0, plans = 0;
  };
  Statistics statistics() const;

  // Used by Binding. Returns an earlier offset plan that is large enough for buffers of these sizes; null if there is none.
  std::shared_ptr<const OffsetPlan> find_plan(std::span<const size_t> sizes) const;
  void add_plan(std::shared_ptr<const OffsetPlan> plan);
  std::shared_ptr<const OffsetPlan> latest_plan() const;  // null before the first run
  std::shared_ptr<const Binding> latest() const;          // the binding used last, to be returned with let_go(); null before the first run
  // The last plan that BindingBudgets::affordable() has made; null if there is none.
  std::shared_ptr<const BudgetedPlan> affordable_plan() const;
  void set_affordable_plan(std::shared_ptr<const BudgetedPlan> plan);

 private:
  size_t hash(std::span<const int64_t> symbol_values) const;

  Plans& owner_;
  mutable ForkMutex mutex_;
  std::list<std::shared_ptr<Binding>> recent_;  // the most recently used first
  // Hashes of extents whose binding was reused for other extents. If such extents return soon, they get another unused binding rather than
  // this one.
  std::array<size_t, kCapacity - 1> left_behind_{};
  size_t next_left_behind_ = 0;
  std::list<std::shared_ptr<const OffsetPlan>> offset_plans_;
  std::shared_ptr<const BudgetedPlan> affordable_plan_;
  Statistics statistics_;
};

}  // namespace treadle::exec
