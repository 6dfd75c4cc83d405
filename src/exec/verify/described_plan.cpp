#include "exec/verify/described_plan.h"

#include <algorithm>
#include <functional>

#include "exec/plan/budget.h"
#include "exec/plan/stream_plan.h"

namespace treadle::exec {
namespace {

using Act = DescribedPlan::Act;
using Home = DescribedPlan::Home;

Home home_of(LocationKind location) {
  switch (location) {
    case LocationKind::constant: return Home::constant;
    case LocationKind::feed: return Home::feed;
    case LocationKind::known: return Home::known;
    case LocationKind::held: return Home::held;
    case LocationKind::arena: break;
  }
  return Home::planned;
}

// Returns the number of a slot's place (piece of memory). Places are numbered like slots, or for runs on devices like locations.
PlaceId place_like(SlotId slot) { return PlaceId{static_cast<int32_t>(slot)}; }
PlaceId place_like(LocationId location) { return PlaceId{static_cast<int32_t>(location)}; }

class Describing {
 public:
  explicit Describing(const Binding& binding) : binding_(binding), program_(binding.program()), slots_(program_.slots()) {}

  // Adds the values, numbered like the slots.
  void add_values() {
    plan_.values.resize(slots_.size());
    for (SlotId s : slots_.ids()) add_value(s);
    for (SlotId slot : program_.input_slots()) plan_.values[slot].given = true;
    auto keep = [&](SlotId slot) {
      if (slot != kNoSlot) plan_.values[slot].kept = plan_.values[slots_[slot].root].kept = true;
    };
    for (SlotId slot : program_.output_slots()) keep(slot);
    IdVector<SlotId, bool> made(slots_.size());
    for (const Instruction& instruction : program_.instructions()) {
      const auto operands = program_.operands(instruction);
      if (instruction.is_yield) std::for_each_n(operands.begin(), instruction.num_inputs, keep);
      for (SlotId slot : operands.subspan(instruction.num_inputs))
        if (slot != kNoSlot) made[slot] = true;
    }
    find_views(made);
  }

  void add_places() {
    plan_.places.resize(slots_.size());
    for (SlotId s : slots_.ids()) {
      const Slot& slot = slots_[s];
      DescribedPlan::Place& place = plan_.places[place_like(s)];
      place = {.root = s, .home = home_of(slot.location), .offset = DescribedPlan::kNowhere};
      place.ready = place.filled = slot.location != LocationKind::arena && slot.location != LocationKind::held;
      if (slot.root != s) continue;
      place.size_bytes = size_in(slot, s);
      if (slot.location == LocationKind::arena && slot.buffer != kNoBuffer) place.offset = binding_.offsets().offsets[slot.buffer];
    }
    for (SlotId slot : program_.preallocated()) plan_.places[place_like(slot)].ready = true;
    plan_.memories = {binding_.offsets().arena_bytes};
    for (SlotId slot : program_.output_slots())
      plan_.outputs.push_back({.value = slot, .place = place_of(slot), .at = plan_.values[slot].bytes.begin});
  }

  // Adds the address of every operand, as a run on the host computes it.
  void add_operands() {
    const auto operands = program_.operands();
    plan_.operands.resize(operands.size());
    for (SlotId s : slots_.ids())
      for (uint32_t position : program_.patches(s)) plan_.operands[position].at = binding_.piece_offset(operands[position]);
    for (const Instruction& instruction : program_.instructions()) {
      for (size_t k = 0; k < program_.operands(instruction).size(); ++k) {
        const size_t position = instruction.first_operand + k;
        DescribedPlan::Operand& made = plan_.operands[position];
        made.value = operands[position];
        if (made.value == kNoSlot) continue;
        const Slot& slot = slots_[made.value];
        made.place = place_of(made.value);
        describe_reader(instruction, k, position, made);
        if (slot.location == LocationKind::known || slot.location == LocationKind::constant) made.at = 0;
        if (slot.location == LocationKind::arena && slot.buffer != kNoBuffer)
          made.at = binding_.offsets().offsets[slot.buffer] + binding_.piece_offset(made.value);
      }
    }
  }

  void add_step(const Instruction& instruction) {
    DescribedPlan::Step step = step_of(instruction);
    step.first_release = static_cast<uint32_t>(plan_.releases.size());
    step.num_releases = instruction.num_releases;
    for (SlotId slot : program_.releases().subspan(instruction.first_release, instruction.num_releases))
      plan_.releases.push_back(place_like(slot));
    if (const BufferId buffer = instruction.scratch_buffer; buffer != kNoBuffer) {
      step.scratch_at = binding_.offsets().offsets[buffer];
      step.scratch = add_scratch(step.scratch_at, std::max(binding_.buffer_sizes()[buffer], binding_.offsets().sizes[buffer]));
    }
    plan_.steps.push_back(step);
  }

