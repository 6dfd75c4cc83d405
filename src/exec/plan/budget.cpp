#include "exec/plan/budget.h"

#include <algorithm>
#include <functional>
#include <map>

#include "core/base/checked.h"
#include "exec/plan/binding.h"
#include "exec/plan/orders.h"
#include "exec/program/next_versions.h"
#include "graph/op_def.h"
#include "memory/budget.h"

namespace treadle::exec {

struct BudgetBasis {
  memory::BudgetPlan plan;
  IdVector<BufferId, size_t> sizes;  // sizes in bytes
  std::vector<memory::Recipe> recipes;
};

namespace {

constexpr size_t kLongestReplay = 4;        // maximum number of instructions in a recomputation; later ones work in place
constexpr size_t kMostInTurn = 3;           // maximum depth of nested recomputations, where one needs a buffer that another recomputes
constexpr size_t kMaxFreelyOrdered = 2000;  // no other orders are tried for more instructions, because each order is planned

/// A node's metadata about recomputation. "always": recompute rather than spill, at any cost. "never": do not recompute the node. MXNet's
/// attribute for mirroring means "always".
enum class Repetition : uint8_t { by_cost, always, never };

Repetition repetition_of(const Node& node) {
  for (const auto& [key, value] : node.metadata) {
    if (key == "treadle.recompute")
      return value == "never" ? Repetition::never : value == "always" ? Repetition::always : Repetition::by_cost;
    if (key == "force_mirroring" || key == "__force_mirroring__")
      return value == "True" || value == "true" || value == "1" ? Repetition::always : Repetition::by_cost;
  }
  return Repetition::by_cost;
}

/// Translates a binding into the input of the memory planner (memory/budget), and the planner's result into a BudgetedPlan.
class Budgeting {
 public:
  /// @param order                order of instructions; empty: the program's order
  /// @param binds_next_versions  see OrderChoice
  Budgeting(const Binding& binding, std::vector<InstructionId> order, bool binds_next_versions)
      : binding_(binding), program_(binding.program()), sizes_(binding.buffer_sizes()), buffers_(sizes_.size()), order_(std::move(order)) {
    if (binds_next_versions) next_versions_ = find_next_versions(program_);
    for (BufferId b : sizes_.ids()) buffers_[b].size_bytes = sizes_[b];
    describe();
  }

  // Makes the plan begin at `step`, as if all earlier instructions had run.
  void begin_at(int32_t step, size_t capacity, const IdVector<BufferId, bool>& is_away) {
    carried_.assign(buffers_.size(), false);
    size_t in_memory = 0;
    // (step of the next use, buffer) of buffers that are in memory, but not used at the step.
    std::vector<std::pair<int32_t, BufferId>> idle;
    for (BufferId b : buffers_.ids()) {
      auto& uses = buffers_[b].uses;
      const auto next = std::find_if(uses.begin(), uses.end(), [&](const auto& use) { return use.step >= step; });
      carried_[b] = next != uses.begin() && next != uses.end() && sizes_[b] > 0;
      uses.erase(uses.begin(), next);
      if (uses.empty()) continue;
      const bool is_idle = carried_[b] && uses.front().step > step;
      buffers_[b].begins_away = is_idle && is_away[b];
      if (is_idle && !is_away[b]) idle.emplace_back(uses.front().step, b);
      if ((is_idle && !is_away[b]) || uses.front().step == step) in_memory += align_up(sizes_[b], Storage::kAlignment);
    }
    std::sort(idle.begin(), idle.end(), std::greater<>());
    for (const auto& [next, b] : idle) {
      buffers_[b].begins_away = in_memory > capacity;
      if (buffers_[b].begins_away)
        in_memory -= align_up(sizes_[b], Storage::kAlignment);
      else
        buffers_[b].uses.insert(buffers_[b].uses.begin(), {step, /*writes=*/false});
    }
    std::erase_if(recipes_, [&](const memory::Recipe& recipe) {
      return recipe.step <= step || std::any_of(recipe.reads.begin(), recipe.reads.end(), [&](int32_t read) {
               const auto& uses = buffers_[BufferId{read}].uses;
               return uses.empty() || uses.front().step > recipe.step;
             });
    });
  }

