#include "exec/program/pieces.h"

#include <algorithm>

#include "exec/program/byte_sharing.h"
#include "graph/op_def.h"

namespace treadle::exec {
namespace {

class Placing {
 public:
  Placing(const Program& program, std::span<Slot> slots, Places& places, const std::vector<bool>& elided, const Reachability* order)
      : program_(program),
        slots_(slots),
        places_(places),
        order_(order),
        members_(slots.size()),
        accesses_(slots.size()),
        late_(slots.size()),
        hosts_(slots.size()) {
    for (size_t s = 0; s < slots.size(); ++s)
      if (slots[s].root >= 0) members_[at(slots[s].root)].push_back(static_cast<int32_t>(s));
    const auto instructions = program.instructions();
    for (size_t i = 0; i < instructions.size(); ++i) {
      if (elided[i]) continue;
      const auto operands = program.operands(instructions[i]);
      for (size_t k = 0; k < operands.size(); ++k)
        if (operands[k] >= 0)
          accesses_[at(slots[at(operands[k])].root)].push_back(
              {static_cast<int32_t>(i), k >= instructions[i].num_inputs, takes_steps(program.graph(), instructions[i], k)});
    }
  }

  void take_inputs(int32_t step) {
    const Instruction& concat = program_.instructions()[at(step)];
    const auto operands = program_.operands(concat);
    const auto inputs = operands.first(concat.num_inputs);
    const int32_t out = operands[concat.num_inputs];
    if (out < 0) return;
    const bool by_rows = join_of(program_.graph(), *concat.node) == Join::by_rows;
    if (view_of_neighbours(step, inputs, out, by_rows)) return;
    const Slot& host = slots_[at(out)];
    if (host.row_step != 0 && !by_rows) return;
    const int64_t row_step = !by_rows ? 0 : host.row_step != 0 ? host.row_step : row_length(program_, out);
    if (host.location != LocationKind::arena && host.location != LocationKind::held) return;
    // What writes over the whole output, or over what it is a piece of: nobody may want an input then any more.
    for (const Access& access : accesses_[at(out)])
      if (access.writes && access.step != step) late_[at(out)].push_back(access.step);
    for (size_t k = 0; k < inputs.size(); ++k)
      if (inputs[k] >= 0 && may_move(inputs[k], step, out, by_rows))
        move(inputs[k], {concat.first_operand, static_cast<uint32_t>(k)}, out, row_step);
  }

 private:
  struct Access {
    int32_t step;
    bool writes;
    bool takes_steps;
  };
  struct Host {
    int32_t slot = -1;  // the Concat's output that a root has moved into
    size_t position = 0;
  };

  static size_t at(int32_t index) { return static_cast<size_t>(index); }
  bool before(int32_t a, int32_t b) const { return order_ ? order_->before(a, b) : a < b; }

  bool same_size(int32_t a, int32_t b) const {
    return exec::same_size(program_.graph().type(slots_[at(a)].value), program_.graph().type(slots_[at(b)].value));
  }

  bool all_before(const std::vector<Access>& accesses, const std::vector<int32_t>& steps) const {
    return std::all_of(accesses.begin(), accesses.end(), [&](const Access& access) {
      return std::all_of(steps.begin(), steps.end(), [&](int32_t step) { return before(access.step, step); });
    });
  }
  bool written_before(int32_t root, int32_t step) const {
    return std::all_of(accesses_[at(root)].begin(), accesses_[at(root)].end(),
                       [&](const Access& access) { return !access.writes || before(access.step, step); });
  }

  // All that share the root's bytes have its rows, and whoever touches them asks where they are.
  bool may_have_steps(int32_t root) const {
    return std::all_of(members_[at(root)].begin(), members_[at(root)].end(),
                       [&](int32_t member) {
                         const auto& shape = program_.type(member).shape;
                         return same_size(member, root) && !shape->empty() && shape->back() == program_.type(root).shape->back();
                       }) &&
           std::all_of(accesses_[at(root)].begin(), accesses_[at(root)].end(), [](const Access& access) { return access.takes_steps; });
  }