  DescribedPlan in_order() {
    plan_.schedule = "in order";
    add_values();
    add_places();
    add_operands();
    plan_.steps.reserve(program_.instructions().size());
    for (const Instruction& instruction : program_.instructions()) add_step(instruction);
    return std::move(plan_);
  }

  DescribedPlan by_readiness() {
    DescribedPlan plan = in_order();
    const ParallelPlan& order = *program_.parallel();
    plan.schedule = "by readiness";
    plan.order = DescribedPlan::Order::by_readiness;
    plan.readiness = {order.counters, order.successors, order.first_successor, order.first_touch, {}};
    for (const auto& [slot, counter] : order.touches) plan.readiness.touches.push_back({place_like(slot), counter});
    return plan;
  }

  DescribedPlan within(const BudgetedPlan& budget);
  DescribedPlan on_streams(const StreamPlan& plan, IdSpan<LocationId, const size_t> offsets, std::span<const size_t> arena_bytes);

 private:
  PlaceId place_of(SlotId slot) const { return place_like(slots_[slot].location == LocationKind::known ? slot : slots_[slot].root); }

  size_t size_in(const Slot& slot, SlotId s) const {
    if (slot.location == LocationKind::constant) {
      const Datum& constant = binding_.constant(s);
      return constant.is_tensor() ? constant.tensor().size_bytes() : 0;
    }
    if (slot.location == LocationKind::known) return binding_.known(s).defined() ? binding_.known(s).size_bytes() : 0;
    if (slot.location == LocationKind::arena && slot.buffer != kNoBuffer)
      return std::min(binding_.buffer_sizes()[slot.buffer], binding_.offsets().sizes[slot.buffer]);
    return slot.static_shape ? binding_.bytes_of(s) : 0;
  }

  void add_value(SlotId s) {
    const Slot& slot = slots_[s];
    const Value& value = program_.graph().value(slot.value);
    DescribedPlan::Value& made = plan_.values[s];
    made.name = value.name;
    made.root = slot.location == LocationKind::known ? s : slot.root;
    made.sized = slot.static_shape && slot.dtype != DType::string;
    const ProgramParameters* parameters = program_.parameters();
    made.given = slot.location == LocationKind::known
                     ? value.known.has_value()
                     : value.is_constant() || value.kind == Value::Kind::parameter || (parameters && parameters->has(slot.value));
    if (binding_.parameters()) made.version = binding_.parameters()->made_of[s];
    if (!made.sized) return;
    const Shape& shape = binding_.shape(s);
    made.bytes = {.begin = binding_.piece_offset(s), .row_bytes = binding_.bytes_of(s)};
    if (slot.row_step == 0 || made.bytes.row_bytes == 0) return;
    const int64_t row = shape[shape.rank() - 1];
    made.bytes.rows = static_cast<size_t>(shape.num_elements() / row);
    made.bytes.row_bytes = size_bytes(slot.dtype, row);
    made.bytes.step_bytes = size_bytes(slot.dtype, slot.row_step);
  }

  // Sets Value::viewed for values that no instruction makes.
  void find_views(const IdVector<SlotId, bool>& made) {
    const Graph& graph = program_.graph();
    std::vector<SlotId> slot_of(graph.num_values(), kNoSlot);
    for (SlotId s : slots_.ids()) slot_of[index_of(slots_[s].value)] = s;
    for (SlotId s : slots_.ids()) {
      const Value& value = graph.value(slots_[s].value);
      if (made[s] || plan_.values[s].given || value.producer == kNoNode) continue;
      const Node& node = graph.node(value.producer);
      for (const Alias& alias : node.op->alias)
        if (alias.kind == Alias::Kind::view && alias.output == value.output && node.has_input(static_cast<size_t>(alias.input)))
          plan_.values[s].viewed = slot_of[index_of(node.inputs[static_cast<size_t>(alias.input)])];
    }
  }

  /// Returns the version of an input's elements from which the kernel's packed copy was made.
  uint64_t packed_version(const Instruction& instruction, size_t k) const {
    if (instruction.versioned < 0 || k >= instruction.num_inputs) return 0;
    return binding_.parameters()->packed[static_cast<size_t>(instruction.versioned)].versions[k];
  }

