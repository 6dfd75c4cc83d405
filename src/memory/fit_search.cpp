#include "memory/fit_search.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <tuple>

namespace treadle::memory {
namespace {

constexpr int32_t kNever = std::numeric_limits<int32_t>::max();
constexpr size_t kMaxRefutedBytes = size_t{128} << 20;
constexpr int kMaxDepth = 6000;               // limit, since each level of recursion uses two frames of the caller's stack
constexpr int64_t kFailuresPerRestart = 500;  // multiplied by the Luby sequence
constexpr int kNumPriorities = 5;             // number of priority measures in prepare_restart()
constexpr double kNoise = 0.1;                // random variation of scores and priorities, from the second use of a priority measure on

// Returns element i of the Luby sequence: 1 1 2 1 1 2 4 1 1 2 1 1 2 4 8 ...
int64_t luby(int64_t i) {
  for (int64_t k = 1;; ++k) {
    if (i == (int64_t{1} << k) - 1) return int64_t{1} << (k - 1);
    if (i < (int64_t{1} << k) - 1) return luby(i - (int64_t{1} << (k - 1)) + 1);
  }
}

}  // namespace

FitSearch::FitSearch(std::span<const Block> blocks, int32_t num_sections, int32_t capacity)
    : blocks_(blocks.begin(), blocks.end()), num_sections_(num_sections), capacity_(capacity) {
  auto sections = static_cast<size_t>(num_sections);
  alive_.resize(sections);
  num_unplaced_.assign(sections, 0);
  floor_.assign(sections, 0);
  rest_.assign(sections, 0);
  weight_.assign(sections, 1);
  queued_.assign(sections, 0);
  low_.assign(blocks_.size(), 0);
  offset_.assign(blocks_.size(), 0);
  priority_.assign(blocks_.size(), 0);
  for (size_t k = 0; k < blocks_.size(); ++k) {
    first_position_.push_back(positions_.size());
    hash_.push_back(random());
    for (auto t = static_cast<size_t>(blocks_[k].first); t < static_cast<size_t>(blocks_[k].last); ++t) {
      positions_.push_back(num_unplaced_[t]++);
      alive_[t].push_back(static_cast<int32_t>(k));
      rest_[t] += blocks_[k].height;
    }
  }
}

uint64_t FitSearch::random() {
  random_ ^= random_ << 13, random_ ^= random_ >> 7, random_ ^= random_ << 17;
  return random_;
}

double FitSearch::noise() { return restarts_ < kNumPriorities ? 1.0 : 1.0 + kNoise * static_cast<double>(random() >> 11) * 0x1p-53; }

FitSearch::Outcome FitSearch::run(std::chrono::steady_clock::time_point deadline, int64_t max_steps) {
  deadline_ = deadline;
  step_limit_ = steps_ + max_steps;
  while (true) {
    stopped_ = false;
    failures_ = 0;
    prepare_restart();
    for (int32_t t = 0; t < num_sections_; ++t) enqueue(t);
    if (propagate() && solve(0, num_sections_, 0)) return Outcome::fits;
    undo(0);
    if (!stopped_) return Outcome::impossible;
    ++restarts_;
    if (steps_ >= step_limit_ || std::chrono::steady_clock::now() >= deadline_) return Outcome::unknown;
  }
}

// Sets the priorities of blocks: if several blocks fit, the search first tries the one with the highest priority. Each restart uses the
// next of five measures of a block's difficulty.
void FitSearch::prepare_restart() {
  failure_limit_ = kFailuresPerRestart * luby(1 + restarts_ / kNumPriorities);
  std::vector<double> load(static_cast<size_t>(num_sections_), 0);
  for (const Block& block : blocks_)
    for (int32_t t = block.first; t < block.last; ++t) load[static_cast<size_t>(t)] += block.height;
  for (size_t k = 0; k < blocks_.size(); ++k) {
    double height = blocks_[k].height, life = blocks_[k].last - blocks_[k].first;
    switch (restarts_ % kNumPriorities) {
      case 0: priority_[k] = life + height / (2.0 * capacity_); break;
      case 1: priority_[k] = height + life / (2.0 * num_sections_); break;
      case 2: priority_[k] = life * height; break;
      case 3: priority_[k] = life * std::sqrt(height); break;
      default:
        priority_[k] = *std::max_element(load.begin() + blocks_[k].first, load.begin() + blocks_[k].last) +
                       life * height / (static_cast<double>(num_sections_) * capacity_);
    }
  }
}

void FitSearch::set(int32_t& where, int32_t value) {
  changes_.push_back({&where, where});
  where = value;
}

void FitSearch::undo(size_t num_changes) {
  for (; changes_.size() > num_changes; changes_.pop_back()) *changes_.back().where = changes_.back().before;
}

void FitSearch::enqueue(int32_t section) {
  char& queued = queued_[static_cast<size_t>(section)];
  if (queued) return;
  queued = 1;
  queue_.push_back(section);
}

void FitSearch::raise(int32_t block, int32_t low) {
  int32_t& known = low_[static_cast<size_t>(block)];
  if (low <= known) return;
  set(known, low);
  for (int32_t t = blocks_[static_cast<size_t>(block)].first; t < blocks_[static_cast<size_t>(block)].last; ++t) enqueue(t);
}

void FitSearch::raise_floor(int32_t section, int32_t floor) {
  auto t = static_cast<size_t>(section);
  set(floor_[t], floor);
  for (int32_t i = 0; i < num_unplaced_[t]; ++i) raise(alive_[t][static_cast<size_t>(i)], floor);
}

// Counts a failure of the section, which makes the search more likely to branch on it. Returns false.
bool FitSearch::fail(int32_t section) {
  weight_[static_cast<size_t>(section)] += 1;
  return false;
}

// Derives bounds from the blocks of one section: they are stacked, so one of them is the lowest, and all others are above it.
bool FitSearch::tighten(int32_t section) {
  auto t = static_cast<size_t>(section);
  const std::span unplaced(alive_[t].data(), static_cast<size_t>(num_unplaced_[t]));
  if (unplaced.empty()) return true;
  if (floor_[t] + rest_[t] > capacity_) return fail(section);
  const int32_t highest = capacity_ - rest_[t];  // upper limit for the lowest block's offset
  int32_t floor = kNever, end = kNever, second_end = kNever, owner = -1;
  bool some_not_first = false;
  for (int32_t k : unplaced) {
    int32_t low = low_[static_cast<size_t>(k)], top = low + blocks_[static_cast<size_t>(k)].height;
    if (low <= highest)
      floor = std::min(floor, low);
    else
      some_not_first = true;
    if (top < end)
      second_end = end, end = top, owner = k;
    else
      second_end = std::min(second_end, top);
  }
  if (floor == kNever) return fail(section);
  if (some_not_first) {
    for (int32_t k : unplaced)
      if (low_[static_cast<size_t>(k)] > highest) raise(k, k == owner ? second_end : end);
  }
  if (unplaced.size() > 1 && !fits_by_heads(section)) return fail(section);
  if (floor > floor_[t]) raise_floor(section, floor);
  return true;
}

// Checks, for each height, that all blocks of the section that must start there or above fit below the capacity.
bool FitSearch::fits_by_heads(int32_t section) {
  auto t = static_cast<size_t>(section);
  heads_.clear();
  for (int32_t i = 0; i < num_unplaced_[t]; ++i) {
    auto k = static_cast<size_t>(alive_[t][static_cast<size_t>(i)]);
    heads_.emplace_back(low_[k], blocks_[k].height);
  }
  std::sort(heads_.begin(), heads_.end(), std::greater<>());
  int32_t sum = 0;
  for (auto [low, height] : heads_) {
    sum += height;
    if (low > capacity_ - sum) return false;
  }
  return true;
}

bool FitSearch::propagate() {
  bool consistent = true;
  for (size_t i = 0; i < queue_.size(); ++i) {
    queued_[static_cast<size_t>(queue_[i])] = 0;
    if (consistent) consistent = tighten(queue_[i]);
  }
  queue_.clear();
  return consistent;
}

void FitSearch::take_out(int32_t block) {
  const Block& b = blocks_[static_cast<size_t>(block)];
  auto position_in = [&](int32_t k, int32_t t) -> int32_t& {
    return positions_[first_position_[static_cast<size_t>(k)] + static_cast<size_t>(t - blocks_[static_cast<size_t>(k)].first)];
  };
  for (int32_t t = b.first; t < b.last; ++t) {
    auto& alive = alive_[static_cast<size_t>(t)];
    int32_t& here = position_in(block, t);
    int32_t last = num_unplaced_[static_cast<size_t>(t)] - 1;
    int32_t other = alive[static_cast<size_t>(last)];
    // This swap is never undone: undoing restores only the count, since the order of unplaced blocks does not matter.
    std::swap(alive[static_cast<size_t>(here)], alive[static_cast<size_t>(last)]);
    position_in(other, t) = here;
    here = last;
    set(num_unplaced_[static_cast<size_t>(t)], last);
  }
}

bool FitSearch::place(int32_t block, int32_t offset) {
  const Block& b = blocks_[static_cast<size_t>(block)];
  offset_[static_cast<size_t>(block)] = offset;
  take_out(block);
  for (int32_t t = b.first; t < b.last; ++t) {
    set(rest_[static_cast<size_t>(t)], rest_[static_cast<size_t>(t)] - b.height);
    raise_floor(t, offset + b.height);
    enqueue(t);
  }
  return propagate();
}

// Divides the problem into parts that have no unplaced block in common. Solves short parts first, since they are the cheapest to refute.
bool FitSearch::solve(int32_t first, int32_t last, int depth) {
  std::vector<std::pair<int32_t, int32_t>> parts;
  for (int32_t t = first; t < last;) {
    if (num_unplaced_[static_cast<size_t>(t)] == 0) {
      ++t;
      continue;
    }
    int32_t begin = t, reach = t + 1;
    for (; t < reach; ++t)
      for (int32_t i = 0; i < num_unplaced_[static_cast<size_t>(t)]; ++i)
        reach = std::max(reach, blocks_[static_cast<size_t>(alive_[static_cast<size_t>(t)][static_cast<size_t>(i)])].last);
    parts.emplace_back(begin, t);
  }
  if (parts.size() > 1) std::sort(parts.begin(), parts.end(), [](auto a, auto b) { return a.second - a.first < b.second - b.first; });
  return std::all_of(parts.begin(), parts.end(), [&](auto part) { return solve_part(part.first, part.second, depth); });
}

bool FitSearch::solve_part(int32_t first, int32_t last, int depth) {
  constexpr int64_t kStepsPerClock = 256;
  if (++steps_ % kStepsPerClock == 0 && std::chrono::steady_clock::now() >= deadline_) stopped_ = true;
  if (failures_ > failure_limit_ || steps_ >= step_limit_ || depth > kMaxDepth) stopped_ = true;
  if (stopped_) return false;
  const uint64_t key = key_of(first, last);
  if (is_refuted(key, first, last)) {
    ++failures_;
    return false;
  }
  const Choice choice = choose(first, last);
  if (!choice.refuted) {
    const size_t mark = changes_.size();
    const int32_t floor = floor_[static_cast<size_t>(choice.section)];
    auto go_on = [&](bool consistent) {
      if (!consistent) ++failures_;
      if (consistent && solve(first, last, depth + 1)) return true;
      undo(mark);
      return false;
    };
    for (int32_t block : candidates(choice.section)) {
      if (go_on(place(block, floor))) return true;
      if (stopped_) return false;
    }
    if (choice.floor_without >= 0) {
      raise_floor(choice.section, choice.floor_without);
      enqueue(choice.section);
      if (go_on(propagate())) return true;
      if (stopped_) return false;
    }
  } else {
    ++failures_;
  }
  remember(key, first, last);
  return false;
}

FitSearch::Choice FitSearch::choose(int32_t first, int32_t last) {
  Choice best;
  double best_score = std::numeric_limits<double>::infinity();
  for (int32_t t = first; t < last && !best.refuted;) {
    int32_t begin = t, floor = floor_[static_cast<size_t>(t)];
    while (t < last && floor_[static_cast<size_t>(t)] == floor) ++t;
    bool wall_before = begin == first || floor_[static_cast<size_t>(begin - 1)] > floor;
    bool wall_after = t == last || floor_[static_cast<size_t>(t)] > floor;
    if (wall_before && wall_after) scan_valley(begin, t, best_score, best);
  }
  return best;
}

void FitSearch::scan_valley(int32_t first, int32_t last, double& best_score, Choice& best) {
  const int32_t floor = floor_[static_cast<size_t>(first)];
  // For each section, finds the lowest top among the unplaced blocks that end before it, and among those that start after it.
  auto width = static_cast<size_t>(last - first);
  ends_before_.assign(width + 1, kNever);
  starts_from_.assign(width + 1, kNever);
  for (int32_t t = first; t < last; ++t) {
    for (int32_t i = 0; i < num_unplaced_[static_cast<size_t>(t)]; ++i) {
      auto k = static_cast<size_t>(alive_[static_cast<size_t>(t)][static_cast<size_t>(i)]);
      int32_t top = low_[k] + blocks_[k].height;
      if (blocks_[k].last <= last) {
        int32_t& known = ends_before_[static_cast<size_t>(blocks_[k].last - first)];
        known = std::min(known, top);
      }
      if (blocks_[k].first >= first) {
        int32_t& known = starts_from_[static_cast<size_t>(blocks_[k].first - first)];
        known = std::min(known, top);
      }
    }
  }
  for (size_t i = 1; i <= width; ++i) ends_before_[i] = std::min(ends_before_[i], ends_before_[i - 1]);
  for (size_t i = width; i-- > 0;) starts_from_[i] = std::min(starts_from_[i], starts_from_[i + 1]);

  for (int32_t t = first; t < last; ++t) {
    auto relative = static_cast<size_t>(t - first);
    // If no block starts at the floor here, any block that could must stand on one that ends before or starts after this section.
    const int32_t support = std::min(ends_before_[relative], starts_from_[relative + 1]);
    int32_t choices = 0, floor_without = kNever;
    for (int32_t i = 0; i < num_unplaced_[static_cast<size_t>(t)]; ++i) {
      int32_t low = low_[static_cast<size_t>(alive_[static_cast<size_t>(t)][static_cast<size_t>(i)])];
      if (low == floor) ++choices;
      floor_without = std::min(floor_without, low == floor ? support : low);
    }
    const bool may_stay_empty = floor_without <= capacity_ - rest_[static_cast<size_t>(t)];
    choices += may_stay_empty;
    if (choices == 0) {
      fail(t);
      best.refuted = true;
      return;
    }
    double score = choices == 1 ? -1 : choices / weight_[static_cast<size_t>(t)] * noise();
    if (score >= best_score) continue;
    best_score = score;
    best.section = t;
    best.floor_without = may_stay_empty ? floor_without : -1;
  }
}

// Returns the blocks that can start at the section's floor. Of equal blocks, it returns only one.
std::vector<int32_t> FitSearch::candidates(int32_t section) {
  auto t = static_cast<size_t>(section);
  std::vector<std::pair<double, int32_t>> found;
  for (int32_t i = 0; i < num_unplaced_[t]; ++i) {
    int32_t k = alive_[t][static_cast<size_t>(i)];
    const Block& block = blocks_[static_cast<size_t>(k)];
    if (low_[static_cast<size_t>(k)] != floor_[t]) continue;
    bool seen = std::any_of(found.begin(), found.end(), [&](const auto& other) {
      const Block& b = blocks_[static_cast<size_t>(other.second)];
      return std::tie(b.first, b.last, b.height) == std::tie(block.first, block.last, block.height);
    });
    if (!seen) found.emplace_back(-priority_[static_cast<size_t>(k)] * noise(), k);
  }
  std::sort(found.begin(), found.end());
  std::vector<int32_t> blocks;
  blocks.reserve(found.size());
  for (const auto& candidate : found) blocks.push_back(candidate.second);
  return blocks;
}

// Returns a hash of the set of unplaced blocks.
uint64_t FitSearch::key_of(int32_t first, int32_t last) const {
  uint64_t key = 0;
  for (int32_t t = first; t < last; ++t) {
    for (int32_t i = 0; i < num_unplaced_[static_cast<size_t>(t)]; ++i) {
      auto k = static_cast<size_t>(alive_[static_cast<size_t>(t)][static_cast<size_t>(i)]);
      if (blocks_[k].first == t) key ^= hash_[k];
    }
  }
  return key;
}

bool FitSearch::is_refuted(uint64_t key, int32_t first, int32_t last) const {
  auto found = refuted_.find(key);
  if (found == refuted_.end()) return false;
  return std::any_of(found->second.begin(), found->second.end(), [&](const Refuted& known) {
    return known.first == first && known.floors.size() == static_cast<size_t>(last - first) &&
           std::equal(known.floors.begin(), known.floors.end(), floor_.begin() + first, std::less_equal<>());
  });
}

void FitSearch::remember(uint64_t key, int32_t first, int32_t last) {
  auto width = static_cast<size_t>(last - first);
  size_t bytes = sizeof(Refuted) + width * sizeof(int32_t) + 64;  // the map's entry takes about 64 more bytes
  if (refuted_bytes_ + bytes > kMaxRefutedBytes) return;
  std::vector<Refuted>& known = refuted_[key];
  std::erase_if(known, [&](const Refuted& other) {  // removes entries that the new one implies
    return other.first == first && other.floors.size() == width &&
           std::equal(other.floors.begin(), other.floors.end(), floor_.begin() + first, std::greater_equal<>());
  });
  known.push_back({first, {floor_.begin() + first, floor_.begin() + last}});
  refuted_bytes_ += bytes;
}

}  // namespace treadle::memory
