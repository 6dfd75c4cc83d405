#include "session/in_flight.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace treadle {
namespace {

TEST(RunsInFlight, AnEntryThatOutlivesItsCallKeepsItsTag) {
  RunsInFlight runs;
  auto tag = std::make_unique<std::string>(64, 't');
  const std::shared_ptr<RunsInFlight::Entry> entry = runs.enter(7, *tag);
  tag->assign(64, 'x');
  tag.reset();
  const std::vector<UnfinishedRun> left = runs.close(/*timeout_ms=*/0);
  ASSERT_EQ(left.size(), 1U);
  EXPECT_EQ(left[0].run_id, 7U);
  EXPECT_EQ(left[0].tag, std::string(64, 't'));
}

}  // namespace
}  // namespace treadle
