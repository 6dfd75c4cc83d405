// States that grow by rows in the middle (a KV cache: heads before tokens), made in the memory of the state before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exec/plan/binding.h"
#include "exec/program/program.h"

namespace treadle::exec {

/// A feed that an output is made of by Concats, each of which puts new rows behind old ones. If the output begins as many bytes before the
/// feed as it is longer, every block of old rows moves down, over bytes that nobody needs any more: there is one copy of the state, where
/// reading one and writing another would cost twice as many lines of cache.
class Slide {
 public:
  /// @param feed, output  slots with bytes of their own.
  Slide(const Program& program, SlotId feed, SlotId output);

  SlotId feed() const { return feed_; }
  SlotId output() const { return output_; }
  /// Whether the blocks can move down one after the other, with the binding's extents, when instructions run in their order.
  bool plan(const Binding& binding);
  /// After plan(): how many bytes before the feed the output has to begin.
  size_t distance() const { return distance_; }
  /// Moves back what the instructions before `end` have moved: the feed is as it was.
  void undo(std::byte* feed, InstructionId end) const;

 private:
  struct Block {
    InstructionId instruction;
    size_t from, to, size_bytes;  // offsets in the feed, and in the output
    size_t end;                   // in the output: of the new rows behind it
  };
  bool classify(InstructionId id);
  bool is_in_place(const Binding& binding, const Instruction& concat) const;
  bool add_blocks(const Binding& binding, InstructionId id);
  SlotId root(SlotId slot) const { return slot == kNoSlot ? kNoSlot : program_->slots()[slot].root; }
  size_t bytes_of(const Binding& binding, SlotId slot) const;

  const Program* program_;
  SlotId feed_, output_;
  bool possible_ = true;
  std::vector<InstructionId> moving_, whole_;  // Concats that move blocks, and those whose inputs all lie in the output already
  std::vector<Block> blocks_;                  // in the order in which they move
  size_t distance_ = 0;
};

}  // namespace treadle::exec