  memory::BudgetEstimate estimate(size_t capacity, const memory::BudgetOptions& options) const {
    return memory::estimate_budget(program_.instructions().size(), buffers_, recipes_, capacity, options);
  }

  std::shared_ptr<const BudgetedPlan> plan(size_t capacity, const memory::BudgetOptions& options = {}) const {
    return realized(memory::plan_budget(program_.instructions().size(), buffers_, recipes_, capacity, options));
  }

  // Returns null if a buffer is larger than in the given plan, or would be recomputed differently.
  std::shared_ptr<const BudgetedPlan> plan_as_for(const BudgetBasis& larger) const {
    const auto suffices = [](const memory::Recipe& here, const memory::Recipe& there) {
      return here.buffer == there.buffer && here.step == there.step && here.extra_bytes <= there.extra_bytes;
    };
    if (!std::equal(sizes_.begin(), sizes_.end(), larger.sizes.begin(), larger.sizes.end(), std::less_equal<>()) ||
        !std::equal(recipes_.begin(), recipes_.end(), larger.recipes.begin(), larger.recipes.end(), suffices))
      return nullptr;
    return realized(larger.plan);
  }

 private:
  std::shared_ptr<const BudgetedPlan> realized(const memory::BudgetPlan& plan) const {
    auto result = std::make_shared<BudgetedPlan>();
    result->order = order_;
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
    result->carried = carried_;
    result->basis = std::make_shared<BudgetBasis>(plan, IdVector<BufferId, size_t>(sizes_.begin(), sizes_.end()), recipes_);
    return result;
  }

  struct Chain {
    std::vector<int32_t> steps;         // steps that have written the buffer's present contents, beginning with the first
    std::map<BufferId, int32_t> reads;  // other buffers that these steps read, with the version read
    std::map<SlotId, int32_t> outer;    // slots with own bytes outside of the arena that these steps read, with the version read
    bool repeatable = false;
  };

  const Instruction& instruction_at(size_t step) const {
    return program_.instructions()[order_.empty() ? id_at<InstructionId>(step) : order_[step]];
  }

  BufferId buffer_of(SlotId slot) const { return slot == kNoSlot ? kNoBuffer : program_.slots()[slot].buffer; }

  void describe() {
    const auto instructions = program_.instructions();
    IdVector<BufferId, Chain> chains(buffers_.size());
    IdVector<BufferId, int32_t> version(buffers_.size(), 0);
    for (size_t i = 0; i < instructions.size(); ++i) {
      const Instruction& instruction = instruction_at(i);
      const auto step = static_cast<int32_t>(i);
      const auto operands = program_.operands(instruction);
      std::vector<BufferId> reads, writes;
      for (size_t k = 0; k < operands.size(); ++k) {
        const BufferId buffer = buffer_of(operands[k]);
        if (buffer == kNoBuffer) continue;
        auto& list = k < instruction.num_inputs ? reads : writes;
        if (std::find(list.begin(), list.end(), buffer) == list.end()) list.push_back(buffer);
      }
      for (BufferId buffer : reads) {
        offer(buffer, step, chains, version);
        use(buffer, step, /*is_write=*/false);
      }
      for (BufferId buffer : writes) {
        Chain& chain = chains[buffer];
        const bool in_place = std::find(reads.begin(), reads.end(), buffer) != reads.end();
        extend(chain, instruction, step, reads, buffer, in_place, version);
        use(buffer, step, /*is_write=*/true);
        ++version[buffer];
      }
      if (instruction.scratch_buffer != kNoBuffer) use(instruction.scratch_buffer, step, /*is_write=*/true);
      note_outputs(instruction);
    }
    // Drops recipes (recomputations) that read a buffer whose last use is before the step of the recipe.
    std::erase_if(recipes_, [&](const memory::Recipe& recipe) {
      return std::any_of(recipe.reads.begin(), recipe.reads.end(), [&](int32_t read) {
        const auto& uses = buffers_[BufferId{read}].uses;
        return uses.back().step < recipe.step;
      });
    });
    // Sorts recipes by the step that wrote their contents last, because a recipe may read the results of earlier recipes.
    std::stable_sort(recipes_.begin(), recipes_.end(),
                     [&](const auto& a, const auto& b) { return chain_of(a).back() < chain_of(b).back(); });
  }

