// Runs a small fixed part of the campaign of treadle_file_fuzz.
#include <gtest/gtest.h>

#include <string>

#include "tests/fuzz/campaign.h"
#include "tests/sanitizers.h"

namespace treadle::fuzz {
namespace {

class ChangedFiles : public ::testing::TestWithParam<size_t> {};

TEST_P(ChangedFiles, AreRefusedOrUsed) {
  if (test::kThreadSanitizer) GTEST_SKIP() << "it cannot follow threads into forked processes";
  const FileKind& kind = file_kinds()[GetParam()];
  // Jobs may wait as long as a changed page tells them to, so there are few cases.
  const bool is_slow = kind.name == "artifacts" || kind.name == "recording" || kind.name == "profile";
  const uint64_t count = kind.name == "jobs" ? 16 : is_slow ? 100 : 500;
  const CampaignResult result = run_campaign(kind, {.count = count, .seconds_per_case = 60, .failures = 5});
  for (const Failure& failure : result.failures) ADD_FAILURE() << "seed " << failure.seed << ": " << failure.what;
  EXPECT_GT(result.used, 0U) << "nothing of what was changed could be used";
}

INSTANTIATE_TEST_SUITE_P(Files, ChangedFiles, ::testing::Range(size_t{0}, file_kinds().size()),
                         [](const auto& info) { return file_kinds()[info.param].name; });

}  // namespace
}  // namespace treadle::fuzz
