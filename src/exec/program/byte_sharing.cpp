#include "exec/program/byte_sharing.h"

#include <algorithm>
#include <optional>

#include "exec/program/parallel_plan.h"
#include "graph/op_def.h"

namespace treadle::exec {
namespace {

class Choice {
 public:
  Choice(const Program& program, const ProgramOptions& options)
      : program_(program),
        options_(options),
        instructions_(program.instructions()),
        before_(program.slots().begin(), program.slots().end()),
        last_use_(before_.size(), kNoInstruction) {
    for (InstructionId i : instructions_.ids())
      for (SlotId operand : program.operands(instructions_[i]))
        if (operand != kNoSlot) last_use_[operand] = i;
    if (options.parallel && instructions_.size() <= kMaxParallelInstructions) order_ = order_by_data();
  }

  // Pieces of Concats and Splits that stay in place spare a copy and the room for it, but keep the whole alive for as long as any of them:
  // nodes do so one by one, the last first, where the most bytes alive at once do not become more.
  Sharing run() {
    IdVector<InstructionId, bool> in_pieces(instructions_.size());
    Sharing best = decide(in_pieces);
    const std::vector<InstructionId> candidates = find_pieces();
    if (candidates.empty()) return best;
    if (candidates.size() * instructions_.size() <= kMuchToTry) {
      for (InstructionId i : candidates) {
        in_pieces[i] = true;
        Sharing tried = decide(in_pieces);
        if (tried.peak_bytes <= best.peak_bytes)
          best = std::move(tried);
        else
          in_pieces[i] = false;
      }
    }
    // All at once may do what none does alone.
    for (InstructionId i : candidates) in_pieces[i] = true;
    Sharing all = decide(in_pieces);
    return all.peak_bytes <= best.peak_bytes ? all : best;
  }

 private:
  Slot& slot(SlotId index) { return slots_[index]; }

  // The last ones first: they hold what others have in common with them.
  std::vector<InstructionId> find_pieces() const {
    std::vector<InstructionId> found;
    if (!options_.pieces_in_place || !options_.reuse_memory || options_.observable) return found;
    for (InstructionId i : instructions_.ids().reversed()) {
      const Instruction& instruction = instructions_[i];
      if (!instruction.dynamic && instruction.node->op->pieces != Pieces::none &&
          join_of(program_.graph(), *instruction.node) != Join::none)
        found.push_back(i);
    }
    return found;
  }

  // Views take their input's bytes; kernels that may write over an input that nobody needs any more do so.
  Sharing decide(const IdVector<InstructionId, bool>& in_pieces) {
    slots_ = before_;
    const size_t num_slots = slots_.size();
    Sharing result{
        {}, IdVector<SlotId, SlotId>(num_slots, kNoSlot), IdVector<InstructionId, bool>(instructions_.size()), Places(num_slots)};
    IdVector<SlotId, std::vector<InstructionId>> accesses(order_ ? num_slots : 0);  // of each root
    IdVector<SlotId, InstructionId> root_last_use = last_use_;                      // of all slots that share a root's bytes so far
    IdVector<SlotId, bool> is_split(num_slots);                                     // a root: values are pieces of it
    for (InstructionId step : instructions_.ids()) {
      const Instruction& instruction = instructions_[step];
      if (in_pieces[step] && instruction.node->op->pieces == Pieces::split) cut_up(instruction, result.places, root_last_use, is_split);
      if (!instruction.dynamic && !options_.observable) {
        for (const Alias& alias : instruction.node->op->alias) {
          if (alias.input >= instruction.num_inputs || alias.output >= instruction.num_outputs) continue;
          SlotId in = program_.operands(instruction)[static_cast<size_t>(alias.input)];
          SlotId out = program_.operands(instruction)[static_cast<size_t>(instruction.num_inputs + alias.output)];
          if (in == kNoSlot || out == kNoSlot || slot(out).root != out || slot(out).location == LocationKind::known ||
              slot(in).row_step != 0)
            continue;
          SlotId root = slot(in).root;
          if (alias.kind == Alias::Kind::view) {
            if (!can_view(in, out)) continue;
            slot(out).root = root;
            slot(out).location = slot(root).location;
            if (instruction.num_outputs == 1) result.viewed[out] = in;
            result.elided[step] = instruction.num_outputs == 1;
          } else {
            if (!options_.reuse_memory || slot(root).location != LocationKind::arena || slot(out).location != LocationKind::arena) continue;
            if (root_last_use[root] > step || !same_size(program_.type(in), program_.type(out))) continue;
            if (is_split[root] && reads_another_piece(instruction, in)) continue;
            if (reads_elsewhere(instruction, alias, root)) continue;
            // Where instructions run at once, all others that touch the bytes must have ended.
            if (order_ &&
                !std::all_of(accesses[root].begin(), accesses[root].end(), [&](InstructionId j) { return order_->before(j, step); }))
              continue;
            slot(out).root = root;
          }
          result.places.base[out] = in;
          root_last_use[root] = std::max(root_last_use[root], last_use_[out]);
          break;
        }
      }
      if (result.elided[step] || !order_) continue;
      for (SlotId operand : program_.operands(instruction))
        if (operand != kNoSlot) accesses[slot(operand).root].push_back(step);
    }
    // A root may have become an output after others came to share its bytes.
    for (Slot& shared : slots_)
      if (shared.root != kNoSlot) shared.location = slot(shared.root).location;
    place_in_outputs(program_, slots_, result.places, result.elided, order_ ? &*order_ : nullptr,
                     [&](InstructionId i) { return in_pieces[i]; });
    result.peak_bytes = peak_of(result.elided);
    result.slots = std::move(slots_);
    return result;
  }

