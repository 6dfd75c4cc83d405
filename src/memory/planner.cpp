#include "memory/planner.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <string>

#include "core/base/checked.h"
#include "memory/placed_blocks.h"
#include "treadle/out_of_memory.h"

namespace treadle::memory {
namespace {

using BufferOrder = std::vector<uint32_t>;

// A buffer to place, with its size rounded up to the alignment.
struct Item {
  size_t size;
  int32_t first, last;
  uint32_t index;  // index among the caller's buffers

  double area() const { return static_cast<double>(size) * (static_cast<double>(last) - static_cast<double>(first)); }
  int64_t life() const { return int64_t{last} - first; }
};

struct FixedBlock {
  size_t offset, end;
  int32_t first, last;
};

size_t checked_align(size_t bytes, size_t alignment) {
  if (bytes > std::numeric_limits<size_t>::max() / 4 || alignment > std::numeric_limits<size_t>::max() / 4)
    throw OutOfMemory("a buffer of " + std::to_string(bytes) + " bytes cannot be planned");
  return align_up(bytes, alignment);
}

class Planner {
 public:
  Planner(std::span<const Buffer> buffers, const PlanOptions& options) : options_(options) {
    if (!std::has_single_bit(options.alignment))
      throw Error(ErrorCode::invalid_argument, "the alignment " + std::to_string(options.alignment) + " is not a power of two");
    best_.offsets.assign(buffers.size(), 0);
    int64_t total = 0;
    for (size_t i = 0; i < buffers.size(); ++i) add(buffers[i], static_cast<uint32_t>(i), total);
    check_fixed();
    best_.lower_bound_bytes = std::max(max_live_bytes(buffers, options.alignment), fixed_end_);
    best_.size_bytes = std::numeric_limits<size_t>::max();
    offsets_.resize(items_.size());
  }

  ArenaPlan run(std::span<const Buffer> buffers) {
    try_portfolio();
    improve();
    for (size_t i = 0; i < buffers.size(); ++i)
      if (buffers[i].fixed_offset != Buffer::kAnywhere && buffers[i].size_bytes > 0) best_.offsets[i] = buffers[i].fixed_offset;
    return std::move(best_);
  }

 private:
  // Limit of the time for all orders, in units of PlacedBlocks::work(): about 25 ms. The first order is always completed.
  static constexpr uint64_t kWorkLimit = 10'000'000;

  void add(const Buffer& buffer, uint32_t index, int64_t& total) {
    if (buffer.first >= buffer.last)
      throw Error(ErrorCode::invalid_argument, "buffer " + std::to_string(index) + " lives from step " + std::to_string(buffer.first) +
                                                   " to step " + std::to_string(buffer.last) + ": no time at all");
    size_t size = checked_align(buffer.size_bytes, options_.alignment);
    total = checked_add(total, static_cast<int64_t>(size));
    if (size == 0) return;
    if (buffer.fixed_offset == Buffer::kAnywhere) {
      items_.push_back({size, buffer.first, buffer.last, index});
      return;
    }
    size_t end = checked_align(buffer.fixed_offset, 1) + buffer.size_bytes;
    fixed_.push_back({buffer.fixed_offset, end, buffer.first, buffer.last});
    fixed_end_ = std::max(fixed_end_, align_up(end, options_.alignment));
    total = checked_add(total, static_cast<int64_t>(fixed_end_));
  }

  void check_fixed() {
    std::sort(fixed_.begin(), fixed_.end(), [](const FixedBlock& a, const FixedBlock& b) { return a.offset < b.offset; });
    for (size_t i = 0; i < fixed_.size(); ++i)
      for (size_t j = i + 1; j < fixed_.size() && fixed_[j].offset < fixed_[i].end; ++j)
        if (fixed_[i].first < fixed_[j].last && fixed_[j].first < fixed_[i].last)
          throw Error(ErrorCode::invalid_argument, "two fixed buffers share bytes while both are alive: [" +
                                                       std::to_string(fixed_[i].offset) + ", " + std::to_string(fixed_[i].end) + ") and [" +
                                                       std::to_string(fixed_[j].offset) + ", " + std::to_string(fixed_[j].end) + ")");
  }

  // Places all buffers in this order. Returns true, and keeps the offsets, if the arena is the smallest so far.
  bool try_order(const BufferOrder& order, Fit fit, std::string_view strategy) {
    placed_.clear();
    // Fixed blocks may be unaligned. Here they are widened to the alignment, as all other blocks are aligned.
    for (const FixedBlock& block : fixed_) {
      size_t begin = block.offset & ~(options_.alignment - 1);
      placed_.insert(begin, align_up(block.end, options_.alignment) - begin, block.first, block.last);
    }
    height_ = fixed_end_;
    for (uint32_t position : order) {
      const Item& item = items_[position];
      size_t offset = placed_.find_gap(item.size, item.first, item.last, fit);
      placed_.insert(offset, item.size, item.first, item.last);
      offsets_[position] = offset;
      height_ = std::max(height_, offset + item.size);
    }
    if (height_ >= best_.size_bytes) return false;
    best_.size_bytes = height_;
    best_.strategy = strategy;
    best_order_ = order;
    best_fit_ = fit;
    for (size_t i = 0; i < items_.size(); ++i) best_.offsets[items_[i].index] = offsets_[i];
    return true;
  }

