#include "exec/plan/node_costs.h"

#include <algorithm>
#include <vector>

#include "exec/plan/plans.h"
#include "exec/program/parallel_plan.h"
#include "graph/custom_ops.h"
#include "graph/op_def.h"

namespace treadle::exec {

std::pair<double, double> estimate_cost(const Binding& binding, const Instruction& instruction) {
  constexpr double kFlopsPerNs = 40, kBytesPerNs = 10;
  const Program& program = binding.program();
  Cost cost;
  if (instruction.node->op->cost) {
    ShapeContext context(*instruction.node);
    context.shapes_ = binding.operand_shapes(instruction);
    context.dtypes_ = binding.operand_dtypes(instruction);
    cost = instruction.node->op->cost(context);
  } else {
    for (SlotId slot : program.operands(instruction))
      if (slot != kNoSlot) cost.bytes += static_cast<double>(binding.bytes_of(slot));
  }
  return {cost.flops / kFlopsPerNs, cost.bytes / kBytesPerNs};
}

// A rough estimate suffices; an error by a factor of several does no harm.
void NodeCosts::estimate(const Binding& binding) {
  const auto instructions = binding.program().instructions();
  hints_.assign(instructions.size(), {});
  for (InstructionId i : instructions.ids()) {
    if (!instructions[i].bodies.empty() || instructions[i].dynamic) continue;
    const auto [computing_ns, moving_ns] = estimate_cost(binding, instructions[i]);
    hints_[i].estimated_ns = static_cast<uint32_t>(std::clamp(computing_ns + moving_ns, 1.0, 4e9));
    hints_[i].bound = computing_ns > moving_ns ? sharing::Bound::compute : sharing::Bound::memory;
  }
  if (binding.program().parallel()) judge(binding.program());
}

bool NodeCosts::is_measured_expensive(InstructionId instruction) const {
  return plans_.measured_ns(instruction).load(std::memory_order_relaxed) > kExpensiveNs;
}

void NodeCosts::judge(const Program& program) {
  const auto instructions = program.instructions();
  worth_.assign(instructions.size(), Worth::no);
  std::vector<InstructionId> candidates;
  for (InstructionId i : instructions.ids()) {
    const bool custom = instructions[i].dynamic && instructions[i].kernel && is_custom_op(*instructions[i].node->op);
    if (!instructions[i].bodies.empty() || custom)
      worth_[i] = Worth::yes;
    else if (instructions[i].dynamic)
      worth_[i] = Worth::if_measured;
    else
      worth_[i] = hints_[i].estimated_ns > kExpensiveNs ? Worth::yes : Worth::no;
    if (worth_[i] != Worth::no) candidates.push_back(i);
  }
  // A custom operator's kernel may continue on another thread, so even one node of this kind makes parallel execution worthwhile.
  wide_ = instructions.size() > 1 && std::any_of(instructions.begin(), instructions.end(), [](const Instruction& instruction) {
            return instruction.dynamic && instruction.kernel && is_custom_op(*instruction.node->op);
          });
  const Reachability& reach = program.parallel()->reach;
  for (size_t a = 0; a < candidates.size() && !wide_; ++a)
    for (size_t b = a + 1; b < candidates.size() && !wide_; ++b) wide_ = !reach.before(candidates[a], candidates[b]);
}

}  // namespace treadle::exec
