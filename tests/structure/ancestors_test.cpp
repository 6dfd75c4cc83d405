// Checks that all symbols, tests and examples exist that docs/ancestors.md names.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <string>

namespace {

std::string contents(const std::string& path) {
  std::ifstream in(std::string(TREADLE_SOURCE_DIR) + "/" + path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Structure, WhatTheAncestorsPageNamesExists) {
  const std::regex row("^\\|[^|]+\\| `([^`:]+):([^`]+)` \\| `([^`:]+):([^`]+)` \\| `([^`]+)` \\|$");
  std::ifstream page(std::string(TREADLE_SOURCE_DIR) + "/docs/ancestors.md");
  int rows = 0;
  for (std::string line; std::getline(page, line);) {
    if (line.empty() || line[0] != '|' || line.starts_with("|---") || line.starts_with("| capability")) continue;
    std::smatch match;
    ASSERT_TRUE(std::regex_match(line, match, row)) << line;
    ++rows;
    EXPECT_NE(contents(match[1]).find(match[2].str()), std::string::npos) << match[1] << " has no " << match[2];
    const std::string test = match[4];
    const size_t dot = test.find('.');
    const std::string in_suite = "(" + test.substr(0, dot) + ", " + (dot == std::string::npos ? "" : test.substr(dot + 1)) + ")";
    const std::string tests = contents(match[3]);
    const bool found = dot == std::string::npos
                           ? tests.find("def " + test + "(") != std::string::npos
                           : tests.find("TEST" + in_suite) != std::string::npos || tests.find("TEST_F" + in_suite) != std::string::npos ||
                                 tests.find("TEST_P" + in_suite) != std::string::npos;
    EXPECT_TRUE(found) << match[3] << " has no test " << test;
    EXPECT_FALSE(contents(match[5]).empty()) << match[5];
  }
  EXPECT_GT(rows, 40);
}

}  // namespace
