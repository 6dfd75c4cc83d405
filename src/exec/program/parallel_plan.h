// The schedule for parallel runs. An instruction may run as soon as all instructions that it depends on have run. The schedule contains
// these dependencies, and tells which buffers may share bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "exec/program/ids.h"

namespace treadle::exec {

/// A bit matrix that tells which instructions happen before which others, also indirectly. Instructions are added in the program's order.
class Reachability {
 public:
  explicit Reachability(size_t num_instructions) : words_((num_instructions + 63) / 64), bits_(words_ * num_instructions, 0) {}

  /// @param predecessors  earlier instructions that `instruction` waits for
  void add(InstructionId instruction, std::span<const InstructionId> predecessors);
  bool before(InstructionId a, InstructionId b) const {
    return (bits_[index_of(b) * words_ + index_of(a) / 64] >> (index_of(a) % 64) & 1U) != 0;
  }
  bool ordered(InstructionId a, InstructionId b) const { return before(a, b) || before(b, a); }

 private:
  size_t words_;
  std::vector<uint64_t> bits_;
};

/// The schedule of one program; immutable. The program's own order satisfies all dependencies. So a run can stop before any instruction,
/// once all instructions before it in that order have run.
struct ParallelPlan {
  explicit ParallelPlan(size_t num_instructions) : reach(num_instructions) {}

  /// Initial values of a run's counters. First, one per instruction: how many instructions it waits for. Then, one per held slot: how many
  /// instructions use it, so that the last one can free it.
  std::vector<int32_t> counters;
  /// The instructions that wait for instruction i are at indices first_successor[i] to first_successor[i + 1] - 1.
  std::vector<InstructionId> successors;
  std::vector<uint32_t> first_successor;
  /// A held slot that an instruction reads or writes, and the index of the slot's counter. first_touch gives the range of each instruction.
  struct Touch {
    SlotId slot;
    int32_t counter;
  };
  std::vector<Touch> touches;
  std::vector<uint32_t> first_touch;
  std::vector<InstructionId> yields;  ///< the Yield instructions, at which runs stop
  Reachability reach;

  /// For each buffer, `accesses` are the instructions that read or write it, ascending. `beginnings` are the accesses before which there is
  /// no other: the first writer, or several writers if each writes one piece of the buffer.
  std::vector<InstructionId> accesses, beginnings;
  std::vector<uint32_t> first_access, first_beginning;
  /// Returns true if some permitted order of execution uses both buffers at the same time.
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
