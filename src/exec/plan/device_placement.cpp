#include "exec/plan/device_placement.h"

#include <algorithm>
#include <span>
#include <utility>

#include "exec/program/host_settings.h"
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

bool reads_on_host(const Instruction& instruction, size_t operand) {
  const auto& on_host = instruction.node->op->value_inputs;
  return operand < instruction.num_inputs && std::find(on_host.begin(), on_host.end(), static_cast<int>(operand)) != on_host.end();
}

namespace {

constexpr int kUnplaced = -1;
static_assert(kUnplaced == ControlFlowPlacement::kAnywhere);

// Marks an input of a body that the host makes (an iteration number or a condition), not an operand of the control-flow instruction.
constexpr size_t kNone = SIZE_MAX;
// Returns the index of the operand that is this input of a body, or kNone.
size_t operand_of_body_input(const Instruction& instruction, size_t body, size_t input) {
  const Node& node = *instruction.node;
  const auto& captures = node.bodies[body].captures;
  const size_t num_formal = instruction.bodies[body]->input_slots().size() - captures.size();
  if (input >= num_formal) return static_cast<size_t>(node.num_formal_inputs + captures[input - num_formal].second);
  if (node.op->control_flow == ControlFlow::loop && input < 2) return kNone;
  return input;
}

// A program and its placement. Answers on which device a value is read or made.
struct Placed {
  const Program& program;
  const DevicePlacement& placement;

  SlotId root_of(SlotId slot) const { return program.slots()[slot].root; }

  // Returns the first device other than the host that reads the input; the host if only the host reads it, kUnplaced if nothing does.
  int reader_of(SlotId input) const {
    int found = kUnplaced;
    for (InstructionId i : program.instructions().ids()) {
      const Instruction& instruction = program.instructions()[i];
      if (instruction.node && reads_only_shapes(*instruction.node->op)) continue;  // reads no elements, so any device will do
      const auto operands = program.operands(instruction).first(instruction.num_inputs);
      for (size_t k = 0; k < operands.size(); ++k) {
        if (operands[k] == kNoSlot || root_of(operands[k]) != root_of(input)) continue;
        const auto bodies = placement.of_control_flow.find(i);
        const int device = reads_on_host(instruction, k)               ? DevicePlacement::kHost
                           : bodies == placement.of_control_flow.end() ? placement.of_instruction[i]
                                                                       : bodies->second.of_operand[k];
        if (device > DevicePlacement::kHost) return device;
        found = std::max(found, device);
      }
    }
    return found;
  }

  // Returns the device that makes an output of the body. If the body returns an input unchanged, that is the device of the input.
  // @param of_input  the device of each input of the body
  int maker_of(SlotId output, std::span<const int> of_input) const {
    int found = DevicePlacement::kHost;
    const auto inputs = program.input_slots();
    for (size_t k = 0; k < inputs.size(); ++k)
      if (root_of(inputs[k]) == root_of(output)) found = std::max(found, of_input[k]);
    for (InstructionId i : program.instructions().ids()) {
      const Instruction& instruction = program.instructions()[i];
      const auto operands = program.operands(instruction);
      for (size_t k = instruction.num_inputs; k < operands.size(); ++k) {
        if (operands[k] == kNoSlot || root_of(operands[k]) != root_of(output)) continue;
        const auto bodies = placement.of_control_flow.find(i);
        found = bodies == placement.of_control_flow.end() ? placement.of_instruction[i] : bodies->second.of_operand[k];
      }
    }
    return found;
  }
};

class Placer {
 public:
  Placer(const Program& program, const PlacementRequest& request)
      : program_(program), request_(request), of_root_(program.slots().size(), kUnplaced) {
    placement_.of_instruction.assign(program.instructions().size(), kUnplaced);
  }

  /// @param of_input  for a body: the device of each of its inputs, or kUnplaced if that is unknown
  DevicePlacement place(std::span<const int> of_input) {
    for (size_t k = 0; k < of_input.size(); ++k) of_root_[root_of(program_.input_slots()[k])] = of_input[k];
    if (!program_.is_body()) place_arguments();
    for (InstructionId i : program_.instructions().ids()) place_by_operands(i);
    place_by_readers();
    return std::move(placement_);
  }

 private:
  SlotId root_of(SlotId slot) const { return program_.slots()[slot].root; }

  void place_arguments() {
    if (request_.of_argument.empty()) return;
    for (SlotId s : program_.slots().ids()) {
      const Slot& slot = program_.slots()[s];
      if (slot.location != LocationKind::feed && slot.location != LocationKind::constant) continue;
      auto found = request_.of_argument.find(program_.name(s));
      if (found == request_.of_argument.end() || !is_plain(program_, s)) continue;
      of_root_[root_of(s)] = found->second;
      placement_.of_argument[slot.root] = found->second;
    }
  }