  // Whether an input that the output must not lie over has the same bytes: of a product's residual that is its A as well, later columns
  // would be products of sums.
  bool reads_elsewhere(const Instruction& instruction, const Alias& alias, SlotId root) {
    const auto operands = program_.operands(instruction);
    for (int k = 0; k < static_cast<int>(instruction.num_inputs); ++k) {
      const SlotId operand = operands[static_cast<size_t>(k)];
      if (k == alias.input || operand == kNoSlot || slot(operand).root != root) continue;
      const bool may_lie_over = std::any_of(
          instruction.node->op->alias.begin(), instruction.node->op->alias.end(),
          [&](const Alias& other) { return other.kind == Alias::Kind::reuse && other.output == alias.output && other.input == k; });
      if (!may_lie_over) return true;
    }
    return false;
  }

  // The outputs of a Split lie in its input.
  void cut_up(const Instruction& split, Places& places, IdVector<SlotId, InstructionId>& root_last_use, IdVector<SlotId, bool>& is_split) {
    const auto operands = program_.operands(split);
    const SlotId in = operands[0];
    if (in == kNoSlot) return;
    const SlotId root = slot(in).root;
    if (slot(root).location != LocationKind::arena && slot(root).location != LocationKind::feed &&
        slot(root).location != LocationKind::held)
      return;
    const auto outputs = operands.subspan(split.num_inputs);
    const bool by_rows = join_of(program_.graph(), *split.node) == Join::by_rows;
    if (slot(in).row_step != 0 && !by_rows) return;
    const int64_t row_step = !by_rows ? 0 : slot(in).row_step != 0 ? slot(in).row_step : row_length(program_, in);
    for (size_t k = 0; k < outputs.size(); ++k) {
      const SlotId out = outputs[k];
      if (out == kNoSlot) return;  // how much lies before the next one is not known
      if (slot(out).root != out || slot(out).location != LocationKind::arena || (by_rows && !all_take_steps(out))) continue;
      slot(out).root = root;
      slot(out).row_step = row_step;
      slot(out).location = slot(root).location;
      places.base[out] = in;
      places.preceding[out] = {split.first_operand + split.num_inputs, static_cast<uint32_t>(k)};
      InstructionId& last = root_last_use[root];
      last = std::max(last, last_use_[out]);
      is_split[root] = true;
    }
  }

  bool all_take_steps(SlotId value) const {
    for (const Instruction& instruction : instructions_) {
      const auto operands = program_.operands(instruction);
      for (size_t k = 0; k < operands.size(); ++k)
        if (operands[k] == value && !takes_steps(program_.graph(), instruction, k)) return false;
    }
    return true;
  }

