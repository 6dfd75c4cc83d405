#include "exec/program/storage.h"

#include "exec/program/byte_sharing.h"
#include "exec/program/pieces.h"
#include "exec/program/program.h"
#include "graph/graph.h"

namespace treadle::exec {
namespace {

class StorageMaker {
 public:
  StorageMaker(const Graph& graph, IdVector<SlotId, Slot>& slots, IdVector<InstructionId, Instruction>& instructions,
               std::span<const SlotId> operands, const Places& places)
      : graph_(graph), slots_(slots), instructions_(instructions), operands_(operands), places_(places) {}

  ProgramStorage make() {
    note_pieces();
    note_rewritten();
    make_buffers();
    make_releases();
    find_held();
    make_patches();
    return std::move(made_);
  }

 private:
  Slot& slot(SlotId index) const { return slots_[index]; }
  const Type& type(SlotId index) const { return graph_.type(slots_[index].value); }
  std::span<const SlotId> operands(const Instruction& instruction) const {
    return operands_.subspan(instruction.first_operand, static_cast<size_t>(instruction.num_inputs) + instruction.num_outputs);
  }

  // Sets Slot::rewritten for held slots whose bytes are written again later. A node that keeps such a value must copy it; otherwise a
  // reference suffices.
  void note_rewritten() {
    IdVector<SlotId, InstructionId> made(slots_.size(), kNoInstruction), last_write = made;
    for (InstructionId i : instructions_.ids())
      for (SlotId output : operands(instructions_[i]).subspan(instructions_[i].num_inputs))
        if (output != kNoSlot) made[output] = last_write[slot(output).root] = i;
    for (SlotId s : slots_.ids()) {
      if (slots_[s].location != LocationKind::held) continue;
      SlotId maker = s;  // for a view that no instruction makes: the slot that it is a view of
      while (made[maker] == kNoInstruction && places_.base[maker] != kNoSlot) maker = places_.base[maker];
      slots_[s].rewritten = made[maker] < last_write[slots_[s].root];
    }
  }

  // Finds the pieces: slots that have only a part of the bytes of their root (whose bytes they share). Each is listed after its base.
  void note_pieces() {
    enum class State : uint8_t { unknown, at_root, behind };
    IdVector<SlotId, State> states(slots_.size(), State::unknown);
    std::vector<SlotId> chain;
    for (SlotId s : slots_.ids()) {
      // Collects the bases up to a slot whose state is known or that has its own bytes. Then sets the states in reverse order.
      chain.clear();
      for (SlotId at = s; at != kNoSlot && states[at] == State::unknown; at = places_.base[at]) chain.push_back(at);
      for (; !chain.empty(); chain.pop_back()) {
        const SlotId at = chain.back(), base = places_.base[at];
        const auto [first, count] = places_.preceding[at];
        const bool behind = count > 0 || (base != kNoSlot && states[base] == State::behind);
        states[at] = behind ? State::behind : State::at_root;
        if (!behind && !is_smaller(at)) continue;
        made_.pieces.push_back({at, base, first, count});
        slot(slot(at).root).in_pieces = true;
      }
    }
  }

  // Returns true if the slot has fewer bytes than its root, whose bytes it shares: it is then a piece, even at the root's first byte.
  bool is_smaller(SlotId index) const {
    const SlotId root = slots_[index].root;
    const Type& own = type(index);
    return root != index && own.shape && type(root).shape && !same_size(type(index), type(root));
  }

  void make_buffers() {
    for (InstructionId step : instructions_.ids()) {
      Instruction& instruction = instructions_[step];
      for (SlotId operand : operands(instruction)) {
        if (operand == kNoSlot) continue;
        Slot& root = slot(slot(operand).root);
        if (root.location != LocationKind::arena) continue;
        if (root.buffer == kNoBuffer) root.buffer = made_.buffers.add({slot(operand).root, kNoInstruction, step, step});
        slot(operand).buffer = root.buffer;  // a view is in the buffer of its root
        made_.buffers[root.buffer].last = step;
      }
      if (!instruction.dynamic) instruction.scratch_buffer = made_.buffers.add({kNoSlot, step, step, step});
    }
  }

  void make_releases() {
    IdVector<SlotId, InstructionId> last(slots_.size(), kNoInstruction);
    for (InstructionId i : instructions_.ids())
      for (SlotId operand : operands(instructions_[i]))
        if (operand != kNoSlot) last[slot(operand).root] = i;
    IdVector<InstructionId, std::vector<SlotId>> at(instructions_.size());
    for (SlotId s : slots_.ids()) {
      const Slot& candidate = slots_[s];
      if (candidate.location != LocationKind::held || candidate.is_output || candidate.root != s || last[s] == kNoInstruction) continue;
      at[last[s]].push_back(s);
    }
    for (InstructionId i : at.ids()) {
      instructions_[i].first_release = static_cast<uint32_t>(made_.releases.size());
      instructions_[i].num_releases = static_cast<uint32_t>(at[i].size());
      made_.releases.insert(made_.releases.end(), at[i].begin(), at[i].end());
    }
  }

  void find_held() {
    for (SlotId s : slots_.ids())
      if (slots_[s].location == LocationKind::held) made_.held_slots.push_back(s);
    for (const Instruction& instruction : instructions_) {
      if (instruction.dynamic) continue;
      for (SlotId output : operands(instruction).subspan(instruction.num_inputs))
        if (output != kNoSlot && slot(output).location == LocationKind::held && slot(output).root == output)
          made_.preallocated.push_back(output);
    }
  }

  void make_patches() {
    IdVector<SlotId, std::vector<uint32_t>> positions(slots_.size());
    for (const Instruction& instruction : instructions_) {
      const auto operands = this->operands(instruction);
      for (size_t k = 0; k < operands.size(); ++k) {
        if (operands[k] == kNoSlot) continue;
        SlotId root = slot(operands[k]).root;
        LocationKind location = slot(root).location;
        if (location == LocationKind::feed || location == LocationKind::held)
          positions[root].push_back(instruction.first_operand + static_cast<uint32_t>(k));
      }
    }
    for (const auto& list : positions) {
      made_.patch_begin.push_back(static_cast<uint32_t>(made_.patch_positions.size()));
      made_.patch_positions.insert(made_.patch_positions.end(), list.begin(), list.end());
    }
    made_.patch_begin.push_back(static_cast<uint32_t>(made_.patch_positions.size()));
  }

  const Graph& graph_;
  IdVector<SlotId, Slot>& slots_;
  IdVector<InstructionId, Instruction>& instructions_;
  const std::span<const SlotId> operands_;
  const Places& places_;
  ProgramStorage made_;
};

}  // namespace

ProgramStorage make_storage(const Graph& graph, IdVector<SlotId, Slot>& slots, IdVector<InstructionId, Instruction>& instructions,
                            std::span<const SlotId> operands, const Places& places) {
  return StorageMaker(graph, slots, instructions, operands, places).make();
}

}  // namespace treadle::exec
