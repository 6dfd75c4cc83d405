#include "core/trace/node_counters.h"

#include <mutex>

namespace treadle {

void NodeCounters::add(std::span<const Run> runs) noexcept {
  for (const auto& [ticks, node] : runs) add(node, ticks);
}

void NodeCounters::add_to(size_t node, TickHistogram& sum) const noexcept {
  sum.total += nodes_[node].total.load(std::memory_order_relaxed);
  for (size_t b = 0; b < TickBuckets::kCount; ++b) sum.counts[b] += nodes_[node].counts[b].load(std::memory_order_relaxed);
}

void NodeCounters::reset() noexcept {
  for (Node& node : nodes_) {
    node.total.store(0, std::memory_order_relaxed);
    for (auto& count : node.counts) count.store(0, std::memory_order_relaxed);
  }
}

NodeCounters& NodeCounterList::make(size_t num_nodes) {
  auto made = std::make_unique<NodeCounters>(num_nodes);
  std::lock_guard lock(mutex_);
  all_.push_back(std::move(made));
  return *all_.back();
}

TickHistogram NodeCounterList::sum(size_t node) const {
  TickHistogram sum;
  std::lock_guard lock(mutex_);
  for (const auto& counters : all_) counters->add_to(node, sum);
  return sum;
}

void NodeCounterList::reset() noexcept {
  std::lock_guard lock(mutex_);
  for (const auto& counters : all_) counters->reset();
}

}  // namespace treadle
