// What a program needs beyond itself for one set of extents: shapes, bound kernels, offsets. And the cache of these.
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

#include "core/fork_mutex.h"
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
  /// @param plans  of the program that is bound; outlives the object.
  explicit Binding(Plans& plans);

  /// Evaluates everything for these values of the program's symbols (indexed as the symbol table; only Program::symbols() are read).
  /// Allocates nothing once the object was bound before, if the offsets of an earlier plan fit.
  /// @param pool  packs weights side by side when the object is bound for the first time; null: the caller does.
  /// @throws Error naming the node whose kernel cannot take its shapes.
  void bind(std::span<const int64_t> symbol_values, int max_threads, bool bucketed, ThreadPool* pool,
            std::shared_ptr<const ParameterVersion> parameters = nullptr);

  /// Another run has the extents that it was bound for.
  void note_return() const {
    if (!came_back()) came_back_.store(true, std::memory_order_relaxed);
  }
  bool came_back() const { return came_back_.load(std::memory_order_relaxed); }

  const Program& program() const { return program_; }
  const Shape& shape(SlotId slot) const { return shapes_[slot]; }
  const void* state(const Instruction& instruction) const { return state_.get() + instruction.state_offset; }
  /// What kernels have packed for the instruction, as of parameters(); null if nothing.
  const PackedState* packed(const Instruction& instruction) const {
    return instruction.versioned < 0 ? instruction.packed.get()
                                     : parameters_->packed[static_cast<size_t>(instruction.versioned)].state.get();
  }
  /// The elements of a root slot that is constant or a parameter.
  const Datum& constant(SlotId slot) const {
    const bool is_parameter = parameters_ && parameters_->constants[slot].defined();
    return is_parameter ? parameters_->constants[slot] : program_.constant(slot);
  }
  /// The version of the program's parameters that runs of this binding read; null where there are none.
  const std::shared_ptr<const ParameterVersion>& parameters() const { return parameters_; }
  const Tensor& known(SlotId slot) const { return known_[slot]; }
  /// Elements from row to row that an operand's kernel is told; 0: rows follow each other.
  int64_t operand_step(size_t operand) const { return operand_steps_.empty() ? 0 : operand_steps_[operand]; }
  /// In bytes, from where the slot's root begins.
  size_t piece_offset(SlotId slot) const { return piece_offsets_.empty() ? 0 : piece_offsets_[slot]; }
  const OffsetPlan& offsets() const { return *offsets_; }
  IdSpan<BufferId, const size_t> buffer_sizes() const { return sizes_; }
  /// The buffers for other values of the symbols: scratch memory counts as it is, what it would be is the kernels' secret.
  /// @throws Error for values that no run could have
  IdVector<BufferId, size_t> buffer_sizes_for(std::vector<int64_t> values) const;
  /// Shapes and dtypes of an instruction's operands, inputs first; an absent one is a scalar of no dtype.
  std::span<const Shape* const> operand_shapes(const Instruction& instruction) const { return of(instruction, operand_shapes_); }
  std::span<const DType> operand_dtypes(const Instruction& instruction) const { return of(instruction, operand_dtypes_); }
  std::span<const int64_t> values() const { return values_; }
  /// What nodes are estimated to cost; known in programs for parallel execution, and in those whose runs belong to a job.
  const NodeCosts& costs() const { return costs_; }
  /// Plans for less memory than offsets() take.
  BindingBudgets& budgets() const { return budgets_; }
  /// Differs after every bind(), over all bindings of the process.
  uint64_t generation() const { return generation_; }
  /// Where plans are verified, a run that takes the binding proves it first (verify/verify_plan.h).
  const Proof& proof() const { return proof_; }
  /// Differs after a bind() that put something of the arena elsewhere: a frame compares it to know whether its pointers are right.
  uint64_t places_generation() const { return places_generation_; }

 private:
  friend struct BindingCache;
  void evaluate();
  void compare_extents() const;
  void pack_ahead(int max_threads, ThreadPool* pool);
  void bind_all(ThreadPool* pool);
  void bind_again();
  void bind_instruction(const Instruction& instruction, int max_threads);
  size_t bytes_of(SlotId slot) const;
  bool place_pieces();  // true if a piece of a buffer in the arena has another place than before
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
  std::vector<int64_t> values_;  // per expression of the symbol table
  IdVector<SlotId, Shape> shapes_;
  IdVector<SlotId, Tensor> known_;  // where the location is `known`
  // What depends on the symbols at all: the rest is bound once.
  std::vector<const Instruction*> varying_;
  std::vector<BufferId> varying_buffers_;
  IdVector<SlotId, uint8_t> changed_;  // its shape, or known elements, differ from when the object was bound before
  std::vector<const Shape*> operand_shapes_;
  std::vector<DType> operand_dtypes_;
  std::vector<const Tensor*> operand_values_;
  std::vector<int64_t> operand_steps_;  // Slot::row_step; empty if there are none
  std::unique_ptr<std::byte[]> state_;
  IdVector<BufferId, size_t> sizes_;        // bytes
  IdVector<SlotId, size_t> piece_offsets_;  // bytes; empty if no slot is a piece of another
  std::shared_ptr<const OffsetPlan> offsets_;
  uint64_t generation_ = 0, places_generation_ = 0;
  bool bound_before_ = false;
  Proof proof_;
  mutable std::atomic<bool> came_back_ = false;
  int max_threads_ = 0;
  NodeCosts costs_;
  mutable BindingBudgets budgets_;
};

