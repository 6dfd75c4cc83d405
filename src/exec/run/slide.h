// Lets a state share memory with its previous version although it grows by rows in the middle (a KV cache with heads before tokens).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exec/plan/binding.h"
#include "exec/program/program.h"

namespace treadle::exec {

/// A feed, and an output that Concats make from it by appending new rows to each block of old rows. The output begins at a lower address
/// than the feed; the distance is the number of bytes by which the output is longer. So every Concat moves its block down, over bytes that
/// are no longer needed. With one copy of the state instead of two, a run touches half as many cache lines.
class Slide {
 public:
  /// @param feed, output  root slots
  Slide(const Program& program, SlotId feed, SlotId output);

  SlotId feed() const { return feed_; }
  SlotId output() const { return output_; }
  /// Returns true if, with the binding's extents and in the program's order, the blocks can move down one after the other without
  /// overwriting bytes that are still needed.
  bool plan(const Binding& binding);
  /// Returns how many bytes before the feed the output must begin. @pre plan() has returned true
  size_t distance() const { return distance_; }
  /// Moves the blocks back that instructions before `end` have moved, which restores the feed.
  void undo(std::byte* feed, InstructionId end) const;

 private:
  struct Block {
    InstructionId instruction;
    size_t from, to, size_bytes;  // offsets in the feed and in the output
    size_t end;                   // offset in the output where the new rows behind the block end
  };
  bool classify(InstructionId id);
  bool is_in_place(const Binding& binding, const Instruction& concat) const;
  bool add_blocks(const Binding& binding, InstructionId id);
  SlotId root(SlotId slot) const { return slot == kNoSlot ? kNoSlot : program_->slots()[slot].root; }

  const Program* program_;
  SlotId feed_, output_;
  bool possible_ = true;
  std::vector<InstructionId> moving_, whole_;  // Concats that move blocks, and Concats whose inputs are all in place already
  std::vector<Block> blocks_;                  // sorted by the order in which they move
  size_t distance_ = 0;
};

}  // namespace treadle::exec
