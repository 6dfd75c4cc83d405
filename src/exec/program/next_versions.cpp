#include "exec/program/next_versions.h"

#include "graph/op_def.h"

namespace treadle::exec {

IdVector<SlotId, SlotId> find_next_versions(const Program& program) {
  IdVector<SlotId, SlotId> found(program.slots().size(), kNoSlot);
  for (const Instruction& instruction : program.instructions()) {
    const OpDef* op = instruction.node->op;
    if (!op) continue;
    const auto operands = program.operands(instruction);
    const auto note = [&](int output, int input) {
      if (input < 0 || input >= instruction.num_inputs || output >= instruction.num_outputs) return;
      const SlotId from = operands[static_cast<size_t>(input)], to = operands[static_cast<size_t>(instruction.num_inputs + output)];
      if (from != kNoSlot && to != kNoSlot && program.slots()[from].location == LocationKind::feed) found[to] = program.slots()[from].root;
    };
    for (const Alias& alias : op->alias)
      if (alias.alone) note(alias.output, alias.input);
    if (op->updated_input)
      for (int output = 0; output < instruction.num_outputs; ++output) note(output, op->updated_input(*instruction.node, output));
  }
  return found;
}

}  // namespace treadle::exec
