#include "train/run/trained_values.h"

#include <utility>

namespace treadle::train {

const std::shared_ptr<exec::Variables>& TrainedValues::variables() {
  std::lock_guard lock(mutex_);
  if (variables_) return variables_;
  auto made = std::make_shared<exec::Variables>();
  for (const NamedTensors* tensors : {&parameters, &states})
    for (const auto& [name, tensor] : *tensors) made->add(name, tensor);
  return variables_ = std::move(made);
}

void TrainedValues::note_changed() {
  std::lock_guard lock(mutex_);
  if (variables_) variables_->note_changed();
}

const NamedTensors& TrainedValues::hand_out(const NamedTensors& tensors) const {
  std::lock_guard lock(mutex_);
  handed_out_ = true;
  return tensors;
}

NamedTensors TrainedValues::lend(const NamedTensors& tensors) const {
  std::lock_guard lock(mutex_);
  drop_given_back();
  NamedTensors made;
  for (const auto& [name, tensor] : tensors) {
    auto storage = Storage::borrow(tensor.raw(), tensor.size_bytes(), [kept = tensor.storage()] {});
    lent_.push_back(storage);
    made.emplace(name, Tensor(tensor.dtype(), tensor.shape(), std::move(storage)));
  }
  return made;
}

void TrainedValues::drop_given_back() const {
  const bool some = std::erase_if(lent_, [](const auto& storage) { return storage.expired(); }) > 0;
  given_back_ |= some;
  given_back_lately_ |= some;
}

bool TrainedValues::may_be_written() {
  std::lock_guard lock(mutex_);
  drop_given_back();
  return handed_out_ || !lent_.empty();
}

bool TrainedValues::may_have_been_written() {
  const bool now = may_be_written();
  std::lock_guard lock(mutex_);
  return std::exchange(given_back_lately_, false) || now;
}

// Detects writes by callers. After callers have released the last lent tensor, the values are compared once more, since they may have
// been written before the release.
void TrainedValues::look() {
  std::lock_guard lock(mutex_);
  drop_given_back();
  if (!variables_ || (!handed_out_ && lent_.empty() && !given_back_)) return;
  variables_->watch(true);
  if (handed_out_ || !lent_.empty()) return;
  variables_->look(nullptr);
  variables_->watch(given_back_ = false);
}

}  // namespace treadle::train
