// Lets a state share memory with its previous version, although new rows are inserted in the middle (as in a KV cache per head).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exec/plan/binding.h"
#include "exec/program/program.h"

namespace treadle::exec {

/// A feed, and an output that Concats make from it by appending new rows to each block of old rows. The output begins at a lower address
/// than the feed; the distance is the number of bytes that the output has more. So every Concat moves a block to a lower address, over
/// bytes that are no longer needed. With one copy of the state instead of two, a run touches half as many cache lines.
class Slide {
 public:
  /// @param feed, output  root slots, that is, slots with bytes of their own
  Slide(const Program& program, SlotId feed, SlotId output);

  SlotId feed() const { return feed_; }
  SlotId output() const { return output_; }
  /// Returns true if, for the binding's extents and in the program's order, each block can move to its lower address without overwriting
  /// bytes that are still needed.
  bool plan(const Binding& binding);
  /// Returns the number of bytes by which the output must begin before the feed. @pre plan() has returned true
  size_t distance() const { return distance_; }
  /// Restores the feed: moves back the blocks that instructions before `end` have moved.
  void undo(std::byte* feed, InstructionId end) const;

 private:
  struct Block {
    InstructionId instruction;
    size_t from, to, size_bytes;  // `from`: offset in the feed; `to`: offset in the output
    size_t end;                   // offset in the output of the end of the new rows after the block
  };
  bool classify(InstructionId id);
  bool is_in_place(const Binding& binding, const Instruction& concat) const;
  bool add_blocks(const Binding& binding, InstructionId id);
  SlotId root(SlotId slot) const { return slot == kNoSlot ? kNoSlot : program_->slots()[slot].root; }

  const Program* program_;
  SlotId feed_, output_;
  bool possible_ = true;
  std::vector<InstructionId> moving_, whole_;  // Concats that move blocks; Concats whose inputs are all in place already
  std::vector<Block> blocks_;                  // sorted by the order in which they move
  size_t distance_ = 0;
};

}  // namespace treadle::exec
