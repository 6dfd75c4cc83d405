// Tests plans in which buffers leave memory for a while. The tests replay each plan byte by byte.
#include "memory/budget.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

#include "memory/planner.h"

namespace treadle::memory {
namespace {

using Use = BudgetBuffer::Use;

/// Replays a plan, and follows every buffer's content through the arena, the file and recomputation.
class Player {
 public:
  Player(size_t num_steps, std::vector<BudgetBuffer> buffers, std::vector<Recipe> recipes)
      : num_steps_(num_steps), buffers_(std::move(buffers)), recipes_(std::move(recipes)) {}

  void play(const BudgetPlan& plan) {
    arena_.assign(plan.arena_bytes, "");
    saved_.clear();
    version_.assign(buffers_.size(), 0);
    size_t next = 0;
    for (int32_t t = 0; t < static_cast<int32_t>(num_steps_); ++t) {
      for (; next < plan.transfers.size() && plan.transfers[next].step == t; ++next) transfer(plan, plan.transfers[next], t);
      for (size_t b = 0; b < buffers_.size(); ++b) {
        for (const Use& use : buffers_[b].uses) {
          if (use.step != t) continue;
          const auto* segment = segment_at(plan, static_cast<int32_t>(b), t);
          ASSERT_NE(segment, nullptr) << "buffer " << b << " is not in memory at step " << t;
          if (use.step != buffers_[b].uses.front().step) expect_content(*segment, static_cast<int32_t>(b), t);
        }
      }
      for (size_t b = 0; b < buffers_.size(); ++b)
        for (const Use& use : buffers_[b].uses)
          if (use.step == t && use.writes) {
            ++version_[b];
            write(*segment_at(plan, static_cast<int32_t>(b), t), content(static_cast<int32_t>(b)), size_of(static_cast<int32_t>(b)));
          }
    }
    EXPECT_EQ(next, plan.transfers.size());
  }

 private:
  std::string content(int32_t b) const { return std::to_string(b) + "." + std::to_string(version_[static_cast<size_t>(b)]); }
  size_t size_of(int32_t b) const { return buffers_[static_cast<size_t>(b)].size_bytes; }

  static const BudgetPlan::Segment* segment_at(const BudgetPlan& plan, int32_t buffer, int32_t t) {
    for (const auto& segment : plan.segments)
      if (segment.buffer == buffer && segment.first <= t && t <= segment.last) return &segment;
    return nullptr;
  }

  void write(const BudgetPlan::Segment& segment, const std::string& what, size_t size) {
    ASSERT_LE(segment.offset + size, arena_.size());
    ASSERT_EQ(segment.offset % 64, 0U);
    for (size_t i = 0; i < size; ++i) arena_[segment.offset + i] = what;
  }

  void expect_content(const BudgetPlan::Segment& segment, int32_t b, int32_t t) {
    for (size_t i = 0; i < size_of(b); ++i)
      ASSERT_EQ(arena_[segment.offset + i], content(b)) << "byte " << i << " of buffer " << b << " at step " << t;
  }

  void transfer(const BudgetPlan& plan, const BudgetPlan::Transfer& transfer, int32_t t) {
    const auto& segment = plan.segments[static_cast<size_t>(transfer.segment)];
    ASSERT_EQ(segment.buffer, transfer.buffer);
    switch (transfer.move) {
      case BudgetPlan::Move::spill:
        expect_content(segment, transfer.buffer, t);
        saved_[transfer.buffer] = content(transfer.buffer);
        break;
      case BudgetPlan::Move::load:
        ASSERT_EQ(saved_[transfer.buffer], content(transfer.buffer)) << "what was saved is out of date";
        write(segment, content(transfer.buffer), size_of(transfer.buffer));
        break;
      case BudgetPlan::Move::recompute: {
        const Recipe& recipe = recipes_[static_cast<size_t>(transfer.recipe)];
        for (int32_t read : recipe.reads) {
          const auto* at = segment_at(plan, read, t);
          ASSERT_NE(at, nullptr) << "a recipe reads buffer " << read << ", which is away";
          expect_content(*at, read, t);
        }
        write(plan.segments[static_cast<size_t>(transfer.extra)], "extra", recipe.extra_bytes);
        write(segment, content(transfer.buffer), size_of(transfer.buffer));
        break;
      }
    }
  }

