#include "exec/budget.h"

#include <algorithm>
#include <map>

#include "core/checked.h"
#include "exec/binding.h"
#include "memory/budget.h"

namespace treadle::exec {
namespace {

constexpr size_t kLongestReplay = 4;  // instructions that write one value in place, one after the other

/// Describes a binding to the planner, and its answer to a frame.
class Budgeting {
 public:
  explicit Budgeting(const Binding& binding)
      : binding_(binding), program_(binding.program()), sizes_(binding.buffer_sizes()), buffers_(sizes_.size()) {
    for (size_t b = 0; b < sizes_.size(); ++b) buffers_[b].size_bytes = sizes_[b];
    describe();
  }

  std::shared_ptr<const BudgetedPlan> plan(size_t capacity) const {
    auto result = std::make_shared<BudgetedPlan>();
    const memory::BudgetPlan plan = memory::plan_budget(program_.instructions().size(), buffers_, recipes_, capacity);
    result->arena_bytes = plan.arena_bytes;
    result->cost_ns = plan.cost_ns;
    result->spilled_bytes = plan.spilled_bytes;
    place_operands(plan, *result);
    note_moves(plan, *result);
    size_t file_bytes = 0;
    for (size_t size : sizes_) {
      result->file_offsets.push_back(file_bytes);
      file_bytes += align_up(size, size_t{4096});
    }
    return result;
  }

 private:
  struct Chain {
    std::vector<int32_t> instructions;  // that wrote the buffer's content, from nothing on
    std::map<int32_t, int32_t> reads;   // other buffers, and the version that was read
    bool repeatable = false;
  };

  int32_t buffer_of(int32_t slot) const { return slot < 0 ? -1 : program_.slots()[static_cast<size_t>(slot)].buffer; }

  void describe() {
    const auto instructions = program_.instructions();
    std::vector<Chain> chains(buffers_.size());
    std::vector<int32_t> version(buffers_.size(), 0);
    for (size_t i = 0; i < instructions.size(); ++i) {
      const Instruction& instruction = instructions[i];
      const auto step = static_cast<int32_t>(i);
      const auto operands = program_.operands(instruction);
      std::vector<int32_t> reads, writes;
      for (size_t k = 0; k < operands.size(); ++k) {
        const int32_t buffer = buffer_of(operands[k]);
        if (buffer < 0) continue;
        auto& list = k < instruction.num_inputs ? reads : writes;
        if (std::find(list.begin(), list.end(), buffer) == list.end()) list.push_back(buffer);
      }
      for (int32_t buffer : reads) {
        offer(buffer, step, chains[static_cast<size_t>(buffer)], version);
        use(buffer, step, /*is_write=*/false);
      }
      for (int32_t buffer : writes) {
        Chain& chain = chains[static_cast<size_t>(buffer)];
        const bool in_place = std::find(reads.begin(), reads.end(), buffer) != reads.end();
        extend(chain, instruction, step, reads, buffer, in_place, version);
        use(buffer, step, /*is_write=*/true);
        ++version[static_cast<size_t>(buffer)];
      }
      if (instruction.scratch_buffer >= 0) use(instruction.scratch_buffer, step, /*is_write=*/true);
    }
    // A recipe reads only what is alive when it is followed.
    std::erase_if(recipes_, [&](const memory::Recipe& recipe) {
      return std::any_of(recipe.reads.begin(), recipe.reads.end(), [&](int32_t read) {
        const auto& uses = buffers_[static_cast<size_t>(read)].uses;
        return uses.back().step < recipe.step;
      });
    });
    // In the order in which the values were made at first: each recipe may read what those before it made.
    std::stable_sort(recipes_.begin(), recipes_.end(), [&](const auto& a, const auto& b) { return chain_of(a)[0] < chain_of(b)[0]; });
  }

  void use(int32_t buffer, int32_t step, bool is_write) {
    auto& uses = buffers_[static_cast<size_t>(buffer)].uses;
    if (!uses.empty() && uses.back().step == step)
      uses.back().writes |= is_write;
    else
      uses.push_back({step, is_write});
  }

