#include "exec/program/parallel_plan.h"

#include <algorithm>

#include "exec/program/program.h"

namespace treadle::exec {

void Reachability::add(InstructionId instruction, std::span<const InstructionId> predecessors) {
  uint64_t* row = bits_.data() + index_of(instruction) * words_;
  for (InstructionId p : predecessors) {
    const uint64_t* other = bits_.data() + index_of(p) * words_;
    for (size_t w = 0; w < words_; ++w) row[w] |= other[w];
    row[index_of(p) / 64] |= uint64_t{1} << (index_of(p) % 64);
  }
}

namespace {

/// Finds the dependencies between instructions.
/// @param viewed  for each slot that no instruction makes: the slot that it is a view of
void find_order(const Program& program, const IdVector<SlotId, SlotId>& viewed, ParallelPlan& plan) {
  const auto instructions = program.instructions();
  const InstructionId commit_from = program.commit_from();
  IdVector<SlotId, InstructionId> producer(program.slots().size(), kNoInstruction);
  IdVector<InstructionId, std::vector<InstructionId>> successors(instructions.size());
  for (InstructionId i : instructions.ids()) {
    const Instruction& instruction = instructions[i];
    const auto all = program.operands(instruction);
    std::vector<InstructionId> waits_for;
    for (SlotId slot : all.first(instruction.num_inputs)) {
      while (slot != kNoSlot && producer[slot] == kNoInstruction && viewed[slot] != kNoSlot)
        slot = viewed[slot];  // a view that no instruction makes is ready when the viewed slot is
      if (slot != kNoSlot && producer[slot] != kNoInstruction) waits_for.push_back(producer[slot]);
    }
    // The first update waits for all instructions before it, and the other updates wait for the first one. So no instruction still reads
    // memory that updates overwrite, and a run that fails before them has changed no parameter.
    if (i == commit_from) {
      for (InstructionId p : IdRange(InstructionId{}, i))
        if (successors[p].empty()) waits_for.push_back(p);
    } else if (i > commit_from) {
      waits_for.push_back(commit_from);
    }
    std::sort(waits_for.begin(), waits_for.end());
    waits_for.erase(std::unique(waits_for.begin(), waits_for.end()), waits_for.end());
    for (InstructionId p : waits_for) successors[p].push_back(i);
    plan.reach.add(i, waits_for);
    plan.counters.push_back(static_cast<int32_t>(waits_for.size()));
    if (instruction.is_yield) plan.yields.push_back(i);
    for (SlotId slot : all.subspan(instruction.num_inputs))
      if (slot != kNoSlot) producer[slot] = i;
  }
  for (const auto& list : successors) {
    plan.first_successor.push_back(static_cast<uint32_t>(plan.successors.size()));
    plan.successors.insert(plan.successors.end(), list.begin(), list.end());
  }
  plan.first_successor.push_back(static_cast<uint32_t>(plan.successors.size()));
}

/// Counts the instructions that use each held value. The last one to run frees the value.
void find_touches(const Program& program, ParallelPlan& plan) {
  IdVector<SlotId, int32_t> counter_of(program.slots().size(), -1);
  for (const Instruction& instruction : program.instructions()) {
    const size_t first = plan.touches.size();
    plan.first_touch.push_back(static_cast<uint32_t>(first));
    for (SlotId operand : program.operands(instruction)) {
      if (operand == kNoSlot) continue;
      const SlotId root = program.slots()[operand].root;
      const Slot& slot = program.slots()[root];
      if (slot.location != LocationKind::held || slot.is_output) continue;
      if (std::any_of(plan.touches.begin() + static_cast<ptrdiff_t>(first), plan.touches.end(),
                      [&](const ParallelPlan::Touch& touch) { return touch.slot == root; }))
        continue;
      int32_t& counter = counter_of[root];
      if (counter < 0) {
        counter = static_cast<int32_t>(plan.counters.size());
        plan.counters.push_back(0);
      }
      ++plan.counters[static_cast<size_t>(counter)];
      plan.touches.push_back({root, counter});
    }
  }
  plan.first_touch.push_back(static_cast<uint32_t>(plan.touches.size()));
}

/// Finds the instructions that use each buffer, and those that may be the first to use it.
void find_accesses(const Program& program, ParallelPlan& plan) {
  const auto slots = program.slots();
  IdVector<BufferId, std::vector<InstructionId>> accesses(program.num_buffers());
  auto access = [&](BufferId buffer, InstructionId instruction) {
    auto& list = accesses[buffer];
    if (list.empty() || list.back() != instruction) list.push_back(instruction);
  };
  for (InstructionId i : program.instructions().ids()) {
    const Instruction& instruction = program.instructions()[i];
    for (SlotId operand : program.operands(instruction)) {
      if (operand == kNoSlot) continue;
      const Slot& slot = slots[slots[operand].root];
      if (slot.location == LocationKind::arena && slot.buffer != kNoBuffer) access(slot.buffer, i);
    }
    if (instruction.scratch_buffer != kNoBuffer) access(instruction.scratch_buffer, i);
  }
  for (BufferId b : accesses.ids()) {
    const std::vector<InstructionId>& list = accesses[b];
    plan.first_access.push_back(static_cast<uint32_t>(plan.accesses.size()));
    plan.accesses.insert(plan.accesses.end(), list.begin(), list.end());
    plan.first_beginning.push_back(static_cast<uint32_t>(plan.beginnings.size()));
    const SlotId slot = program.buffers()[b].slot;
    const bool in_pieces = slot != kNoSlot && slots[slot].in_pieces;
    for (size_t k = 0; k < (in_pieces ? list.size() : std::min<size_t>(list.size(), 1)); ++k)
      if (std::none_of(list.begin(), list.begin() + static_cast<ptrdiff_t>(k),
                       [&](InstructionId other) { return plan.reach.before(other, list[k]); }))
        plan.beginnings.push_back(list[k]);
  }
  plan.first_beginning.push_back(static_cast<uint32_t>(plan.beginnings.size()));
  plan.first_access.push_back(static_cast<uint32_t>(plan.accesses.size()));
}

}  // namespace

void Program::plan_parallel(const IdVector<SlotId, SlotId>& viewed) {
  auto plan = std::make_unique<ParallelPlan>(instructions_.size());
  find_order(*this, viewed, *plan);
  find_touches(*this, *plan);
  find_accesses(*this, *plan);
  parallel_ = std::move(plan);
}

}  // namespace treadle::exec
