#include "exec/placed/device_io.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "core/devices/device.h"
#include "exec/run/output_store.h"
#include "graph/op_def.h"

namespace treadle::exec {

Crossings::Crossings(const PlacedSteps& steps)
    : only_for_devices(steps.program().slots().size(), 1),
      only_for_caller(steps.program().slots().size(), kNoLocation),
      copied_to(steps.plan().locations.size(), kNoLocation),
      is_copied_to_host(steps.program().slots().size(), 0),
      maker(steps.plan().locations.size(), kNoStep),
      readers(steps.program().slots().size()) {
  for (const StreamPlan::Step& step : steps.plan().steps) {
    if (step.is_copy()) {
      const StreamPlan::Location& to = steps.location(step.target);
      if (to.device == DevicePlacement::kHost) is_copied_to_host[to.slot] = 1;
      if (to.device == DevicePlacement::kHost && to.num_steps == 1 && to.memory == StreamPlan::Location::Memory::held)
        only_for_caller[to.slot] = copied_to[step.source] = step.target;
      continue;
    }
    const auto slots = steps.program().operands(steps.instruction(step));
    const auto at = steps.operands(step);
    for (size_t k = 0; k < slots.size(); ++k)
      if (slots[k] != kNoSlot && (at[k] == kNoLocation || steps.location(at[k]).device == DevicePlacement::kHost))
        only_for_devices[steps.slot(slots[k]).root] = 0;
  }
  find_same_bytes(steps);
  find_readers(steps);
}

void Crossings::find_readers(const PlacedSteps& steps) {
  const auto write = [&](StepId s, LocationId at) {
    if (at != kNoLocation && maker[at] == kNoStep) maker[at] = s;
  };
  for (const StepId s : steps.plan().steps.ids()) {
    const StreamPlan::Step& step = steps[s];
    const auto read = [&](LocationId at) {
      if (at == kNoLocation) return;
      const SlotId root = steps.location(at).slot;
      if (steps.slot(root).location == LocationKind::feed) readers[root].push_back(s);
    };
    if (step.is_copy()) {
      read(step.source);
      write(s, step.target);
      continue;
    }
    for (const LocationId at : steps.inputs(step)) read(at);
    for (const LocationId at : steps.outputs(step)) write(s, at);
  }
}

void Crossings::find_same_bytes(const PlacedSteps& steps) {
  const Program& program = steps.program();
  IdVector<SlotId, SlotId> same_as(program.slots().size(), kNoSlot);  // for a view of all bytes of a slot: that slot
  IdVector<SlotId, int> writers(program.slots().size(), 0);
  IdVector<SlotId, StepId> first_copy(program.slots().size(), kNoStep);
  first_of_same.assign(steps.plan().steps.size(), kNoStep);
  for (const StepId s : steps.plan().steps.ids()) {
    const StreamPlan::Step& step = steps[s];
    if (!step.is_copy()) {
      const Instruction& instruction = steps.instruction(step);
      const auto slots = program.operands(instruction);
      for (const SlotId out : slots.subspan(instruction.num_inputs))
        if (out != kNoSlot) ++writers[steps.slot(out).root];
      if (!instruction.node->op) continue;
      for (const Alias& alias : instruction.node->op->alias) {
        const size_t k = instruction.num_inputs + static_cast<size_t>(alias.output);
        if (alias.kind != Alias::Kind::view || k >= slots.size() || static_cast<size_t>(alias.input) >= instruction.num_inputs) continue;
        const SlotId in = slots[static_cast<size_t>(alias.input)], out = slots[k];
        const bool are_whole = in != kNoSlot && out != kNoSlot && in != out && steps.slot(in).root == in && steps.slot(out).root == out;
        if (are_whole) same_as[out] = in;
      }
      continue;
    }
    const StreamPlan::Location& to = steps.location(step.target);
    if (to.device != DevicePlacement::kHost || to.memory != StreamPlan::Location::Memory::held) continue;
    SlotId bytes = to.slot;
    while (same_as[bytes] != kNoSlot && writers[bytes] == 1) bytes = same_as[bytes];
    if (writers[bytes] > 1) continue;  // a kernel overwrites the bytes in place
    StepId& first = first_copy[bytes];
    if (first == kNoStep) {
      first = s;
    } else if (steps[first].stream == step.stream && only_for_caller[to.slot] == step.target) {
      first_of_same[s] = first_of_same[first] = first;
    }
  }
}

DeviceIo::DeviceIo(const Crossings& crossings, const PlacedMemory& memory, const RunState& state, const RunControl& control)
    : crossings_(crossings), steps_(memory.steps()), memory_(memory), state_(state), control_(control) {}

Datum DeviceIo::take_feed(size_t input, const Datum& feed) {
  if (!feed.is_tensor() || !feed.tensor().storage()->device()) return feed;
  if (!takes_from_device(input, feed.tensor())) return from_device(feed);
  const Tensor contiguous = feed.tensor().contiguous();
  for (size_t d = 1; d < steps_.devices().size(); ++d) watch(static_cast<int>(d), contiguous);
  return contiguous;
}

bool DeviceIo::takes_from_device(size_t input, const Tensor& feed) const {
  const Device& lies_on = *feed.storage()->device();
  const auto devices = steps_.devices().subspan(1);
  const SlotId slot = steps_.program().input_slots()[input];
  return crossings_.only_for_devices[slot] && !control_.observer && !memory_.of_program().keeps_limits() &&
         std::all_of(devices.begin(), devices.end(), [&](const auto& device) { return device->reaches(lies_on); });
}

void DeviceIo::watch(int device, const Tensor& tensor) {
  if (AccessChecks* checks = steps_.device(device).access_checks())
    if (auto watch = checks->watch(tensor.raw(), tensor.size_bytes())) watches_.push_back(std::move(watch));
}

Datum DeviceIo::from_device(Datum value) {
  return value.is_tensor() && value.tensor().storage()->device() ? Datum(value.tensor().clone()) : value;
}

void DeviceIo::choose_outputs(std::span<const Datum> bound, std::vector<OutputMemory>& memory) {
  if (control_.observer || memory_.of_program().keeps_limits()) return;
  auto bound_tensor = [&](size_t k) { return k < bound.size() && bound[k].is_tensor() ? bound[k].tensor() : Tensor(); };
  auto is_wanted = [&](size_t k) {
    if (const Tensor own = bound_tensor(k); own.defined()) return own.storage()->device() != nullptr && own.is_contiguous();
    return k < memory.size() && (memory[k].device || memory[k].stays);
  };
  const auto outputs = steps_.program().output_slots();
  auto has_memory = [&](size_t k) { return bound_tensor(k).defined() || (k < memory.size() && memory[k].storage); };
  for (size_t k = 0; k < outputs.size(); ++k) {
    const SlotId root = steps_.slot(outputs[k]).root;
    const LocationId at = crossings_.only_for_caller[root];
    if (at == kNoLocation || !is_wanted(k)) continue;
    // An output that is a view, or that shares its bytes with another output, can stay on the device only in memory allocated by the run.
    bool stays = outputs[k] == root || !has_memory(k);
    for (size_t other = 0; other < outputs.size(); ++other)
      if (other != k && steps_.slot(outputs[other]).root == root) stays &= is_wanted(other) && !has_memory(k) && !has_memory(other);
    if (!stays) continue;
    if (memory.size() < outputs.size()) memory.resize(outputs.size());
    OutputMemory& wish = memory[k];
    wish.made_in_run = true;
    Stay stay{.given = bound_tensor(k)};
    stay.is_bound = stay.given.defined();
    if (!stay.is_bound && wish.storage)
      stay.given = Tensor(DType::uint8, Shape{static_cast<int64_t>(wish.storage->size_bytes())}, wish.storage);
    stay.grows = wish.reusable;
    stay.has_grown = stay.given.defined() || wish.appends_to >= 0;
    if (wish.appends_to >= 0) stay.appends_to = steps_.program().input_slots()[static_cast<size_t>(wish.appends_to)];
    staying_.emplace(at, std::move(stay));
  }
}

Tensor DeviceIo::given_memory(const Stay& stay, int maker, DType dtype, const Shape& shape) const {
  const Tensor& given = stay.given;
  if (!given.defined() || !given.storage()->device() || !steps_.device(maker).reaches(*given.storage()->device()) ||
      given.size_bytes() < size_bytes(dtype, shape.num_elements()))
    return {};
  return Tensor(dtype, shape, given.storage(), static_cast<size_t>(given.raw() - given.storage()->data()));
}

Tensor DeviceIo::new_memory(const Stay& stay, int maker, DType dtype, const Shape& shape) const {
  const size_t bytes = size_bytes(dtype, shape.num_elements());
  const size_t with_room = stay.grows ? bytes + room_to_grow(bytes, stay.has_grown) : bytes;
  Tensor made(dtype, shape, memory_.allocate(maker, with_room));
  memory_.reach(maker, made.raw(), with_room);  // backs these addresses with memory, which later copies need
  return made;
}

Tensor DeviceIo::memory_to_copy_to(LocationId at, int maker, DType dtype, const Shape& shape) {
  const Stay& stay = staying_.at(at);
  const Tensor given = given_memory(stay, maker, dtype, shape);
  if (!given.defined() || state_.is_fed(given)) return new_memory(stay, maker, dtype, shape);
  watch(maker, given);
  return given;
}

Tensor DeviceIo::memory_to_make(LocationId made, DType dtype, const Shape& shape) {
  if (memory_.residency()) return {};  // with a Residency, values may move: each is made in memory of its own, and copied at the end
  const auto found = staying_.find(crossings_.copied_to[made]);
  if (found == staying_.end()) return {};
  Stay& stay = found->second;
  const int maker = steps_.location(made).device;
  stay.made = behind_feed(stay, made, dtype, shape);
  if (stay.made.defined()) return stay.made;
  stay.made = given_memory(stay, maker, dtype, shape);
  if (stay.made.defined() && stay.made.storage()->device().get() != &steps_.device(maker)) {  // only a copy can write to another device
    stay.made = Tensor();
    return {};
  }
  const auto is_given_twice = [&](const auto& other) {
    return &other.second != &stay && other.second.given.defined() && other.second.given.storage() == stay.given.storage();
  };
  const bool is_free = stay.made.defined() && std::none_of(staying_.begin(), staying_.end(), is_given_twice) &&
                       (!state_.is_fed(stay.made) || may_write_over_feeds(made, stay.made));
  if (is_free)
    watch(maker, stay.made);
  else
    stay.made = new_memory(stay, maker, dtype, shape);
  return stay.made;
}

// Returns the memory of the input that the output begins with, if the memory is large enough. The step that makes the output does not
// change the input's elements. But it declares that it writes the whole output, so it must be ordered with all steps that read the input.
Tensor DeviceIo::behind_feed(const Stay& stay, LocationId made, DType dtype, const Shape& shape) const {
  if (stay.appends_to == kNoSlot) return {};
  const Datum& feed = state_.held(stay.appends_to);
  if (!feed.is_tensor() || feed.tensor().dtype() != dtype) return {};
  const Tensor& tensor = feed.tensor();
  const Device& maker = steps_.device(steps_.location(made).device);
  const bool has_room = tensor.storage()->device().get() == &maker && tensor.raw() == tensor.storage()->data() &&
                        tensor.storage()->size_bytes() >= size_bytes(dtype, shape.num_elements()) && is_prefix(tensor.shape(), shape);
  const StepId writer = crossings_.maker[made];
  const auto& readers = crossings_.readers[stay.appends_to];
  const auto is_ordered = [&](StepId reader) {
    return reader == writer || steps_.plan().happens_before(reader, writer) || steps_.plan().happens_before(writer, reader);
  };
  if (!has_room || writer == kNoStep || steps_.slot(stay.appends_to).is_output || !std::all_of(readers.begin(), readers.end(), is_ordered))
    return {};
  return Tensor(dtype, shape, tensor.storage());
}

// Returns true if the step that makes the value may overwrite this memory: no step reads a feed in it afterwards, or it computes in place.
bool DeviceIo::may_write_over_feeds(LocationId made, const Tensor& memory) const {
  const StepId writer = crossings_.maker[made];
  if (writer == kNoStep) return false;
  const auto is_apart = [&](const Tensor& feed) {
    const std::less<> before;
    return !before(feed.raw(), memory.raw() + memory.size_bytes()) || !before(memory.raw(), feed.raw() + feed.size_bytes());
  };
  const auto inputs = steps_.program().input_slots();
  return std::all_of(inputs.begin(), inputs.end(), [&](SlotId input) {
    const Datum& feed = state_.held(input);
    if (!feed.is_tensor() || is_apart(feed.tensor())) return true;
    if (steps_.slot(input).is_output) return false;
    const auto is_handed_over = [&](const StreamPlan::Step& step) {  // a copy without work: the feed is on that device already
      return step.is_copy() && steps_.location(step.source).memory == StreamPlan::Location::Memory::given &&
             steps_.location(step.target).device == steps_.location(made).device;
    };
    const bool is_same = feed.tensor().raw() == memory.raw() && feed.tensor().size_bytes() == memory.size_bytes();
    const auto& readers = crossings_.readers[input];
    return std::all_of(readers.begin(), readers.end(), [&](StepId reader) {
      return is_handed_over(steps_[reader]) || steps_.plan().happens_before(reader, writer) ||
             (reader == writer && is_same && may_take_over(made, input));
    });
  });
}

// Returns true if the step that makes the value may compute it in place, in the memory of this input.
bool DeviceIo::may_take_over(LocationId made, SlotId input) const {
  const StreamPlan::Step& step = steps_[crossings_.maker[made]];
  if (step.is_copy()) return false;
  const Program& program = steps_.program();
  const Instruction& instruction = steps_.instruction(step);
  const auto operands = program.operands(instruction);
  const auto inputs = operands.first(instruction.num_inputs);
  const auto is_of_root = [&](SlotId operand, SlotId root) { return operand != kNoSlot && steps_.slot(operand).root == root; };
  if (instruction.dynamic || std::count_if(inputs.begin(), inputs.end(), [&](SlotId k) { return is_of_root(k, input); }) != 1) return false;
  const auto& alias = instruction.node->op->alias;
  return std::any_of(alias.begin(), alias.end(), [&](const Alias& a) {
    if (a.input >= instruction.num_inputs || a.output >= instruction.num_outputs) return false;
    const SlotId from = operands[static_cast<size_t>(a.input)], to = operands[static_cast<size_t>(instruction.num_inputs + a.output)];
    return is_of_root(from, input) && is_of_root(to, steps_.location(made).slot) &&
           state_.binding().shape(from).num_elements() == state_.binding().shape(to).num_elements() &&
           program.type(from).dtype == program.type(to).dtype;
  });
}

Tensor DeviceIo::same_on_host(StepId copy) const {
  const auto found = on_host_.find(crossings_.first_of_same[copy]);
  return found == on_host_.end() ? Tensor() : found->second;
}

void DeviceIo::note_on_host(StepId copy, const Tensor& tensor) {
  if (const StepId first = crossings_.first_of_same[copy]; first != kNoStep) on_host_.try_emplace(first, tensor);
}

void DeviceIo::clear() noexcept {
  staying_.clear();
  on_host_.clear();
  watches_.clear();
}

}  // namespace treadle::exec
