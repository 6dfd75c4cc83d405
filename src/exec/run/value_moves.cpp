#include "exec/run/value_moves.h"

#include <algorithm>

#include "exec/memory/memory_pass.h"
#include "exec/run/node_runner.h"
#include "memory/spill_file.h"
#include "sharing/job_table.h"

namespace treadle::exec {

SpillStore::SpillStore(const RunControl& control) : control_(control) {}

SpillStore::~SpillStore() = default;

void SpillStore::write(size_t file_offset, const std::byte* data, size_t size_bytes) {
  if (!file_) file_ = std::make_unique<memory::SpillFile>(control_.memory.pass->spill_folder());
  const uint64_t start = sharing::now_ns();
  file_->write(file_offset, data, size_bytes);
  count(size_bytes, start);
}

void SpillStore::read(size_t file_offset, std::byte* data, size_t size_bytes) {
  const uint64_t start = sharing::now_ns();
  file_->read(file_offset, data, size_bytes);
  count(size_bytes, start);
}

void SpillStore::count(size_t size_bytes, uint64_t since_ns) { control_.memory.pass->moved(size_bytes, sharing::now_ns() - since_ns); }

void Reevaluation::run(const BudgetedPlan& plan, const BudgetedPlan::Move& move, sharing::Turn& turn) {
  for (size_t r = move.first_replay; r < size_t{move.first_replay} + move.num_replays; ++r) {
    const BudgetedPlan::Replay& replay = plan.replays[r];
    const Instruction& instruction = state_.program().instructions()[replay.instruction];
    const size_t operands = static_cast<size_t>(instruction.num_inputs) + instruction.num_outputs;
    pointers_.resize(std::max(pointers_.size(), operands));
    for (size_t k = 0; k < operands; ++k) {
      const size_t offset = plan.replay_offsets[replay.first_offset + k];
      pointers_[k] = offset == BudgetedPlan::kNowhere ? state_.pointers(instruction)[k] : state_.arena() + offset;
    }
    nodes_.run_again(instruction, pointers_.data(), state_.arena() + replay.scratch_offset, turn);
  }
}

void ValueMoves::make_before(size_t step, sharing::Turn& turn) {
  if (are_done_before(step)) return;
  note_done_before(step);
  const BudgetedPlan& plan = *state_.budget();
  for (uint32_t m = plan.first_move[step]; m < plan.first_move[step + 1]; ++m) {
    const BudgetedPlan::Move& move = plan.moves[m];
    const size_t size_bytes = state_.binding().buffer_sizes()[move.buffer], in_file = plan.file_offsets[move.buffer];
    std::byte* const data = state_.arena() + move.offset;
    switch (move.kind) {
      case BudgetedPlan::Kind::spill: spilled_.write(in_file, data, size_bytes); break;
      case BudgetedPlan::Kind::load: spilled_.read(in_file, data, size_bytes); break;
      case BudgetedPlan::Kind::recompute: again_.run(plan, move, turn); break;
    }
    state_.set_place(move.buffer, move.kind == BudgetedPlan::Kind::spill ? RunState::kAway : move.offset);
  }
}

}  // namespace treadle::exec
