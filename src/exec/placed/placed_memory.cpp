// Where the values of a run over devices lie, and how they come in and go out.
#include <fmt/format.h>

#include <algorithm>

#include "core/allocation.h"
#include "exec/explain/run_shortage.h"
#include "exec/memory/shortage.h"
#include "exec/placed/placed_run.h"
#include "exec/program/load_shortage.h"
#include "exec/verify/verify_plan.h"
#include "memory/planner.h"
#include "treadle/error.h"
#include "treadle/out_of_memory.h"

namespace treadle::exec {

using Memory = StreamPlan::Location::Memory;

// Checks the feeds, finds the binding, makes the outputs.
void PlacedRun::begin_on_host(std::span<const Datum> feeds, std::span<const Datum> bound, std::span<const OutputMemory> memory) {
  state_.set_uses_arena(control_.observer != nullptr);  // for what is shown to it
  binder_.bind(feeds, {}, control_, state_);
  outputs_.begin(bound, memory, control_.keeps_feeds);
  try {
    if (!state_.is_placed()) state_.place(/*exact=*/false);
    FeedBinder::point_at_feeds(state_);
    outputs_.place(control_, /*by_readiness=*/false);
  } catch (...) {
    rethrow_with_memory([&](const OutOfMemory&) {
      RunSnapshot now = state_.snapshot(control_);
      now.begun = false;
      return exec::describe_memory(now);
    });
  }
}

void PlacedRun::take_outputs(std::span<Datum> outputs) {
  check_at_end(program_, control_);
  if (control_.takes_feeds_later) FeedBinder::check_complete(state_);
  outputs_.hand_over(outputs);
}

// A device without room for all of it is no error where it reaches the host's memory.
void PlacedRun::find_memory() {
  if (constants_ && constants_->parameters() != binding().parameters()) {
    if (!residencies_.empty()) become_resident();  // before the memory goes that may still be on its way
    constants_.reset();
  }
  if (residencies_.empty()) {
    try {
      const bool is_new = generation_ != binding().generation();
      place();
      if (!constants_) constants_ = owner_.constants(binding(), streams_);
      if (is_new) constants_->reserve_packed();
      return;
    } catch (const OutOfMemory&) {
      if (!owner_.has_bus()) throw;
    }
    owner_.note_full();
    trim();
    constants_.reset();
    become_resident();
  }
  for (const auto& residency : residencies_)
    if (residency) residency->begin(binding(), planned_);
  place();
  if (constants_) return;
  constants_ = std::make_shared<DeviceConstants>(binding(), plan_, owner_.devices(), streams_, /*anywhere=*/true);
  for (LocationId l : plan_.locations.ids()) {
    const Tensor& constant = constants_->at(l);
    if (Residency* of = residency(plan_.locations[l].device); of && constant.defined())
      of->add(l, constant.raw(), constant.size_bytes(), /*from_host=*/true);
  }
}

void PlacedRun::become_resident() {
  residencies_.clear();
  residencies_.resize(owner_.devices().size());
  for (size_t d = 1; d < residencies_.size(); ++d)
    if (device(static_cast<int>(d)).bus())
      residencies_[d] =
          std::make_unique<Residency>(program_, plan_, static_cast<int>(d), device(static_cast<int>(d)), owner_.memory(), residencies_);
}

void PlacedRun::trim() noexcept {
  generation_ = 0;
  for (Arena& arena : arenas_) arena.storage.reset();
}

bool PlacedRun::waits_for_feed(const StreamPlan::Step& step) const {
  auto is_missing = [&](LocationId at) {
    return at != kNoLocation && location(at).memory == Memory::given && slot_info(location(at).slot).location == LocationKind::feed &&
           !feeds_.contains(location(at).slot);
  };
  if (step.instruction == kNoInstruction) return is_missing(step.source);
  const auto at = locations_of(step).first(instruction_of(step).num_inputs);
  return std::any_of(at.begin(), at.end(), is_missing);
}

void PlacedRun::find_starved() {
  starved_ = next_;
  is_told_ = false;
  while (starved_ < order_.size() && !waits_for_feed(step(order_[starved_]))) ++starved_;
}

void PlacedRun::feed(size_t input, const Datum& value) {
  binder_.bind_later(program_.input_slots()[input], taken_feed(input, value), state_);
  feeds_[program_.input_slots()[input]] = state_.value(program_.input_slots()[input], /*shared=*/false);
  find_starved();
}

void PlacedRun::move_feed(size_t input, const Datum& value) {
  expect_yield(*this);
  const SlotId slot = program_.input_slots()[input];
  FeedBinder::move(slot, from_device(value), state_);
  feeds_[slot] = state_.value(slot, /*shared=*/false);
}

// Outputs are copied to the host as soon as they are made.
bool PlacedRun::has_output(size_t k) const {
  const SlotId root = slot_info(program_.output_slots()[k]).root;
  if (slot_info(root).location == LocationKind::feed) return feeds_.contains(root);
  auto is_of_host = [&](LocationId at) {
    return at != kNoLocation && location(at).slot == root && location(at).device == DevicePlacement::kHost;
  };
  for (size_t position = next_; position < order_.size(); ++position) {
    const StreamPlan::Step& later = step(order_[position]);
    if (later.instruction == kNoInstruction && is_of_host(later.target)) return false;
    if (later.instruction == kNoInstruction) continue;
    const auto made = locations_of(later).subspan(instruction_of(later).num_inputs);
    if (std::any_of(made.begin(), made.end(), is_of_host)) return false;
  }
  return true;
}

Datum PlacedRun::take_output(size_t k) {
  const Datum value = output(k);
  return value.is_tensor() ? Datum(value.tensor().clone()) : value;
}

// Outputs of the run are to be on the host then.
size_t PlacedRun::steps_through(InstructionId instruction) const {
  size_t end = next_;
  std::span<const LocationId> made;
  for (size_t position = next_; position < order_.size(); ++position) {
    const StreamPlan::Step& at = step(order_[position]);
    const bool runs = at.instruction == instruction;
    if (runs) made = locations_of(at).subspan(instruction_of(at).num_inputs);
    const bool hands_out = at.instruction == kNoInstruction && location(at.target).device == DevicePlacement::kHost &&
                           slot_info(location(at.target).slot).is_output && std::find(made.begin(), made.end(), at.source) != made.end();
    if (runs || hands_out) end = position + 1;
  }
  return end - next_;
}

std::vector<size_t> PlacedRun::sizes_in(const Arena& arena, IdSpan<BufferId, const size_t> buffer_sizes) const {
  std::vector<size_t> sizes;
  for (LocationId at : arena.locations) sizes.push_back(buffer_sizes[plan_.locations[at].buffer]);
  return sizes;
}

memory::ArenaPlan PlacedRun::plan_arena(const Arena& arena, std::span<const size_t> sizes) const {
  return memory::plan_arena(
      sizes, [&](size_t a, size_t b) { return plan_.conflict(plan_.locations[arena.locations[a]], plan_.locations[arena.locations[b]]); },
      Storage::kAlignment);
}

// Offsets in the arenas of all devices: what may be in use at the same time lies apart.
void PlacedRun::place() {
  if (generation_ == binding().generation()) return;
  for (size_t d = 0; d < arenas_.size(); ++d) {
    Arena& arena = arenas_[d];
    std::vector<size_t> sizes = sizes_in(arena, binding().buffer_sizes());
    const bool fits = arena.storage && std::equal(sizes.begin(), sizes.end(), arena.sizes.begin(), std::less_equal<>());
    if (!fits) {
      // Extents that grow: room for some more, so that not every run plans anew.
      if (arena.planned_before)
        for (size_t& size : sizes) size += size / 8;
      memory::ArenaPlan made = plan_arena(arena, sizes);
      arena.sizes = std::move(sizes);
      arena.offsets = std::move(made.offsets);
      arena.planned_before = true;
      if (!arena.storage || arena.storage->size_bytes() < made.size_bytes) {
        arena.storage.reset();
        Device& on = device(static_cast<int>(d));
        arena.storage = residency(static_cast<int>(d)) ? on.bus()->allocate_anywhere(made.size_bytes) : on.allocate(made.size_bytes);
      }
    }
    for (size_t k = 0; k < arena.locations.size(); ++k) planned_[arena.locations[k]] = arena.storage->data() + arena.offsets[k];
  }
  if (program_.planning().verify) verify();
  generation_ = binding().generation();
}

Allocator* PlacedRun::allocator() const { return control_.memory && residencies_.empty() ? control_.memory->allocator.get() : nullptr; }

// What the run before has left there, where the host can write it.
void PlacedRun::renew_arenas() {
  Allocator* const own = allocator();
  if (!own) return;
  for (size_t d = 0; d < arenas_.size(); ++d)
    if (arenas_[d].storage && device(static_cast<int>(d)).memory_is_hosts())
      own->renew(arenas_[d].storage->data(), arenas_[d].storage->size_bytes());
}

// Bytes in the arena that nothing of this run has written before the step: for the session's allocator, before it writes them.
std::vector<std::span<std::byte>> PlacedRun::newly_used(const StreamPlan::Step& step) const {
  std::vector<std::span<std::byte>> ranges;
  if (!allocator() || !device(device_of(step)).memory_is_hosts()) return ranges;
  const StepId s = plan_.steps.id_of(step);
  const auto add = [&](LocationId at) {
    if (at == kNoLocation || location(at).memory != Memory::planned || location(at).uses.front() != s) return;
    ranges.emplace_back(planned_[at], binding().buffer_sizes()[location(at).buffer]);
  };
  for (const LocationId at : locations_of(step).subspan(instruction_of(step).num_inputs)) add(at);
  add(step.scratch);
  return ranges;
}

void PlacedRun::verify() const {
  IdVector<LocationId, size_t> offsets(plan_.locations.size(), DescribedPlan::kNowhere);
  std::vector<size_t> arena_bytes;
  for (const Arena& arena : arenas_) {
    for (size_t k = 0; k < arena.locations.size(); ++k) offsets[arena.locations[k]] = arena.offsets[k];
    arena_bytes.push_back(arena.storage ? arena.storage->size_bytes() : 0);
  }
  verify_plan(describe_plan(binding(), plan_, offsets, arena_bytes));
}

std::shared_ptr<Storage> PlacedRun::allocate_bytes(int where, size_t size_bytes) {
  Device& on = device(where);
  if (residency(where)) return on.bus()->allocate_anywhere(size_bytes);
  try {
    return on.allocate(size_bytes);
  } catch (const OutOfMemory&) {
    if (!on.bus()) throw;
    return on.bus()->allocate_anywhere(size_bytes);
  }
}

Tensor PlacedRun::allocate(int where, DType dtype, const Shape& shape) {
  std::shared_ptr<Storage> storage = allocate_bytes(where, size_bytes(dtype, shape.num_elements()));
  blocks_[storage.get()] = {storage, where};
  return Tensor(dtype, shape, std::move(storage));
}

bool PlacedRun::lies_on(const Tensor& tensor, int where) const {
  auto found = blocks_.find(tensor.storage().get());
  return found != blocks_.end() && found->second.second == where && !found->second.first.expired();
}

// Memory for a value that a step is about to write. On the host an output lies where the caller gets it.
void PlacedRun::make_place(LocationId at, DType dtype, const Shape& shape) {
  const StreamPlan::Location& made = location(at);
  Place& place = places_[at];
  const Slot& info = slot_info(made.slot);
  if (made.device == DevicePlacement::kHost && info.is_output && info.location == LocationKind::held && info.static_shape) {
    if (Datum own = state_.value(made.slot, /*shared=*/false); own.is_tensor()) {
      place.datum = own;
      AccessChecks* checks = device(made.device).access_checks();
      if (checks) place.watch = checks->watch(own.tensor().raw(), own.tensor().size_bytes());
      place.tracked = place.watch != nullptr;
      return;
    }
  }
  set_place(at, allocate(made.device, dtype, shape), /*tracked=*/true, /*from_host=*/false);
}

void PlacedRun::set_place(LocationId at, Datum datum, bool tracked, bool from_host) {
  Place& place = places_[at];
  place.datum = std::move(datum);
  place.tracked = tracked;
  if (Residency* of = residency(location(at).device); of && place.datum.is_tensor())
    of->add(at, place.datum.tensor().raw(), place.datum.tensor().size_bytes(), from_host);
}

// The value of `slot` as the location has it.
Datum PlacedRun::value_at(LocationId at, SlotId slot) {
  const StreamPlan::Location& found = location(at);
  const Slot& info = slot_info(slot);
  auto viewed = [&](const Datum& root) -> Datum {
    return root.is_tensor() && found.slot != slot ? Datum(whole_as(root.tensor(), info.dtype, binding().shape(slot))) : root;
  };
  switch (found.memory) {
    case Memory::planned: {
      const Shape& shape = binding().shape(slot);
      return Tensor(info.dtype, shape, Storage::lend(planned_[at], size_bytes(info.dtype, shape.num_elements())));
    }
    case Memory::held: return viewed(places_[at].datum);
    case Memory::given: return info.location == LocationKind::known ? Datum(binding().known(slot)) : viewed(feeds_.at(found.slot));
    case Memory::constant: break;
  }
  const Datum& constant = binding().constant(found.slot);
  if (found.device == DevicePlacement::kHost || !constant.is_tensor()) return viewed(constant);
  return viewed(constants_->at(at));
}

int PlacedRun::copy_in_of(int where) const {
  for (size_t s = 0; s < plan_.streams.size(); ++s)
    if (plan_.streams[s].device == where && plan_.streams[s].queue == StreamPlan::Queue::copy_in) return static_cast<int>(s);
  throw Error(ErrorCode::internal, "a device without a stream for copies");
}

void PlacedRun::hold(LocationId at, Datum made) {
  const int where = location(at).device;
  if (where == DevicePlacement::kHost || !made.is_tensor() || lies_on(made.tensor(), where)) {
    set_place(at, std::move(made), where != DevicePlacement::kHost, /*from_host=*/false);
    return;
  }
  const Tensor source = made.tensor().contiguous();
  Tensor copy = allocate(where, source.dtype(), source.shape());
  Stream& queue = stream(copy_in_of(where));
  queue.copy(copy.raw(), source.raw(), source.size_bytes(), CopyKind::host_to_device);
  queue.synchronize();
  set_place(at, std::move(copy), /*tracked=*/true, /*from_host=*/true);
}

// A copy that nothing orders but the host, which has waited for the value.
Datum PlacedRun::on_host(LocationId at, SlotId slot) {
  Datum datum = value_at(at, slot);
  if (location(at).device == DevicePlacement::kHost || !datum.is_tensor()) return datum;
  Tensor copy(datum.tensor().dtype(), datum.tensor().shape());
  Stream& queue = stream(copy_in_of(location(at).device));
  queue.copy(copy.raw(), datum.tensor().raw(), copy.size_bytes(), CopyKind::device_to_host);
  queue.synchronize();
  return copy;
}

void PlacedRun::issue_copy(const StreamPlan::Step& copy, Stream& queue) {
  const StreamPlan::Location &from = location(copy.source), &to = location(copy.target);
  const Datum source = value_at(copy.source, from.slot);
  if (!source.is_tensor())
    throw Error(ErrorCode::internal, fmt::format("\"{}\" cannot be copied between devices", program_.name(from.slot)));
  const Tensor& tensor = source.tensor();
  const auto stays = staying_.find(copy.target);
  if (stays != staying_.end())
    set_place(copy.target, memory_of_staying(copy.target, from.device, tensor.dtype(), tensor.shape()), /*tracked=*/true,
              /*from_host=*/false);
  else if (to.memory == Memory::held)
    make_place(copy.target, tensor.dtype(), tensor.shape());
  Datum target = value_at(copy.target, to.slot);
  const bool from_host = from.device == DevicePlacement::kHost && !tensor.storage()->device();
  const bool to_host = to.device == DevicePlacement::kHost && stays == staying_.end();
  const CopyKind kind = from_host ? CopyKind::host_to_device : to_host ? CopyKind::device_to_host : CopyKind::device_to_device;
  // The stream's own thread tells when the copy begins and ends.
  const std::shared_ptr<uint64_t> start = control_.recorder ? std::make_shared<uint64_t>(0) : nullptr;
  if (start) queue.enqueue_release([start] { *start = read_ticks(); });
  queue.copy(target.tensor().raw(), tensor.raw(), tensor.size_bytes(), kind);
  if (start)
    queue.enqueue_release([start, recorder = control_.recorder, run = control_.record_run, bytes = 2 * tensor.size_bytes(),
                           name = owner_.record_name(plan_.steps.id_of(copy))] {
      recorder->record(name, RecordKind::copy, *start, read_ticks(), 0, static_cast<int64_t>(bytes), run);
    });
  // Both sides stay until the copy is done; what value_at gives may be lent.
  if (from.memory == Memory::held || to.memory == Memory::held)
    queue.enqueue_release([source = places_[copy.source].datum, target = places_[copy.target].datum] {});
  // An output of a node that is bound in the run gets its memory here, not from the frame.
  if (to.device == DevicePlacement::kHost && slot_info(to.slot).is_output && !state_.value(to.slot, /*shared=*/false).defined())
    state_.put(to.slot, target);
}

// When no step that touches a value is yet to be issued, its memory goes with the last work that uses it. Bulks are issued ahead of steps
// between their own, so that only counting tells.
void PlacedRun::let_go(StepId s, Stream& queue) {
  auto drop = [&](LocationId at) {
    if (at == kNoLocation || location(at).memory != Memory::held) return;
    if (--places_[at].steps_left > 0) return;
    if (location(at).device == DevicePlacement::kHost && slot_info(location(at).slot).is_output) return;  // waited for at the end
    Place& place = places_[at];
    if (place.datum.defined()) {
      auto datum = std::make_shared<Datum>(std::move(place.datum));
      try {
        queue.enqueue_release([datum] { *datum = Datum(); });
      } catch (...) {
        place.datum = std::move(*datum);  // earlier work still uses it: it stays until the run has waited for that
        throw;
      }
    }
    place = {};
  };
  const StreamPlan::Step& done = step(s);
  if (done.instruction == kNoInstruction) {
    drop(done.source);
    drop(done.target);
  } else {
    const auto at = locations_of(done);
    for (size_t k = 0; k < at.size(); ++k)  // an operand may occur twice
      if (std::find(at.begin(), at.begin() + static_cast<ptrdiff_t>(k), at[k]) == at.begin() + static_cast<ptrdiff_t>(k)) drop(at[k]);
  }
}

bool PlacedRun::may_be_in_use(const StreamPlan::Location& location, StepId s) const {
  auto is_before = [&](StepId use) { return plan_.happens_before(use, s); };
  return !std::all_of(location.uses.begin(), location.uses.end(), is_before) && !plan_.happens_before(s, location.uses.front());
}

// Of the devices, and of the host's account. Nothing is under way.
std::string PlacedRun::describe_memory(const Instruction* failed) const {
  StepId at = kNoStep;
  if (failed)
    for (StepId s : plan_.steps.ids())
      if (const StreamPlan::Step& step = plan_.steps[s]; step.instruction != kNoInstruction && &instruction_of(step) == failed) at = s;
  std::string text = (failed ? describe_origin(*failed->node) : "") + describe_account(control_.account());
  std::vector<LiveBytes> live;
  for (size_t d = 0; d < arenas_.size(); ++d) {
    size_t in_use = 0, held = 0, constant = 0;
    for (LocationId l : plan_.locations.ids()) {
      const StreamPlan::Location& location = plan_.locations[l];
      if (location.device != static_cast<int>(d)) continue;
      size_t bytes = 0;
      const char* what = "";
      if (location.memory == Memory::planned && (at == kNoStep || may_be_in_use(location, at))) {
        in_use += bytes = binding().buffer_sizes()[location.buffer];
        what = location.slot == kNoSlot ? "scratch" : "activations";
      } else if (location.memory == Memory::held && places_[l].datum.is_tensor()) {
        held += bytes = places_[l].datum.tensor().size_bytes();
        what = slot_info(location.slot).is_output ? "output" : "activations";
      } else if (location.memory == Memory::constant && constants_ && constants_->at(l).defined()) {
        constant += bytes = constants_->at(l).size_bytes();
        what = "weights";
      }
      if (bytes == 0) continue;
      const std::string& name = location.slot != kNoSlot
                                    ? program_.name(location.slot)
                                    : program_.instructions()[program_.buffers()[location.buffer].instruction].node->name;
      live.push_back({fmt::format("\"{}\" ({} on {})", name, what, device(static_cast<int>(d)).name()), bytes});
    }
    const size_t arena = arena_bytes(static_cast<int>(d));
    if (arena + held + constant > 0)
      text += fmt::format("{}: arena {} bytes, of which {} {}; values apart from it {}, weights {}\n", device(static_cast<int>(d)).name(),
                          arena, in_use, at == kNoStep ? "are planned" : "may be in use at this node", held, constant);
  }
  text += describe_largest(std::move(live));
  std::string remedies;
  for (size_t d = 0; d < arenas_.size(); ++d) {
    if (arenas_[d].locations.empty()) continue;
    const auto planned = [&](std::span<const size_t> sizes) { return plan_arena(arenas_[d], sizes).size_bytes; };
    const std::string batch = describe_smaller_batch(
        program_, binding(), "the arena of " + std::string(device(static_cast<int>(d)).name()),
        planned(sizes_in(arenas_[d], binding().buffer_sizes())), SIZE_MAX,
        [&](const std::vector<int64_t>& values) { return planned(sizes_in(arenas_[d], binding().buffer_sizes_for(values))); });
    if (!batch.empty()) remedies += (remedies.empty() ? "to need less: " : "; ") + batch;
  }
  return remedies.empty() ? text : text + remedies + "\n";
}

}  // namespace treadle::exec
