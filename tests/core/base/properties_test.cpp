#include "core/base/properties.h"

#include <gtest/gtest.h>

namespace treadle {
namespace {

TEST(Properties, AChangedCopyLeavesTheOthersAsTheyWere) {
  Properties one{{"a", "1"}};
  one.emplace_back("b", "2");
  Properties other = one;
  EXPECT_TRUE(other.shares_with(one));
  other.push_back({"c", "3"});
  EXPECT_EQ(one, (Properties{{"a", "1"}, {"b", "2"}}));
  EXPECT_EQ(other, (Properties{{"a", "1"}, {"b", "2"}, {"c", "3"}}));
  EXPECT_FALSE(other.shares_with(one));
  Properties third = one;
  erase_if(third, [](const auto& entry) { return entry.first == "a"; });
  EXPECT_EQ(one.size(), 2U);
  EXPECT_EQ(third, (Properties{{"b", "2"}}));
}

TEST(Properties, KeepOrderAndRepeatedKeys) {
  Properties list{{"k", "1"}};
  list.append({{"k", "2"}, {"j", "3"}});
  EXPECT_EQ(list, (Properties{{"k", "1"}, {"k", "2"}, {"j", "3"}}));
  list.append(list);
  EXPECT_EQ(list.size(), 6U);
  EXPECT_EQ(list[5].second, "3");
}

TEST(Properties, NoneAreNoneHoweverTheyCameAbout) {
  Properties emptied{{"k", "1"}};
  erase_if(emptied, [](const auto&) { return true; });
  Properties cleared{{"k", "1"}};
  cleared.clear();
  EXPECT_EQ(emptied, Properties());
  EXPECT_EQ(cleared, Properties());
  EXPECT_TRUE(emptied.empty() && cleared.empty());
  cleared.append(Properties());
  EXPECT_EQ(cleared.begin(), cleared.end());
}

}  // namespace
}  // namespace treadle
