#include "exec/schedule/parallel_plan.h"

#include <algorithm>

#include "exec/program/program.h"

namespace treadle::exec {

void Reachability::add(int32_t instruction, std::span<const int32_t> predecessors) {
  uint64_t* row = bits_.data() + static_cast<size_t>(instruction) * words_;
  for (int32_t p : predecessors) {
    const uint64_t* other = bits_.data() + static_cast<size_t>(p) * words_;
    for (size_t w = 0; w < words_; ++w) row[w] |= other[w];
    row[static_cast<size_t>(p) / 64] |= uint64_t{1} << (static_cast<size_t>(p) % 64);
  }
}

namespace {

/// Which instructions wait for which. @param viewed  per slot what it is a view of; -1: nothing
void find_order(const Program& program, std::span<const int32_t> viewed, ParallelPlan& plan) {
  const std::span<const Instruction> instructions = program.instructions();
  const size_t count = instructions.size(), commit_from = program.commit_from();
  std::vector<int32_t> producer(program.slots().size(), -1);
  std::vector<std::vector<int32_t>> successors(count);
  for (size_t i = 0; i < count; ++i) {
    const Instruction& instruction = instructions[i];
    const auto all = program.operands(instruction);
    std::vector<int32_t> waits_for;
    for (int32_t slot : all.first(instruction.num_inputs)) {
      while (slot >= 0 && producer[static_cast<size_t>(slot)] < 0 && viewed[static_cast<size_t>(slot)] >= 0)
        slot = viewed[static_cast<size_t>(slot)];  // a view that no instruction makes
      if (slot >= 0 && producer[static_cast<size_t>(slot)] >= 0) waits_for.push_back(producer[static_cast<size_t>(slot)]);
    }
    // Updates begin when all else has run: nobody reads any more what they write over, and a run that fails before has changed nothing.
    if (i == commit_from) {
      for (size_t p = 0; p < i; ++p)
        if (successors[p].empty()) waits_for.push_back(static_cast<int32_t>(p));
    } else if (i > commit_from) {
      waits_for.push_back(static_cast<int32_t>(commit_from));
    }
    std::sort(waits_for.begin(), waits_for.end());
    waits_for.erase(std::unique(waits_for.begin(), waits_for.end()), waits_for.end());
    for (int32_t p : waits_for) successors[static_cast<size_t>(p)].push_back(static_cast<int32_t>(i));
    plan.reach.add(static_cast<int32_t>(i), waits_for);
    plan.counters.push_back(static_cast<int32_t>(waits_for.size()));
    if (instruction.is_yield) plan.yields.push_back(static_cast<int32_t>(i));
    for (int32_t slot : all.subspan(instruction.num_inputs))
      if (slot >= 0) producer[static_cast<size_t>(slot)] = static_cast<int32_t>(i);
  }
  for (const auto& list : successors) {
    plan.first_successor.push_back(static_cast<uint32_t>(plan.successors.size()));
    plan.successors.insert(plan.successors.end(), list.begin(), list.end());
  }
  plan.first_successor.push_back(static_cast<uint32_t>(plan.successors.size()));
}

/// Held values are let go by whoever is the last to touch them.
void find_touches(const Program& program, ParallelPlan& plan) {
  std::vector<int32_t> counter_of(program.slots().size(), -1);
  for (const Instruction& instruction : program.instructions()) {
    const size_t first = plan.touches.size();
    plan.first_touch.push_back(static_cast<uint32_t>(first));
    for (int32_t operand : program.operands(instruction)) {
      if (operand < 0) continue;
      const int32_t root = program.slots()[static_cast<size_t>(operand)].root;
      const Slot& slot = program.slots()[static_cast<size_t>(root)];
      if (slot.location != LocationKind::held || slot.is_output) continue;
      if (std::any_of(plan.touches.begin() + static_cast<ptrdiff_t>(first), plan.touches.end(),
                      [&](const ParallelPlan::Touch& touch) { return touch.slot == root; }))
        continue;
      int32_t& counter = counter_of[static_cast<size_t>(root)];
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

/// Which instructions use a buffer's bytes, and which of them are the first.
void find_accesses(const Program& program, ParallelPlan& plan) {
  const std::span<const Slot> slots = program.slots();
  std::vector<std::vector<int32_t>> accesses(program.num_buffers());
  auto access = [&](int32_t buffer, int32_t instruction) {
    auto& list = accesses[static_cast<size_t>(buffer)];
    if (list.empty() || list.back() != instruction) list.push_back(instruction);
  };
  for (size_t i = 0; i < program.instructions().size(); ++i) {
    const Instruction& instruction = program.instructions()[i];
    for (int32_t operand : program.operands(instruction)) {
      if (operand < 0) continue;
      const Slot& slot = slots[static_cast<size_t>(slots[static_cast<size_t>(operand)].root)];
      if (slot.location == LocationKind::arena && slot.buffer >= 0) access(slot.buffer, static_cast<int32_t>(i));
    }
    if (instruction.scratch_buffer >= 0) access(instruction.scratch_buffer, static_cast<int32_t>(i));
  }
  for (size_t b = 0; b < accesses.size(); ++b) {
    const std::vector<int32_t>& list = accesses[b];
    plan.first_access.push_back(static_cast<uint32_t>(plan.accesses.size()));
    plan.accesses.insert(plan.accesses.end(), list.begin(), list.end());
    plan.first_beginning.push_back(static_cast<uint32_t>(plan.beginnings.size()));
    const int32_t slot = program.buffers()[b].slot;
    const bool in_pieces = slot >= 0 && slots[static_cast<size_t>(slot)].in_pieces;
    for (size_t k = 0; k < (in_pieces ? list.size() : std::min<size_t>(list.size(), 1)); ++k)
      if (std::none_of(list.begin(), list.begin() + static_cast<ptrdiff_t>(k),
                       [&](int32_t other) { return plan.reach.before(other, list[k]); }))
        plan.beginnings.push_back(list[k]);
  }
  plan.first_beginning.push_back(static_cast<uint32_t>(plan.beginnings.size()));
  plan.first_access.push_back(static_cast<uint32_t>(plan.accesses.size()));
}

}  // namespace

void Program::plan_parallel(std::span<const int32_t> viewed) {
  auto plan = std::make_unique<ParallelPlan>(instructions_.size());
  find_order(*this, viewed, *plan);
  find_touches(*this, *plan);
  find_accesses(*this, *plan);
  parallel_ = std::move(plan);
}

}  // namespace treadle::exec
