#include "exec/placed/placed_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/recorder.h"
#include "exec/placed/placed_run.h"
#include "treadle/error.h"
#include "treadle/out_of_memory.h"

namespace treadle::exec {
namespace {

bool any_has_bus(std::span<const std::shared_ptr<Device>> devices) {
  return std::any_of(devices.begin(), devices.end(), [](const auto& device) { return device->bus() != nullptr; });
}

}  // namespace

DeviceConstants::DeviceConstants(const Binding& binding, const StreamPlan& plan, std::span<const std::shared_ptr<Device>> devices,
                                 std::span<const std::unique_ptr<Stream>> streams, bool anywhere)
    : devices_(devices.begin(), devices.end()), parameters_(binding.parameters()), tensors_(plan.locations.size()) {
  const Program& program = binding.program();
  for (const StreamPlan::Step& step : plan.steps) {
    if (step.instruction == kNoInstruction) continue;
    const Instruction& instruction = program.instructions()[step.instruction];
    const int on = plan.streams[static_cast<size_t>(step.stream)].device;
    const PackedState* state = binding.packed(instruction);
    if (on != DevicePlacement::kHost && state && !anywhere && devices_[static_cast<size_t>(on)]->bus() &&
        std::none_of(packed_.begin(), packed_.end(), [&](const Packed& p) { return p.state == state && p.device == on; }))
      packed_.push_back({state, on});
    for (size_t k = 0; k < instruction.num_inputs; ++k) {
      const LocationId at = plan.operands[step.first_operand + k];
      if (at == kNoLocation || has_own_copy(instruction, k)) continue;
      const StreamPlan::Location& location = plan.locations[at];
      Tensor& copy = tensors_[at];
      if (location.memory != StreamPlan::Location::Memory::constant || location.device == DevicePlacement::kHost || copy.defined())
        continue;
      const Datum& constant = binding.constant(location.slot);
      if (!constant.is_tensor()) continue;
      const Tensor source = constant.tensor().contiguous();
      Device& device = *devices_[static_cast<size_t>(location.device)];
      copy = Tensor(source.dtype(), source.shape(),
                    anywhere && device.bus() ? device.bus()->allocate_anywhere(source.size_bytes()) : device.allocate(source.size_bytes()));
      Stream& queue = *streams[static_cast<size_t>(step.stream)];
      queue.copy(copy.raw(), source.raw(), source.size_bytes(), CopyKind::host_to_device);
      queue.synchronize();
    }
  }
  try {
    reserve_packed();
  } catch (...) {
    release_packed();
    throw;
  }
}

DeviceConstants::~DeviceConstants() { release_packed(); }

void DeviceConstants::reserve_packed() {
  std::lock_guard lock(mutex_);
  for (Packed& packed : packed_) {
    const size_t bytes = packed.state->size_bytes();
    if (bytes <= packed.reserved_bytes) continue;
    Device& device = *devices_[static_cast<size_t>(packed.device)];
    if (!device.bus()->reserve(bytes - packed.reserved_bytes))
      throw OutOfMemory(fmt::format("{} has no room for {} bytes of packed weights", device.name(), bytes));
    packed.reserved_bytes = bytes;
  }
}

void DeviceConstants::release_packed() noexcept {
  for (Packed& packed : packed_) devices_[static_cast<size_t>(packed.device)]->bus()->unreserve(std::exchange(packed.reserved_bytes, 0));
}

PlacedProgram::PlacedProgram(const Program& program, std::vector<std::shared_ptr<Device>> devices, StreamPlan plan,
                             std::shared_ptr<DeviceMemory> memory)
    : Executor(program),
      program_(program),
      devices_(std::move(devices)),
      plan_(std::move(plan)),
      memory_(memory ? std::move(memory) : std::make_shared<DeviceMemory>()) {
  find_crossings();
  name_copies();
}
PlacedProgram::~PlacedProgram() = default;

void PlacedProgram::find_crossings() {
  const auto slots = program_.slots();
  only_for_devices_.assign(slots.size(), 1);
  only_for_caller_.assign(slots.size(), kNoLocation);
  auto location = [&](LocationId at) -> const StreamPlan::Location& { return plan_.locations[at]; };
  for (const StreamPlan::Step& step : plan_.steps) {
    if (step.instruction == kNoInstruction) {
      const StreamPlan::Location& to = location(step.target);
      if (to.device == DevicePlacement::kHost && to.num_steps == 1 && to.memory == StreamPlan::Location::Memory::held)
        only_for_caller_[to.slot] = step.target;
      continue;
    }
    const Instruction& instruction = program_.instructions()[step.instruction];
    const auto operands = program_.operands(instruction);
    for (size_t k = 0; k < operands.size(); ++k) {
      const LocationId at = plan_.operands[step.first_operand + k];
      if (operands[k] == kNoSlot || (at != kNoLocation && location(at).device != DevicePlacement::kHost)) continue;
      only_for_devices_[slots[operands[k]].root] = 0;
    }
  }
}

void PlacedProgram::name_copies() {
  auto device_name = [&](LocationId at) { return devices_[static_cast<size_t>(plan_.locations[at].device)]->name(); };
  for (const StreamPlan::Step& step : plan_.steps) {
    copy_of_.push_back(step.instruction == kNoInstruction ? static_cast<int32_t>(copies_.size()) : -1);
    if (step.instruction != kNoInstruction) continue;
    copies_.push_back({.slot = plan_.locations[step.source].slot, .from = device_name(step.source), .to = device_name(step.target)});
  }
  const uint32_t first = Recorder::reserve_names(copies_.size());
  for (size_t i = 0; i < copies_.size(); ++i) copies_[i].record_name = first + static_cast<uint32_t>(i);
}

uint32_t PlacedProgram::record_name(StepId step) const {
  const int32_t copy = copy_of_[step];
  if (copy >= 0) return copies_[static_cast<size_t>(copy)].record_name;
  return program_.instructions()[plan_.steps[step].instruction].record_name;
}

bool PlacedProgram::keeps_limits() const { return (memory_->job || memory_->has_limit) && any_has_bus(devices_); }

void PlacedProgram::note_full() {
  is_full_.store(true, std::memory_order_relaxed);
  std::lock_guard lock(mutex_);
  shared_.reset();
}

bool PlacedProgram::has_bus() const { return any_has_bus(devices_); }

std::shared_ptr<DeviceConstants> PlacedProgram::constants(const Binding& binding, std::span<const std::unique_ptr<Stream>> streams) {
  std::lock_guard lock(mutex_);
  if (shared_ && shared_->parameters() == binding.parameters()) return shared_;
  shared_.reset();  // those of an earlier version go first, if no run has them
  shared_ = std::make_shared<DeviceConstants>(binding, plan_, devices_, streams, /*anywhere=*/false);
  return shared_;
}

void PlacedProgram::run(std::span<const Datum> feeds, std::span<Datum> outputs, const RunControl& control, std::span<const Datum> bound,
                        std::span<const OutputMemory> memory) {
  std::optional<Governor::Exclusive> exclusive;
  if (keeps_limits() || is_full_.load(std::memory_order_relaxed)) exclusive.emplace(memory_->governor(), this, control.interruption());
  const RunHandle run = take();
  run->start(feeds, bound, control, memory);
  if (!run->advance()) throw_stops_at_yield();
  run->take_outputs(outputs);
}

RunHandle PlacedProgram::take() {
  return RunHandle(runs_.take([&] { return std::make_unique<PlacedRun>(*this); }).release(), GiveBack{this});
}

void PlacedProgram::give_back(std::unique_ptr<Run> run) noexcept {
  runs_.give_back(std::unique_ptr<PlacedRun>(static_cast<PlacedRun*>(run.release())));
}

}  // namespace treadle::exec