  void describe_reader(const Instruction& instruction, size_t k, size_t position, DescribedPlan::Operand& made) const {
    const bool is_input = k < instruction.num_inputs;
    const uint32_t asks = instruction.dynamic ? 0 : is_input ? instruction.kernel->strided_inputs : instruction.kernel->strided_outputs;
    made.takes_steps = (asks >> std::min<size_t>(is_input ? k : k - instruction.num_inputs, 31) & 1U) != 0;
    const Slot& slot = slots_[made.value];
    made.by_reference =
        instruction.dynamic && is_input && !slot.rewritten && (slot.location == LocationKind::held || slot.location == LocationKind::feed);
    made.unread = k < instruction.num_inputs && k < 32 && instruction.kernel && (instruction.kernel->packs >> k & 1U) != 0;
    made.packed_version = packed_version(instruction, k);
    if (!instruction.dynamic) made.told_step_bytes = size_bytes(slots_[made.value].dtype, binding_.operand_step(position));
  }

  DescribedPlan::Step step_of(const Instruction& instruction) const {
    DescribedPlan::Step step{.node = instruction.node,
                             .first_operand = instruction.first_operand,
                             .num_inputs = instruction.num_inputs,
                             .num_outputs = instruction.num_outputs,
                             .dynamic = instruction.dynamic};
    const Pieces pieces = instruction.node->op->pieces;
    if (instruction.dynamic || pieces == Pieces::none) return step;
    const auto operands = program_.operands(instruction);
    const SlotId whole = pieces == Pieces::concat ? operands[instruction.num_inputs] : operands[0];
    if (whole == kNoSlot || bits_of(slots_[whole].dtype) % 8 != 0) return step;  // sub-byte pieces are never in place
    const Shape& shape = binding_.shape(whole);
    int64_t axis = instruction.node->attributes.get_int("axis", 0);
    if (axis < 0) axis += shape.rank();
    if (axis < 0 || axis >= shape.rank()) return step;
    step.act = pieces == Pieces::concat ? Act::join : Act::split;
    step.blocks = static_cast<size_t>(shape.product(0, static_cast<int>(axis)));
    step.along_rows = axis + 1 == shape.rank();
    return step;
  }

  PlaceId add_scratch(size_t offset, size_t size_bytes) { return plan_.places.add({.offset = offset, .size_bytes = size_bytes}); }