  // Counts a new version of each output outside of the arena. Also counts one for feeds whose memory the output may be bound to: any feed
  // of the same size, or only the feed whose next version the output is.
  void note_outputs(const Instruction& instruction) {
    for (SlotId slot : program_.operands(instruction).subspan(instruction.num_inputs)) {
      if (slot == kNoSlot || buffer_of(slot) != kNoBuffer) continue;
      ++outer_version_[program_.slots()[slot].root];
      if (!next_versions_.empty()) {
        if (const SlotId feed = next_versions_[slot]; feed != kNoSlot) ++outer_version_[feed];
        continue;
      }
      if (!program_.slots()[slot].static_shape) continue;
      for (SlotId feed : program_.input_slots())
        if (program_.slots()[feed].static_shape && binding_.bytes_of(feed) == binding_.bytes_of(slot)) ++outer_version_[feed];
    }
  }

  void use(BufferId buffer, int32_t step, bool is_write) {
    auto& uses = buffers_[buffer].uses;
    if (!uses.empty() && uses.back().step == step)
      uses.back().writes |= is_write;
    else
      uses.push_back({step, is_write});
  }

  void extend(Chain& chain, const Instruction& instruction, int32_t step, const std::vector<BufferId>& reads, BufferId buffer,
              bool in_place, const IdVector<BufferId, int32_t>& version) const {
    // A buffer that consists of pieces is written by several nodes. Such a buffer is not recomputed.
    const bool in_pieces = program_.slots()[program_.buffers()[buffer].slot].in_pieces;
    if (!in_place) chain = {.repeatable = !in_pieces};
    chain.steps.push_back(step);
    bool repeatable = chain.repeatable && !instruction.dynamic && instruction.run && chain.steps.size() <= kLongestReplay;
    for (BufferId read : reads) {
      if (read == buffer) continue;
      auto [known, inserted] = chain.reads.emplace(read, version[read]);
      repeatable &= inserted || known->second == version[read];
    }
    // A value outside of the arena (held) may have been freed before it is needed again, unless it is an output.
    const auto operands = program_.operands(instruction);
    for (size_t k = 0; k < instruction.num_inputs; ++k) {
      const SlotId slot = operands[k];
      if (slot == kNoSlot || is_of_others_only(instruction, k, buffer)) continue;
      const Slot& root = program_.slots()[program_.slots()[slot].root];
      repeatable &= root.location != LocationKind::held || root.is_output;
      if (root.location != LocationKind::held && root.location != LocationKind::feed) continue;
      const SlotId outer = program_.slots()[slot].root;
      auto [known, inserted] = chain.outer.emplace(outer, outer_version(outer));
      repeatable &= inserted || known->second == outer_version(outer);
    }
    chain.repeatable = repeatable;
  }

  // Returns true if input `k` affects only outputs other than the buffer. Then recomputing the buffer is correct even if the input (for
  // example a running statistic) has changed.
  bool is_of_others_only(const Instruction& instruction, size_t k, BufferId buffer) const {
    const auto outputs = program_.operands(instruction).subspan(instruction.num_inputs);
    return std::any_of(instruction.node->op->alias.begin(), instruction.node->op->alias.end(), [&](const Alias& alias) {
      if (!alias.alone || static_cast<size_t>(alias.input) != k || static_cast<size_t>(alias.output) >= outputs.size()) return false;
      const SlotId updated = outputs[static_cast<size_t>(alias.output)];
      return updated != kNoSlot && buffer_of(updated) != buffer;
    });
  }

