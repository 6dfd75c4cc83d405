// The schedule by readiness: which instruction waits for which, and which buffers may share bytes then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "exec/program/ids.h"

namespace treadle::exec {

/// Which instructions happen before which, transitively, as a matrix of bits. Instructions are added in order.
class Reachability {
 public:
  explicit Reachability(size_t num_instructions) : words_((num_instructions + 63) / 64), bits_(words_ * num_instructions, 0) {}

  /// @param predecessors  earlier instructions that `instruction` waits for.
  void add(InstructionId instruction, std::span<const InstructionId> predecessors);
  bool before(InstructionId a, InstructionId b) const {
    return (bits_[index_of(b) * words_ + index_of(a) / 64] >> (index_of(a) % 64) & 1U) != 0;
  }
  bool ordered(InstructionId a, InstructionId b) const { return before(a, b) || before(b, a); }

 private:
  size_t words_;
  std::vector<uint64_t> bits_;
};

/// Of a program; immutable. A run may stop before any instruction when all before it in the program's order have run: that order honours
/// all waits.
struct ParallelPlan {
  explicit ParallelPlan(size_t num_instructions) : reach(num_instructions) {}

  /// Per instruction how many others it waits for; then per counted slot how many instructions still need it. A run copies the whole.
  std::vector<int32_t> counters;
  /// Instructions that wait for instruction i: successors[first_successor[i]] … up to first_successor[i + 1].
  std::vector<InstructionId> successors;
  std::vector<uint32_t> first_successor;
  /// Held slots that instruction i touches, as (slot, index of its counter).
  struct Touch {
    SlotId slot;
    int32_t counter;
  };
  std::vector<Touch> touches;
  std::vector<uint32_t> first_touch;
  std::vector<InstructionId> yields;  ///< instructions at which runs stop
  Reachability reach;

  /// Per buffer: the instructions that read or write it, ascending, and of these the ones that wait for no other: the first, which writes
  /// it, and if several instructions write a piece of it each, more of them.
  std::vector<InstructionId> accesses, beginnings;
  std::vector<uint32_t> first_access, first_beginning;
  /// True if the buffers may be in use at the same time in some order of execution.
  bool conflict(BufferId a, BufferId b) const { return !all_before(a, b) && !all_before(b, a); }

 private:
  bool all_before(BufferId a, BufferId b) const {
    for (uint32_t k = first_access[index_of(a)]; k < first_access[index_of(a) + 1]; ++k)
      for (uint32_t first = first_beginning[index_of(b)]; first < first_beginning[index_of(b) + 1]; ++first)
        if (!reach.before(accesses[k], beginnings[first])) return false;
    return true;
  }
};

}  // namespace treadle::exec
