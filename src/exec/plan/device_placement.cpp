#include "exec/plan/device_placement.h"

#include <algorithm>

#include "graph/op_def.h"

namespace treadle::exec {

bool is_plain(const Program& program, SlotId slot) {
  const Type& type = program.type(slot);
  return type.is_tensor() && type.dtype != DType::string && type.dtype != DType::undefined;
}

bool runs_on_devices(const Program& program, const Instruction& instruction) {
  if (instruction.is_yield || instruction.node->op->control_flow != ControlFlow::none) return false;
  const auto operands = program.operands(instruction);
  return std::all_of(operands.begin(), operands.end(), [&](SlotId slot) { return slot == kNoSlot || is_plain(program, slot); });
}

bool has_own_copy(const Instruction& instruction, size_t operand) {
  return !instruction.dynamic && operand < instruction.num_inputs && operand < 32 && (instruction.kernel->packs >> operand & 1U) != 0;
}

DevicePlacement place_instructions(const Program& program, const PlacementRequest& request) {
  constexpr int kUnplaced = -1;
  const auto instructions = program.instructions();
  DevicePlacement placement;
  placement.of_instruction.assign(instructions.size(), kUnplaced);
  IdVector<SlotId, int> of_root(program.slots().size(), kUnplaced);
  auto root_of = [&](SlotId slot) { return program.slots()[slot].root; };
  if (!request.of_argument.empty()) {
    for (SlotId s : program.slots().ids()) {
      const Slot& slot = program.slots()[s];
      if (slot.location != LocationKind::feed && slot.location != LocationKind::constant) continue;
      auto found = request.of_argument.find(program.name(s));
      if (found == request.of_argument.end() || !is_plain(program, s)) continue;
      of_root[root_of(s)] = found->second;
      placement.of_argument[slot.root] = found->second;
    }
  }
  for (InstructionId i : instructions.ids()) {
    int& device = placement.of_instruction[i];
    const auto operands = program.operands(instructions[i]);
    if (!runs_on_devices(program, instructions[i])) {
      device = DevicePlacement::kHost;
      continue;  // its outputs do not draw their readers to the host
    }
    if (request.of_node) device = request.of_node(*instructions[i].node);
    // A device's own kernel runs on that device wherever its operands are.
    if (device == kUnplaced && instructions[i].on_device) device = request.default_device;
    for (size_t k = 0; k < instructions[i].num_inputs && device == kUnplaced; ++k)
      if (operands[k] != kNoSlot) device = of_root[root_of(operands[k])];
    for (SlotId output : operands.subspan(instructions[i].num_inputs))
      if (output != kNoSlot && device != kUnplaced) of_root[root_of(output)] = device;
  }
  IdVector<SlotId, int> of_reader(program.slots().size(), kUnplaced);  // by root slot: the device of the earliest reader that is placed
  for (InstructionId i : instructions.ids().reversed()) {
    int& device = placement.of_instruction[i];
    const auto operands = program.operands(instructions[i]);
    for (SlotId output : operands.subspan(instructions[i].num_inputs))
      if (output != kNoSlot && device == kUnplaced) device = of_reader[root_of(output)];
    if (device == kUnplaced || !runs_on_devices(program, instructions[i])) continue;
    for (SlotId input : operands.first(instructions[i].num_inputs))
      if (input != kNoSlot) of_reader[root_of(input)] = device;
  }
  std::replace(placement.of_instruction.begin(), placement.of_instruction.end(), kUnplaced, request.default_device);
  if (request.has_own_kernels)
    for (InstructionId i : instructions.ids())
      if (int& device = placement.of_instruction[i]; request.has_own_kernels(device) && !instructions[i].on_device)
        device = DevicePlacement::kHost;
  return placement;
}

}  // namespace treadle::exec
