#include "exec/explain/describe.h"

#include <fmt/format.h>

#include "exec/plan/binding.h"

namespace treadle::exec {
namespace {

std::string operand_text(const Program& program, SlotId index) {
  if (index == kNoSlot) return "-";
  const Slot& slot = program.slots()[index];
  std::string where;
  switch (slot.location) {
    case LocationKind::constant: where = "constant"; break;
    case LocationKind::feed: where = "feed"; break;
    case LocationKind::known: where = "known"; break;
    case LocationKind::arena: where = fmt::format("buffer {}", index_of(slot.buffer)); break;
    case LocationKind::held: where = slot.is_output ? "output" : "held"; break;
  }
  if (slot.root != index) where += " of %" + program.name(slot.root);
  return fmt::format("%{} {} <{}>", program.name(index), to_string(program.type(index)), where);
}

void describe(Plans& plans, std::string& out, int indent) {
  const Program& program = plans.program();
  std::string pad(static_cast<size_t>(indent), ' ');
  for (InstructionId i : program.instructions().ids()) {
    const Instruction& instruction = program.instructions()[i];
    auto operands = program.operands(instruction);
    out += fmt::format("{}{:4}  {} [{}{}]", pad, index_of(i), instruction.node->op_type,
                       instruction.kernel ? instruction.kernel->name : "control flow", instruction.dynamic ? ", bound in the run" : "");
    for (size_t k = 0; k < operands.size(); ++k)
      out += (k == instruction.num_inputs ? " -> " : k ? ", " : " ") + operand_text(program, operands[k]);
    if (const auto packed = plans.latest_packed(instruction); packed && packed->size_bytes() > 0) {
      const std::string forms = packed->forms();
      out += fmt::format("  packs {} bytes{}", packed->size_bytes(), forms.empty() ? "" : " (" + forms + ")");
    }
    if (instruction.num_releases) out += fmt::format("  releases {}", instruction.num_releases);
    out += "\n";
    for (const auto& body : instruction.bodies) describe(plans.of_body(*body), out, indent + 6);
  }
}

}  // namespace

std::string describe(Plans& plans) {
  std::string out;
  describe(plans, out, 0);
  if (auto plan = plans.bindings().latest_plan())
    out +=
        fmt::format("arena {} bytes, lower bound {} bytes, {} buffers\n", plan->arena_bytes, plan->lower_bound_bytes, plan->sizes.size());
  return out;
}

}  // namespace treadle::exec
