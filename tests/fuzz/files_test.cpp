// A slice of treadle_file_fuzz: the same files every time.
#include <gtest/gtest.h>

#include <string>

#include "tests/fuzz/campaign.h"

namespace treadle::fuzz {
namespace {

class ChangedFiles : public ::testing::TestWithParam<size_t> {};

TEST_P(ChangedFiles, AreRefusedOrUsed) {
  const FileKind& kind = file_kinds()[GetParam()];
  const bool is_slow = kind.name == "jobs" || kind.name == "artifacts" || kind.name == "recording" || kind.name == "profile";
  const CampaignResult result = run_campaign(kind, {.count = is_slow ? 100U : 500U, .seconds_per_case = 60, .failures = 5});
  for (const Failure& failure : result.failures) ADD_FAILURE() << "seed " << failure.seed << ": " << failure.what;
  EXPECT_GT(result.used, 0U) << "nothing of what was changed could be used";
}

INSTANTIATE_TEST_SUITE_P(Files, ChangedFiles, ::testing::Range(size_t{0}, file_kinds().size()),
                         [](const auto& info) { return file_kinds()[info.param].name; });

}  // namespace
}  // namespace treadle::fuzz