  void extend(Chain& chain, const Instruction& instruction, int32_t step, const std::vector<int32_t>& reads, int32_t buffer, bool in_place,
              const std::vector<int32_t>& version) const {
    // Several nodes write a buffer of pieces, each a part of it.
    const bool in_pieces = program_.slots()[static_cast<size_t>(program_.buffers()[static_cast<size_t>(buffer)].slot)].in_pieces;
    if (!in_place) chain = {.repeatable = !in_pieces};
    chain.instructions.push_back(step);
    bool repeatable = chain.repeatable && !instruction.dynamic && instruction.run && chain.instructions.size() <= kLongestReplay;
    for (int32_t read : reads) {
      if (read == buffer) continue;
      auto [known, inserted] = chain.reads.emplace(read, version[static_cast<size_t>(read)]);
      repeatable &= inserted || known->second == version[static_cast<size_t>(read)];
    }
    // Held values may be gone by then, unless they are outputs.
    for (int32_t slot : program_.operands(instruction).first(instruction.num_inputs)) {
      if (slot < 0) continue;
      const Slot& root = program_.slots()[static_cast<size_t>(program_.slots()[static_cast<size_t>(slot)].root)];
      repeatable &= root.placement != Placement::held || root.is_output;
    }
    chain.repeatable = repeatable;
  }

  void offer(int32_t buffer, int32_t step, const Chain& chain, const std::vector<int32_t>& version) {
    const auto& uses = buffers_[static_cast<size_t>(buffer)].uses;
    if (!chain.repeatable || uses.empty() || step - uses.back().step < 2) return;
    memory::Recipe recipe{buffer, step};
    for (auto [read, read_version] : chain.reads) {
      if (version[static_cast<size_t>(read)] != read_version) return;  // written over since
      recipe.reads.push_back(read);
    }
    for (int32_t i : chain.instructions) {
      const Instruction& instruction = program_.instructions()[static_cast<size_t>(i)];
      const auto [computing_ns, moving_ns] = binding_.estimate_cost(instruction);
      recipe.cost_ns += computing_ns + moving_ns;
      recipe.extra_bytes = std::max(recipe.extra_bytes, extra_of(instruction, buffer));
    }
    chains_[{buffer, step}] = chain.instructions;
    recipes_.push_back(std::move(recipe));
  }

  const std::vector<int32_t>& chain_of(const memory::Recipe& recipe) const { return chains_.at({recipe.buffer, recipe.step}); }

  size_t size_of(int32_t slot) const {
    return size_bytes(program_.slots()[static_cast<size_t>(slot)].dtype, binding_.shape(slot).num_elements());
  }

  // Scratch, and room for results that nobody wants a second time.
  size_t extra_of(const Instruction& instruction, int32_t buffer) const {
    size_t bytes =
        instruction.scratch_buffer >= 0 ? align_up(sizes_[static_cast<size_t>(instruction.scratch_buffer)], Storage::kAlignment) : 0;
    for (int32_t slot : program_.operands(instruction).subspan(instruction.num_inputs))
      if (slot >= 0 && buffer_of(slot) != buffer) bytes += align_up(size_of(slot), Storage::kAlignment);
    return bytes;
  }

  void place_operands(const memory::BudgetPlan& plan, BudgetedPlan& result) const {
    result.stays.resize(buffers_.size());
    for (const auto& segment : plan.segments)
      if (segment.buffer >= 0) result.stays[static_cast<size_t>(segment.buffer)].push_back({segment.first, segment.last, segment.offset});
    const auto instructions = program_.instructions();
    result.operand_offsets.assign(program_.operands().size(), BudgetedPlan::kNowhere);
    result.scratch_offsets.assign(instructions.size(), 0);
    for (size_t i = 0; i < instructions.size(); ++i) {
      const auto step = static_cast<int32_t>(i);
      const auto operands = program_.operands(instructions[i]);
      for (size_t k = 0; k < operands.size(); ++k)
        if (int32_t buffer = buffer_of(operands[k]); buffer >= 0)
          result.operand_offsets[instructions[i].first_operand + k] = offset_at(result, buffer, step) + binding_.part_offset(operands[k]);
      if (instructions[i].scratch_buffer >= 0) result.scratch_offsets[i] = offset_at(result, instructions[i].scratch_buffer, step);
    }
  }

