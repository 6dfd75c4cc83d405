#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <random>
#include <sstream>

#include "memory/planner.h"
#include "tests/memory/plan_checks.h"
#include "treadle/error.h"
#include "treadle/memory.h"

namespace treadle::memory {
namespace {

std::vector<Buffer> random_buffers(std::mt19937& random, size_t count, int32_t steps, size_t max_size) {
  std::vector<Buffer> buffers;
  for (size_t i = 0; i < count; ++i) {
    auto first = static_cast<int32_t>(random() % static_cast<uint32_t>(steps));
    auto life = 1 + static_cast<int32_t>(random() % static_cast<uint32_t>(steps - first));
    buffers.push_back({1 + random() % max_size, first, first + life});
  }
  return buffers;
}

// Cuts an arena that is full at every step into random buffers, so that the optimal height is known.
std::vector<Buffer> cut_arena(std::mt19937& random, size_t height, int32_t steps, int cuts) {
  struct Piece {
    size_t low, high;
    int32_t first, last;
  };
  std::vector<Piece> pieces{{0, height, 0, steps}};
  for (int cut = 0; cut < cuts; ++cut) {
    size_t index = random() % pieces.size();
    Piece piece = pieces[index], rest = piece;
    if (random() % 2 == 0 && piece.high - piece.low > 1) {
      pieces[index].high = rest.low = piece.low + 1 + random() % (piece.high - piece.low - 1);
    } else if (piece.last - piece.first > 1) {
      pieces[index].last = rest.first =
          piece.first + 1 + static_cast<int32_t>(random() % static_cast<uint32_t>(piece.last - piece.first - 1));
    } else {
      continue;
    }
    pieces.push_back(rest);
  }
  std::vector<Buffer> buffers;
  for (const Piece& piece : pieces) buffers.push_back({piece.high - piece.low, piece.first, piece.last});
  return buffers;
}

TEST(ExactPlanner, FindsTheSmallestArenaOfSmallProblemsAndProvesIt) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 300; ++trial) {
    auto buffers = random_buffers(random, 1 + random() % 7, 2 + static_cast<int32_t>(random() % 6), trial % 2 ? 4 : 20);
    ArenaPlan plan = plan_arena_exactly(buffers, {.alignment = 1});
    expect_valid(buffers, plan, 1);
    EXPECT_EQ(plan.size_bytes, optimum_by_search(buffers)) << "trial " << trial;
    EXPECT_EQ(plan.lower_bound_bytes, plan.size_bytes) << "trial " << trial;
  }
}

// Tries every byte as the offset of every buffer. @return true if the buffers fit
bool fits_by_trying_all(std::span<const Buffer> buffers, size_t height, std::vector<size_t>& offsets) {
  size_t n = offsets.size();
  if (n == buffers.size()) return true;
  for (size_t offset = 0; offset + buffers[n].size_bytes <= height; ++offset) {
    bool apart = true;
    for (size_t m = 0; m < n; ++m)
      apart &= !alive_together(buffers[n], buffers[m]) || offset + buffers[n].size_bytes <= offsets[m] ||
               offsets[m] + buffers[m].size_bytes <= offset;
    if (!apart) continue;
    offsets.push_back(offset);
    if (fits_by_trying_all(buffers, height, offsets)) return true;
    offsets.pop_back();
  }
  return false;
}

TEST(ExactPlanner, RaisesTheLowerBoundWhereThePeakCannotBeReached) {
  std::vector<Buffer> buffers{{3, 0, 1}, {3, 3, 4}, {1, 5, 6}, {2, 1, 2}, {1, 2, 5}, {1, 5, 8}, {2, 0, 3}, {2, 4, 6}, {1, 1, 4}, {2, 4, 5}};
  std::vector<size_t> offsets;
  ASSERT_EQ(max_live_bytes(buffers), 5U);
  ASSERT_FALSE(fits_by_trying_all(buffers, 5, offsets));
  ASSERT_TRUE(fits_by_trying_all(buffers, 6, offsets));
  ArenaPlan smallest = plan_arena_exactly(buffers, {.alignment = 1});
  expect_valid(buffers, smallest, 1);
  EXPECT_EQ(smallest.size_bytes, 6U);
  EXPECT_EQ(smallest.lower_bound_bytes, 6U);
  ArenaPlan refuted = plan_arena_exactly(buffers, {.alignment = 1, .capacity_bytes = 5});
  expect_valid(buffers, refuted, 1);
  EXPECT_GT(refuted.lower_bound_bytes, 5U);
}