  bool done() const { return best_.size_bytes == best_.lower_bound_bytes || placed_.work() > kWorkLimit; }

  template <typename Before>
  BufferOrder sorted(Before&& before) const {
    BufferOrder order(items_.size());
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return before(items_[a], items_[b]); });
    return order;
  }

  void try_portfolio() {
    auto both = [&](const BufferOrder& order, std::string_view first_name, std::string_view best_name) {
      if (best_.size_bytes == std::numeric_limits<size_t>::max() || !done()) try_order(order, Fit::first, first_name);
      if (!done()) try_order(order, Fit::best, best_name);
    };
    auto by_size = [](const Item& a, const Item& b) { return a.size != b.size ? a.size > b.size : a.life() > b.life(); };
    auto by_area = [](const Item& a, const Item& b) { return a.area() > b.area(); };
    auto by_life = [](const Item& a, const Item& b) { return a.life() != b.life() ? a.life() > b.life() : a.size > b.size; };
    auto by_start = [](const Item& a, const Item& b) { return a.first != b.first ? a.first < b.first : a.size > b.size; };
    auto by_end = [](const Item& a, const Item& b) { return a.last != b.last ? a.last > b.last : a.size > b.size; };
    both(sorted(by_size), "by size, lowest gap", "by size, smallest gap");
    both(sorted(by_area), "by area, lowest gap", "by area, smallest gap");
    both(sorted(by_start), "by start, lowest gap", "by start, smallest gap");
    both(sorted(by_end), "by end, lowest gap", "by end, smallest gap");
    both(sorted(by_life), "by lifetime, lowest gap", "by lifetime, smallest gap");
    both(by_breadth(), "by breadth, lowest gap", "by breadth, smallest gap");
  }

  // Orders buffers by the number of bytes alive in the fullest step of their lifetime, largest first; among equals, by size.
  BufferOrder by_breadth() const {
    std::vector<std::pair<int32_t, int64_t>> changes;
    for (const Item& item : items_) {
      changes.emplace_back(item.first, static_cast<int64_t>(item.size));
      changes.emplace_back(item.last, -static_cast<int64_t>(item.size));
    }
    std::sort(changes.begin(), changes.end());
    std::vector<int32_t> steps;
    std::vector<int64_t> live;  // number of bytes alive from steps[i] to steps[i + 1]
    int64_t now = 0;
    for (size_t i = 0; i < changes.size(); ++i) {
      now += changes[i].second;
      if (i + 1 < changes.size() && changes[i + 1].first == changes[i].first) continue;
      steps.push_back(changes[i].first);
      live.push_back(now);
    }
    // Finds the fullest step in each buffer's lifetime: a range maximum query with a sparse table.
    std::vector<std::vector<int64_t>> most{live};
    for (size_t width = 1; 2 * width <= live.size(); width *= 2) {
      const auto& below = most.back();
      std::vector<int64_t> level(below.size() - width);
      for (size_t i = 0; i < level.size(); ++i) level[i] = std::max(below[i], below[i + width]);
      most.push_back(std::move(level));
    }
    std::vector<int64_t> fullest(items_.size());
    for (size_t i = 0; i < items_.size(); ++i) {
      auto index_of = [&](int32_t step) { return static_cast<size_t>(std::lower_bound(steps.begin(), steps.end(), step) - steps.begin()); };
      size_t begin = index_of(items_[i].first), end = index_of(items_[i].last);
      auto level = static_cast<size_t>(std::bit_width(end - begin) - 1);
      fullest[i] = std::max(most[level][begin], most[level][end - (size_t{1} << level)]);
    }
    return sorted([&](const Item& a, const Item& b) {
      int64_t breadth_a = fullest[static_cast<size_t>(&a - items_.data())], breadth_b = fullest[static_cast<size_t>(&b - items_.data())];
      return breadth_a != breadth_b ? breadth_a > breadth_b : a.size > b.size;
    });
  }

