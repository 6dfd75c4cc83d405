#include <algorithm>
#include <chrono>
#include <numeric>
#include <vector>

#include "core/base/checked.h"
#include "memory/fit_search.h"
#include "memory/planner.h"

namespace treadle::memory {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxBuffers = 4096;
constexpr size_t kMaxUnits = size_t{1} << 30;
constexpr int64_t kFirstSlice = 2000;  // initial number of search steps per height

// The buffers as the search sees them: sizes are heights in units, and lifetimes are ranges of sections of time.
class Problem {
 public:
  Problem(std::span<const Buffer> buffers, size_t alignment) {
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (buffers[i].size_bytes == 0) continue;
      if (buffers[i].fixed_offset != Buffer::kAnywhere) searchable_ = false;
      index_.push_back(i);
      unit_ = std::gcd(unit_, align_up(buffers[i].size_bytes, alignment));
    }
    if (index_.empty() || index_.size() > kMaxBuffers) searchable_ = false;
    if (!searchable_) return;
    make_sections(buffers);
    for (size_t i : index_) {
      size_t height = align_up(buffers[i].size_bytes, alignment) / unit_;
      if (height > kMaxUnits) {
        searchable_ = false;
        return;
      }
      blocks_.push_back({section_after(buffers[i].first), section_after(buffers[i].last), static_cast<int32_t>(height)});
    }
  }

  bool searchable(size_t arena_bytes) const { return searchable_ && arena_bytes / unit_ <= kMaxUnits; }
  size_t unit_bytes() const { return unit_; }
  FitSearch search_for(size_t capacity_bytes) const {
    return {blocks_, static_cast<int32_t>(starts_.size()), static_cast<int32_t>(capacity_bytes / unit_)};
  }

  void read(const FitSearch& search, ArenaPlan& plan) const {
    plan.size_bytes = 0;
    for (size_t k = 0; k < index_.size(); ++k) {
      auto offset = static_cast<size_t>(search.offsets()[k]);
      plan.offsets[index_[k]] = offset * unit_;
      plan.size_bytes = std::max(plan.size_bytes, (offset + static_cast<size_t>(blocks_[k].height)) * unit_);
    }
  }

 private:
  // Divides time at the starts and ends of buffers. Only those parts become sections that begin with a start and end with an end: all
  // buffers of any other part are also alive in a neighboring part. So any two buffers that overlap in time share a section.
  void make_sections(std::span<const Buffer> buffers) {
    std::vector<std::pair<int32_t, bool>> events;  // (step, whether a lifetime starts); ends come first, as lifetimes are half-open
    for (size_t i : index_) {
      events.emplace_back(buffers[i].first, true);
      events.emplace_back(buffers[i].last, false);
    }
    std::sort(events.begin(), events.end());
    for (size_t i = 0; i + 1 < events.size(); ++i)
      if (events[i].second && !events[i + 1].second) starts_.push_back(events[i].first);
  }

  int32_t section_after(int32_t step) const {
    return static_cast<int32_t>(std::lower_bound(starts_.begin(), starts_.end(), step) - starts_.begin());
  }

  bool searchable_ = true;
  size_t unit_ = 0;
  std::vector<size_t> index_;    // for each block of the search, the index of its buffer
  std::vector<int32_t> starts_;  // for each section, the step in which it begins
  std::vector<FitSearch::Block> blocks_;
};

class Searcher {
 public:
  Searcher(const Problem& problem, const SearchOptions& options, ArenaPlan& plan)
      : problem_(problem), plan_(plan), steps_left_(options.max_steps) {
    // The clamp prevents an overflow of the clock for distant deadlines.
    const double seconds = std::clamp(options.time_limit_seconds, 0.0, 1e8);
    deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

  bool out_of_time() const { return steps_left_ <= 0 || Clock::now() >= deadline_; }

  FitSearch::Outcome attempt(size_t height_bytes, int64_t max_steps) {
    FitSearch search = problem_.search_for(height_bytes);
    FitSearch::Outcome outcome = search.run(deadline_, std::min(max_steps, steps_left_));
    steps_left_ -= search.steps();
    if (outcome == FitSearch::Outcome::fits) {
      problem_.read(search, plan_);
      plan_.strategy = "search";
    } else if (outcome == FitSearch::Outcome::impossible) {
      plan_.lower_bound_bytes = std::max(plan_.lower_bound_bytes, height_bytes + problem_.unit_bytes());
    }
    return outcome;
  }

  // Bisects between the lower bound and the size of the best plan. Repeats this with more and more search steps per height.
  void minimize() {
    for (int64_t slice = kFirstSlice; !out_of_time() && plan_.size_bytes > plan_.lower_bound_bytes; slice *= 4) {
      size_t height = plan_.lower_bound_bytes, refused = height;  // refused: largest height that failed in this round
      while (!out_of_time() && plan_.size_bytes > plan_.lower_bound_bytes) {
        if (attempt(height, slice) != FitSearch::Outcome::fits) refused = height;
        refused = std::max(refused, plan_.lower_bound_bytes);
        size_t step = (plan_.size_bytes - refused) / 2 / problem_.unit_bytes() * problem_.unit_bytes();
        if (step == 0) break;
        height = refused + step;
      }
      if (slice > std::numeric_limits<int64_t>::max() / 4) break;
    }
  }

 private:
  const Problem& problem_;
  ArenaPlan& plan_;
  Clock::time_point deadline_;
  int64_t steps_left_;
};

}  // namespace

ArenaPlan plan_arena_exactly(std::span<const Buffer> buffers, const SearchOptions& options) {
  ArenaPlan plan = plan_arena(buffers, {.alignment = options.alignment});
  if (plan.size_bytes <= std::max(plan.lower_bound_bytes, options.capacity_bytes)) return plan;
  if (options.capacity_bytes > 0 && options.capacity_bytes < plan.lower_bound_bytes) return plan;
  const Problem problem(buffers, options.alignment);
  if (!problem.searchable(plan.size_bytes)) return plan;
  Searcher searcher(problem, options, plan);
  if (options.capacity_bytes == 0) {
    searcher.minimize();
  } else {
    searcher.attempt(options.capacity_bytes / problem.unit_bytes() * problem.unit_bytes(), std::numeric_limits<int64_t>::max());
  }
  return plan;
}

}  // namespace treadle::memory
