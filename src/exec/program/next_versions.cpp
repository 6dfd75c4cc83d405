#include "exec/program/next_versions.h"

#include "graph/op_def.h"

namespace treadle::exec {

std::vector<int32_t> find_next_versions(const Program& program) {
  std::vector<int32_t> found(program.slots().size(), -1);
  for (const Instruction& instruction : program.instructions()) {
    const OpDef* op = instruction.node->op;
    if (!op) continue;
    const auto operands = program.operands(instruction);
    const auto note = [&](int output, int input) {
      if (input < 0 || input >= instruction.num_inputs || output >= instruction.num_outputs) return;
      const int32_t from = operands[static_cast<size_t>(input)], to = operands[static_cast<size_t>(instruction.num_inputs + output)];
      if (from >= 0 && to >= 0 && program.slots()[static_cast<size_t>(from)].location == LocationKind::feed)
        found[static_cast<size_t>(to)] = program.slots()[static_cast<size_t>(from)].root;
    };
    for (const Alias& alias : op->alias)
      if (alias.alone) note(alias.output, alias.input);
    if (op->updated_input)
      for (int output = 0; output < instruction.num_outputs; ++output) note(output, op->updated_input(*instruction.node, output));
  }
  return found;
}

}  // namespace treadle::exec
