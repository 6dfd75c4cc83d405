// Execution times of nodes, collected permanently if a session asks for it: a histogram per node instead of a record per run.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fork_mutex.h"

namespace treadle {

/// Histogram buckets of times in ticks: four per power of two, so that bounds are at most 25 % apart.
struct TickBuckets {
  static constexpr size_t kCount = 160;  // number of buckets, up to 2^41 ticks or about ten minutes; longer times go into the last one

  static size_t of(uint64_t ticks) noexcept {
    if (ticks < 8) return static_cast<size_t>(ticks);
    const auto exponent = static_cast<size_t>(std::bit_width(ticks)) - 1;  // at least 3, since smaller numbers of ticks have a bucket each
    return std::min(kCount - 1, 8 + (exponent - 3) * 4 + static_cast<size_t>(ticks >> (exponent - 2) & 3U));
  }
  /// Returns the lower bound of a bucket.
  static uint64_t low(size_t bucket) noexcept {
    if (bucket < 8) return bucket;
    const size_t exponent = 3 + (bucket - 8) / 4;
    return (4 + (bucket - 8) % 4) << (exponent - 2);
  }
};

/// The times of one node, or the sum over several counters.
struct TickHistogram {
  uint64_t total = 0;  ///< ticks of all runs
  std::array<uint64_t, TickBuckets::kCount> counts{};
};

/// A node of a program, with the sum of its counters over all frames.
struct CountedNode {
  std::string name, op_type;
  int32_t parent = -1;  ///< index of the node whose body it is in; -1: none
  TickHistogram sum;
};
using CountedNodes = std::vector<CountedNode>;

/// Counters for the nodes of one program, in one frame (the state of a run).
class NodeCounters {
 public:
  explicit NodeCounters(size_t num_nodes) : nodes_(num_nodes) {}

  /// Adds an execution. For use if only one thread counts at a time: needs no locked instruction.
  void add(size_t node, uint64_t ticks) noexcept {
    Node& at = nodes_[node];
    plus(at.total, ticks);
    plus(at.counts[TickBuckets::of(ticks)], 1);
  }
  /// Adds an execution. For use if several threads may run nodes.
  void add_shared(size_t node, uint64_t ticks) noexcept {
    Node& at = nodes_[node];
    at.total.fetch_add(ticks, std::memory_order_relaxed);
    at.counts[TickBuckets::of(ticks)].fetch_add(1, std::memory_order_relaxed);
  }
  /// An execution of a node. The only counting thread may add several at once, in half the time: a bucket depends on the clock, and
  /// counting each execution at once would delay the memory reads of the next kernel.
  struct Run {
    uint64_t ticks;
    size_t node;
  };
  void add(std::span<const Run> runs) noexcept;
  void add_to(size_t node, TickHistogram& sum) const noexcept;
  void reset() noexcept;

 private:
  struct Node {
    std::atomic<uint64_t> total{0};
    std::array<std::atomic<uint64_t>, TickBuckets::kCount> counts{};
  };
  static void plus(std::atomic<uint64_t>& value, uint64_t more) noexcept {
    value.store(value.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }
  std::vector<Node> nodes_;
};

/// Collects the executions of nodes by one thread, and adds them to the counters in groups.
class NodeCountWriter {
 public:
  /// @param counters  null: nothing is counted
  explicit NodeCountWriter(NodeCounters* counters) noexcept : counters_(counters) {}
  ~NodeCountWriter() { flush(); }
  NodeCountWriter(const NodeCountWriter&) = delete;
  NodeCountWriter& operator=(const NodeCountWriter&) = delete;

  void add(size_t node, uint64_t ticks) noexcept {
    if (!counters_) return;
    runs_[size_++] = {ticks, node};
    if (size_ == runs_.size()) [[unlikely]]
      flush();
  }

 private:
  void flush() noexcept {
    if (size_ > 0) counters_->add({runs_.data(), std::exchange(size_, 0)});
  }
  NodeCounters* counters_;
  size_t size_ = 0;
  std::array<NodeCounters::Run, 64> runs_;
};

/// The counters of all frames (states of runs) of a program. Each frame has separate ones. Thread-safe.
class NodeCounterList {
 public:
  /// Adds counters for a new frame, which live as long as the list.
  NodeCounters& make(size_t num_nodes);
  TickHistogram sum(size_t node) const;
  /// Sets all counters to 0. Later, threads may still add executions that began or ended before. A thread that adds an execution during the
  /// reset may also restore a node's old count.
  void reset() noexcept;

 private:
  mutable ForkMutex mutex_;
  std::vector<std::unique_ptr<NodeCounters>> all_;
};

}  // namespace treadle
