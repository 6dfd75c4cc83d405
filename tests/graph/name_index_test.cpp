#include "graph/name_index.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

namespace treadle {
namespace {

class Names : public ::testing::Test {
 protected:
  uint32_t find(std::string_view name, size_t hash) const {
    return index_.find(hash, name, [&](uint32_t place) -> std::string_view { return pool_.at(place); });
  }
  std::map<uint32_t, std::string> pool_;
  NameIndex index_;
};

TEST_F(Names, AnEmptyIndexHasNoneAndForgetsNothing) {
  EXPECT_EQ(find("a", NameIndex::hash("a")), NameIndex::kNone);
  index_.erase(NameIndex::hash("a"), 0);
  EXPECT_EQ(index_.size(), 0U);
}

TEST_F(Names, NamesOfOneHashAreToldApart) {
  for (uint32_t i = 0; i < 100; ++i) {
    pool_[i] = "name" + std::to_string(i);
    index_.insert(/*hash=*/7, i);
  }
  for (uint32_t i = 0; i < 100; i += 2) index_.erase(7, i);
  for (uint32_t i = 0; i < 100; ++i) EXPECT_EQ(find(pool_[i], 7), i % 2 == 0 ? NameIndex::kNone : i);
}

// With few different hashes, sequences of occupied table entries are long and wrap around the end of the table. Entries of erased names
// must be refilled correctly.
TEST_F(Names, FindsWhatAMapFindsWhileNamesComeAndGo) {
  for (uint32_t num_hashes : {1U, 3U, 16U, 1U << 20U}) {
    pool_.clear();
    index_ = {};
    std::mt19937 random(num_hashes);
    auto hash_of = [&](uint32_t place) { return size_t{place} * 2654435761U % num_hashes + (num_hashes < 20 ? 14 : 0); };
    for (int step = 0; step < 4000; ++step) {
      const uint32_t place = random() % 120;
      if (pool_.erase(place) > 0) {
        index_.erase(hash_of(place), place);
      } else {
        pool_[place] = std::to_string(place);
        index_.insert(hash_of(place), place);
      }
      ASSERT_EQ(index_.size(), pool_.size());
      const uint32_t asked = random() % 120;
      ASSERT_EQ(find(std::to_string(asked), hash_of(asked)), pool_.contains(asked) ? asked : NameIndex::kNone) << step;
    }
    for (uint32_t place = 0; place < 120; ++place)
      EXPECT_EQ(find(std::to_string(place), hash_of(place)), pool_.contains(place) ? place : NameIndex::kNone);
  }
}

}  // namespace
}  // namespace treadle
