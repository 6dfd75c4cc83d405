#include "core/base/short_vector.h"

#include <gtest/gtest.h>

#include <string>

namespace treadle {
namespace {

TEST(ShortVector, LiesWithinTheObjectWhileItIsShort) {
  ShortVector<int64_t, 64> few(4);
  const auto* object = reinterpret_cast<const std::byte*>(&few);
  const auto* elements = reinterpret_cast<const std::byte*>(few.data());
  EXPECT_TRUE(elements >= object && elements < object + sizeof few);
  EXPECT_EQ(few[3], 0);
}

TEST(ShortVector, HoldsAnyNumber) {
  ShortVector<std::string, 128> texts;
  for (int i = 0; i < 100; ++i) texts.push_back("a text that is too long for the string itself " + std::to_string(i));
  ASSERT_EQ(texts.size(), 100U);
  EXPECT_TRUE(texts.front().ends_with(" 0"));
  EXPECT_TRUE(texts.back().ends_with(" 99"));
}

}  // namespace
}  // namespace treadle
