#include "exec/program/byte_sharing.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "exec/program/parallel_plan.h"
#include "graph/op_def.h"
#include "memory/planner.h"

namespace treadle::exec {
namespace {

using Instructions = IdSpan<InstructionId, const Instruction>;
using InstructionSet = IdVector<InstructionId, bool>;

// Orders instructions by data flow only: an instruction comes after those whose results it reads.
Reachability order_by_data(const Program& program) {
  const Instructions instructions = program.instructions();
  Reachability order(instructions.size());
  IdVector<SlotId, InstructionId> producer(program.slots().size(), kNoInstruction);
  std::vector<InstructionId> waits_for;
  for (InstructionId i : instructions.ids()) {
    const auto operands = program.operands(instructions[i]);
    waits_for.clear();
    for (SlotId operand : operands.first(instructions[i].num_inputs))
      if (operand != kNoSlot && producer[operand] != kNoInstruction) waits_for.push_back(producer[operand]);
    order.add(i, waits_for);
    for (SlotId operand : operands.subspan(instructions[i].num_inputs))
      if (operand != kNoSlot) producer[operand] = i;
  }
  return order;
}

// Returns the peak number of bytes in use in the arena, without scratch memory.
size_t peak_of(const Program& program, IdSpan<SlotId, const Slot> slots, const InstructionSet& elided) {
  constexpr int64_t kSomeExtent = 16;  // assumed for every extent that is not constant
  constexpr double kMostBytes = 1e12;  // maximum assumed size of a value in bytes, so that sums do not overflow
  const Instructions instructions = program.instructions();
  IdVector<SlotId, InstructionId> first(slots.size(), kNoInstruction), last = first;
  for (InstructionId i : instructions.ids()) {
    if (elided[i]) continue;
    for (SlotId operand : program.operands(instructions[i])) {
      if (operand == kNoSlot) continue;
      const SlotId root = slots[operand].root;
      if (slots[root].location != LocationKind::arena) continue;
      if (first[root] == kNoInstruction) first[root] = i;
      last[root] = i;
    }
  }
  std::vector<memory::Buffer> buffers;
  for (SlotId s : first.ids()) {
    if (first[s] == kNoInstruction) continue;
    double elements = 1;
    for (const Dim& dim : *program.type(s).shape) elements *= static_cast<double>(dim.is_const() ? dim.value() : kSomeExtent);
    const double bytes = std::min(elements * static_cast<double>(bits_of(slots[s].dtype)) / 8, kMostBytes);
    buffers.push_back({.size_bytes = static_cast<size_t>(bytes),
                       .first = static_cast<int32_t>(index_of(first[s])),
                       .last = static_cast<int32_t>(index_of(last[s])) + 1});
  }
  return memory::max_live_bytes(buffers);
}

// The data about the program on which all decisions depend.
struct Facts {
  Facts(const Program& of, const ProgramOptions& by) : program(of), options(by), last_use(of.slots().size(), kNoInstruction) {
    for (InstructionId i : program.instructions().ids())
      for (SlotId operand : program.operands(program.instructions()[i]))
        if (operand != kNoSlot) last_use[operand] = i;
    if (options.parallel && program.instructions().size() <= kMaxParallelInstructions) order = order_by_data(program);
  }

  const Program& program;
  const ProgramOptions& options;
  IdVector<SlotId, InstructionId> last_use;  // the last instruction that has the slot as an operand
  std::optional<Reachability> order;         // dependencies, if instructions may run at the same time; nullopt: they run in sequence
};

// One way to share bytes, decided instruction by instruction. The root of a slot is the slot whose bytes it shares (or the slot itself).
class Decision {
 public:
  /// @param in_pieces  Concats and Splits that may work in place, without copying their pieces.
  Decision(const Facts& facts, const InstructionSet& in_pieces)
      : facts_(facts),
        program_(facts.program),
        in_pieces_(in_pieces),
        result_{{program_.slots().begin(), program_.slots().end()},
                IdVector<SlotId, SlotId>(facts.last_use.size(), kNoSlot),
                InstructionSet(in_pieces.size()),
                Places(facts.last_use.size())},
        roots_(facts.last_use.size()) {
    for (SlotId s : roots_.ids()) roots_[s].last_use = facts.last_use[s];
  }

  Sharing make() {
    for (InstructionId step : program_.instructions().ids()) {
      const Instruction& instruction = program_.instructions()[step];
      if (in_pieces_[step] && instruction.node->op->pieces == Pieces::split) cut_up(instruction);
      if (!instruction.dynamic && !facts_.options.observable) share_operands(step, instruction);
      note_accesses(step, instruction);
    }
    // A root may have been made an output after other slots began to share its bytes. So the location is copied to these slots again.
    for (Slot& shared : result_.slots)
      if (shared.root != kNoSlot) shared.location = slot(shared.root).location;
    place_in_outputs(program_, result_.slots, result_.places, result_.elided, facts_.order ? &*facts_.order : nullptr,
                     [&](InstructionId i) { return in_pieces_[i]; });
    result_.peak_bytes = peak_of(program_, result_.slots, result_.elided);
    return std::move(result_);
  }