  size_t num_steps_;
  std::vector<BudgetBuffer> buffers_;
  std::vector<Recipe> recipes_;
  std::vector<std::string> arena_;  // for each byte, the name of the buffer that wrote it last
  std::map<int32_t, std::string> saved_;
  std::vector<int> version_;
};

BudgetBuffer buffer(size_t size, std::vector<int32_t> steps) {
  BudgetBuffer made{size, {}, false};
  for (int32_t step : steps) made.uses.push_back({step, made.uses.empty()});
  return made;
}

// Makes buffers for a chain and its reverse: value i is written at step i and read at steps i + 1 and 2n - 1 - i.
std::vector<BudgetBuffer> there_and_back(int32_t n) {
  std::vector<BudgetBuffer> buffers;
  for (int32_t i = 0; i < n; ++i) buffers.push_back(buffer(64, {i, i + 1, 2 * n - 1 - i}));
  return buffers;
}

TEST(Budget, NothingMovesIfEverythingFits) {
  auto buffers = there_and_back(10);
  BudgetPlan plan = plan_budget(20, buffers, {}, 640);
  EXPECT_TRUE(plan.transfers.empty());
  EXPECT_EQ(plan.arena_bytes, 640U);
}

TEST(Budget, SpillingReachesTheLargestWorkingSet) {
  auto buffers = there_and_back(10);
  const size_t least = largest_working_set(20, buffers);
  EXPECT_EQ(least, 128U);
  BudgetPlan plan = plan_budget(20, buffers, {}, least);
  EXPECT_EQ(plan.arena_bytes, least);
  Player(20, buffers, {}).play(plan);
}

TEST(Budget, TheLeastThereIsComesBackWhereTheBudgetCannotBeMet) {
  auto buffers = there_and_back(10);
  BudgetPlan plan = plan_budget(20, buffers, {}, 64);
  EXPECT_EQ(plan.arena_bytes, 128U);
  EXPECT_EQ(plan_budget(20, buffers, {}, plan.arena_bytes).arena_bytes, plan.arena_bytes) << "which is enough";
}

TEST(Budget, CheapRecipesAreTakenBeforeAnythingIsSpilled) {
  // Each odd value can be recomputed cheaply from the value before it, for its last use.
  auto buffers = there_and_back(10);
  std::vector<Recipe> recipes;
  for (int32_t i = 1; i < 10; i += 2) recipes.push_back({i, 19 - i, 1.0, {i - 1}, 64});
  BudgetPlan plan = plan_budget(20, buffers, recipes, 512);
  EXPECT_LE(plan.arena_bytes, 512U);
  for (const auto& transfer : plan.transfers) EXPECT_EQ(transfer.move, BudgetPlan::Move::recompute);
  EXPECT_FALSE(plan.transfers.empty());
  Player(20, buffers, recipes).play(plan);
}

TEST(Budget, WhatHasNotChangedIsWrittenOnce) {
  std::vector<BudgetBuffer> buffers{buffer(64, {0, 4, 8}), buffer(128, {2}), buffer(128, {6})};
  BudgetPlan plan = plan_budget(9, buffers, {}, 128);
  EXPECT_EQ(plan.spilled_bytes, 64U);
  EXPECT_EQ(plan.transfers.size(), 3U);
  Player(9, buffers, {}).play(plan);
}

TEST(Budget, RandomPlansKeepEveryContent) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 150; ++trial) {
    const auto steps = static_cast<int32_t>(5 + random() % 40);
    std::vector<BudgetBuffer> buffers;
    for (int b = 0; b < 4 + static_cast<int>(random() % 25); ++b) {
      BudgetBuffer made{1 + random() % 700, {}, random() % 8 == 0};
      for (int32_t t = 0; t < steps; ++t)
        if (random() % 6 == 0) made.uses.push_back({t, made.uses.empty() || random() % 4 == 0});
      if (!made.uses.empty()) buffers.push_back(made);
    }
    // Only valid recipes are added: their inputs are alive and were not written again since the buffer was computed.
    std::vector<Recipe> recipes;
    for (size_t b = 0; b < buffers.size(); ++b) {
      int32_t written = -1;
      for (const Use& use : buffers[b].uses) {
        if (written >= 0 && random() % 2 && !buffers[b].stays) {
          Recipe recipe{static_cast<int32_t>(b), use.step, static_cast<double>(random() % 20'000), {}, random() % 300};
          for (size_t other = 0; other < b; ++other) {
            const auto& uses = buffers[other].uses;
            bool holds = uses.front().step < written && uses.back().step >= use.step && random() % 3 == 0;
            for (const Use& o : uses) holds &= !(o.writes && o.step >= written && o.step < use.step);
            if (holds) recipe.reads.push_back(static_cast<int32_t>(other));
          }
          recipes.push_back(recipe);
        }
        if (use.writes) written = use.step;
      }
    }
    const size_t least = largest_working_set(static_cast<size_t>(steps), buffers);
    const size_t all = plan_budget(static_cast<size_t>(steps), buffers, {}, SIZE_MAX / 4).arena_bytes;
    for (size_t capacity : {least, least + (all - least) / 3, least + 2 * (all - least) / 3, all}) {
      SCOPED_TRACE("trial " + std::to_string(trial) + ", capacity " + std::to_string(capacity));
      BudgetPlan plan = plan_budget(static_cast<size_t>(steps), buffers, recipes, capacity);
      EXPECT_GE(plan.arena_bytes, least);
      if (capacity == least) {
        EXPECT_LE(static_cast<double>(plan.arena_bytes), 1.25 * static_cast<double>(least));
      } else if (capacity > least + least / 2) {
        EXPECT_LE(plan.arena_bytes, capacity);
      }
      Player(static_cast<size_t>(steps), buffers, recipes).play(plan);
      if (HasFatalFailure()) return;

      // With a single try, the plan costs as much time as estimated, and needs as many bytes as estimated apart from gaps.
      const BudgetOptions at_once{.one_try = true};
      plan = plan_budget(static_cast<size_t>(steps), buffers, recipes, capacity, at_once);
      const BudgetEstimate estimate = estimate_budget(static_cast<size_t>(steps), buffers, recipes, capacity, at_once);
      EXPECT_DOUBLE_EQ(estimate.cost_ns, plan.cost_ns);
      std::vector<Buffer> kept;
      for (const auto& segment : plan.segments)
        kept.push_back({segment.buffer >= 0 ? buffers[static_cast<size_t>(segment.buffer)].size_bytes
                                            : recipes[static_cast<size_t>(-1 - segment.buffer)].extra_bytes,
                        segment.first, segment.last + 1});
      EXPECT_EQ(estimate.live_bytes, max_live_bytes(kept, at_once.alignment));
    }
  }
}

}  // namespace
}  // namespace treadle::memory