  static size_t offset_at(const BudgetedPlan& plan, int32_t buffer, int32_t step) {
    for (const auto& stay : plan.stays[static_cast<size_t>(buffer)])
      if (stay.first <= step && step <= stay.last) return stay.offset;
    return 0;  // an empty buffer
  }

  void note_moves(const memory::BudgetPlan& plan, BudgetedPlan& result) const {
    result.drops.resize(buffers_.size());
    size_t next = 0;
    for (size_t i = 0; i <= program_.instructions().size(); ++i) {
      result.first_move.push_back(static_cast<uint32_t>(result.moves.size()));
      for (; next < plan.transfers.size() && plan.transfers[next].step == static_cast<int32_t>(i); ++next) {
        const auto& transfer = plan.transfers[next];
        const auto& segment = plan.segments[static_cast<size_t>(transfer.segment)];
        BudgetedPlan::Move move{static_cast<BudgetedPlan::Kind>(transfer.move), transfer.buffer, segment.offset};
        if (transfer.move == memory::BudgetPlan::Move::recompute) {
          const auto& recipe = recipes_[static_cast<size_t>(transfer.recipe)];
          const size_t extra = plan.segments[static_cast<size_t>(transfer.extra)].offset;
          move.first_replay = static_cast<uint32_t>(result.replays.size());
          for (int32_t j : chain_of(recipe)) add_replay(j, transfer.buffer, segment.offset, extra, static_cast<int32_t>(i), result);
          move.num_replays = static_cast<uint32_t>(result.replays.size()) - move.first_replay;
          ++result.num_recomputed;
          result.drops[static_cast<size_t>(transfer.buffer)].push_back(previous_stay(result, transfer.buffer, static_cast<int32_t>(i)));
        }
        result.moves.push_back(move);
      }
    }
    result.first_move.push_back(static_cast<uint32_t>(result.moves.size()));
  }

  // The last instruction of the stay before the one that begins at `step`.
  static int32_t previous_stay(const BudgetedPlan& plan, int32_t buffer, int32_t step) {
    int32_t last = -1;
    for (const auto& stay : plan.stays[static_cast<size_t>(buffer)])
      if (stay.last < step) last = std::max(last, stay.last);
    return last;
  }

  void add_replay(int32_t index, int32_t buffer, size_t offset, size_t extra, int32_t step, BudgetedPlan& result) const {
    const Instruction& instruction = program_.instructions()[static_cast<size_t>(index)];
    result.replays.push_back({index, extra, static_cast<uint32_t>(result.replay_offsets.size())});
    if (instruction.scratch_buffer >= 0) extra += align_up(sizes_[static_cast<size_t>(instruction.scratch_buffer)], Storage::kAlignment);
    const auto operands = program_.operands(instruction);
    for (size_t k = 0; k < operands.size(); ++k) {
      const int32_t other = buffer_of(operands[k]);
      size_t at = BudgetedPlan::kNowhere;
      if (other == buffer && other >= 0) {
        at = offset + binding_.part_offset(operands[k]);
      } else if (k >= instruction.num_inputs && operands[k] >= 0) {
        at = extra;
        extra += align_up(size_of(operands[k]), Storage::kAlignment);
      } else if (other >= 0) {
        at = offset_at(result, other, step) + binding_.part_offset(operands[k]);
      }
      result.replay_offsets.push_back(at);
    }
  }

  const Binding& binding_;
  const Program& program_;
  const std::span<const size_t> sizes_;
  std::vector<memory::BudgetBuffer> buffers_;
  std::vector<memory::Recipe> recipes_;
  std::map<std::pair<int32_t, int32_t>, std::vector<int32_t>> chains_;  // of recipes, by buffer and step
};

}  // namespace

std::shared_ptr<const BudgetedPlan> plan_for_budget(const Binding& binding, size_t capacity_bytes) {
  return Budgeting(binding).plan(capacity_bytes);
}

}  // namespace treadle::exec
