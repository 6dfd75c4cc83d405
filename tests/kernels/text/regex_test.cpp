#include "kernels/text/regex.h"

#include <gtest/gtest.h>

#include <regex>
#include <string>

#include "tests/kernels/random.h"
#include "treadle/error.h"

namespace treadle::kernels {
namespace {

bool matches(std::string_view pattern, std::string_view text) {
  Regex regex(pattern);
  return RegexMatcher(regex).full_match(text);
}

std::string found(std::string_view pattern, std::string_view text) {
  Regex regex(pattern);
  auto match = RegexMatcher(regex).search(text, 0);
  return match ? std::string(text.substr(match->first, match->second - match->first)) : "(none)";
}

ErrorCode error_of(std::string_view pattern) {
  try {
    Regex regex(pattern);
    return ErrorCode::ok;
  } catch (const Error& error) {
    return error.code();
  }
}

TEST(Regex, MatchesTheWholeText) {
  EXPECT_TRUE(matches("", ""));
  EXPECT_FALSE(matches("", "a"));
  EXPECT_TRUE(matches("a|ab", "ab"));  // the match is not the first alternative, but one that reaches the end
  EXPECT_TRUE(matches("(a|b)*c{2,3}", "ababccc"));
  EXPECT_FALSE(matches("(a|b)*c{2,3}", "abcccc"));
  EXPECT_TRUE(matches("x{2,}", "xxxx"));
  EXPECT_TRUE(matches("a{,3}", "a{,3}"));  // these braces are no repetition, but characters
  EXPECT_TRUE(matches("(?:a*)*b", "aaab"));
}

TEST(Regex, KnowsClasses) {
  EXPECT_TRUE(matches("[^abc]+", "xyz\n"));
  EXPECT_TRUE(matches("[]a-]+", "]-a"));
  EXPECT_TRUE(matches("[[:alpha:]_]+[[:^digit:]]", "a_b-"));
  EXPECT_TRUE(matches("\\d+\\D\\w\\W\\s\\S", "12a_- x"));
  EXPECT_TRUE(matches("[\\d.]+", "3.14"));
  EXPECT_FALSE(matches("\\d", "\xd9\xa3"));  // ARABIC-INDIC DIGIT THREE is no digit, because RE2's classes contain only ASCII
  EXPECT_FALSE(matches(".", "\n"));
  EXPECT_TRUE(matches("(?s).", "\n"));
}

// A repeated set such as [a-c]+ is matched by a special loop. Written as x x*, the same expression is matched by the automaton.
TEST(Regex, RunsOfOneSetAreWhatTheAutomatonFinds) {
  for (const std::string set : {"[a-c]", "[^a-c]", "(?i)\xe9", "."}) {
    const Regex run(set + "+"), automaton("(?:" + set + "(?:" + set + ")*)|(?:" + set + ")");
    ASSERT_NE(run.run_of(), nullptr) << set;
    ASSERT_EQ(automaton.run_of(), nullptr) << set;
    for (const std::string_view text : {"", "abxcz", "xabc", "xyz", "\xc3\x89\xc3\xa9-\xff\xc3", "a\xc3\xa9\nc"})
      for (size_t from = 0; from <= text.size(); ++from)
        EXPECT_EQ(RegexMatcher(run).search(text, from), RegexMatcher(automaton).search(text, from))
            << set << " in " << text << " from " << from;
  }
  for (const std::string other : {"a*", "a{2,}", "ab+", "a+b", "(?:a|b)+"}) EXPECT_EQ(Regex(other).run_of(), nullptr) << other;
}

TEST(Regex, KnowsEscapes) {
  EXPECT_TRUE(matches("\\x41\\x{1F600}\\101\\n\\.",
                      "A\xF0\x9F\x98\x80"
                      "A\n."));
  EXPECT_TRUE(matches("\\Qa.b*\\Ec", "a.b*c"));
}

TEST(Regex, KnowsAssertions) {
  EXPECT_EQ(found("\\bcat\\b", "concat cat"), "cat");
  EXPECT_EQ(found("^b", "a\nb"), "(none)");
  EXPECT_EQ(found("(?m)^b$", "a\nb\nc"), "b");
  EXPECT_EQ(found("a$", "a\n"), "(none)");  // $ matches at the end of the text, not before its last newline
  EXPECT_TRUE(matches("\\Aab\\z", "ab"));
  EXPECT_EQ(found("\\Bcat", "concat cat"), "cat");
}

TEST(Regex, FoldsCase) {
  EXPECT_TRUE(matches("(?i)straSSe[x-z]", "STRAssEY"));
  EXPECT_TRUE(matches("(?i:a)b", "Ab"));
  EXPECT_FALSE(matches("(?i:a)b", "AB"));
  EXPECT_TRUE(matches("(?i)\xc3\xa9", "\xc3\x89"));  // é, É
  EXPECT_TRUE(matches("(a(?i)b)c", "aBc"));
  EXPECT_FALSE(matches("(a(?i)b)c", "aBC"));  // the flag ends with its group
}

TEST(Regex, ReadsUtf8) {
  EXPECT_TRUE(matches("..", "\xc3\xa9\xe2\x82\xac"));
  EXPECT_TRUE(matches("[\xc3\xa0-\xc3\xbf]", "\xc3\xa9"));
  EXPECT_TRUE(matches("..", "\xff\xfe"));  // bytes that are no text count as one character each
}

TEST(Regex, FindsTheLeftmostLongestMatch) {
  EXPECT_EQ(found("foo|foobar", "a foobar"), "foobar");
  EXPECT_EQ(found("b+|abbb", "abbb"), "abbb");
  EXPECT_EQ(found("b*", "abb"), "");  // the empty match at 0 is further to the left
  EXPECT_EQ(found("x", "abc"), "(none)");
}

TEST(Regex, RefusesWhatIsNoPattern) {
  for (std::string_view pattern :
       {"(", ")", "a)", "[", "[z-a]", "*a", "a**", "a{3,2}", "a{1001}", "\\", "\\1", "(?<", "(?=a)", "(?<!a)", "\\y"})
    EXPECT_EQ(error_of(pattern), ErrorCode::invalid_model) << pattern;
  EXPECT_EQ(error_of("\\pL"), ErrorCode::not_implemented);
  EXPECT_EQ(error_of("((a{100}){100}){100}"), ErrorCode::resource_exhausted);
  EXPECT_EQ(error_of(std::string(100000, '(')), ErrorCode::invalid_model);
}

TEST(Regex, TakesLinearTimeWhereBacktrackingWouldNot) {
  std::string text(2000, 'a');
  EXPECT_FALSE(matches("(a*)*(a|aa)+b", text));
  EXPECT_TRUE(matches("(a?){500}a{500}", std::string(500, 'a')));
}

std::string random_pattern(test::Random& random, int depth) {
  switch (depth == 0 ? random.integer(0, 3) : random.integer(0, 8)) {
    case 0: return "a";
    case 1: return "b";
    case 2: return "[^a]";
    case 3: return ".";
    case 4: return random_pattern(random, depth - 1) + random_pattern(random, depth - 1);
    case 5: return "(" + random_pattern(random, depth - 1) + "|" + random_pattern(random, depth - 1) + ")";
    case 6: return "(" + random_pattern(random, depth - 1) + ")*";
    case 7: return "(" + random_pattern(random, depth - 1) + "){1,2}";
    default: return "(" + random_pattern(random, depth - 1) + ")?";
  }
}

TEST(Regex, AgreesWithTheStandardLibraryOnRandomPatterns) {
  test::Random random;
  for (int i = 0; i < 300; ++i) {
    std::string pattern = random_pattern(random, 4);
    Regex ours(pattern);
    RegexMatcher matcher(ours);
    std::regex theirs(pattern);
    for (int k = 0; k < 20; ++k) {
      std::string text;
      for (int64_t n = random.integer(0, 7); n > 0; --n) text += "abc"[random.integer(0, 2)];
      ASSERT_EQ(matcher.full_match(text), std::regex_match(text, theirs)) << pattern << " on " << text;
    }
  }
}

}  // namespace
}  // namespace treadle::kernels
