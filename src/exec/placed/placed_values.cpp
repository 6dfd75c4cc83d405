#include "exec/placed/placed_values.h"

#include <algorithm>
#include <vector>

namespace treadle::exec {

using Memory = StreamPlan::Location::Memory;

PlacedValues::PlacedValues(PlacedMemory& memory, const RunStreams& streams, const RunState& state, DeviceIo& io)
    : steps_(memory.steps()), memory_(memory), streams_(streams), state_(state), io_(io), places_(steps_.plan().locations.size()) {}

void PlacedValues::begin() {
  for (const LocationId l : places_.ids()) places_[l].steps_left = steps_.location(l).num_steps;
}

void PlacedValues::clear() noexcept {
  for (Place& place : places_) place = {};
  blocks_.clear();
}

Datum PlacedValues::as_slot(LocationId at, SlotId slot, const Datum& root) const {
  if (!root.is_tensor() || steps_.location(at).slot == slot) return root;
  return whole_as(root.tensor(), steps_.slot(slot).dtype, state_.binding().shape(slot));
}

Datum PlacedValues::value(LocationId at, SlotId slot) const {
  if (places_[at].is_absent) return {};
  const StreamPlan::Location& location = steps_.location(at);
  const Slot& info = steps_.slot(slot);
  const Binding& binding = state_.binding();
  switch (location.memory) {
    case Memory::planned: {
      const Shape& shape = binding.shape(slot);
      std::byte* const data = memory_.reach(location.device, memory_.arenas().at(at), binding.buffer_sizes()[location.buffer]);
      return Tensor(info.dtype, shape, Storage::lend(data, size_bytes(info.dtype, shape.num_elements())));
    }
    case Memory::held: return as_slot(at, slot, reached(location.device, held(at)));
    case Memory::given:
      if (info.location == LocationKind::known) return binding.known(slot);
      return as_slot(at, slot, state_.value(location.slot, /*shared=*/false));
    case Memory::constant: break;
  }
  const Datum& constant = binding.constant(location.slot);
  const bool is_copied = location.device != DevicePlacement::kHost && constant.is_tensor();
  return as_slot(at, slot, is_copied ? reached(location.device, memory_.constant(at)) : constant);
}

// Returns the value at the address where work enqueued now finds it: contents of device memory may have moved (Bus::reach).
Datum PlacedValues::reached(int device, const Datum& datum) const {
  if (!datum.is_tensor()) return datum;
  const Tensor& tensor = datum.tensor();
  std::byte* const data = memory_.reach(device, tensor.raw(), tensor.size_bytes());
  return data == tensor.raw() ? datum : Tensor(tensor.dtype(), tensor.shape(), Storage::lend(data, tensor.size_bytes()));
}

Datum PlacedValues::on_host(LocationId at, SlotId slot) const {
  Datum found = value(at, slot);
  const int device = steps_.location(at).device;
  if (device == DevicePlacement::kHost || !found.is_tensor()) return found;
  Tensor copy(found.tensor().dtype(), found.tensor().shape());
  streams_.copy_now(device, copy.raw(), found.tensor().raw(), copy.size_bytes(), CopyKind::device_to_host);
  return copy;
}

bool PlacedValues::is_tracked(LocationId at) const {
  const StreamPlan::Location& location = steps_.location(at);
  switch (location.memory) {
    case Memory::planned: return true;
    case Memory::held: return places_[at].tracked;
    case Memory::constant: return location.device != DevicePlacement::kHost;
    case Memory::given: break;
  }
  return false;
}

void PlacedValues::make_outputs(const StreamPlan::Step& step) {
  if (steps_.instruction(step).dynamic) return;
  for (const LocationId at : steps_.outputs(step)) {
    if (at == kNoLocation || steps_.location(at).memory != Memory::held || held(at).defined()) continue;
    const SlotId root = steps_.location(at).slot;
    make(at, steps_.slot(root).dtype, state_.binding().shape(root));
  }
}

void PlacedValues::make(LocationId at, DType dtype, const Shape& shape) {
  const StreamPlan::Location& made = steps_.location(at);
  const Slot& info = steps_.slot(made.slot);
  if (made.device == DevicePlacement::kHost && info.is_output && info.location == LocationKind::held && info.static_shape) {
    if (Datum own = state_.value(made.slot, /*shared=*/false); own.is_tensor()) {
      Place& place = places_[at];
      place.datum = own;
      AccessChecks* checks = steps_.device(made.device).access_checks();
      if (checks) place.watch = checks->watch(own.tensor().raw(), own.tensor().size_bytes());
      place.tracked = place.watch != nullptr;
      return;
    }
  }
  if (Tensor output = io_.memory_to_make(at, dtype, shape); output.defined()) return make_in(at, std::move(output));
  make_in(at, allocate(made.device, dtype, shape));
}

void PlacedValues::hold(LocationId at, Datum made) {
  const int device = steps_.location(at).device;
  if (device == DevicePlacement::kHost && made.is_tensor() && made.tensor().storage()->device()) made = made.tensor().clone();
  if (device == DevicePlacement::kHost || !made.is_tensor() || lies_on(made.tensor(), device))
    return set(at, made.is_tensor() ? Datum(movable(made.tensor())) : std::move(made), /*tracked=*/device != DevicePlacement::kHost,
               /*from_host=*/false);
  const bool is_elsewhere = made.tensor().storage()->device() != nullptr;  // on another device, for example a result of a branch
  const Tensor source = is_elsewhere ? made.tensor().clone() : made.tensor().contiguous();
  Tensor copy = allocate(device, source.dtype(), source.shape());
  streams_.copy_now(device, memory_.reach(device, copy.raw(), copy.size_bytes()), source.raw(), source.size_bytes(),
                    CopyKind::host_to_device);
  set(at, std::move(copy), /*tracked=*/true, /*from_host=*/true);
}

void PlacedValues::set(LocationId at, Datum datum, bool tracked, bool from_host) {
  Place& place = places_[at];
  place.datum = std::move(datum);
  place.tracked = tracked;
  if (Residency* residency = memory_.residency(); residency && place.datum.is_tensor())
    residency->add(at, place.datum.tensor().raw(), place.datum.tensor().size_bytes(), from_host);
}

Tensor PlacedValues::allocate(int device, DType dtype, const Shape& shape) {
  std::shared_ptr<Storage> storage = memory_.allocate(device, size_bytes(dtype, shape.num_elements()));
  blocks_[storage.get()] = {storage, device, {}};
  return Tensor(dtype, shape, std::move(storage));
}

Tensor PlacedValues::allocate_reached(int device, DType dtype, const Shape& shape) {
  const Tensor made = allocate(device, dtype, shape);
  std::byte* const data = memory_.reach(device, made.raw(), made.size_bytes());
  if (data == made.raw()) return made;
  std::shared_ptr<Storage> storage =
      Storage::of_device(steps_.device(device).shared_from_this(), data, made.size_bytes(), [owner = made.storage()] {});
  blocks_[storage.get()] = {storage, device, made.storage()};
  return Tensor(dtype, shape, std::move(storage));
}

// Undoes allocate_reached(): returns the tensor with the fixed address, which stays the same when the memory moves.
Tensor PlacedValues::movable(const Tensor& made) const {
  const auto found = blocks_.find(made.storage().get());
  // An entry may belong to an earlier storage object that had the same address.
  const bool is_known = found != blocks_.end() && found->second.storage.lock() == made.storage();
  const std::shared_ptr<Storage> owner = is_known ? found->second.reached_for.lock() : nullptr;
  if (!owner) return made;
  return Tensor(made.dtype(), made.shape(), owner, static_cast<size_t>(made.raw() - made.storage()->data()));
}

bool PlacedValues::lies_on(const Tensor& tensor, int device) const {
  if (tensor.storage()->device().get() == &steps_.device(device)) return true;
  const auto found = blocks_.find(tensor.storage().get());
  return found != blocks_.end() && found->second.device == device && !found->second.storage.expired();
}

void PlacedValues::keep(std::span<const LocationId> locations, Stream& queue) const {
  std::vector<Datum> kept;
  for (const LocationId at : locations)
    if (at != kNoLocation && steps_.location(at).memory == Memory::held && held(at).defined()) kept.push_back(held(at));
  if (!kept.empty()) queue.enqueue_release([kept = std::move(kept)] {});
}

// Counts down the steps that access each location and have not been issued. The plan's order does not tell which step is issued last: a
// bulk is issued as a whole, before steps of other streams that stand between the bulk's steps in the plan.
void PlacedValues::let_go(StepId s, Stream& queue) {
  const StreamPlan::Step& step = steps_[s];
  if (step.is_copy()) {
    drop(step.source, queue);
    drop(step.target, queue);
    return;
  }
  const auto at = steps_.operands(step);
  for (size_t k = 0; k < at.size(); ++k)  // a location may be several operands of the step, but the step counts once
    if (std::find(at.begin(), at.begin() + static_cast<ptrdiff_t>(k), at[k]) == at.begin() + static_cast<ptrdiff_t>(k)) drop(at[k], queue);
}

void PlacedValues::drop(LocationId at, Stream& queue) {
  if (at == kNoLocation || steps_.location(at).memory != Memory::held) return;
  Place& place = places_[at];
  if (--place.steps_left > 0) return;
  const int device = steps_.location(at).device;
  // Outputs of the run are kept until its end.
  if (device == DevicePlacement::kHost && steps_.slot(steps_.location(at).slot).is_output) return;
  // A device's value whose last reader is control flow on the host is kept too: the device may still be copying the value, and the host's
  // stream does not wait for that.
  if (device != DevicePlacement::kHost && &queue.device() == &steps_.device(DevicePlacement::kHost)) return;
  if (place.datum.defined()) {
    auto datum = std::make_shared<Datum>(std::move(place.datum));
    try {
      queue.enqueue_release([datum] { *datum = Datum(); });
    } catch (...) {
      place.datum = std::move(*datum);  // keeps the value, because earlier work may use it until the run has waited for that work
      throw;
    }
  }
  place = {};
}

}  // namespace treadle::exec
