#include "train/joint/joint_graph.h"

#include <algorithm>
#include <set>

#include "graph/op_def.h"

namespace treadle::train {
namespace {

// Returns the value in whose memory a chain of views ends; the value itself if it is no view.
ValueId viewed(const Graph& graph, ValueId id) {
  while (graph.value(id).producer != kNoNode) {
    const Node& node = graph.node(graph.value(id).producer);
    if (!node.op) return id;
    const auto view = std::find_if(node.op->alias.begin(), node.op->alias.end(), [&](const Alias& alias) {
      return alias.kind == Alias::Kind::view && alias.output == graph.value(id).output && node.has_input(static_cast<size_t>(alias.input));
    });
    if (view == node.op->alias.end()) return id;
    id = node.inputs[static_cast<size_t>(view->input)];
  }
  return id;
}

}  // namespace

std::vector<bool> read_behind_yield(const Graph& graph) {
  std::set<uint32_t> read;
  const Node* yield = nullptr;
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    for (ValueId input : node.inputs)
      if (yield && input != kNoValue) read.insert(static_cast<uint32_t>(viewed(graph, input)));
    if (node.is("Yield", "treadle")) yield = &node;
  }
  std::vector<bool> found;
  if (!yield) return found;
  for (ValueId output : graph.outputs) read.insert(static_cast<uint32_t>(viewed(graph, output)));
  for (ValueId handed_out : yield->inputs) {
    const ValueId whole = viewed(graph, handed_out);
    found.push_back(!read.insert(static_cast<uint32_t>(whole)).second || graph.value(whole).is_constant());
  }
  return found;
}

bool draws_numbers(const Graph& graph) {
  for (NodeId id : graph.order())
    if (const OpDef* op = graph.node(id).op; op && !op->deterministic && !op->barrier) return true;
  return false;
}

exec::InstructionId made_by(const exec::Program& program, std::span<const int> results) {
  const auto slots = program.slots();
  auto root_of = [&](exec::SlotId slot) { return slots[slot].root; };
  IdVector<exec::SlotId, bool> is_wanted(slots.size());
  for (int result : results) is_wanted[root_of(program.output_slots()[static_cast<size_t>(result)])] = true;
  for (exec::InstructionId id : program.instructions().ids().reversed()) {
    const exec::Instruction& instruction = program.instructions()[id];
    const auto outputs = program.operands(instruction).subspan(instruction.num_inputs);
    if (std::any_of(outputs.begin(), outputs.end(), [&](exec::SlotId slot) { return slot != exec::kNoSlot && is_wanted[root_of(slot)]; }))
      return id;
  }
  return exec::kNoInstruction;
}

}  // namespace treadle::train
