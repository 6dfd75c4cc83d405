// Tests the run log: what is told about sessions and runs, by category.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/session/models.h"
#include "treadle/hooks.h"
#include "treadle/treadle.hpp"

namespace treadle {
namespace {

using Json = nlohmann::json;

Tensor zeros(std::vector<int64_t> extents) {
  Tensor made(DType::float32, Shape(extents));
  std::memset(made.raw(), 0, made.size_bytes());
  return made;
}

Model softmax_of_sum() {
  testing::ModelBuilder b;
  b.def().graph.name = "logged";
  b.input("x", {-1, 3}).output("y", {-1, 3}).node("Exp", {"x"}, {"e"}).node("Softmax", {"e"}, {"y"});
  return b.model();
}

class LogTest : public ::testing::Test {
 protected:
  // Gets the messages of these categories from now on.
  void listen(const std::string& categories, LogSeverity lowest = LogSeverity::verbose) {
    set_log_callback(
        [this](LogSeverity severity, std::string_view line) {
          Json json = Json::parse(line);
          EXPECT_EQ(json["severity"], severity == LogSeverity::info ? "info" : severity == LogSeverity::verbose ? "verbose" : "warning");
          told_.push_back(std::move(json));
        },
        {.lowest = lowest, .categories = categories, .json = true});
  }
  void TearDown() override { set_log_callback({}); }
  std::vector<Json> told_;
};

TEST_F(LogTest, TellsOfSessionsAndRunsWithTheirTags) {
  listen("session,run");
  {
    const Session session(softmax_of_sum());
    RunOptions options;
    options.tag = "request \"7\"";
    session.run({{"x", zeros({2, 3})}}, {}, &options);
    options.on_metadata = [](const RunMetadata&) { throw Error(ErrorCode::cancelled, "stopped by the test"); };
    EXPECT_THROW(session.run({{"x", zeros({2, 3})}}, {}, &options), Error);
  }
  ASSERT_EQ(told_.size(), 6U);
  EXPECT_EQ(told_[0]["category"], "session");
  EXPECT_EQ(told_[0]["model"], "logged");
  EXPECT_GT(told_[0]["ms"], 0);
  EXPECT_EQ(told_[1]["run"], 0);
  EXPECT_EQ(told_[2]["run"], 0);
  EXPECT_EQ(told_[2]["tag"], "request \"7\"");
  EXPECT_EQ(told_[2]["error"], "");
  EXPECT_GT(told_[2]["ms"], 0);
  EXPECT_EQ(told_[3]["run"], 1);
  EXPECT_EQ(told_[4]["severity"], "info");
  EXPECT_NE(told_[4]["error"].get<std::string>().find("stopped by the test"), std::string::npos);
  EXPECT_EQ(told_[5]["runs"], 2);
  EXPECT_EQ(told_[5]["id"], told_[0]["id"]);
  for (const Json& one : told_) EXPECT_TRUE(one["time"].get<std::string>().ends_with("Z"));
}

TEST_F(LogTest, SaysWhyProgramsAreCompiledAndBound) {
  const Session session(softmax_of_sum());
  listen("program");
  session.run({{"x", zeros({2, 3})}});
  session.run({{"x", zeros({2, 3})}});
  session.run({{"x", zeros({5, 3})}});
  ASSERT_EQ(told_.size(), 2U);
  EXPECT_EQ(told_[0]["extents"], "x[2,3]");
  EXPECT_EQ(told_[1]["extents"], "x[5,3]");
  told_.clear();
  const std::vector<std::string> inner{"e"};
  session.run({{"x", zeros({2, 3})}}, inner);
  ASSERT_GE(told_.size(), 1U);
  EXPECT_EQ(told_[0]["fetched"], "e");
  EXPECT_EQ(told_[0]["fed"], "");
}

TEST_F(LogTest, SaysWhichProgramIsDropped) {
  testing::ModelBuilder b;
  b.input("x", {3}).output("y9", {3});
  for (int i = 0; i < 10; ++i) b.node("Abs", {i == 0 ? "x" : "y" + std::to_string(i - 1)}, {"y" + std::to_string(i)});
  const Session session(b.model());
  listen("program", LogSeverity::info);
  for (int i = 0; i < 9; ++i) {
    const std::vector<std::string> inner{"y" + std::to_string(i)};
    session.run({{"x", zeros({3})}}, inner);
  }
  const auto is_drop = [](const Json& one) { return one["message"].get<std::string>().find("drops") != std::string::npos; };
  const auto dropped = std::find_if(told_.begin(), told_.end(), is_drop);
  ASSERT_NE(dropped, told_.end());
  EXPECT_EQ((*dropped)["fetched"], "y0");
}

TEST_F(LogTest, SaysWhereNodesRun) {
  listen("placement");
  SessionOptions options;
  options.device = "sim";
  const Session session(softmax_of_sum(), options);
  ASSERT_GE(told_.size(), 2U);
  for (size_t i = 0; i + 1 < told_.size(); ++i) {
    EXPECT_EQ(told_[i]["severity"], "verbose");
    EXPECT_EQ(told_[i]["device"], "sim");
  }
  EXPECT_EQ(told_.back()["severity"], "info");
}

TEST_F(LogTest, SaysWhyNodesAreNotFused) {
  testing::ModelBuilder b;
  b.input("x", {1, 2, 4, 4}).output("y", {1, 2, 4, 4}).output("z", {1, 2, 4, 4});
  b.constant("w", zeros({2, 2, 1, 1})).node("Conv", {"x", "w"}, {"y"}).node("Relu", {"y"}, {"z"});
  listen("fusion");
  const Session session(b.model());
  ASSERT_FALSE(told_.empty());
  EXPECT_EQ(told_[0]["category"], "fusion");
  EXPECT_FALSE(told_[0]["reason"].get<std::string>().empty());
  EXPECT_FALSE(told_[0]["pass"].get<std::string>().empty());
}

TEST_F(LogTest, TellsOfLimits) {
  SessionOptions options;
  options.memory_limit_bytes = 1 << 20;
  const Session session(softmax_of_sum(), options);
  listen("memory");
  session.set_memory_limit(2 << 20);
  ASSERT_EQ(told_.size(), 1U);
  EXPECT_EQ(told_[0]["limit_bytes"], 2 << 20);
}

TEST_F(LogTest, CategoriesAndSeveritiesAreFiltered) {
  listen("s*,memory", LogSeverity::info);
  const Session session(softmax_of_sum());
  session.run({{"x", zeros({2, 3})}});
  ASSERT_EQ(told_.size(), 1U);
  EXPECT_EQ(told_[0]["category"], "session");
  EXPECT_THROW(listen("sessions"), Error);
  EXPECT_THROW(listen("run,,program"), Error);
}

}  // namespace
}  // namespace treadle
