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
    set_log_sink([this](const LogRecord& record) {
      messages_.push_back(std::string(log_level_name(record.level)) + ": " + std::string(record.text));
      file_ = record.file;
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

TEST_F(LoggingTest, CategoriesThatAreLeftOutStillWarn) {
  set_log_level(LogLevel::verbose, 1U << static_cast<unsigned>(LogCategory::run));
  EXPECT_TRUE(log_enabled(LogLevel::verbose, LogCategory::run));
  EXPECT_FALSE(log_enabled(LogLevel::info, LogCategory::program));
  EXPECT_TRUE(log_enabled(LogLevel::warning, LogCategory::program));
  set_log_level(LogLevel::error, 0);
  EXPECT_FALSE(log_enabled(LogLevel::warning, LogCategory::program));
}

TEST_F(LoggingTest, EventsHaveNamedValues) {
  std::vector<std::string> fields;
  set_log_sink([&](const LogRecord& record) {
    EXPECT_EQ(record.category, LogCategory::run);
    EXPECT_EQ(record.file, "tests/core/base/logging_test.cpp");
    for (const LogField& field : record.fields) fields.emplace_back(field.name);
  });
  log_event(LogLevel::info, LogCategory::run, {{"run", int64_t{3}}, {"ms", 0.5}, {"tag", std::string_view("a")}}, "run 3");
  EXPECT_EQ(fields, (std::vector<std::string>{"run", "ms", "tag"}));
}

TEST_F(LoggingTest, ASinkThatThrowsHarmsNobody) {
  set_log_sink([](const LogRecord&) { throw std::runtime_error("sink"); });
  EXPECT_NO_THROW(TREADLE_LOG(error, "x"));
}

TEST(Logging, TheDefaultSinkWritesToStandardError) {
  testing::internal::CaptureStderr();
  TREADLE_LOG(info, "unseen");
  TREADLE_LOG(warning, "shape {} against {}", "[1,2]", "[2,1]");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "treadle warning: shape [1,2] against [2,1]\n");
  testing::internal::CaptureStderr();
  log_event(LogLevel::error, LogCategory::memory, {}, "text");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "treadle error memory: text\n");
}

}  // namespace
}  // namespace treadle