/// The most recently used bindings of a program, by the values of its symbols. Thread-safe; a binding in use is never changed.
struct BindingCache {
  static constexpr size_t kCapacity = 16;

  /// @param plans  whose cache it is.
  explicit BindingCache(Plans& plans) : owner_(plans) {}

  /// The binding for these values, made or re-made if needed. It has the program's parameters as of now.
  /// @param pool      as Binding::bind.
  /// @param previous  what the caller holds until now and lets go of.
  std::shared_ptr<const Binding> get(std::span<const int64_t> symbol_values, int max_threads, ThreadPool* pool = nullptr,
                                     std::shared_ptr<const Binding> previous = {});
  /// Bindings that no run holds let go of the version that they have: there will be another one.
  void let_parameters_go();
  /// Frames let go of a binding under the lock: what they read of it is then ordered before its being bound anew.
  void let_go(std::shared_ptr<const Binding> binding);

  struct Statistics {
    int64_t hits = 0, misses = 0, plans = 0;
  };
  Statistics statistics() const;

  // For Binding: an offset plan that fits the sizes, made earlier, or null.
  std::shared_ptr<const OffsetPlan> find_plan(std::span<const size_t> sizes) const;
  void add_plan(std::shared_ptr<const OffsetPlan> plan);
  std::shared_ptr<const OffsetPlan> latest_plan() const;  // null before the first run
  std::shared_ptr<const Binding> latest() const;          // the one used last, to be let go of; null before the first run
  // The last plan that Binding::affordable() has made; null if there is none.
  std::shared_ptr<const BudgetedPlan> affordable_plan() const;
  void set_affordable_plan(std::shared_ptr<const BudgetedPlan> plan);

 private:
  size_t hash(std::span<const int64_t> symbol_values) const;

  Plans& owner_;
  mutable ForkMutex mutex_;
  std::list<std::shared_ptr<Binding>> recent_;  // most recent first
  // Extents (hashes of them) whose binding went on with other ones: they get one of their own if they come back soon.
  std::array<size_t, kCapacity - 1> left_behind_{};
  size_t next_left_behind_ = 0;
  std::list<std::shared_ptr<const OffsetPlan>> offset_plans_;
  std::shared_ptr<const BudgetedPlan> affordable_plan_;
  Statistics statistics_;
};

}  // namespace treadle::exec