  // In each round, buffers that were placed above the lower bound move forward in the order. After some rounds without improvement, the
  // search goes back to the best order so far.
  void improve() {
    if (items_.empty()) {
      best_.size_bytes = std::max(fixed_end_, best_.lower_bound_bytes);
      best_.strategy = "nothing to place";
      return;
    }
    constexpr int kPatience = 25;  // number of rounds without improvement
    std::vector<double> rank(items_.size());
    BufferOrder order;
    uint64_t random = 0x9E3779B97F4A7C15U;  // a fixed seed makes plans reproducible
    auto restart = [&] {
      order = best_order_;
      for (size_t i = 0; i < order.size(); ++i) rank[order[i]] = static_cast<double>(i);
    };
    int since_better = kPatience;
    for (int round = 0; round < options_.improvement_rounds && !done(); ++round) {
      if (since_better++ >= kPatience) restart(), since_better = 0;
      if (try_order(order, best_fit_, "improved")) since_better = 0;
      const double n = static_cast<double>(items_.size());
      for (size_t i = 0; i < items_.size(); ++i) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        double noise = static_cast<double>(random >> 40) * 0x1p-24;
        if (offsets_[i] + items_[i].size > best_.lower_bound_bytes) rank[i] -= n * (0.1 + 0.4 * noise);
      }
      std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return rank[a] < rank[b]; });
      for (size_t i = 0; i < order.size(); ++i) rank[order[i]] = static_cast<double>(i);
    }
  }

  PlanOptions options_;
  std::vector<Item> items_;
  std::vector<FixedBlock> fixed_;
  size_t fixed_end_ = 0;
  PlacedBlocks placed_;
  std::vector<size_t> offsets_;  // for each item, its offset in the order being tried
  size_t height_ = 0;
  ArenaPlan best_;
  BufferOrder best_order_;
  Fit best_fit_ = Fit::first;
};

}  // namespace

ArenaPlan plan_arena(std::span<const Buffer> buffers, const PlanOptions& options) { return Planner(buffers, options).run(buffers); }

ArenaPlan plan_arena(std::span<const size_t> sizes_bytes, const std::function<bool(size_t, size_t)>& conflict, size_t alignment) {
  if (!std::has_single_bit(alignment))
    throw Error(ErrorCode::invalid_argument, "the alignment " + std::to_string(alignment) + " is not a power of two");
  ArenaPlan plan;
  plan.strategy = "by size, lowest gap";
  plan.offsets.assign(sizes_bytes.size(), 0);
  std::vector<size_t> order(sizes_bytes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return sizes_bytes[a] > sizes_bytes[b]; });
  std::vector<size_t> placed;  // indices of placed items, sorted by offset
  int64_t total = 0;
  for (size_t index : order) {
    size_t size = checked_align(sizes_bytes[index], alignment), offset = 0;
    total = checked_add(total, static_cast<int64_t>(size));
    if (size == 0) continue;
    for (size_t other : placed) {
      if (plan.offsets[other] >= offset + size) break;
      if (conflict(index, other)) offset = std::max(offset, plan.offsets[other] + align_up(sizes_bytes[other], alignment));
    }
    plan.offsets[index] = offset;
    plan.size_bytes = std::max(plan.size_bytes, offset + size);
    plan.lower_bound_bytes = std::max(plan.lower_bound_bytes, size);
    auto at =
        std::upper_bound(placed.begin(), placed.end(), offset, [&](size_t value, size_t other) { return value < plan.offsets[other]; });
    placed.insert(at, index);
  }
  return plan;
}

size_t best_fit_in_order_bytes(std::span<const Buffer> buffers, size_t alignment) {
  BufferOrder order(buffers.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return buffers[a].first < buffers[b].first; });
  PlacedBlocks placed;
  size_t height = 0;
  for (uint32_t index : order) {
    const Buffer& buffer = buffers[index];
    size_t size = checked_align(buffer.size_bytes, alignment);
    if (size == 0) continue;
    size_t offset = placed.find_gap(size, buffer.first, buffer.last, Fit::best);
    placed.insert(offset, size, buffer.first, buffer.last);
    height = std::max(height, offset + size);
  }
  return height;
}

std::vector<std::pair<int32_t, size_t>> live_bytes(std::span<const Buffer> buffers, size_t alignment) {
  std::vector<std::pair<int32_t, int64_t>> changes;
  changes.reserve(2 * buffers.size());
  for (const Buffer& buffer : buffers) {
    auto size = static_cast<int64_t>(checked_align(buffer.size_bytes, alignment));
    changes.emplace_back(buffer.first, size);
    changes.emplace_back(buffer.last, -size);
  }
  std::sort(changes.begin(), changes.end());  // at the same step, ends sort before starts, as lifetimes are half-open
  std::vector<std::pair<int32_t, size_t>> live;
  int64_t now = 0;
  for (auto [step, change] : changes) {
    now = checked_add(now, change);
    if (live.empty() || live.back().first != step) live.emplace_back(step, 0);
    live.back().second = static_cast<size_t>(now);
  }
  return live;
}

size_t max_live_bytes(std::span<const Buffer> buffers, size_t alignment) {
  size_t most = 0;
  for (const auto& [step, bytes] : live_bytes(buffers, alignment)) most = std::max(most, bytes);
  return most;
}

}  // namespace treadle::memory
