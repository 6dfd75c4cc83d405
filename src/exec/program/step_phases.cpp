#include "exec/program/step_phases.h"

#include <algorithm>
#include <unordered_set>

#include "exec/program/node_order.h"
#include "graph/op_def.h"

namespace treadle::exec {
namespace {

bool communicates(const Instruction& instruction) { return instruction.node->op && instruction.node->op->communicates; }

std::vector<ValueId> outputs_of(const Graph& graph, std::span<const std::string> names) {
  std::vector<ValueId> values;
  for (size_t i = 0; i < graph.outputs.size(); ++i)
    if (std::find(names.begin(), names.end(), graph.output_names[i]) != names.end()) values.push_back(graph.outputs[i]);
  return values;
}

// Returns the values that end the forward part: the named ones or, in distributed training, the first values that ranks exchange. Ranks
// average the loss together with the gradients.
std::vector<ValueId> ends_of_forward(const Graph& graph, IdSpan<InstructionId, const Instruction> instructions,
                                     std::span<const std::string> names) {
  const auto exchange = std::find_if(instructions.begin(), instructions.end(), communicates);
  if (exchange != instructions.end()) return exchange->node->inputs;
  return outputs_of(graph, names);
}

std::unordered_set<const Node*> ancestors(const Graph& graph, std::vector<ValueId> open) {
  std::unordered_set<const Node*> found;
  while (!open.empty()) {
    const ValueId value = open.back();
    open.pop_back();
    if (value == kNoValue || graph.value(value).producer == kNoNode) continue;
    const Node& node = graph.node(graph.value(value).producer);
    if (found.insert(&node).second) open.insert(open.end(), node.inputs.begin(), node.inputs.end());
  }
  return found;
}

}  // namespace

std::unordered_set<const Node*> forward_part(const Graph& graph, std::span<const std::string> names) {
  return ancestors(graph, outputs_of(graph, names));
}

std::string_view name_of(StepPhase phase) {
  switch (phase) {
    case StepPhase::forward: return "forward";
    case StepPhase::backward: return "backward";
    case StepPhase::communication: return "communication";
    case StepPhase::optimizer: return "optimizer";
    case StepPhase::none: break;
  }
  return "";
}

IdVector<InstructionId, StepPhase> step_phases(const Graph& graph, IdSpan<InstructionId, const Instruction> instructions,
                                               InstructionId commit_from, std::span<const std::string> forward) {
  const auto yield = std::find_if(instructions.begin(), instructions.end(), [](const Instruction& i) { return i.is_yield; });
  std::unordered_set<const Node*> of_forward;
  if (yield != instructions.end())
    for (auto it = instructions.begin(); it != yield; ++it) of_forward.insert(it->node);
  else
    of_forward = ancestors(graph, ends_of_forward(graph, instructions, forward));
  IdVector<InstructionId, StepPhase> phases;
  for (InstructionId i : instructions.ids())
    phases.push_back(communicates(instructions[i])                          ? StepPhase::communication
                     : i >= commit_from && is_update(*instructions[i].node) ? StepPhase::optimizer
                     : of_forward.contains(instructions[i].node)            ? StepPhase::forward
                                                                            : StepPhase::backward);
  return phases;
}

// A buffer may contain several values, one after the other. The buffer is named after the first one.
const std::string& Program::name_of_buffer(BufferId buffer) const {
  const BufferInfo& info = storage_.buffers[buffer];
  return info.slot == kNoSlot ? instructions_[info.instruction].node->name : name(info.slot);
}

MemoryClass Program::class_of_buffer(BufferId buffer) const {
  const BufferInfo& info = storage_.buffers[buffer];
  if (info.slot == kNoSlot) return MemoryClass::scratch;
  switch (instructions_[info.first].phase) {
    case StepPhase::backward:
    case StepPhase::communication: return MemoryClass::gradients;
    case StepPhase::optimizer: return MemoryClass::optimizer_state;
    case StepPhase::none:
    case StepPhase::forward: break;
  }
  return MemoryClass::activations;
}

}  // namespace treadle::exec