 private:
  // The uses of a root, which is a slot with bytes of its own, by all slots that share these bytes.
  struct Root {
    InstructionId last_use = kNoInstruction;
    bool is_split = false;                // true if outputs of a Split lie within the root
    std::vector<InstructionId> accesses;  // instructions that read or write the bytes; empty if instructions run in sequence
  };

  Slot& slot(SlotId index) { return result_.slots[index]; }
  SlotId root_of(SlotId index) const { return result_.slots[index].root; }

  // Makes `out` share the bytes of `in`: the root of `in` becomes the root of `out`.
  void join(SlotId out, SlotId in) {
    const SlotId root = root_of(in);
    slot(out).root = root;
    result_.places.base[out] = in;
    roots_[root].last_use = std::max(roots_[root].last_use, facts_.last_use[out]);
  }

  // Applies the first possible alias (way to share memory between input and output) that the operator declares.
  void share_operands(InstructionId step, const Instruction& instruction) {
    const auto operands = program_.operands(instruction);
    for (const Alias& alias : instruction.node->op->alias) {
      if (alias.input >= instruction.num_inputs || alias.output >= instruction.num_outputs) continue;
      const SlotId in = operands[static_cast<size_t>(alias.input)],
                   out = operands[static_cast<size_t>(instruction.num_inputs + alias.output)];
      if (in == kNoSlot || out == kNoSlot || root_of(out) != out || slot(out).location == LocationKind::known || slot(in).row_step != 0)
        continue;
      if (alias.kind == Alias::Kind::reuse) {
        if (!can_write_over(step, instruction, alias, in, out)) continue;
      } else {
        if (!can_view(in, out)) continue;
        slot(out).location = slot(root_of(in)).location;
        if (instruction.num_outputs == 1) {
          result_.viewed[out] = in;
          result_.elided[step] = true;
        }
      }
      return join(out, in);
    }
  }

  // Returns true if `out` may be a view of `in`. Returns false if `out` is an output of the program, which needs its own bytes, or if the
  // value is known, because then it has no bytes in the arena.
  bool can_view(SlotId in, SlotId out) {
    const SlotId root = root_of(in);
    if (slot(root).location == LocationKind::known) return false;
    if (!slot(out).is_output) return true;
    // Exception: if the root (the slot whose bytes `in` shares) is no output itself, it can be computed in the memory of this output.
    if (slot(root).location != LocationKind::arena || slot(root).is_output || !same_size(program_.type(in), program_.type(root)))
      return false;
    slot(root).location = LocationKind::held;
    slot(root).is_output = true;
    return true;
  }

  // Returns true if the kernel, which can overwrite this input, may do so here, because no later instruction reads the input's bytes.
  bool can_write_over(InstructionId step, const Instruction& instruction, const Alias& alias, SlotId in, SlotId out) {
    const SlotId root_slot = root_of(in);
    const Root& root = roots_[root_slot];
    if (!facts_.options.reuse_memory || slot(root_slot).location != LocationKind::arena || slot(out).location != LocationKind::arena)
      return false;
    if (root.last_use > step || !same_size(program_.type(in), program_.type(out))) return false;
    if (root.is_split && reads_another_piece(instruction, in)) return false;
    if (reads_elsewhere(instruction, alias, root_slot)) return false;
    // If instructions run in parallel, all others that access the bytes must come before this one.
    return !facts_.order ||
           std::all_of(root.accesses.begin(), root.accesses.end(), [&](InstructionId other) { return facts_.order->before(other, step); });
  }

  // Returns true if another operand shares bytes with `in`. That operand may begin at another offset than `in`, which is to be overwritten.
  bool reads_another_piece(const Instruction& instruction, SlotId in) const {
    const auto inputs = program_.operands(instruction).first(instruction.num_inputs);
    return std::any_of(inputs.begin(), inputs.end(),
                       [&](SlotId other) { return other != kNoSlot && other != in && root_of(other) == root_of(in); });
  }

