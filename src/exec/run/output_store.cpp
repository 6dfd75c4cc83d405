#include "exec/run/output_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <ranges>
#include <utility>

#include "core/base/checked.h"
#include "core/devices/device.h"
#include "core/trace/memory_events.h"
#include "core/values/allocation.h"
#include "exec/program/next_versions.h"
#include "exec/program/parallel_plan.h"
#include "graph/op_def.h"
#include "treadle/error.h"

namespace treadle::exec {
namespace {

Tensor allocate_from(const std::shared_ptr<Allocator>& allocator, DType dtype, const Shape& shape) {
  const AllocationContext* around = AllocationScope::current();
  const AllocationContext own{allocator, around ? around->account : nullptr, around ? around->room : nullptr};
  AllocationScope scope(&own, MemoryClass::io);
  return Tensor(dtype, shape);
}

}  // namespace

size_t room_to_grow(size_t needed_bytes, bool has_grown) {
  constexpr size_t kLittle = size_t{64} << 10, kMuch = size_t{1} << 20;
  const size_t half = needed_bytes / 2 + 4096;
  return has_grown ? std::max(half, std::clamp(7 * needed_bytes, kLittle, kMuch)) : half;
}

// True if only one axis differs and all axes before it have extent 1.
bool is_prefix(const Shape& part, const Shape& whole) {
  if (part.rank() != whole.rank()) return false;
  int axis = 0;
  while (axis < part.rank() && part[axis] == whole[axis] && whole[axis] == 1) ++axis;
  if (axis < part.rank() && part[axis] > whole[axis]) return false;
  for (int i = axis + 1; i < part.rank(); ++i)
    if (part[i] != whole[i]) return false;
  return true;
}

void OutputStore::begin(std::span<const Datum> bound, std::span<const OutputMemory> memory, bool keeps_feeds) {
  bound_.assign(bound.begin(), bound.end());
  memory_.assign(memory.begin(), memory.end());
  sliding_.clear();
  fed_.clear();
  keeps_feeds_ = keeps_feeds;
  needs_order_ = false;
  if (std::any_of(bound_.begin(), bound_.end(), [](const Datum& own) { return own.defined(); })) find_fed_bytes();
}

// Returns true if the output shares the bytes of the root (a slot with bytes of its own) or is the root itself.
bool OutputStore::is_of(size_t output, SlotId root) const {
  const Program& program = state_.program();
  return program.slots()[program.output_slots()[output]].root == root;
}

bool OutputStore::is_handed_over(SlotId root) const {
  for (size_t k = 0; k < state_.program().output_slots().size(); ++k)
    if (is_of(k, root)) return true;
  return false;
}

void OutputStore::place(const RunControl& control, bool by_readiness) {
  const auto preallocated = state_.program().preallocated();
  for (size_t p = 0; p < preallocated.size(); ++p) {
    const SlotId slot = preallocated[p];
    const auto is_made_in_run = [&](size_t k) { return memory_[k].made_in_run && is_of(k, slot); };
    if (std::ranges::any_of(std::views::iota(size_t{0}, memory_.size()), is_made_in_run)) continue;
    Tensor tensor = in_bound_memory(slot);
    needs_order_ |= tensor.defined() && !is_ordered_by_readiness(slot, tensor);
    if (!tensor.defined() && !by_readiness) tensor = beside_feed(slot, control);
    if (!tensor.defined()) tensor = in_arena(p);
    if (!tensor.defined()) tensor = in_own_memory(slot);
    state_.hold(slot, std::move(tensor));
  }
  if (state_.program().planning().verify) verify_over_feeds();
}

Tensor OutputStore::in_bound_memory(SlotId slot) const {
  const Program& program = state_.program();
  const Slot& info = program.slots()[slot];
  for (size_t k = 0; k < bound_.size(); ++k) {
    if (!bound_[k].defined() || !is_of(k, slot)) continue;
    const Tensor& memory = bound_[k].tensor();
    const SlotId output = program.output_slots()[k];
    const Shape& shape = state_.binding().shape(output);
    const DType dtype = program.slots()[output].dtype;
    if (memory.dtype() != dtype || memory.shape() != shape)
      throw Error(ErrorCode::invalid_argument, fmt::format("output \"{}\" is bound to {}, it has {}{}", program.graph().output_names[k],
                                                           describe(memory), short_name_of(dtype), to_string(shape)));
    // If the bound memory cannot be used directly, hand_over() copies the output to it.
    if (!memory.is_contiguous() || !memory.storage()->writable() || memory.storage()->device()) continue;
    if (!may_be_made_in(slot, memory)) continue;  // the output would overwrite a feed that is still read
    return whole_as(memory, info.dtype, state_.binding().shape(slot));
  }
  return {};
}

void OutputStore::find_fed_bytes() {
  const Program& program = state_.program();
  for (SlotId input : program.input_slots()) {
    const Datum& feed = state_.held(input);
    if (!feed.is_tensor() || feed.tensor().size_bytes() == 0) continue;
    fed_.push_back({feed.tensor().raw(), feed.tensor().raw() + feed.tensor().size_bytes(), nullptr, input});
  }
  const std::less<> before;
  std::sort(fed_.begin(), fed_.end(), [&](const FedBytes& a, const FedBytes& b) { return before(a.begin, b.begin); });
  for (size_t k = 0; k < fed_.size(); ++k) fed_[k].furthest = k == 0 ? fed_[k].end : std::max(fed_[k].end, fed_[k - 1].furthest, before);
  if (touched_.empty()) touched_ = find_touched();
}

IdVector<SlotId, OutputStore::Touched> OutputStore::find_touched() const {
  const Program& program = state_.program();
  const auto slots = program.slots();
  IdVector<SlotId, Touched> found(slots.size());
  for (InstructionId at : program.instructions().ids()) {
    const Instruction& instruction = program.instructions()[at];
    const auto operands = program.operands(instruction);
    for (size_t k = 0; k < operands.size(); ++k) {
      if (operands[k] == kNoSlot) continue;
      const SlotId root = slots[operands[k]].root;
      Touched& touched = found[root];
      if (k >= instruction.num_inputs) {
        touched.made_at = std::min(touched.made_at, at);
        continue;
      }
      touched.read_until = std::max(touched.read_until, instruction.dynamic ? kBehindAll : at);
      if (slots[root].location == LocationKind::feed) touched.readers.push_back(at);
    }
  }
  return found;
}

// Returns true if f(feed) is true for any feed that overlaps the memory.
template <typename F>
bool OutputStore::any_feed_in(const Tensor& memory, F f) const {
  const std::less<> before;
  const std::byte *begin = memory.raw(), *end = begin + memory.size_bytes();
  auto at = std::partition_point(fed_.begin(), fed_.end(), [&](const FedBytes& feed) { return before(feed.begin, end); });
  while (at != fed_.begin() && before(begin, std::prev(at)->furthest)) {
    --at;
    if (before(begin, at->end) && f(*at)) return true;
  }
  return false;
}

// Returns true if the slot may overwrite every feed in this memory: the feed is not an output, and is not read after the first write to the
// bytes that the slot shares.
bool OutputStore::may_be_made_in(SlotId slot, const Tensor& memory) const {
  const bool in_pieces = state_.program().slots()[slot].in_pieces;
  return !any_feed_in(memory, [&](const FedBytes& feed) {
    if (in_pieces || keeps_feeds_ || is_handed_over(feed.input)) return true;
    const InstructionId made = touched_[slot].made_at, read = touched_[feed.input].read_until;
    if (read != made) return read > made;
    return feed.begin != memory.raw() || feed.end != memory.raw() + memory.size_bytes() || !may_take_over(slot, feed.input);
  });
}

// Returns true if the instruction that makes the slot may compute it in place, in the memory of this input.
bool OutputStore::may_take_over(SlotId slot, SlotId input) const {
  const Program& program = state_.program();
  const Instruction& instruction = program.instructions()[touched_[slot].made_at];
  const auto operands = program.operands(instruction);
  auto is_of_root = [&](SlotId operand, SlotId root) { return operand != kNoSlot && program.slots()[operand].root == root; };
  const auto inputs = operands.first(instruction.num_inputs);
  if (instruction.dynamic || std::count_if(inputs.begin(), inputs.end(), [&](SlotId k) { return is_of_root(k, input); }) != 1) return false;
  return std::any_of(instruction.node->op->alias.begin(), instruction.node->op->alias.end(), [&](const Alias& alias) {
    if (alias.input >= instruction.num_inputs || alias.output >= instruction.num_outputs) return false;
    const SlotId from = operands[static_cast<size_t>(alias.input)],
                 to = operands[static_cast<size_t>(instruction.num_inputs + alias.output)];
    return is_of_root(from, input) && is_of_root(to, slot) &&
           state_.binding().shape(from).num_elements() == state_.binding().shape(to).num_elements() &&
           program.type(from).dtype == program.type(to).dtype;
  });
}

// Returns true if the dependencies alone ensure that all readers of feeds in this memory run before the instruction that writes the slot.
bool OutputStore::is_ordered_by_readiness(SlotId slot, const Tensor& memory) const {
  const ParallelPlan* plan = state_.program().parallel();
  return !any_feed_in(memory, [&](const FedBytes& feed) {
    const InstructionId made = touched_[slot].made_at;
    const std::vector<InstructionId>& readers = touched_[feed.input].readers;
    return !plan || std::any_of(readers.begin(), readers.end(),
                                [&](InstructionId reader) { return reader != made && !plan->reach.before(reader, made); });
  });
}

// Returns memory in the arena for a gradient (plan/lodging.h). Undefined if the caller wants other memory or the arena has no room.
// @param preallocated  index into Program::preallocated()
Tensor OutputStore::in_arena(size_t preallocated) const {
  const Program& program = state_.program();
  const SlotId slot = program.preallocated()[preallocated];
  const Slot& info = program.slots()[slot];
  if (!info.is_gradient) return {};
  for (size_t k = 0; k < memory_.size(); ++k)
    if (is_of(k, slot) && (memory_[k].allocator || memory_[k].device || memory_[k].reusable)) return {};
  const Shape& shape = state_.binding().shape(slot);
  std::shared_ptr<Storage> memory = state_.lodge(preallocated, size_bytes(info.dtype, shape.num_elements()));
  return memory ? Tensor(info.dtype, shape, std::move(memory)) : Tensor();
}

Tensor OutputStore::in_own_memory(SlotId slot) const {
  const Program& program = state_.program();
  const DType dtype = program.slots()[slot].dtype;
  const Shape& shape = state_.binding().shape(slot);
  std::optional<MemoryHolder> holder;
  if (RecordWindow::any_for_memory()) [[unlikely]]
    holder.emplace(Recorder::of_process().intern(program.name(slot)));
  const bool is_gradient = program.slots()[slot].is_gradient;
  AllocationScope scope(AllocationScope::current(), program.is_body() ? MemoryClass::activations
                                                    : is_gradient     ? MemoryClass::gradients
                                                                      : MemoryClass::io);
  for (size_t k = 0; dtype != DType::string && k < memory_.size(); ++k) {
    const OutputMemory& memory = memory_[k];
    if (!is_of(k, slot)) continue;
    if (memory.allocator) return allocate_from(memory.allocator, dtype, shape);
    if (!memory.reusable) continue;
    const size_t needed = size_bytes(dtype, shape.num_elements());
    if (memory.appends_to >= 0) {
      const SlotId input = program.input_slots()[static_cast<size_t>(memory.appends_to)];
      const Datum& feed = state_.held(input);
      if (!is_handed_over(input) && feed.is_tensor() && feed.tensor().raw() == feed.tensor().storage()->data() &&
          feed.tensor().storage()->size_bytes() >= needed && is_prefix(feed.tensor().shape(), shape))
        return Tensor(dtype, shape, feed.tensor().storage());
    }
    if (memory.storage && !memory.storage->device() && memory.storage->size_bytes() >= needed) return Tensor(dtype, shape, memory.storage);
    const bool has_grown = memory.storage || memory.appends_to >= 0;
    return Tensor(dtype, shape, Storage::allocate(needed + room_to_grow(needed, has_grown)));
  }
  return Tensor(dtype, shape);
}

// Returns memory for an output that extends a feed (Slide): before the feed in the feed's memory, or at the end of new memory, so that
// there are free bytes before it for the next run's output. Undefined if the output cannot share memory with the feed. Rows of the feed
// move, so no observer may read it during the run, and the caller must wait for the end of the run.
Tensor OutputStore::beside_feed(SlotId slot, const RunControl& control) {
  if (control.observer || control.stop.deadline || control.stop.caller || control.memory.pass || state_.budget()) return {};
  const Program& program = state_.program();
  for (size_t k = 0; k < memory_.size(); ++k) {
    if (memory_[k].grows_from < 0 || memory_[k].allocator || !is_of(k, slot)) continue;
    const SlotId input = program.input_slots()[static_cast<size_t>(memory_[k].grows_from)];
    if (is_handed_over(input)) return {};
    auto slide = std::find_if(slides_.begin(), slides_.end(), [&](const Slide& s) { return s.feed() == input && s.output() == slot; });
    if (slide == slides_.end()) slide = slides_.emplace(slides_.end(), program, input, slot);
    if (!slide->plan(state_.binding())) return {};
    const DType dtype = program.slots()[slot].dtype;
    const Shape& shape = state_.binding().shape(slot);
    const Tensor& feed = state_.held(input).tensor();
    const auto room = static_cast<size_t>(feed.raw() - feed.storage()->data());
    if (room >= slide->distance()) {
      sliding_.emplace_back(&*slide, feed.raw());
      return Tensor(dtype, shape, feed.storage(), room - slide->distance());
    }
    AllocationScope scope(AllocationScope::current(), MemoryClass::io);
    const size_t needed = size_bytes(dtype, shape.num_elements());
    auto storage = Storage::allocate(needed + room_to_grow(needed, /*has_grown=*/true));
    const size_t offset = (storage->size_bytes() - needed) / Storage::kAlignment * Storage::kAlignment;
    return Tensor(dtype, shape, std::move(storage), offset);
  }
  return {};
}

size_t OutputStore::bytes_to_allocate() const {
  const Program& program = state_.program();
  size_t bytes = 0;
  for (SlotId slot : program.preallocated()) {
    bool is_bound = false;
    for (size_t k = 0; k < bound_.size(); ++k)
      is_bound |= bound_[k].defined() && is_of(k, slot) && may_be_made_in(slot, bound_[k].tensor());
    const size_t needed = state_.binding().bytes_of(slot);
    if (!is_bound) bytes += align_up(std::max<size_t>(needed, 1), Storage::kAlignment);
  }
  return bytes;
}

bool OutputStore::is_bound(SlotId root) const {
  for (size_t k = 0; k < bound_.size(); ++k)
    if (bound_[k].defined() && is_of(k, root)) return true;
  return false;
}

bool OutputStore::is_bound_to_whole_feeds() const {
  const auto inputs = state_.program().input_slots();
  return std::all_of(bound_.begin(), bound_.end(), [&](const Datum& bound) {
    if (!bound.is_tensor() || !state_.is_fed(bound.tensor())) return true;
    const Tensor& memory = bound.tensor();
    return std::any_of(inputs.begin(), inputs.end(), [&](SlotId slot) {
      const Datum& feed = state_.held(slot);
      return feed.is_tensor() && feed.tensor().raw() == memory.raw() && feed.tensor().size_bytes() == memory.size_bytes();
    });
  });
}

bool OutputStore::binds_next_versions() const {
  const auto outputs = state_.program().output_slots();
  for (size_t k = 0; k < bound_.size(); ++k) {
    if (!bound_[k].is_tensor() || !bound_[k].tensor().defined() || !state_.is_fed(bound_[k].tensor())) continue;
    if (next_versions_.empty()) next_versions_ = find_next_versions(state_.program());
    const SlotId feed = next_versions_[outputs[k]];
    if (feed == kNoSlot || !state_.held(feed).is_tensor()) return false;
    const Tensor &own = state_.held(feed).tensor(), &memory = bound_[k].tensor();
    if (own.raw() != memory.raw() || own.size_bytes() != memory.size_bytes()) return false;
  }
  return true;
}

// Returns the value, or a copy of it if it shares memory with a feed that a bound output will overwrite.
Datum OutputStore::apart_from_feeds(Datum value) const {
  if (value.is_tensor()) {
    const bool is_fed = value.tensor().dtype() != DType::string && any_feed_in(value.tensor(), [](const FedBytes&) { return true; });
    return is_fed ? Datum(value.tensor().clone()) : value;
  }
  if (value.kind() != Datum::Kind::sequence) return value;
  Sequence apart = value.sequence();
  for (Datum& element : apart.elements) element = apart_from_feeds(std::move(element));
  return apart;
}

void OutputStore::hand_over(std::span<Datum> outputs) {
  const Program& program = state_.program();
  const auto slots = program.output_slots();
  auto is_bound = [&](size_t k) { return k < bound_.size() && bound_[k].defined(); };
  for (size_t k = 0; k < slots.size(); ++k) {
    Datum result = value(k);
    const bool is_in_place = is_bound(k) && result.is_tensor() && result.tensor().raw() == bound_[k].tensor().raw();
    outputs[k] = fed_.empty() || is_in_place ? std::move(result) : apart_from_feeds(std::move(result));
  }
  for (size_t k = 0; k < slots.size(); ++k) {
    Datum& result = outputs[k];
    if (!is_bound(k)) {
      result = where_wanted(k, std::move(result));
      continue;
    }
    Tensor own = bound_[k].tensor();
    if (!result.is_tensor() || result.tensor().dtype() != own.dtype() || result.tensor().shape() != own.shape())
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("output \"{}\" is bound to {}, it is {}", program.graph().output_names[k], describe(own), describe(result)));
    if (result.tensor().raw() != own.raw()) own.copy_from(result.tensor());
    result = own;
  }
}

