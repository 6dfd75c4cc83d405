// How long nodes took, always on where a session asks for it: a histogram for each node in place of a record for each of its runs.
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

#include "core/fork_mutex.h"

namespace treadle {

/// Buckets of a time in ticks: four to each power of two, so that a bucket's bounds are at most 25 % apart.
struct TickBuckets {
  static constexpr size_t kCount = 160;  // up to 2^41 ticks: some ten minutes; what takes longer is in the last one

  static size_t of(uint64_t ticks) noexcept {
    if (ticks < 8) return static_cast<size_t>(ticks);
    const auto exponent = static_cast<size_t>(std::bit_width(ticks)) - 1;  // from 3 on
    return std::min(kCount - 1, 8 + (exponent - 3) * 4 + static_cast<size_t>(ticks >> (exponent - 2) & 3U));
  }
  /// The least time that is in the bucket.
  static uint64_t low(size_t bucket) noexcept {
    if (bucket < 8) return bucket;
    const size_t exponent = 3 + (bucket - 8) / 4;
    return (4 + (bucket - 8) % 4) << (exponent - 2);
  }
};

/// Of one node, or what several counters have together.
struct TickHistogram {
  uint64_t total = 0;  ///< ticks of all runs
  std::array<uint64_t, TickBuckets::kCount> counts{};
};

/// A node of a program, and what its counters have.
struct CountedNode {
  std::string name, op_type;
  int32_t parent = -1;  ///< the node (index) whose body it is in
  TickHistogram sum;
};
using CountedNodes = std::vector<CountedNode>;

/// Of the nodes of one program, for one frame.
class NodeCounters {
 public:
  explicit NodeCounters(size_t num_nodes) : nodes_(num_nodes) {}

  /// By the only thread that counts at the moment: no locked instruction.
  void add(size_t node, uint64_t ticks) noexcept {
    Node& at = nodes_[node];
    plus(at.total, ticks);
    plus(at.counts[TickBuckets::of(ticks)], 1);
  }
  /// Where several threads may run nodes.
  void add_shared(size_t node, uint64_t ticks) noexcept {
    Node& at = nodes_[node];
    at.total.fetch_add(ticks, std::memory_order_relaxed);
    at.counts[TickBuckets::of(ticks)].fetch_add(1, std::memory_order_relaxed);
  }
  /// Of runs that came one behind the other on the only thread that counts. Together they take half as long as one by one in the run: where
  /// a bucket is follows from the clock, and what a kernel reads next would wait for it.
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

/// Counts a stretch of nodes that one thread runs.
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

/// Of a program: one for each of its frames. Thread-safe.
class NodeCounterList {
 public:
  /// Counters that live as long as the list.
  NodeCounters& make(size_t num_nodes);
  TickHistogram sum(size_t node) const;
  /// Runs under way may still count some of what was before.
  void reset() noexcept;

 private:
  mutable ForkMutex mutex_;
  std::vector<std::unique_ptr<NodeCounters>> all_;
};

}  // namespace treadle
