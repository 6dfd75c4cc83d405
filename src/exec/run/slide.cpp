#include "exec/run/slide.h"

#include <algorithm>
#include <cstring>

#include "graph/op_def.h"

namespace treadle::exec {

Slide::Slide(const Program& program, SlotId feed, SlotId output) : program_(&program), feed_(feed), output_(output) {
  const auto slots = program.slots();
  const Slot &from = slots[feed], &to = slots[output];
  possible_ = from.location == LocationKind::feed && from.static_shape && to.static_shape && from.dtype == to.dtype &&
              from.dtype != DType::string && bits_of(from.dtype) % 8 == 0 &&
              std::none_of(slots.begin(), slots.end(),
                           [&](const Slot& slot) { return slot.row_step != 0 && (slot.root == feed || slot.root == output); });
  for (InstructionId id : program.instructions().ids()) possible_ = possible_ && classify(id);
  possible_ &= !moving_.empty();
}

// Records a Concat that appends rows to the feed or writes the output. Returns false if another instruction (except views) accesses the
// feed or the output.
bool Slide::classify(InstructionId id) {
  const Instruction& instruction = program_->instructions()[id];
  const auto operands = program_->operands(instruction);
  const auto inputs = operands.first(instruction.num_inputs), outputs = operands.subspan(instruction.num_inputs);
  auto touches = [&](std::span<const SlotId> list, SlotId wanted) {
    return std::any_of(list.begin(), list.end(), [&](SlotId slot) { return root(slot) == wanted; });
  };
  auto all_in = [&](std::span<const SlotId> list, SlotId wanted) {
    return std::all_of(list.begin(), list.end(), [&](SlotId slot) { return root(slot) == wanted; });
  };
  const bool writes = touches(outputs, output_);
  if (!touches(operands, feed_) && !writes) return true;
  if (instruction.dynamic || !instruction.bodies.empty()) return false;
  const Pieces pieces = instruction.node->op->pieces;
  if (pieces == Pieces::split && !writes && root(inputs[0]) == feed_ && all_in(outputs, feed_)) return true;
  if (pieces != Pieces::concat || !writes) return false;
  if (all_in(inputs, output_)) {
    whole_.push_back(id);
    return true;
  }
  if (root(inputs[0]) != feed_ || touches(inputs.subspan(1), feed_) || touches(inputs.subspan(1), output_)) return false;
  moving_.push_back(id);
  return true;
}

bool Slide::plan(const Binding& binding) {
  if (!possible_) return false;
  const size_t before = binding.bytes_of(feed_), after = binding.bytes_of(output_);
  if (before == 0 || after <= before) return false;
  distance_ = after - before;
  blocks_.clear();
  const auto instructions = program_->instructions();
  if (!std::all_of(whole_.begin(), whole_.end(), [&](InstructionId i) { return is_in_place(binding, instructions[i]); }) ||
      !std::all_of(moving_.begin(), moving_.end(), [&](InstructionId i) { return add_blocks(binding, i); }))
    return false;
  size_t moved = 0;
  for (const Block& block : blocks_) moved += block.size_bytes;
  return moved == before;  // otherwise undo() could not restore the whole feed
}

bool Slide::is_in_place(const Binding& binding, const Instruction& concat) const {
  const auto operands = program_->operands(concat);
  size_t offset = binding.piece_offset(operands[concat.num_inputs]);
  return std::all_of(operands.begin(), operands.begin() + concat.num_inputs, [&](SlotId input) {
    const bool here = binding.piece_offset(input) == offset;
    offset += binding.bytes_of(input);
    return here;
  });
}

// Adds the blocks that a Concat moves: one per index before the Concat's axis. Each block moves to a lower address, and new rows follow it
// there. Returns false if a block would not move to a lower address, or if the block or its new rows would overwrite a block that has not
// been moved yet.
bool Slide::add_blocks(const Binding& binding, InstructionId id) {
  const Instruction& concat = program_->instructions()[id];
  const auto operands = program_->operands(concat);
  const SlotId in = operands[0], out = operands[concat.num_inputs];
  const Shape& shape = binding.shape(out);
  int64_t axis = concat.node->attributes.get_int("axis", 0);
  if (axis < 0) axis += shape.rank();
  const auto count = static_cast<size_t>(shape.product(0, static_cast<int>(axis)));
  if (count == 0) return false;
  const size_t length = binding.bytes_of(in) / count, pitch = binding.bytes_of(out) / count;
  for (size_t i = 0; i < count; ++i) {
    const size_t from = binding.piece_offset(in) + i * length, to = binding.piece_offset(out) + i * pitch;
    if (to > from + distance_) return false;
    if (!blocks_.empty()) {
      const Block& last = blocks_.back();
      if (last.from + last.size_bytes > from || last.end > to || last.end > from + distance_) return false;
    }
    blocks_.push_back({id, from, to, length, to + pitch});
  }
  return true;
}

void Slide::undo(std::byte* feed, InstructionId end) const {
  for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block)
    if (block->instruction < end) std::memmove(feed + block->from, feed + block->to - distance_, block->size_bytes);
}

}  // namespace treadle::exec