// Returns an output's value. A constant of the program is copied.
Datum OutputStore::value(size_t k) const {
  const SlotId slot = state_.program().output_slots()[k];
  Datum result = state_.value(slot, /*shared=*/true);
  const bool is_programs = state_.program().slots()[slot].location == LocationKind::constant;
  return is_programs && result.is_tensor() ? Datum(result.tensor().clone()) : result;
}

// Moves an output to the memory that the caller wants. Needed if the output's extents were unknown before the run, so that place() could
// not do it.
Datum OutputStore::where_wanted(size_t k, Datum value) const {
  static const OutputMemory kAnywhere;
  const OutputMemory& memory = k < memory_.size() ? memory_[k] : kAnywhere;
  if (!value.is_tensor()) return value;
  const Tensor& result = value.tensor();
  const std::shared_ptr<Device>& lies_on = result.storage()->device();
  const Slot& slot = state_.program().slots()[state_.program().output_slots()[k]];
  if (memory.allocator && slot.location == LocationKind::held && slot.dtype != DType::string &&
      allocator_of(result.storage()) != memory.allocator.get()) {
    Tensor own = allocate_from(memory.allocator, result.dtype(), result.shape());
    own.copy_from(result);
    return own;
  }
  if (!memory.device) return lies_on && !memory.stays ? Datum(result.clone()) : value;
  if (result.dtype() == DType::string) return value;
  if (lies_on && lies_on->reaches(*memory.device) && lies_on->name() == memory.device->name()) return value;
  Tensor copy(result.dtype(), result.shape(), memory.device->allocate(result.size_bytes()));
  copy.copy_from(result);
  return copy;
}

void OutputStore::restore_feeds(InstructionId end) {
  for (const auto& [slide, feed] : sliding_) slide->undo(feed, end);
  sliding_.clear();
}

void OutputStore::clear() noexcept {
  bound_.clear();
  memory_.clear();
}

}  // namespace treadle::exec