  void place_by_operands(InstructionId i) {
    const Instruction& instruction = program_.instructions()[i];
    int& device = placement_.of_instruction[i];
    const auto operands = program_.operands(instruction);
    if (!instruction.bodies.empty()) place_bodies(i);
    if (!runs_on_devices(program_, instruction)) {
      device = DevicePlacement::kHost;
      return;  // the outputs stay unplaced; otherwise their readers would be placed on the host
    }
    if (request_.of_node) device = request_.of_node(*instruction.node);
    // A device's own kernel runs on that device wherever its operands are.
    if (device == kUnplaced && instruction.on_device) device = request_.default_device;
    for (size_t k = 0; k < instruction.num_inputs && device == kUnplaced; ++k)
      if (operands[k] != kNoSlot) device = of_root_[root_of(operands[k])];
    for (SlotId output : operands.subspan(instruction.num_inputs))
      if (output != kNoSlot && device != kUnplaced) of_root_[root_of(output)] = device;
  }

  // Places the bodies. Then places each operand where the bodies read it, and each output where the bodies make it.
  void place_bodies(InstructionId i) {
    const Instruction& instruction = program_.instructions()[i];
    const auto operands = program_.operands(instruction);
    const bool is_loop = instruction.node->op->control_flow == ControlFlow::loop;
    ControlFlowPlacement made;
    made.of_operand.assign(operands.size(), kUnplaced);
    for (size_t b = 0; b < instruction.bodies.size(); ++b) {
      const Program& body = *instruction.bodies[b];
      std::vector<int> of_input;
      for (size_t k = 0; k < body.input_slots().size(); ++k) {
        const size_t operand = operand_of_body_input(instruction, b, k);
        of_input.push_back(operand == kNone || operands[operand] == kNoSlot ? kUnplaced : of_root_[root_of(operands[operand])]);
      }
      const Placed placed{body, made.bodies.emplace_back(Placer(body, request_).place(of_input))};
      for (size_t k = 0; k < of_input.size(); ++k)
        if (const size_t operand = operand_of_body_input(instruction, b, k); operand != kNone)
          made.of_operand[operand] = std::max(made.of_operand[operand], placed.reader_of(body.input_slots()[k]));
      for (size_t k = is_loop ? 1 : 0; k < body.output_slots().size(); ++k) {
        const size_t operand = instruction.num_inputs + k - (is_loop ? 1 : 0);
        if (operand < operands.size())
          made.of_operand[operand] = std::max(made.of_operand[operand], placed.maker_of(body.output_slots()[k], of_input));
      }
    }
    const size_t num_looked_at = is_loop ? 2 : instruction.node->op->control_flow == ControlFlow::if_ ? 1 : 0;
    for (size_t k = 0; k < operands.size(); ++k) {
      if (operands[k] == kNoSlot) continue;
      const bool is_lost = k >= instruction.num_inputs && made.of_operand[k] == kUnplaced;
      if (k < num_looked_at || is_lost || !is_plain(program_, operands[k])) made.of_operand[k] = DevicePlacement::kHost;
      if (k >= instruction.num_inputs && made.of_operand[k] > DevicePlacement::kHost) of_root_[root_of(operands[k])] = made.of_operand[k];
    }
    placement_.of_control_flow.emplace(i, std::move(made));
  }

  void place_by_readers() {
    const auto instructions = program_.instructions();
    IdVector<SlotId, int> of_reader(program_.slots().size(), kUnplaced);  // by slot with its own bytes: device of earliest placed reader
    for (InstructionId i : instructions.ids().reversed()) {
      int& device = placement_.of_instruction[i];
      const auto operands = program_.operands(instructions[i]);
      for (SlotId output : operands.subspan(instructions[i].num_inputs))
        if (output != kNoSlot && device == kUnplaced) device = of_reader[root_of(output)];
      if (device == kUnplaced || !runs_on_devices(program_, instructions[i])) continue;
      for (SlotId input : operands.first(instructions[i].num_inputs))
        if (input != kNoSlot) of_reader[root_of(input)] = device;
    }
    std::replace(placement_.of_instruction.begin(), placement_.of_instruction.end(), kUnplaced, request_.default_device);
    if (request_.has_own_kernels)
      for (InstructionId i : instructions.ids())
        if (int& device = placement_.of_instruction[i]; request_.has_own_kernels(device) && !instructions[i].on_device)
          device = DevicePlacement::kHost;
  }

  const Program& program_;
  const PlacementRequest& request_;
  DevicePlacement placement_;
  IdVector<SlotId, int> of_root_;  // device of each root slot (a slot with bytes of its own)
};

}  // namespace

DevicePlacement place_instructions(const Program& program, const PlacementRequest& request) { return Placer(program, request).place({}); }

}  // namespace treadle::exec
