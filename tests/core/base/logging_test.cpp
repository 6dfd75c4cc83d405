#include "core/base/logging.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace treadle {
namespace {

// Collects log messages; afterwards restores the default sink and level.
class LoggingTest : public testing::Test {
 protected:
  void SetUp() override {
    set_log_sink([this](LogLevel level, std::string_view message, std::string_view file, int) {
      messages_.push_back(std::string(log_level_name(level)) + ": " + std::string(message));
      file_ = file;
    });
  }
  void TearDown() override {
    set_log_sink({});
    set_log_level(LogLevel::warning);
  }
  std::vector<std::string> messages_;
  std::string file_;
};

TEST_F(LoggingTest, NothingBelowWarningIsLoggedByDefault) {
  int evaluated = 0;
  TREADLE_LOG(verbose, "{}", ++evaluated);
  TREADLE_LOG(info, "{}", ++evaluated);
  EXPECT_EQ(evaluated, 0);
  TREADLE_LOG(warning, "{} of {}", 1, "two");
  TREADLE_LOG(error, "plain");
  EXPECT_EQ(messages_, (std::vector<std::string>{"warning: 1 of two", "error: plain"}));
  EXPECT_EQ(file_, "tests/core/base/logging_test.cpp");
}

TEST_F(LoggingTest, TheLevelCanBeLoweredAndRaised) {
  set_log_level(LogLevel::verbose);
  TREADLE_LOG(verbose, "now");
  set_log_level(LogLevel::fatal);
  TREADLE_LOG(error, "no longer");
  EXPECT_EQ(messages_, (std::vector<std::string>{"verbose: now"}));
}

TEST_F(LoggingTest, ASinkThatThrowsHarmsNobody) {
  set_log_sink([](LogLevel, std::string_view, std::string_view, int) { throw std::runtime_error("sink"); });
  EXPECT_NO_THROW(TREADLE_LOG(error, "x"));
}

TEST(Logging, TheDefaultSinkWritesToStandardError) {
  testing::internal::CaptureStderr();
  TREADLE_LOG(info, "unseen");
  TREADLE_LOG(warning, "shape {} against {}", "[1,2]", "[2,1]");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "treadle warning: shape [1,2] against [2,1]\n");
}

}  // namespace
}  // namespace treadle
