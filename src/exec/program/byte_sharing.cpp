#include "exec/program/byte_sharing.h"

#include <algorithm>
#include <optional>

#include "exec/schedule/parallel_plan.h"
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
        last_use_(before_.size(), -1) {
    for (size_t i = 0; i < instructions_.size(); ++i)
      for (int32_t operand : program.operands(instructions_[i]))
        if (operand >= 0) last_use_[static_cast<size_t>(operand)] = static_cast<int32_t>(i);
    if (options.parallel && instructions_.size() <= kMaxParallelInstructions) order_ = order_by_data();
  }

  // Pieces of Concats and Splits that stay in place spare a copy and the room for it, but keep the whole alive for as long as any of them:
  // nodes do so one by one, the last first, where the most bytes alive at once do not become more.
  Sharing run() {
    std::vector<bool> in_pieces(instructions_.size());
    Sharing best = decide(in_pieces);
    const std::vector<size_t> candidates = find_pieces();
    if (candidates.empty()) return best;
    if (candidates.size() * instructions_.size() <= kMuchToTry) {
      for (size_t i : candidates) {
        in_pieces[i] = true;
        Sharing tried = decide(in_pieces);
        if (tried.peak_bytes <= best.peak_bytes)
          best = std::move(tried);
        else
          in_pieces[i] = false;
      }
    }
    // All at once may do what none does alone.
    for (size_t i : candidates) in_pieces[i] = true;
    Sharing all = decide(in_pieces);
    return all.peak_bytes <= best.peak_bytes ? all : best;
  }

 private:
  Slot& slot(int32_t index) { return slots_[static_cast<size_t>(index)]; }

  // The last ones first: they hold what others have in common with them.
  std::vector<size_t> find_pieces() const {
    std::vector<size_t> found;
    if (!options_.pieces_in_place || !options_.reuse_memory || options_.observable) return found;
    for (size_t i = instructions_.size(); i-- > 0;) {
      const Instruction& instruction = instructions_[i];
      if (!instruction.dynamic && instruction.node->op->pieces != Pieces::none &&
          join_of(program_.graph(), *instruction.node) != Join::none)
        found.push_back(i);
    }
    return found;
  }

  // Views take their input's bytes; kernels that may write over an input that nobody needs any more do so.
  Sharing decide(const std::vector<bool>& in_pieces) {
    slots_ = before_;
    const size_t num_slots = slots_.size();
    Sharing result{{}, std::vector<int32_t>(num_slots, -1), std::vector<bool>(instructions_.size()), Places(num_slots)};
    std::vector<std::vector<int32_t>> accesses(order_ ? num_slots : 0);  // per root
    std::vector<int32_t> root_last_use = last_use_;                      // of all slots that share a root's bytes so far
    std::vector<bool> is_split(num_slots);                               // per root: values are pieces of it
    for (size_t i = 0; i < instructions_.size(); ++i) {
      const Instruction& instruction = instructions_[i];
      const auto step = static_cast<int32_t>(i);
      if (in_pieces[i] && instruction.node->op->pieces == Pieces::split) cut_up(instruction, result.places, root_last_use, is_split);
      if (!instruction.dynamic && !options_.observable) {
        for (const Alias& alias : instruction.node->op->alias) {
          if (alias.input >= instruction.num_inputs || alias.output >= instruction.num_outputs) continue;
          int32_t in = program_.operands(instruction)[static_cast<size_t>(alias.input)];
          int32_t out = program_.operands(instruction)[static_cast<size_t>(instruction.num_inputs + alias.output)];
          if (in < 0 || out < 0 || slot(out).root != out || slot(out).location == LocationKind::known || slot(in).row_step != 0) continue;
          int32_t root = slot(in).root;
          if (alias.kind == Alias::Kind::view) {
            if (!can_view(in, out)) continue;
            slot(out).root = root;
            slot(out).location = slot(root).location;
            if (instruction.num_outputs == 1) result.viewed[static_cast<size_t>(out)] = in;
            result.elided[i] = instruction.num_outputs == 1;
          } else {
            if (!options_.reuse_memory || slot(root).location != LocationKind::arena || slot(out).location != LocationKind::arena) continue;
            if (root_last_use[static_cast<size_t>(root)] > step || !same_size(program_.type(in), program_.type(out))) continue;
            if (is_split[static_cast<size_t>(root)] && reads_another_piece(instruction, in)) continue;
            if (reads_elsewhere(instruction, alias, root)) continue;
            // Where instructions run at once, all others that touch the bytes must have ended.
            if (order_ && !std::all_of(accesses[static_cast<size_t>(root)].begin(), accesses[static_cast<size_t>(root)].end(),
                                       [&](int32_t j) { return order_->before(j, step); }))
              continue;
            slot(out).root = root;
          }
          result.places.base[static_cast<size_t>(out)] = in;
          root_last_use[static_cast<size_t>(root)] =
              std::max(root_last_use[static_cast<size_t>(root)], last_use_[static_cast<size_t>(out)]);
          break;
        }
      }
      if (result.elided[i] || !order_) continue;
      for (int32_t operand : program_.operands(instruction))
        if (operand >= 0) accesses[static_cast<size_t>(slot(operand).root)].push_back(step);
    }
    // A root may have become an output after others came to share its bytes.
    for (Slot& shared : slots_)
      if (shared.root >= 0) shared.location = slot(shared.root).location;
    place_in_outputs(program_, slots_, result.places, result.elided, order_ ? &*order_ : nullptr, [&](size_t i) { return in_pieces[i]; });
    result.peak_bytes = peak_of(result.elided);
    result.slots = std::move(slots_);
    return result;
  }

  // Whether an input that the output must not lie over has the same bytes: of a product's residual that is its A as well, later columns
  // would be products of sums.
  bool reads_elsewhere(const Instruction& instruction, const Alias& alias, int32_t root) {
    const auto operands = program_.operands(instruction);
    for (int k = 0; k < static_cast<int>(instruction.num_inputs); ++k) {
      const int32_t operand = operands[static_cast<size_t>(k)];
      if (k == alias.input || operand < 0 || slot(operand).root != root) continue;
      const bool may_lie_over = std::any_of(
          instruction.node->op->alias.begin(), instruction.node->op->alias.end(),
          [&](const Alias& other) { return other.kind == Alias::Kind::reuse && other.output == alias.output && other.input == k; });
      if (!may_lie_over) return true;
    }
    return false;
  }

  // The outputs of a Split lie in its input.
  void cut_up(const Instruction& split, Places& places, std::vector<int32_t>& root_last_use, std::vector<bool>& is_split) {
    const auto operands = program_.operands(split);
    const int32_t in = operands[0];
    if (in < 0) return;
    const int32_t root = slot(in).root;
    if (slot(root).location != LocationKind::arena && slot(root).location != LocationKind::feed &&
        slot(root).location != LocationKind::held)
      return;
    const auto outputs = operands.subspan(split.num_inputs);
    const bool by_rows = join_of(program_.graph(), *split.node) == Join::by_rows;
    if (slot(in).row_step != 0 && !by_rows) return;
    const int64_t row_step = !by_rows ? 0 : slot(in).row_step != 0 ? slot(in).row_step : row_length(program_, in);
    for (size_t k = 0; k < outputs.size(); ++k) {
      const int32_t out = outputs[k];
      if (out < 0) return;  // how much lies before the next one is not known
      if (slot(out).root != out || slot(out).location != LocationKind::arena || (by_rows && !all_take_steps(out))) continue;
      slot(out).root = root;
      slot(out).row_step = row_step;
      slot(out).location = slot(root).location;
      places.base[static_cast<size_t>(out)] = in;
      places.preceding[static_cast<size_t>(out)] = {split.first_operand + split.num_inputs, static_cast<uint32_t>(k)};
      int32_t& last = root_last_use[static_cast<size_t>(root)];
      last = std::max(last, last_use_[static_cast<size_t>(out)]);
      is_split[static_cast<size_t>(root)] = true;
    }
  }

  bool all_take_steps(int32_t value) const {
    for (const Instruction& instruction : instructions_) {
      const auto operands = program_.operands(instruction);
      for (size_t k = 0; k < operands.size(); ++k)
        if (operands[k] == value && !takes_steps(program_.graph(), instruction, k)) return false;
    }
    return true;
  }

  // The bytes of another operand may begin elsewhere in those of the input that is to be written over.
  bool reads_another_piece(const Instruction& instruction, int32_t in) {
    const auto inputs = program_.operands(instruction).first(instruction.num_inputs);
    return std::any_of(inputs.begin(), inputs.end(),
                       [&](int32_t other) { return other >= 0 && other != in && slot(other).root == slot(in).root; });
  }

  // The most bytes of the arena alive at once, scratch apart. Extents that are not known are all taken to be the same.
  size_t peak_of(const std::vector<bool>& elided) const {
    constexpr int64_t kSomeExtent = 16;
    std::vector<int32_t> first(slots_.size(), -1), last(slots_.size(), -1);
    for (size_t i = 0; i < instructions_.size(); ++i) {
      if (elided[i]) continue;
      for (int32_t operand : program_.operands(instructions_[i])) {
        if (operand < 0) continue;
        const auto root = static_cast<size_t>(slots_[static_cast<size_t>(operand)].root);
        if (slots_[root].location != LocationKind::arena) continue;
        if (first[root] < 0) first[root] = static_cast<int32_t>(i);
        last[root] = static_cast<int32_t>(i);
      }
    }
    std::vector<int64_t> change(instructions_.size() + 1, 0);
    for (size_t s = 0; s < first.size(); ++s) {
      if (first[s] < 0) continue;
      double elements = 1;
      for (const Dim& dim : *program_.type(static_cast<int32_t>(s)).shape)
        elements *= static_cast<double>(dim.is_const() ? dim.value() : kSomeExtent);
      const double bytes = std::min(elements * static_cast<double>(bits_of(slots_[s].dtype)) / 8, 1e15);
      change[static_cast<size_t>(first[s])] += static_cast<int64_t>(bytes);
      change[static_cast<size_t>(last[s]) + 1] -= static_cast<int64_t>(bytes);
    }
    int64_t live = 0, peak = 0;
    for (int64_t difference : change) peak = std::max(peak, live += difference);
    return static_cast<size_t>(peak);
  }

  Reachability order_by_data() {
    Reachability order(instructions_.size());
    std::vector<int32_t> producer(before_.size(), -1), waits_for;
    for (size_t i = 0; i < instructions_.size(); ++i) {
      const auto operands = program_.operands(instructions_[i]);
      waits_for.clear();
      for (int32_t operand : operands.first(instructions_[i].num_inputs))
        if (operand >= 0 && producer[static_cast<size_t>(operand)] >= 0) waits_for.push_back(producer[static_cast<size_t>(operand)]);
      order.add(static_cast<int32_t>(i), waits_for);
      for (int32_t operand : operands.subspan(instructions_[i].num_inputs))
        if (operand >= 0) producer[static_cast<size_t>(operand)] = static_cast<int32_t>(i);
    }
    return order;
  }

  // An output needs bytes of its own, and a known value has none; a view of anything else may lie where its input lies.
  bool can_view(int32_t in, int32_t out) {
    if (slot(slot(in).root).location == LocationKind::known) return false;
    if (!slot(out).is_output) return true;
    // The root, not handed over itself, can be computed straight into the output.
    const int32_t root = slot(in).root;
    if (slot(root).location != LocationKind::arena || slot(root).is_output || !same_size(program_.type(in), program_.type(root)))
      return false;
    slot(root).location = LocationKind::held;
    slot(root).is_output = true;
    return true;
  }

  const Program& program_;
  const ProgramOptions& options_;
  const std::span<const Instruction> instructions_;
  const std::vector<Slot> before_;
  std::vector<Slot> slots_;        // of the decision under way
  std::vector<int32_t> last_use_;  // per slot: the last instruction that has it as an operand
  std::optional<Reachability> order_;
  static constexpr size_t kMuchToTry = 30'000;  // instructions looked at, over all pieces: some milliseconds
};

}  // namespace

bool same_size(const Type& a, const Type& b) {
  return a.shape && b.shape && bits_of(a.dtype) == bits_of(b.dtype) && product(*a.shape) == product(*b.shape);
}

Sharing choose_sharing(const Program& program, const ProgramOptions& options) { return Choice(program, options).run(); }

}  // namespace treadle::exec
