#include "core/base/json_depth.h"

#include <gtest/gtest.h>

#include <string>

namespace treadle {
namespace {

std::string nested(size_t depth, const std::string& open, const std::string& close) {
  std::string text;
  for (size_t i = 0; i < depth; ++i) text += open;
  for (size_t i = 0; i < depth; ++i) text += close;
  return text;
}

TEST(JsonDepth, CountsArraysAndObjectsAndNoTexts) {
  EXPECT_TRUE(is_shallow_json(""));
  EXPECT_TRUE(is_shallow_json(nested(kMaxJsonDepth, "[", "]")));
  EXPECT_FALSE(is_shallow_json(nested(kMaxJsonDepth + 1, "[", "]")));
  EXPECT_FALSE(is_shallow_json(nested(kMaxJsonDepth + 1, "{\"a\":", "}")));
  EXPECT_TRUE(is_shallow_json("\"" + nested(1000, "[", "") + "\""));
  EXPECT_TRUE(is_shallow_json("\"\\\"" + nested(1000, "[", "") + "\""));
  EXPECT_FALSE(is_shallow_json("\"\\\\\"" + nested(1000, "[", "")));
  std::string beside = "[";
  for (int i = 0; i < 1000; ++i) beside += "[[]],";
  EXPECT_TRUE(is_shallow_json(beside + "0]"));
}

}  // namespace
}  // namespace treadle