  // Returns true if `in` shares bytes with an input that the output must not overwrite. Example: if the matrix A of a product is also the
  // residual that is added, overwriting it would change A before the later columns are computed.
  bool reads_elsewhere(const Instruction& instruction, const Alias& alias, SlotId root) const {
    const std::vector<Alias>& aliases = instruction.node->op->alias;
    const auto operands = program_.operands(instruction);
    for (int k = 0; k < static_cast<int>(instruction.num_inputs); ++k) {
      const SlotId operand = operands[static_cast<size_t>(k)];
      if (k == alias.input || operand == kNoSlot || root_of(operand) != root) continue;
      const bool may_lie_over = std::any_of(aliases.begin(), aliases.end(), [&](const Alias& other) {
        return other.kind == Alias::Kind::reuse && other.output == alias.output && other.input == k;
      });
      if (!may_lie_over) return true;
    }
    return false;
  }

  // Makes the outputs of a Split views within its input.
  void cut_up(const Instruction& split) {
    const auto operands = program_.operands(split);
    const SlotId in = operands[0];
    if (in == kNoSlot) return;
    const LocationKind location = slot(root_of(in)).location;
    if (location != LocationKind::arena && location != LocationKind::feed && location != LocationKind::held) return;
    const bool by_rows = join_of(program_.graph(), *split.node) == Join::by_rows;
    if (slot(in).row_step != 0 && !by_rows) return;
    const int64_t row_step = !by_rows ? 0 : slot(in).row_step != 0 ? slot(in).row_step : row_length(program_, in);
    const auto outputs = operands.subspan(split.num_inputs);
    for (size_t k = 0; k < outputs.size(); ++k) {
      const SlotId out = outputs[k];
      if (out == kNoSlot) return;  // unknown size: the offset of the next output is unknown too
      if (root_of(out) != out || slot(out).location != LocationKind::arena || (by_rows && !all_take_steps(out))) continue;
      slot(out).row_step = row_step;
      slot(out).location = location;
      result_.places.preceding[out] = {split.first_operand + split.num_inputs, static_cast<uint32_t>(k)};
      join(out, in);
      roots_[root_of(in)].is_split = true;
    }
  }

  // True if every kernel that accesses the value supports a row stride.
  bool all_take_steps(SlotId value) const {
    for (const Instruction& instruction : program_.instructions()) {
      const auto operands = program_.operands(instruction);
      for (size_t k = 0; k < operands.size(); ++k)
        if (operands[k] == value && !takes_steps(program_.graph(), instruction, k)) return false;
    }
    return true;
  }

  void note_accesses(InstructionId step, const Instruction& instruction) {
    if (result_.elided[step] || !facts_.order) return;
    for (SlotId operand : program_.operands(instruction))
      if (operand != kNoSlot) roots_[root_of(operand)].accesses.push_back(step);
  }

  const Facts& facts_;
  const Program& program_;
  const InstructionSet& in_pieces_;
  Sharing result_;
  IdVector<SlotId, Root> roots_;
};

// Returns the Concats and Splits that can work in place, last ones first: if several have a common input, it is placed for the last one.
std::vector<InstructionId> find_pieces(const Facts& facts) {
  std::vector<InstructionId> found;
  if (!facts.options.pieces_in_place || !facts.options.reuse_memory || facts.options.observable) return found;
  const Instructions instructions = facts.program.instructions();
  for (InstructionId i : instructions.ids().reversed()) {
    const Instruction& instruction = instructions[i];
    if (!instruction.dynamic && instruction.node->op->pieces != Pieces::none &&
        join_of(facts.program.graph(), *instruction.node) != Join::none)
      found.push_back(i);
  }
  return found;
}

}  // namespace

bool same_size(const Type& a, const Type& b) {
  return a.shape && b.shape && bits_of(a.dtype) == bits_of(b.dtype) && product(*a.shape) == product(*b.shape);
}

// A Concat or Split in place saves a copy and its memory, but each piece then keeps the whole value in memory. So the nodes are tried one
// by one, and stay in place only if that does not raise the peak number of bytes in use.
Sharing choose_sharing(const Program& program, const ProgramOptions& options) {
  constexpr size_t kMuchToTry = 30'000;  // maximum number of instructions to examine, over all trials; takes some milliseconds
  const Facts facts(program, options);
  InstructionSet in_pieces(program.instructions().size());
  Sharing best = Decision(facts, in_pieces).make();
  const std::vector<InstructionId> candidates = find_pieces(facts);
  if (candidates.empty()) return best;
  if (candidates.size() * program.instructions().size() <= kMuchToTry) {
    for (InstructionId i : candidates) {
      in_pieces[i] = true;
      Sharing tried = Decision(facts, in_pieces).make();
      if (tried.peak_bytes <= best.peak_bytes)
        best = std::move(tried);
      else
        in_pieces[i] = false;
    }
  }
  // Tries all candidates together, which may help even if no single candidate does.
  for (InstructionId i : candidates) in_pieces[i] = true;
  Sharing all = Decision(facts, in_pieces).make();
  return all.peak_bytes <= best.peak_bytes ? all : best;
}

}  // namespace treadle::exec