  bool may_move(int32_t in, int32_t step, int32_t out, bool by_rows) const {
    const int32_t root = slots_[at(in)].root;
    const Slot& own = slots_[at(root)];
    return own.root == root && root != slots_[at(out)].root && own.location == LocationKind::arena && own.static_shape &&
           same_size(in, root) && written_before(root, step) && all_before(accesses_[at(root)], late_[at(out)]) &&
           (!by_rows || may_have_steps(root));
  }

  void move(int32_t in, Places::Operands preceding, int32_t out, int64_t row_step) {
    const int32_t root = slots_[at(in)].root;
    join(root, slots_[at(out)], row_step);
    places_.base[at(root)] = out;
    places_.preceding[at(root)] = preceding;
    hosts_[at(root)] = {out, preceding.count};
    late_[at(root)] = late_[at(out)];
  }

  // All that share the bytes of a root have some of another one's now. Where the root's rows follow each other there too, those that are
  // pieces of its rows stay so.
  void join(int32_t root, Slot other, int64_t row_step) {
    std::vector<int32_t> members = std::move(members_[at(root)]);
    for (int32_t member : members) {
      slots_[at(member)].root = other.root;
      slots_[at(member)].location = other.location;
      if (row_step != 0) slots_[at(member)].row_step = row_step;
    }
    auto& joined = members_[at(other.root)];
    joined.insert(joined.end(), members.begin(), members.end());
  }

  // The root, moved into an output, whose bytes a value has, all of them; -1 if there is none.
  int32_t moved_root(int32_t slot) const {
    while (slot >= 0 && hosts_[at(slot)].slot < 0) slot = places_.preceding[at(slot)].count == 0 ? places_.base[at(slot)] : -1;
    return slot;
  }

  bool view_of_neighbours(int32_t step, std::span<const int32_t> inputs, int32_t out, bool by_rows) {
    const Slot& own = slots_[at(out)];
    if (own.root != out || own.location != LocationKind::arena || inputs.empty()) return false;
    Host host;
    for (size_t k = 0; k < inputs.size(); ++k) {
      const int32_t root = inputs[k] < 0 ? -1 : moved_root(inputs[k]);
      if (root < 0 || !same_size(root, inputs[k]) || !written_before(root, step) || (slots_[at(inputs[k])].row_step != 0) != by_rows)
        return false;
      const Host& there = hosts_[at(root)];
      if (k == 0)
        host = there;
      else if (there.slot != host.slot || there.position != host.position + k)
        return false;
    }
    for (const Access& access : accesses_[at(out)])
      if (access.writes && access.step != step) return false;
    if (!all_before(accesses_[at(out)], late_[at(host.slot)]) || (by_rows && !may_have_steps(out))) return false;
    join(out, slots_[at(inputs[0])], slots_[at(inputs[0])].row_step);
    places_.base[at(out)] = inputs[0];
    return true;
  }

  const Program& program_;
  const std::span<Slot> slots_;
  Places& places_;
  const Reachability* const order_;
  std::vector<std::vector<int32_t>> members_;  // per root: who shares its bytes
  std::vector<std::vector<Access>> accesses_;  // per root as it was at first: what has moved keeps its own
  std::vector<std::vector<int32_t>> late_;     // per output of a Concat, and per root that moved into one: steps that write over all of it
  std::vector<Host> hosts_;                    // per root
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

int64_t row_length(const Program& program, int32_t slot) { return program.type(slot).shape->back().value(); }

void place_in_outputs(const Program& program, std::span<Slot> slots, Places& places, const std::vector<bool>& elided,
                      const Reachability* order, const std::function<bool(size_t instruction)>& allowed) {
  Placing placing(program, slots, places, elided, order);
  const auto instructions = program.instructions();
  for (size_t i = instructions.size(); i-- > 0;) {
    const Instruction& instruction = instructions[i];
    if (elided[i] || instruction.dynamic || instruction.node->op->pieces != Pieces::concat || !allowed(i)) continue;
    if (join_of(program.graph(), *instruction.node) != Join::none) placing.take_inputs(static_cast<int32_t>(i));
  }
}

}  // namespace treadle::exec
