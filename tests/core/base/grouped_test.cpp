#include "core/base/grouped.h"

#include <gtest/gtest.h>

#include <string>

namespace treadle {
namespace {

enum class RowId : int32_t {};

TEST(Grouped, ListsKeepTheOrderInWhichTheirElementsCame) {
  Grouped<RowId, std::string> rows(4);
  rows.add(RowId{2}, "a");
  rows.add(RowId{0}, "b");
  rows.add(RowId{2}, "c");
  rows.add(RowId{3}, "d");
  rows.add(RowId{2}, "e");
  rows.group();
  auto list = [&](int32_t row) { return std::vector<std::string>(rows[RowId{row}].begin(), rows[RowId{row}].end()); };
  EXPECT_EQ(list(0), std::vector<std::string>{"b"});
  EXPECT_EQ(list(1), std::vector<std::string>{});
  EXPECT_EQ(list(2), (std::vector<std::string>{"a", "c", "e"}));
  EXPECT_EQ(list(3), std::vector<std::string>{"d"});
}

TEST(Grouped, MayBeEmpty) {
  Grouped<RowId, int> rows(2);
  rows.group();
  EXPECT_TRUE(rows[RowId{1}].empty());
}

}  // namespace
}  // namespace treadle
