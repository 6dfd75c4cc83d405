#include "exec/program/pieces.h"

#include <algorithm>
#include <utility>

#include "core/base/grouped.h"
#include "exec/program/byte_sharing.h"
#include "graph/op_def.h"

namespace treadle::exec {
namespace {

class Placing {
 public:
  Placing(const Program& program, IdSpan<SlotId, Slot> slots, Places& places, const IdVector<InstructionId, bool>& elided,
          const Reachability* order)
      : program_(program),
        slots_(slots),
        places_(places),
        order_(order),
        members_(slots.size()),
        next_(slots.size(), kNoSlot),
        accesses_(slots.size()),
        late_(slots.size()),
        hosts_(slots.size()) {
    for (SlotId s : slots.ids())
      if (slots[s].root != kNoSlot) append(members_[slots[s].root], {s, s});
    const auto instructions = program.instructions();
    for (InstructionId i : instructions.ids()) {
      if (elided[i]) continue;
      const auto operands = program.operands(instructions[i]);
      for (size_t k = 0; k < operands.size(); ++k)
        if (operands[k] != kNoSlot)
          accesses_.add(slots[operands[k]].root, {i, k >= instructions[i].num_inputs, takes_steps(program.graph(), instructions[i], k)});
    }
    accesses_.group();
  }

  void take_inputs(InstructionId step) {
    const Instruction& concat = program_.instructions()[step];
    const auto operands = program_.operands(concat);
    const auto inputs = operands.first(concat.num_inputs);
    const SlotId out = operands[concat.num_inputs];
    if (out == kNoSlot) return;
    const bool by_rows = join_of(program_.graph(), *concat.node) == Join::by_rows;
    if (view_of_neighbors(step, inputs, out, by_rows)) return;
    const Slot& host = slots_[out];
    if (host.row_step != 0 && !by_rows) return;
    const int64_t row_step = !by_rows ? 0 : host.row_step != 0 ? host.row_step : row_length(program_, out);
    if (host.location != LocationKind::arena && host.location != LocationKind::held) return;
    // Other instructions that overwrite the whole output in place must come after all reads of an input that is moved into the output.
    for (const Access& access : accesses_[out])
      if (access.writes && access.step != step) late_[out].push_back(access.step);
    for (size_t k = 0; k < inputs.size(); ++k)
      if (inputs[k] != kNoSlot && may_move(inputs[k], step, out, by_rows))
        move(inputs[k], {concat.first_operand, static_cast<uint32_t>(k)}, out, row_step);
  }

 private:
  struct Access {
    InstructionId step;
    bool writes;
    bool takes_steps;
  };
  struct Host {
    SlotId slot = kNoSlot;  // the Concat output into which the value has moved; kNoSlot: not moved
    size_t position = 0;
  };

  struct List {  // linked by next_
    SlotId first = kNoSlot, last = kNoSlot;
  };

  void append(List& list, const List& more) {
    if (more.first == kNoSlot) return;
    (list.first == kNoSlot ? list.first : next_[list.last]) = more.first;
    list.last = more.last;
  }
  bool all_members(SlotId root, const auto& holds) const {
    for (SlotId member = members_[root].first; member != kNoSlot; member = next_[member])
      if (!holds(member)) return false;
    return true;
  }

  bool before(InstructionId a, InstructionId b) const { return order_ ? order_->before(a, b) : a < b; }

  bool same_size(SlotId a, SlotId b) const {
    return exec::same_size(program_.graph().type(slots_[a].value), program_.graph().type(slots_[b].value));
  }

  bool all_before(std::span<const Access> accesses, const std::vector<InstructionId>& steps) const {
    return std::all_of(accesses.begin(), accesses.end(), [&](const Access& access) {
      return std::all_of(steps.begin(), steps.end(), [&](InstructionId step) { return before(access.step, step); });
    });
  }
  bool written_before(SlotId root, InstructionId step) const {
    return std::all_of(accesses_[root].begin(), accesses_[root].end(),
                       [&](const Access& access) { return !access.writes || before(access.step, step); });
  }

  // Returns true if the root's rows may be stored with a stride: all slots that share its bytes have the same rows, and all kernels that
  // access them accept a row stride.
  bool may_have_steps(SlotId root) const {
    return all_members(root,
                       [&](SlotId member) {
                         const auto& shape = program_.type(member).shape;
                         return same_size(member, root) && !shape->empty() && shape->back() == program_.type(root).shape->back();
                       }) &&
           std::all_of(accesses_[root].begin(), accesses_[root].end(), [](const Access& access) { return access.takes_steps; });
  }

  bool may_move(SlotId in, InstructionId step, SlotId out, bool by_rows) const {
    const SlotId root = slots_[in].root;
    const Slot& own = slots_[root];
    return own.root == root && root != slots_[out].root && own.location == LocationKind::arena && own.static_shape && same_size(in, root) &&
           written_before(root, step) && all_before(accesses_[root], late_[out]) && (!by_rows || may_have_steps(root));
  }

  void move(SlotId in, Places::Operands preceding, SlotId out, int64_t row_step) {
    const SlotId root = slots_[in].root;
    join(root, slots_[out], row_step);
    places_.base[root] = out;
    places_.preceding[root] = preceding;
    hosts_[root] = {out, preceding.count};
    late_[root] = late_[out];
  }