  // Adds a recipe that recomputes the buffer before the step, and recipes for the buffers that the recomputation reads.
  void offer(BufferId buffer, int32_t step, const IdVector<BufferId, Chain>& chains, const IdVector<BufferId, int32_t>& version,
             size_t depth = 0) {
    const auto& uses = buffers_[buffer].uses;
    const Chain& chain = chains[buffer];
    if (!chain.repeatable || uses.empty() || step - uses.back().step < 2 || chains_.contains({buffer, step})) return;
    memory::Recipe recipe{static_cast<int32_t>(buffer), step};
    for (auto [read, read_version] : chain.reads) {
      if (version[read] != read_version) return;  // the buffer that the recipe would read has been overwritten since
      recipe.reads.push_back(static_cast<int32_t>(read));
    }
    for (auto [slot, read_version] : chain.outer)
      if (outer_version(slot) != read_version) return;
    for (int32_t i : chain.steps) {
      const Instruction& instruction = instruction_at(static_cast<size_t>(i));
      const Repetition repetition = repetition_of(*instruction.node);
      if (repetition == Repetition::never) return;
      const auto [computing_ns, moving_ns] = estimate_cost(binding_, instruction);
      // A node marked "always" costs nearly nothing here, so it is preferred. The small factor keeps the costs of such nodes comparable.
      recipe.cost_ns += (computing_ns + moving_ns) * (repetition == Repetition::always ? 1e-6 : 1);
      recipe.extra_bytes = std::max(recipe.extra_bytes, extra_of(instruction, buffer));
    }
    chains_[{buffer, step}] = chain.steps;
    if (depth < kMostInTurn)
      for (int32_t read : recipe.reads) offer(BufferId{read}, step, chains, version, depth + 1);
    recipes_.push_back(std::move(recipe));
  }

  int32_t outer_version(SlotId slot) const {
    const auto found = outer_version_.find(slot);
    return found == outer_version_.end() ? 0 : found->second;
  }

  const std::vector<int32_t>& chain_of(const memory::Recipe& recipe) const { return chains_.at({BufferId{recipe.buffer}, recipe.step}); }

  // Bytes needed during the recomputation for scratch memory and for outputs of the instruction other than the buffer.
  size_t extra_of(const Instruction& instruction, BufferId buffer) const {
    size_t bytes = instruction.scratch_buffer != kNoBuffer ? align_up(sizes_[instruction.scratch_buffer], Storage::kAlignment) : 0;
    for (SlotId slot : program_.operands(instruction).subspan(instruction.num_inputs))
      if (slot != kNoSlot && buffer_of(slot) != buffer) bytes += align_up(binding_.bytes_of(slot), Storage::kAlignment);
    return bytes;
  }

  void place_operands(const memory::BudgetPlan& plan, BudgetedPlan& result) const {
    result.stays.resize(buffers_.size());
    for (const auto& segment : plan.segments) {
      if (segment.buffer >= 0)
        result.stays[BufferId{segment.buffer}].push_back({segment.first, segment.last, segment.offset});
      else
        result.extras.push_back({segment.first, segment.offset, recipes_[static_cast<size_t>(-1 - segment.buffer)].extra_bytes});
    }
    const auto instructions = program_.instructions();
    result.operand_offsets.assign(program_.operands().size(), BudgetedPlan::kNowhere);
    result.scratch_offsets.assign(instructions.size(), 0);
    for (size_t i = 0; i < instructions.size(); ++i) {
      const auto step = static_cast<int32_t>(i);
      const Instruction& instruction = instruction_at(i);
      const auto operands = program_.operands(instruction);
      for (size_t k = 0; k < operands.size(); ++k)
        if (BufferId buffer = buffer_of(operands[k]); buffer != kNoBuffer)
          result.operand_offsets[instruction.first_operand + k] = offset_at(result, buffer, step) + binding_.piece_offset(operands[k]);
      if (instruction.scratch_buffer != kNoBuffer)
        result.scratch_offsets[instructions.id_of(instruction)] = offset_at(result, instruction.scratch_buffer, step);
    }
  }

  static size_t offset_at(const BudgetedPlan& plan, BufferId buffer, int32_t step) {
    for (const auto& stay : plan.stays[buffer])
      if (stay.first <= step && step <= stay.last) return stay.offset;
    return 0;  // the buffer is empty
  }