TEST(ExactPlanner, FillsArenasThatLeaveNoByteFree) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 30; ++trial) {
    auto buffers = cut_arena(random, 1000, 40, 60);
    ArenaPlan plan = plan_arena_exactly(buffers, {.alignment = 1, .capacity_bytes = 1000, .time_limit_seconds = 60});
    expect_valid(buffers, plan, 1);
    EXPECT_EQ(plan.size_bytes, 1000U) << "trial " << trial;
  }
}

TEST(ExactPlanner, RoundsSizesUpToTheAlignment) {
  std::mt19937 random(5);
  auto buffers = random_buffers(random, 40, 20, 5000);
  ArenaPlan plan = plan_arena_exactly(buffers, {.alignment = 256, .time_limit_seconds = 1});
  expect_valid(buffers, plan, 256);
  EXPECT_EQ(plan.size_bytes % 256, 0U);
}

TEST(ExactPlanner, GivesTheSamePlanForTheSameSteps) {
  std::mt19937 random(9);
  auto buffers = cut_arena(random, 1 << 16, 200, 300);
  SearchOptions options{.alignment = 1, .time_limit_seconds = 1e6, .max_steps = 3000};
  ArenaPlan once = plan_arena_exactly(buffers, options), again = plan_arena_exactly(buffers, options);
  expect_valid(buffers, once, 1);
  EXPECT_EQ(once.offsets, again.offsets);
}

TEST(ExactPlanner, TakesNoBuffersEmptyOnesAndFixedOnes) {
  EXPECT_EQ(plan_arena_exactly({}).size_bytes, 0U);
  std::vector<Buffer> empty{{0, 0, 1}, {0, 0, 5}};
  EXPECT_EQ(plan_arena_exactly(empty).size_bytes, 0U);
  std::vector<Buffer> fixed{{64, 0, 2, 128}, {64, 1, 3}, {64, 0, 3}};
  ArenaPlan plan = plan_arena_exactly(fixed);
  expect_valid(fixed, plan, 64);
  EXPECT_EQ(plan.offsets[0], 128U);
}

TEST(ExactPlanner, RefusesALifeOfNoTime) {
  std::vector<Buffer> buffers{{64, 3, 3}};
  EXPECT_THROW(plan_arena_exactly(buffers), Error);
}

// The eleven challenging instances of MiniMalloc. Their optimum is at or near the capacity, and no greedy planner solves any of them.
class ChallengingInstances : public testing::TestWithParam<char> {};

TEST_P(ChallengingInstances, AreFittedIntoTheirCapacity) {
  const char* data = std::getenv("TREADLE_TEST_DATA");
  auto path = std::filesystem::path(data ? data : "") / "minimalloc" / (std::string(1, GetParam()) + ".1048576.csv");
  if (!data || !std::filesystem::exists(path)) GTEST_SKIP() << "TREADLE_TEST_DATA has no minimalloc folder";
  constexpr size_t kCapacity = 1048576;
  std::vector<Buffer> buffers;
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  ASSERT_EQ(line.substr(0, 19), "id,lower,upper,size");
  while (std::getline(in, line)) {
    std::istringstream fields(line);
    std::string id, lower, upper, size;
    std::getline(fields, id, ',');
    std::getline(fields, lower, ',');
    std::getline(fields, upper, ',');
    std::getline(fields, size, ',');
    buffers.push_back({std::stoul(size), std::stoi(lower), std::stoi(upper)});
  }
  ASSERT_GT(buffers.size(), 100U);
  ArenaPlan plan = plan_arena_exactly(buffers, {.alignment = 1, .capacity_bytes = kCapacity, .time_limit_seconds = 300});
  expect_valid(buffers, plan, 1);
  EXPECT_LE(plan.size_bytes, kCapacity);
}

INSTANTIATE_TEST_SUITE_P(ExactPlanner, ChallengingInstances, testing::Range('A', 'L'),
                         [](const auto& info) { return std::string(1, info.param); });

}  // namespace
}  // namespace treadle::memory
