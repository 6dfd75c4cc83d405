// Tests moves of values within a block: their order must not overwrite a value before it has moved.
#include "memory/relocate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace treadle::memory {
namespace {

// Executes the moves on a block in which value i consists of the letter 'a' + i % 26. @return how many values were moved out temporarily
int check(size_t block_bytes, const std::vector<Relocation>& moves) {
  std::vector<std::byte> block(block_bytes);
  const auto letter = [](size_t i) { return static_cast<std::byte>('a' + i % 26); };
  for (size_t i = 0; i < moves.size(); ++i)
    std::fill_n(block.begin() + static_cast<std::ptrdiff_t>(moves[i].from), moves[i].size_bytes, letter(i));
  std::map<size_t, std::vector<std::byte>> outside;
  int asides = 0;
  const Aside aside{[&](size_t i, size_t at) {
                      ++asides;
                      EXPECT_FALSE(outside.contains(i));
                      outside[i].assign(block.data() + at, block.data() + at + moves[i].size_bytes);
                    },
                    [&](size_t i, size_t at) {
                      std::copy(outside.at(i).begin(), outside.at(i).end(), block.data() + at);
                      outside.erase(i);
                    }};
  relocate(block.data(), block.size(), moves, aside);
  EXPECT_TRUE(outside.empty());
  for (size_t i = 0; i < moves.size(); ++i)
    for (size_t k = 0; k < moves[i].size_bytes; ++k)
      if (block[moves[i].to + k] != letter(i)) {
        ADD_FAILURE() << "byte " << k << " of value " << i;
        break;
      }
  return asides;
}

TEST(Relocate, ShiftsOverItself) {
  EXPECT_EQ(check(300, {{64, 0, 200}}), 0);
  EXPECT_EQ(check(300, {{0, 64, 200}}), 0);
}

TEST(Relocate, WaitsForWhoIsInTheWay) { EXPECT_EQ(check(512, {{0, 128, 128}, {128, 256, 128}, {256, 384, 128}}), 0); }

TEST(Relocate, BreaksARingInAGapOrAside) {
  EXPECT_EQ(check(192, {{0, 64, 64}, {64, 0, 64}}), 0) << "there is a gap of 64 bytes";
  EXPECT_EQ(check(128, {{0, 64, 64}, {64, 0, 64}}), 1);
  EXPECT_EQ(check(192, {{0, 64, 64}, {64, 128, 64}, {128, 0, 64}}), 1);
}

TEST(Relocate, LeavesWhoStays) { EXPECT_EQ(check(256, {{64, 64, 64}, {128, 0, 64}, {192, 192, 0}}), 0); }

TEST(Relocate, ArrangesAnything) {
  std::mt19937 random(20261124);
  const auto any = [&](size_t below) { return std::uniform_int_distribution<size_t>(0, below - 1)(random); };
  int asides = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<size_t> sizes(1 + any(12));
    for (size_t& size : sizes) size = any(5) * 64;
    // Arranges the values in random order with gaps. The two arrangements are the places before and after the moves.
    const auto arrange = [&](size_t most_gaps) {
      std::vector<size_t> order(sizes.size()), at(sizes.size());
      std::iota(order.begin(), order.end(), size_t{0});
      std::shuffle(order.begin(), order.end(), random);
      size_t offset = 0;
      for (size_t i : order) {
        offset += any(most_gaps + 1) * 64;
        at[i] = offset, offset += sizes[i];
      }
      return std::pair(at, offset);
    };
    const size_t most_gaps = any(3);
    const auto [from, end_before] = arrange(most_gaps);
    const auto [to, end_behind] = arrange(most_gaps);
    std::vector<Relocation> moves;
    for (size_t i = 0; i < sizes.size(); ++i) moves.push_back({from[i], to[i], sizes[i]});
    asides += check(std::max<size_t>(std::max(end_before, end_behind), 1), moves);
    ASSERT_FALSE(HasFailure()) << round;
  }
  EXPECT_GT(asides, 0) << "the rounds are to include full blocks";
}

}  // namespace
}  // namespace treadle::memory