  // Makes all slots that share the bytes of `root` share those of other.root. If row_step is 0, slots keep the row strides that they have.
  void join(SlotId root, Slot other, int64_t row_step) {
    for (SlotId member = members_[root].first; member != kNoSlot; member = next_[member]) {
      slots_[member].root = other.root;
      slots_[member].location = other.location;
      if (row_step != 0) slots_[member].row_step = row_step;
    }
    append(members_[other.root], std::exchange(members_[root], {}));
  }

  // If the value begins with the first byte of a root (a slot with its own bytes) that has moved, returns that root, otherwise kNoSlot.
  SlotId moved_root(SlotId slot) const {
    while (slot != kNoSlot && hosts_[slot].slot == kNoSlot) slot = places_.preceding[slot].count == 0 ? places_.base[slot] : kNoSlot;
    return slot;
  }

  bool view_of_neighbors(InstructionId step, std::span<const SlotId> inputs, SlotId out, bool by_rows) {
    const Slot& own = slots_[out];
    if (own.root != out || own.location != LocationKind::arena || inputs.empty()) return false;
    Host host;
    for (size_t k = 0; k < inputs.size(); ++k) {
      const SlotId root = inputs[k] == kNoSlot ? kNoSlot : moved_root(inputs[k]);
      if (root == kNoSlot || !same_size(root, inputs[k]) || !written_before(root, step) || (slots_[inputs[k]].row_step != 0) != by_rows)
        return false;
      const Host& there = hosts_[root];
      if (k == 0)
        host = there;
      else if (there.slot != host.slot || there.position != host.position + k)
        return false;
    }
    for (const Access& access : accesses_[out])
      if (access.writes && access.step != step) return false;
    if (!all_before(accesses_[out], late_[host.slot]) || (by_rows && !may_have_steps(out))) return false;
    join(out, slots_[inputs[0]], slots_[inputs[0]].row_step);
    places_.base[out] = inputs[0];
    return true;
  }

  const Program& program_;
  const IdSpan<SlotId, Slot> slots_;
  Places& places_;
  const Reachability* const order_;
  IdVector<SlotId, List> members_;    // slots that share the bytes of each root
  IdVector<SlotId, SlotId> next_;     // the next slot with the same root
  Grouped<SlotId, Access> accesses_;  // accesses by their original root; a root that has moved keeps its own list
  // For each output of a Concat, and each root moved into one: the other instructions that overwrite the whole output.
  IdVector<SlotId, std::vector<InstructionId>> late_;
  IdVector<SlotId, Host> hosts_;  // the Concat output that each root has moved into
};

}  // namespace

Join join_of(const Graph& graph, const Node& node) {
  const ValueId whole = node.op->pieces == Pieces::concat ? node.outputs[0] : node.inputs[0];
  if (whole == kNoValue) return Join::none;
  const Type& type = graph.type(whole);
  if (!type.is_tensor() || !type.shape || type.dtype == DType::string || bits_of(type.dtype) % 8 != 0) return Join::none;
  const auto rank = static_cast<int64_t>(type.shape->size());
  int64_t axis = node.attributes.get_int("axis", 0);
  if (axis < 0) axis += rank;
  if (axis < 0 || axis >= rank) return Join::none;
  if (std::all_of(type.shape->begin(), type.shape->begin() + axis, [](const Dim& dim) { return dim.is_const() && dim.value() == 1; }))
    return Join::whole;
  const auto& pieces = node.op->pieces == Pieces::concat ? node.inputs : node.outputs;
  auto has_known_rows = [&](ValueId value) {
    if (value == kNoValue) return true;
    const auto& shape = graph.type(value).shape;
    return shape && static_cast<int64_t>(shape->size()) == rank && shape->back().is_const() && shape->back().value() > 0;
  };
  return axis + 1 == rank && has_known_rows(whole) && std::all_of(pieces.begin(), pieces.end(), has_known_rows) ? Join::by_rows
                                                                                                                : Join::none;
}

bool takes_steps(const Graph& graph, const Instruction& instruction, size_t operand) {
  if (instruction.dynamic || instruction.kernel == nullptr) return false;
  if (instruction.node->op->pieces != Pieces::none && join_of(graph, *instruction.node) != Join::by_rows) return false;
  const bool is_input = operand < instruction.num_inputs;
  const uint32_t mask = is_input ? instruction.kernel->strided_inputs : instruction.kernel->strided_outputs;
  return (mask >> std::min<size_t>(is_input ? operand : operand - instruction.num_inputs, 31) & 1U) != 0;
}

int64_t row_length(const Program& program, SlotId slot) { return program.type(slot).shape->back().value(); }

void place_in_outputs(const Program& program, IdSpan<SlotId, Slot> slots, Places& places, const IdVector<InstructionId, bool>& elided,
                      const Reachability* order, const std::function<bool(InstructionId)>& allowed) {
  const auto instructions = program.instructions();
  std::vector<InstructionId> joins;  // Concats, last ones first
  for (InstructionId i : instructions.ids().reversed()) {
    const Instruction& instruction = instructions[i];
    if (elided[i] || instruction.dynamic || instruction.node->op->pieces != Pieces::concat || !allowed(i)) continue;
    if (join_of(program.graph(), *instruction.node) != Join::none) joins.push_back(i);
  }
  if (joins.empty()) return;
  Placing placing(program, slots, places, elided, order);
  for (InstructionId i : joins) placing.take_inputs(i);
}

}  // namespace treadle::exec
