// Barriers between commands of a GPU: enough for every pair of commands that depend on each other, and none that is not needed.
#include "device/vulkan/hazards.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <random>
#include <vector>

namespace treadle {
namespace {

using vulkan::Hazards;

std::array<std::byte, 64> memory;

// Commands as sets of bytes, which are compared one by one.
struct Command {
  std::vector<MemoryUse> uses;
  std::array<bool, 64> reads{}, writes{};

  void add(size_t begin, size_t size, Access access) {
    uses.push_back({&memory[begin], size, access});
    for (size_t i = begin; i < begin + size; ++i) (access == Access::read ? reads : writes)[i] = true;
  }
  bool depends_on(const Command& earlier) const {
    for (size_t i = 0; i < memory.size(); ++i)
      if ((writes[i] && (earlier.reads[i] || earlier.writes[i])) || (reads[i] && earlier.writes[i])) return true;
    return false;
  }
};

TEST(Hazards, ABarrierIsPutExactlyBeforeCommandsThatDependOnOneSinceTheLast) {
  std::mt19937 random(1);
  size_t num_barriers = 0, num_free = 0;
  for (int round = 0; round < 300; ++round) {
    Hazards hazards;
    std::vector<Command> since_barrier;
    for (int c = 0; c < 30; ++c) {
      Command command;
      for (size_t k = random() % 4; k-- > 0;) {
        const size_t begin = random() % 60;
        command.add(begin, random() % std::min<size_t>(6, memory.size() - begin), random() % 3 == 0 ? Access::write : Access::read);
      }
      bool depends = false;
      for (const Command& earlier : since_barrier) depends |= command.depends_on(earlier);
      ASSERT_EQ(hazards.needs_barrier(command.uses), depends) << "round " << round << ", command " << c;
      if (depends) {
        hazards.clear();
        since_barrier.clear();
      }
      ++(depends ? num_barriers : num_free);
      hazards.add(command.uses);
      since_barrier.push_back(command);
    }
  }
  EXPECT_GT(num_barriers, 1000U);
  EXPECT_GT(num_free, 1000U);
}

TEST(Hazards, NothingIsKnownOfACommandThatDeclaresNothing) {
  Hazards hazards;
  EXPECT_FALSE(hazards.has_any());
  const MemoryUse read{&memory[0], 4, Access::read};
  hazards.add(std::span(&read, 1));
  EXPECT_TRUE(hazards.has_any());  // it may overwrite what is read
  EXPECT_FALSE(hazards.needs_barrier(std::span(&read, 1)));
  hazards.add_unknown();
  EXPECT_TRUE(hazards.needs_barrier(std::span(&read, 1)));
  EXPECT_TRUE(hazards.needs_barrier({}));
  hazards.clear();
  EXPECT_FALSE(hazards.needs_barrier(std::span(&read, 1)));
}

}  // namespace
}  // namespace treadle
