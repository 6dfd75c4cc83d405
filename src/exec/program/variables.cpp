#include "exec/program/variables.h"

#include <algorithm>
#include <utility>

#include "core/threads/thread_pool.h"

namespace treadle::exec {

void Variables::change(Variable& variable) {
  ++variable.version.number;
  variable.digest.reset();
  version_.fetch_add(1, std::memory_order_release);
}

size_t Variables::add(const std::string& name, Tensor tensor) {
  std::lock_guard lock(mutex_);
  const size_t place = variables_.size();
  places_.emplace(name, place);
  variables_.emplace_back().version.tensor = std::move(tensor);
  change(variables_.back());
  return place;
}

void Variables::set(size_t place, Tensor tensor) {
  std::lock_guard lock(mutex_);
  const Tensor& before = variables_[place].version.tensor;
  const bool is_same = tensor.raw() == before.raw() && tensor.shape() == before.shape() && tensor.dtype() == before.dtype() &&
                       std::equal(tensor.strides().begin(), tensor.strides().end(), before.strides().begin(), before.strides().end());
  if (is_same && watched_.load(std::memory_order_acquire)) return;
  variables_[place].version.tensor = std::move(tensor);
  change(variables_[place]);
}

void Variables::note_changed(size_t place) {
  std::lock_guard lock(mutex_);
  change(variables_[place]);
}

void Variables::note_changed() {
  std::lock_guard lock(mutex_);
  for (Variable& variable : variables_) change(variable);
}

void Variables::watch(bool unseen) { watched_.store(unseen, std::memory_order_release); }

// A variable without a digest counts as changed, because its elements may have been written since they were packed.
void Variables::look(ThreadPool* pool) {
  if (!watched_.load(std::memory_order_acquire)) return;
  std::lock_guard lock(mutex_);
  std::vector<ContentDigest> digests(variables_.size());
  parallel_for(pool, static_cast<int64_t>(variables_.size()), 1, [&](int64_t begin, int64_t end) {
    for (auto v = static_cast<size_t>(begin); v < static_cast<size_t>(end); ++v) {
      const Tensor elements = variables_[v].version.tensor.contiguous();
      digests[v] = digest_of({elements.raw(), elements.size_bytes()});
    }
  });
  for (size_t v = 0; v < variables_.size(); ++v) {
    if (variables_[v].digest == digests[v]) continue;
    change(variables_[v]);
    variables_[v].digest = digests[v];
  }
}

Variables::Reading::Reading(Variables& variables) : variables_(variables) {
  std::unique_lock lock(variables_.gate_mutex_);
  variables_.gate_.wait(lock, [&] { return variables_.num_writers_ == 0; });
  ++variables_.num_readers_;
}

Variables::Reading::~Reading() {
  std::lock_guard lock(variables_.gate_mutex_);
  if (--variables_.num_readers_ == 0) variables_.gate_.notify_all();
}

Variables::Writing::Writing(Variables& variables) : variables_(variables) {
  std::unique_lock lock(variables_.gate_mutex_);
  ++variables_.num_writers_;
  variables_.gate_.wait(lock, [&] { return variables_.num_readers_ == 0 && !variables_.is_written_; });
  variables_.is_written_ = true;
}

Variables::Writing::~Writing() {
  std::lock_guard lock(variables_.gate_mutex_);
  --variables_.num_writers_;
  variables_.is_written_ = false;
  variables_.gate_.notify_all();
}

std::optional<size_t> Variables::find(const std::string& name) const {
  std::lock_guard lock(mutex_);
  auto found = places_.find(name);
  return found == places_.end() ? std::nullopt : std::optional(found->second);
}

Variables::Version Variables::at(size_t place) const {
  std::lock_guard lock(mutex_);
  return variables_[place].version;
}

}  // namespace treadle::exec