  void note_moves(const memory::BudgetPlan& plan, BudgetedPlan& result) const {
    result.drops.resize(buffers_.size());
    size_t next = 0;
    for (size_t i = 0; i <= program_.instructions().size(); ++i) {
      result.first_move.push_back(static_cast<uint32_t>(result.moves.size()));
      for (; next < plan.transfers.size() && plan.transfers[next].step == static_cast<int32_t>(i); ++next) {
        const auto& transfer = plan.transfers[next];
        const BufferId buffer{transfer.buffer};
        const auto& segment = plan.segments[static_cast<size_t>(transfer.segment)];
        BudgetedPlan::Move move{static_cast<BudgetedPlan::Kind>(transfer.move), buffer, segment.offset};
        if (transfer.move == memory::BudgetPlan::Move::recompute) {
          const auto& recipe = recipes_[static_cast<size_t>(transfer.recipe)];
          const size_t extra = plan.segments[static_cast<size_t>(transfer.extra)].offset;
          move.first_replay = static_cast<uint32_t>(result.replays.size());
          for (int32_t j : chain_of(recipe)) add_replay(j, buffer, segment.offset, extra, static_cast<int32_t>(i), result);
          move.num_replays = static_cast<uint32_t>(result.replays.size()) - move.first_replay;
          ++result.num_recomputed;
          result.drops[buffer].push_back(previous_stay(result, buffer, static_cast<int32_t>(i)));
        }
        result.moves.push_back(move);
      }
    }
    result.first_move.push_back(static_cast<uint32_t>(result.moves.size()));
  }

  // Returns the last step of the latest interval before `step` in which the buffer is in memory.
  static int32_t previous_stay(const BudgetedPlan& plan, BufferId buffer, int32_t step) {
    int32_t last = -1;
    for (const auto& stay : plan.stays[buffer])
      if (stay.last < step) last = std::max(last, stay.last);
    return last;
  }

  void add_replay(int32_t repeated, BufferId buffer, size_t offset, size_t extra, int32_t step, BudgetedPlan& result) const {
    const Instruction& instruction = instruction_at(static_cast<size_t>(repeated));
    result.replays.push_back({program_.id_of(instruction), extra, static_cast<uint32_t>(result.replay_offsets.size())});
    if (instruction.scratch_buffer != kNoBuffer) extra += align_up(sizes_[instruction.scratch_buffer], Storage::kAlignment);
    const auto operands = program_.operands(instruction);
    for (size_t k = 0; k < operands.size(); ++k) {
      const BufferId other = buffer_of(operands[k]);
      size_t at = BudgetedPlan::kNowhere;
      if (other == buffer && other != kNoBuffer) {
        at = offset + binding_.piece_offset(operands[k]);
      } else if (k >= instruction.num_inputs && operands[k] != kNoSlot) {
        at = extra;
        extra += align_up(binding_.bytes_of(operands[k]), Storage::kAlignment);
      } else if (other != kNoBuffer) {
        at = offset_at(result, other, step) + binding_.piece_offset(operands[k]);
      }
      result.replay_offsets.push_back(at);
    }
  }

