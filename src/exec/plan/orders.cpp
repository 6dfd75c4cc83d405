#include "exec/plan/orders.h"

#include <algorithm>

#include "core/base/checked.h"
#include "exec/plan/binding.h"
#include "exec/program/node_order.h"
#include "memory/order.h"

namespace treadle::exec {
namespace {

/// The dependencies that every order must keep. Contents of a buffer, or of memory outside of the arena, must be written before they are
/// read, and read before they are overwritten.
class Dependencies {
 public:
  explicit Dependencies(const Binding& binding) : binding_(binding), program_(binding.program()) {
    units_.resize(program_.num_buffers() + program_.slots().size());
    const auto instructions = program_.instructions();
    steps_.resize(instructions.size());
    for (SlotId slot : program_.input_slots()) feeds_.push_back(unit_of(slot));
    for (InstructionId i : instructions.ids()) add(instructions[i], static_cast<int32_t>(i));
  }

  std::vector<std::vector<InstructionId>> orders() const {
    std::vector<std::vector<InstructionId>> orders;
    for (const std::vector<int32_t>& order : memory::orders_to_try(steps_, bytes_)) {
      auto& made = orders.emplace_back();
      for (int32_t step : order) made.push_back(InstructionId{step});
    }
    return orders;
  }

 private:
  struct Unit {
    int32_t content = -1;          // index in bytes_ of its present contents; -1: none yet
    std::vector<int32_t> readers;  // instructions that read the present contents
    std::vector<int32_t> users;    // instructions that have read or written any contents so far
  };

  const Slot& slot(SlotId index) const { return program_.slots()[index]; }
  size_t unit_of(SlotId index) const {
    if (slot(index).buffer != kNoBuffer) return index_of(slot(index).buffer);
    return program_.num_buffers() + index_of(slot(index).root);
  }
  size_t bytes_of(size_t unit) const {
    if (unit < program_.num_buffers()) return align_up(binding_.buffer_sizes()[id_at<BufferId>(unit)], Storage::kAlignment);
    return 0;
  }

  void add(const Instruction& instruction, int32_t step) {
    const auto operands = program_.operands(instruction);
    for (SlotId index : operands.first(instruction.num_inputs))
      if (index != kNoSlot && slot(index).location != LocationKind::constant) read(unit_of(index), step);
    for (SlotId index : operands.subspan(instruction.num_inputs)) {
      if (index == kNoSlot) continue;
      write(unit_of(index), step);
      if (slot(index).location == LocationKind::held && slot(index).static_shape) write_over_feeds(index, step);
    }
    if (instruction.scratch_buffer != kNoBuffer) write(index_of(instruction.scratch_buffer), step);
    // The instruction that frees a reference-counted (held) value must remain the last one to use it.
    for (SlotId index : program_.releases().subspan(instruction.first_release, instruction.num_releases))
      follow(units_[unit_of(index)].users, step);
    // An optimizer's update stays after all earlier instructions that are not updates. Its results may be bound to the memory of its
    // inputs, which these instructions read or recompute.
    const bool updates = is_update(*instruction.node);
    if (updates)
      follow(others_, step);
    else
      others_.push_back(step);
  }

  void follow(const std::vector<int32_t>& before, int32_t step) {
    auto& after = steps_[static_cast<size_t>(step)].after;
    for (int32_t other : before)
      if (other != step) after.push_back(other);
  }

  void read(size_t index, int32_t step) {
    Unit& unit = units_[index];
    if (unit.content < 0) make_content(index);  // the first contents existed before the run
    steps_[static_cast<size_t>(step)].reads.push_back(unit.content);
    unit.readers.push_back(step);
    unit.users.push_back(step);
  }

  // Replaces the contents of a unit, in place if the instruction reads the old contents.
  void write(size_t index, int32_t step) {
    Unit& unit = units_[index];
    memory::Step& writer = steps_[static_cast<size_t>(step)];
    const int32_t old = unit.content;
    // Nothing to do if the instruction has already written another part of these contents.
    if (old >= 0 && std::find(writer.writes.begin(), writer.writes.end(), old) != writer.writes.end()) return;
    follow(unit.readers, step);
    make_content(index);
    if (old >= 0) {
      writer.reads.push_back(old);
      writer.reuses.emplace_back(unit.content, old);
    }
    writer.writes.push_back(unit.content);
    unit.users.push_back(step);
  }

  // Treats an output as a write to every feed of the same size, because the output may be bound to that feed's memory.
  void write_over_feeds(SlotId output, int32_t step) {
    const auto inputs = program_.input_slots();
    for (size_t i = 0; i < inputs.size(); ++i)
      if (slot(inputs[i]).location == LocationKind::feed && slot(inputs[i]).static_shape &&
          binding_.bytes_of(inputs[i]) == binding_.bytes_of(output))
        write(feeds_[i], step);
  }

  void make_content(size_t index) {
    units_[index].content = static_cast<int32_t>(bytes_.size());
    units_[index].readers.clear();
    bytes_.push_back(bytes_of(index));
  }

  const Binding& binding_;
  const Program& program_;
  std::vector<Unit> units_;  // first the buffers of the arena, then the slots with other memory of their own (root slots)
  std::vector<size_t> feeds_;
  std::vector<int32_t> others_;  // earlier steps that are not updates
  std::vector<memory::Step> steps_;
  std::vector<size_t> bytes_;  // size of each version of a unit's contents
};

}  // namespace

std::vector<std::vector<InstructionId>> orders_to_try(const Binding& binding) { return Dependencies(binding).orders(); }

}  // namespace treadle::exec
