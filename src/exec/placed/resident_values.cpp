// Feeds that lie on a device already, and outputs that stay there: they do not cross to the host and back.
#include <algorithm>

#include "core/device.h"
#include "exec/placed/placed_run.h"

namespace treadle::exec {

// The feed as the run takes it: on its device, if nothing but copies to devices that reach it reads it there.
Datum PlacedRun::taken_feed(size_t input, const Datum& feed) {
  if (!feed.is_tensor() || !feed.tensor().storage()->device()) return feed;
  const Device& lies_on = *feed.tensor().storage()->device();
  const auto slot = program_.input_slots()[input];
  bool may_stay = owner_.is_only_for_devices(slot) && !control_.observer && !owner_.keeps_limits();
  for (size_t d = 1; d < owner_.devices().size(); ++d) may_stay &= owner_.devices()[d]->reaches(lies_on);
  if (!may_stay) return from_device(feed);
  const Tensor contiguous = feed.tensor().contiguous();
  for (size_t d = 1; d < owner_.devices().size(); ++d) watch(static_cast<int>(d), contiguous);
  return contiguous;
}

void PlacedRun::watch(int where, const Tensor& tensor) {
  if (AccessChecks* checks = device(where).access_checks())
    if (auto watch = checks->watch(tensor.raw(), tensor.size_bytes())) watches_.push_back(std::move(watch));
}

Datum PlacedRun::from_device(Datum value) {
  return value.is_tensor() && value.tensor().storage()->device() ? Datum(value.tensor().clone()) : value;
}

// Outputs that the caller wants on a device, or leaves there: where all that has their bytes is one copy to the host, it becomes one within
// the device. Others are copied at the end.
void PlacedRun::choose_staying(std::span<const Datum> bound, std::vector<OutputMemory>& memory) {
  if (control_.observer) return;
  auto bound_tensor = [&](size_t k) { return k < bound.size() && bound[k].is_tensor() ? bound[k].tensor() : Tensor(); };
  auto is_wanted = [&](size_t k) {
    if (const Tensor own = bound_tensor(k); own.defined()) return own.storage()->device() != nullptr && own.is_contiguous();
    return k < memory.size() && (memory[k].device || memory[k].stays);
  };
  const auto outputs = program_.output_slots();
  for (size_t k = 0; k < outputs.size(); ++k) {
    const SlotId root = slot_info(outputs[k]).root;
    const LocationId at = owner_.only_for_caller(root);
    if (at == kNoLocation || outputs[k] != root || !is_wanted(k)) continue;
    if (std::count_if(outputs.begin(), outputs.end(), [&](SlotId other) { return slot_info(other).root == root; }) > 1) continue;
    if (owner_.keeps_limits()) continue;
    if (memory.size() < outputs.size()) memory.resize(outputs.size());
    memory[k].made_in_run = true;
    Tensor own = bound_tensor(k);
    if (!own.defined() && memory[k].storage)
      own = Tensor(DType::uint8, Shape{static_cast<int64_t>(memory[k].storage->size_bytes())}, memory[k].storage);
    staying_.emplace(at, std::move(own));
  }
}

// What the caller bound or left, if the maker reaches it and it is large enough; otherwise new memory of the maker.
Tensor PlacedRun::memory_of_staying(LocationId at, int maker, DType dtype, const Shape& shape) {
  const Tensor& given = staying_.at(at);
  const size_t bytes = size_bytes(dtype, shape.num_elements());
  if (given.defined() && given.storage()->device() && device(maker).reaches(*given.storage()->device()) && given.size_bytes() >= bytes &&
      !state_.is_fed(given)) {
    watch(maker, given);
    return Tensor(dtype, shape, given.storage(), static_cast<size_t>(given.raw() - given.storage()->data()));
  }
  return Tensor(dtype, shape, allocate_bytes(maker, bytes));
}

}  // namespace treadle::exec
