#include "train/run/staying_values.h"

#include <algorithm>

namespace treadle::train {

StayingValues::StayingValues(const Executable& step, std::span<const Datum> bound) {
  for (size_t k = 0; k < bound.size(); ++k) {
    if (!bound[k].defined()) continue;
    const size_t input = position_of(step.input_names, step.output_names[k]);
    values_.push_back({input < step.input_names.size() ? input : kNone, k, bound[k].tensor(), {}});
  }
}

std::vector<exec::OutputMemory> StayingValues::begin(std::span<Datum> feeds) {
  std::lock_guard lock(mutex_);
  std::vector<exec::OutputMemory> memory;
  for (Value& value : values_) {
    if (value.on_device.defined() && value.input != kNone) feeds[value.input] = value.on_device;
    memory.resize(std::max(memory.size(), value.output + 1));
    memory[value.output].stays = true;
  }
  return memory;
}

void StayingValues::take(std::span<const Datum> outputs) {
  std::lock_guard lock(mutex_);
  for (Value& value : values_) {
    const Tensor& made = outputs[value.output].tensor();
    const bool stays = made.storage()->device() != nullptr;
    if (!stays) value.on_host.copy_from(made);
    value.on_device = stays ? made : Tensor();
    is_ahead_ |= stays;
  }
}

void StayingValues::bring_to_host() {
  std::lock_guard lock(mutex_);
  if (!is_ahead_) return;
  for (Value& value : values_)
    if (value.on_device.defined()) value.on_host.copy_from(value.on_device);
  is_ahead_ = false;
}

void StayingValues::leave() {
  bring_to_host();
  std::lock_guard lock(mutex_);
  for (Value& value : values_) value.on_device = Tensor();
}

}  // namespace treadle::train