  const Binding& binding_;
  const Program& program_;
  const IdSpan<SlotId, const Slot> slots_;
  DescribedPlan plan_;
};

DescribedPlan Describing::within(const BudgetedPlan& budget) {
  DescribedPlan plan = in_order();
  plan_ = {};
  const IdVector<InstructionId, DescribedPlan::Step> program_steps(std::exchange(plan.steps, {}));
  plan.schedule = "under a budget";
  plan.moving = true;
  plan.memories = {budget.arena_bytes};
  plan.file_offsets.assign(plan.places.size(), 0);
  IdVector<BufferId, PlaceId> place_of_buffer(program_.num_buffers(), kNoPlace);
  for (SlotId s : slots_.ids()) {
    if (slots_[s].root != s || slots_[s].buffer == kNoBuffer) continue;
    const BufferId buffer = slots_[s].buffer;
    const PlaceId place = place_of_buffer[buffer] = place_like(s);
    plan.places[place].size_bytes = binding_.buffer_sizes()[buffer];
    plan.file_offsets[place] = budget.file_offsets[buffer];
  }
  for (size_t k = 0; k < budget.operand_offsets.size(); ++k)
    if (plan.operands[k].place != kNoPlace && plan.places[plan.operands[k].place].home == Home::planned)
      plan.operands[k].at = budget.operand_offsets[k];
  auto scratch = [&](size_t offset, size_t size_bytes) { return plan.places.add({.offset = offset, .size_bytes = size_bytes}); };
  auto add_replay = [&](const BudgetedPlan::Replay& replay, PlaceId target) {
    DescribedPlan::Step step = program_steps[replay.instruction];
    const Instruction& instruction = program_.instructions()[replay.instruction];
    const size_t count = static_cast<size_t>(step.num_inputs) + step.num_outputs, first = step.first_operand;
    step.act = Act::replay;
    step.target = target;
    step.num_releases = 0;
    step.first_operand = static_cast<uint32_t>(plan.operands.size());
    step.scratch_at = replay.scratch_offset;
    step.scratch = scratch(step.scratch_at, binding_.buffer_sizes()[instruction.scratch_buffer]);
    for (size_t k = 0; k < count; ++k) {
      DescribedPlan::Operand operand = plan.operands[first + k];
      const size_t at = budget.replay_offsets[replay.first_offset + k];
      if (operand.value != kNoSlot && at != BudgetedPlan::kNowhere) {
        operand.at = at;
        if (k >= step.num_inputs && operand.place != target) operand.place = scratch(at, binding_.bytes_of(operand.value));
      }
      plan.operands.push_back(operand);
    }
    plan.steps.push_back(step);
  };
  for (size_t i = 0; i <= program_steps.size(); ++i) {
    for (uint32_t m = budget.first_move[i]; m < budget.first_move[i + 1]; ++m) {
      const BudgetedPlan::Move& move = budget.moves[m];
      const PlaceId place = place_of_buffer[move.buffer];
      if (move.kind == BudgetedPlan::Kind::recompute) {
        for (uint32_t r = move.first_replay; r < move.first_replay + move.num_replays; ++r) add_replay(budget.replays[r], place);
        continue;
      }
      plan.steps.push_back({.act = move.kind == BudgetedPlan::Kind::spill ? Act::spill : Act::load, .place = place, .offset = move.offset});
    }
    if (i == program_steps.size()) break;
    const InstructionId instruction = budget.instruction_at(i);
    plan.steps.push_back(program_steps[instruction]);
    if (plan.steps.back().scratch != kNoPlace) plan.steps.back().scratch_at = budget.scratch_offsets[instruction];
    if (const BufferId buffer = program_.instructions()[instruction].scratch_buffer; buffer != kNoBuffer)
      plan.places[plan.steps.back().scratch].size_bytes = binding_.buffer_sizes()[buffer];
  }
  plan.file_offsets.resize(plan.places.size(), 0);
  return plan;
}

DescribedPlan Describing::on_streams(const StreamPlan& streams, IdSpan<LocationId, const size_t> offsets,
                                     std::span<const size_t> arena_bytes) {
  using Memory = StreamPlan::Location::Memory;
  plan_.schedule = "on streams";
  plan_.order = DescribedPlan::Order::streams;
  plan_.several_places = true;
  plan_.preallocates = false;
  plan_.num_streams = static_cast<int>(streams.streams.size());
  plan_.memories.assign(arena_bytes.begin(), arena_bytes.end());
  add_values();
  for (LocationId l : streams.locations.ids()) {
    const StreamPlan::Location& location = streams.locations[l];
    DescribedPlan::Place place{.root = location.slot, .memory = location.device};
    if (location.memory == Memory::planned) {
      place.offset = offsets[l];
      place.size_bytes = binding_.buffer_sizes()[location.buffer];
    } else {
      const Slot& slot = slots_[location.slot];
      place.home = location.memory == Memory::held ? Home::held : home_of(slot.location);
      place.ready = place.filled = location.memory != Memory::held;
      place.size_bytes = slot.static_shape ? size_in(slot, location.slot) : 0;
      if (location.memory == Memory::held) place.uses = location.num_steps;
      if (location.memory == Memory::held && slot.static_shape) place.size_bytes = binding_.bytes_of(location.slot);
    }
    plan_.places.push_back(place);
  }
  for (SlotId slot : program_.output_slots()) {
    if (slots_[slot].location != LocationKind::held) continue;
    DescribedPlan::Operand output{.value = slot, .at = 0};
    for (LocationId l : streams.locations.ids())
      if (streams.locations[l].slot == slots_[slot].root && streams.locations[l].device == DevicePlacement::kHost)
        output.place = place_like(l);
    plan_.outputs.push_back(output);
  }
  IdVector<StepId, int32_t> number(streams.steps.size(), -1);  // position in the order of issue
  int32_t next = 0;
  for (const auto& bulk : streams.bulks)
    for (StepId s : bulk) number[s] = next++;
  for (const auto& bulk : streams.bulks) {
    bool leads = true;
    for (StepId s : bulk) {
      const StreamPlan::Step& from = streams.steps[s];
      DescribedPlan::Issue issue{.stream = from.stream, .leads = leads, .records = from.records && s == bulk.back()};
      issue.host_waits = streams.steps[bulk.back()].host_waits && s == bulk.back();
      for (StepId wait : from.waits) issue.waits.push_back(number[wait]);
      leads = false;
      DescribedPlan::Step step{.act = Act::copy, .place = place_like(from.source), .target = place_like(from.target)};
      if (!from.is_copy()) {
        const Instruction& instruction = program_.instructions()[from.instruction];
        step = step_of(instruction);
        issue.all_wait = instruction.is_yield;
        step.first_operand = static_cast<uint32_t>(plan_.operands.size());
        step.scratch = place_like(from.scratch);
        if (from.scratch != kNoLocation) step.scratch_at = offsets[from.scratch];
        const auto operands = program_.operands(instruction);
        for (size_t k = 0; k < operands.size(); ++k) {
          DescribedPlan::Operand operand{.value = operands[k], .place = place_like(streams.operands[from.first_operand + k])};
          if (operand.value != kNoSlot) {
            describe_reader(instruction, k, instruction.first_operand + k, operand);
            step.on_loan |= instruction.dynamic && slots_[operand.value].rewritten;
            const DescribedPlan::Place& place = plan_.places[operand.place];
            operand.at = place.home == Home::planned ? place.offset : 0;
          }
          plan_.operands.push_back(operand);
        }
      }
      plan_.steps.push_back(step);
      plan_.issues.push_back(std::move(issue));
    }
  }
  return std::move(plan_);
}

}  // namespace

bool overlap(const Stretch& a, const Stretch& b) {
  if (a.empty() || b.empty() || a.end() <= b.begin || b.end() <= a.begin) return false;
  if (a.rows == 1 && b.rows == 1) return true;
  if (a.rows > 1 && b.rows > 1 && a.step_bytes != b.step_bytes) {
    Stretch row = a;
    row.rows = 1;
    for (size_t r = 0; r < a.rows; ++r, row.begin += a.step_bytes)
      if (overlap(row, b)) return true;
    return false;
  }
  // Row i of `a` and row i - k of `b` overlap if each begins before the other ends. As a formula: distance - a.row_bytes < k * step <
  // distance + b.row_bytes.
  const auto step = static_cast<int64_t>(a.rows > 1 ? a.step_bytes : b.step_bytes);
  const auto distance = static_cast<int64_t>(b.begin) - static_cast<int64_t>(a.begin);
  const int64_t low = distance - static_cast<int64_t>(a.row_bytes), high = distance + static_cast<int64_t>(b.row_bytes);
  if (step == 0) return low < 0 && 0 < high;
  int64_t k = low >= 0 ? low / step + 1 : -((-low - 1) / step);  // the smallest k with low < k * step
  k = std::max(k, -(static_cast<int64_t>(b.rows) - 1));
  return k < static_cast<int64_t>(a.rows) && k * step < high && low < k * step;
}

DescribedPlan describe_plan(const Binding& binding) { return Describing(binding).in_order(); }
DescribedPlan describe_parallel_plan(const Binding& binding) { return Describing(binding).by_readiness(); }
DescribedPlan describe_plan(const Binding& binding, const BudgetedPlan& budget) { return Describing(binding).within(budget); }
DescribedPlan describe_plan(const Binding& binding, const StreamPlan& plan, IdSpan<LocationId, const size_t> offsets,
                            std::span<const size_t> arena_bytes) {
  return Describing(binding).on_streams(plan, offsets, arena_bytes);
}

void lay_over(DescribedPlan& plan, SlotId feed, SlotId output, int64_t distance) {
  const PlaceId of_feed = place_like(feed), of_output = place_like(output);
  const size_t feed_at = distance > 0 ? static_cast<size_t>(distance) : 0, output_at = distance < 0 ? static_cast<size_t>(-distance) : 0;
  DescribedPlan::Place& place = plan.places[of_output];
  place.size_bytes = std::max(place.size_bytes + output_at, plan.places[of_feed].size_bytes + feed_at);
  place.ready = place.filled = true;
  for (DescribedPlan::Value& value : plan.values) {
    if (value.root != feed && value.root != output) continue;
    value.bytes.begin += value.root == feed ? feed_at : output_at;
    value.root = output;
    value.kept = true;
  }
  auto move = [&](DescribedPlan::Operand& operand) {
    if (operand.place != of_feed && operand.place != of_output) return;
    if (operand.at != DescribedPlan::kNowhere) operand.at += operand.place == of_feed ? feed_at : output_at;
    operand.place = of_output;
  };
  std::for_each(plan.operands.begin(), plan.operands.end(), move);
  std::for_each(plan.outputs.begin(), plan.outputs.end(), move);
}

void lodge(DescribedPlan& plan, SlotId output, size_t offset) {
  const PlaceId of_output = place_like(output);
  DescribedPlan::Place& place = plan.places[of_output];
  place.home = DescribedPlan::Home::planned;
  place.offset = offset;
  place.ready = false;
  place.lodged = true;
  auto move = [&](DescribedPlan::Operand& operand) {
    if (operand.place == of_output && operand.at != DescribedPlan::kNowhere) operand.at += offset;
  };
  std::for_each(plan.operands.begin(), plan.operands.end(), move);
  std::for_each(plan.outputs.begin(), plan.outputs.end(), move);
}

}  // namespace treadle::exec