  const Binding& binding_;
  const Program& program_;
  const IdSpan<BufferId, const size_t> sizes_;
  IdVector<BufferId, memory::BudgetBuffer> buffers_;
  std::vector<memory::Recipe> recipes_;
  std::map<std::pair<BufferId, int32_t>, std::vector<int32_t>> chains_;  // the steps to run again, by buffer and step of a recipe
  std::map<SlotId, int32_t> outer_version_;                              // writes so far to each slot with its own bytes outside the arena
  const std::vector<InstructionId> order_;
  IdVector<BufferId, bool> carried_;        // see BudgetedPlan::carried
  IdVector<SlotId, SlotId> next_versions_;  // next version of each slot; empty: an output may be bound to the memory of any feed
};

}  // namespace

std::shared_ptr<const BudgetedPlan> plan_for_budget(const Binding& binding, size_t capacity_bytes, const OrderChoice& order) {
  auto best = Budgeting(binding, order.fixed, order.binds_next_versions).plan(capacity_bytes);
  const auto instructions = binding.program().instructions();
  const bool stops =
      std::any_of(instructions.begin(), instructions.end(), [](const Instruction& instruction) { return instruction.is_yield; });
  const bool is_free = best->arena_bytes <= capacity_bytes && best->cost_ns == 0;
  if (!order.free || is_free || stops || instructions.size() > kMaxFreelyOrdered) return best;
  auto is_better = [&](const BudgetedPlan& a, const BudgetedPlan& b) {
    const bool fits = a.arena_bytes <= capacity_bytes, other_fits = b.arena_bytes <= capacity_bytes;
    if (fits != other_fits) return fits;
    return fits ? a.cost_ns < b.cost_ns : a.arena_bytes < b.arena_bytes;
  };
  std::vector<std::vector<InstructionId>> orders = orders_to_try(binding);
  for (size_t k = 1; k < orders.size(); ++k)  // orders[0] is the program's order
    if (auto plan = Budgeting(binding, std::move(orders[k]), order.binds_next_versions).plan(capacity_bytes); is_better(*plan, *best))
      best = std::move(plan);
  return best;
}

std::shared_ptr<const BudgetedPlan> plan_rest(const Binding& binding, size_t capacity_bytes, const OrderChoice& order, int32_t step,
                                              const IdVector<BufferId, bool>& is_away) {
  // Gaps can make an arena larger than its contents, so each further try keeps fewer values in memory.
  constexpr int kTries = 3;
  std::shared_ptr<const BudgetedPlan> best;
  size_t stays = capacity_bytes;
  for (int k = 0; k < kTries; ++k, stays -= stays / 8) {
    Budgeting budgeting(binding, order.fixed, order.binds_next_versions);
    budgeting.begin_at(step, stays, is_away);
    auto plan = budgeting.plan(capacity_bytes);
    if (!best || plan->arena_bytes < best->arena_bytes) best = std::move(plan);
    if (best->arena_bytes <= capacity_bytes) break;
  }
  return best;
}

std::shared_ptr<const BudgetedPlan> plan_as_for(const BudgetedPlan& larger, const Binding& binding) {
  if (!larger.order.empty()) return nullptr;
  return Budgeting(binding, {}, /*binds_next_versions=*/true).plan_as_for(*larger.basis);
}

std::shared_ptr<const BudgetedPlan> plan_for_time(const Binding& binding, double share, bool pays, size_t own_arena_bytes) {
  double run_ns = 0;
  for (const Instruction& instruction : binding.program().instructions()) {
    if (!instruction.bodies.empty() || instruction.dynamic) continue;
    const auto [computing_ns, moving_ns] = estimate_cost(binding, instruction);
    run_ns += computing_ns + moving_ns;
  }
  const double bytes_for_time = pays ? 4 : 0;
  const auto price_of = [&](size_t arena_bytes, double cost_ns) {
    return static_cast<double>(arena_bytes) * (1 + bytes_for_time * cost_ns / std::max(1.0, run_ns));
  };
  const Budgeting budgeting(binding, {}, /*binds_next_versions=*/true);
  const memory::BudgetOptions options{.may_spill = false, .one_try = true};
  const double own_price = price_of(own_arena_bytes, 0);
  std::map<double, size_t> promising;  // capacities, sorted by the estimated price of their plans
  // Bisects the capacity, because a smaller arena nearly always costs more time.
  const auto search = [&](double most) {
    constexpr int kHalvings = 6;
    size_t too_small = 0, enough = own_arena_bytes;
    for (int k = 0; k < kHalvings && enough - too_small > Storage::kAlignment; ++k) {
      const size_t capacity = too_small + (enough - too_small) / 2;
      const memory::BudgetEstimate estimate = budgeting.estimate(capacity, options);
      if (estimate.cost_ns > most * run_ns) {
        too_small = capacity;
        continue;
      }
      enough = capacity;
      if (const double price = price_of(estimate.live_bytes, estimate.cost_ns); price < own_price) promising.emplace(price, capacity);
    }
  };
  search(share);
  if (pays)  // less added time may give a better ratio of saved bytes to time
    for (double part : {0.5, 0.2}) search(share * part);
  // The estimates do not count gaps in the arena. So an exact plan is made for the best estimates only, at most kTries of them.
  constexpr int kTries = 3;
  std::shared_ptr<const BudgetedPlan> best;
  double least = own_price;
  int tries = 0;
  for (const auto& [estimate, capacity] : promising) {
    if (estimate >= least || tries++ == kTries) break;
    auto plan = budgeting.plan(capacity, options);
    if (const double price = price_of(plan->arena_bytes, plan->cost_ns); price < least) best = std::move(plan), least = price;
  }
  return best;
}

}  // namespace treadle::exec