  // The bytes of another operand may begin elsewhere in those of the input that is to be written over.
  bool reads_another_piece(const Instruction& instruction, SlotId in) {
    const auto inputs = program_.operands(instruction).first(instruction.num_inputs);
    return std::any_of(inputs.begin(), inputs.end(),
                       [&](SlotId other) { return other != kNoSlot && other != in && slot(other).root == slot(in).root; });
  }

  // The most bytes of the arena alive at once, scratch apart. Extents that are not known are all taken to be the same.
  size_t peak_of(const IdVector<InstructionId, bool>& elided) const {
    constexpr int64_t kSomeExtent = 16;
    IdVector<SlotId, InstructionId> first(slots_.size(), kNoInstruction), last = first;
    for (InstructionId i : instructions_.ids()) {
      if (elided[i]) continue;
      for (SlotId operand : program_.operands(instructions_[i])) {
        if (operand == kNoSlot) continue;
        const SlotId root = slots_[operand].root;
        if (slots_[root].location != LocationKind::arena) continue;
        if (first[root] == kNoInstruction) first[root] = i;
        last[root] = i;
      }
    }
    std::vector<int64_t> change(instructions_.size() + 1, 0);
    for (SlotId s : first.ids()) {
      if (first[s] == kNoInstruction) continue;
      double elements = 1;
      for (const Dim& dim : *program_.type(s).shape) elements *= static_cast<double>(dim.is_const() ? dim.value() : kSomeExtent);
      const double bytes = std::min(elements * static_cast<double>(bits_of(slots_[s].dtype)) / 8, 1e15);
      change[index_of(first[s])] += static_cast<int64_t>(bytes);
      change[index_of(last[s]) + 1] -= static_cast<int64_t>(bytes);
    }
    int64_t live = 0, peak = 0;
    for (int64_t difference : change) peak = std::max(peak, live += difference);
    return static_cast<size_t>(peak);
  }

  Reachability order_by_data() {
    Reachability order(instructions_.size());
    IdVector<SlotId, InstructionId> producer(before_.size(), kNoInstruction);
    std::vector<InstructionId> waits_for;
    for (InstructionId i : instructions_.ids()) {
      const auto operands = program_.operands(instructions_[i]);
      waits_for.clear();
      for (SlotId operand : operands.first(instructions_[i].num_inputs))
        if (operand != kNoSlot && producer[operand] != kNoInstruction) waits_for.push_back(producer[operand]);
      order.add(i, waits_for);
      for (SlotId operand : operands.subspan(instructions_[i].num_inputs))
        if (operand != kNoSlot) producer[operand] = i;
    }
    return order;
  }

  // An output needs bytes of its own, and a known value has none; a view of anything else may lie where its input lies.
  bool can_view(SlotId in, SlotId out) {
    if (slot(slot(in).root).location == LocationKind::known) return false;
    if (!slot(out).is_output) return true;
    // The root, not handed over itself, can be computed straight into the output.
    const SlotId root = slot(in).root;
    if (slot(root).location != LocationKind::arena || slot(root).is_output || !same_size(program_.type(in), program_.type(root)))
      return false;
    slot(root).location = LocationKind::held;
    slot(root).is_output = true;
    return true;
  }

  const Program& program_;
  const ProgramOptions& options_;
  const IdSpan<InstructionId, const Instruction> instructions_;
  const IdVector<SlotId, Slot> before_;
  IdVector<SlotId, Slot> slots_;              // of the decision under way
  IdVector<SlotId, InstructionId> last_use_;  // the last instruction that has it as an operand
  std::optional<Reachability> order_;
  static constexpr size_t kMuchToTry = 30'000;  // instructions looked at, over all pieces: some milliseconds
};

}  // namespace

bool same_size(const Type& a, const Type& b) {
  return a.shape && b.shape && bits_of(a.dtype) == bits_of(b.dtype) && product(*a.shape) == product(*b.shape);
}

Sharing choose_sharing(const Program& program, const ProgramOptions& options) { return Choice(program, options).run(); }

}  // namespace treadle::exec
