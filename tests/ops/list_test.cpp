// Tests properties that all operators must have.
#include "ops/list.h"

#include <gtest/gtest.h>

#include <set>

namespace treadle {
namespace {

TEST(Operators, AreDefinedOnce) {
  std::set<std::pair<std::string_view, std::string_view>> seen;
  for (const OpDef& op : all_ops()) EXPECT_TRUE(seen.emplace(op.domain, op.name).second) << op.domain << ":" << op.name;
}

}  // namespace
}  // namespace treadle
