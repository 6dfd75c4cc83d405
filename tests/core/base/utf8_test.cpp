#include "core/base/utf8.h"

#include <gtest/gtest.h>

namespace treadle {
namespace {

TEST(Utf8, FindsTheFirstByteThatIsNoPartOfIt) {
  for (const char* valid : {"", "plain",
                            "gr\xC3\xBC\xC3\x9F"
                            "e aus K\xC3\xB6ln",
                            "\xE6\xA0\x87\xE7\xAD\xBE", "\xF0\x9F\x98\x80", "\xEF\xBF\xBD"})
    EXPECT_EQ(find_not_utf8(valid), std::string_view::npos) << valid;
  EXPECT_EQ(find_not_utf8("\xFF"), 0U);
  EXPECT_EQ(find_not_utf8("eight letters, then \xE9"), 20U);
  EXPECT_EQ(find_not_utf8("cut \xE6\xA0"), 4U);
  EXPECT_EQ(find_not_utf8("overlong \xC0\xAF"), 9U);
  EXPECT_EQ(find_not_utf8("surrogate \xED\xA0\x80"), 10U);
}

TEST(Printable, KeepsTextAsItIs) {
  for (const char* text : {"", "layer1.0/conv2", "two\nlines and a\ttab", "\xE6\xA0\x87\xE7\xAD\xBE", "a \\x1b that was written so", "~ }"})
    EXPECT_EQ(printable(text), text);
}

TEST(Printable, EscapesWhatDrivesATerminal) {
  EXPECT_EQ(printable("\x1b[2Jname"), "\\x1b[2Jname");
  EXPECT_EQ(printable("a long name, and then \x1b]0;title\x07"), "a long name, and then \\x1b]0;title\\x07");
  EXPECT_EQ(printable("\rover"), "\\x0dover");
  EXPECT_EQ(printable("back\x08\x7f"), "back\\x08\\x7f");
  EXPECT_EQ(printable(std::string("nul\0l", 5)), "nul\\x00l");
  EXPECT_EQ(printable("CSI of 8 bits \xC2\x9B"
                      "31m"),
            "CSI of 8 bits \\xc2\\x9b31m");
}

TEST(Printable, EscapesBytesThatAreNotUtf8) {
  EXPECT_EQ(printable("caf\xE9"), "caf\\xe9");
  EXPECT_EQ(printable("\xFF\xFE"
                      "abc\xE6\xA0"),
            "\\xff\\xfe"
            "abc\\xe6\\xa0");
}

// Tests every pair of bytes at every position within a word: printable() must return UTF-8 without control characters.
TEST(Printable, LeavesNothingElse) {
  for (int first = 0; first < 256; ++first)
    for (int second = 0; second < 256; second += 5)
      for (size_t before = 0; before < 9; before += 2) {
        const std::string text = std::string(before, 'x') + static_cast<char>(first) + static_cast<char>(second) + "tail of nine";
        const std::string shown = printable(text);
        ASSERT_EQ(find_not_utf8(shown), std::string::npos);
        for (size_t at = 0; at < shown.size(); at += decode_utf8(shown, at).size_bytes) {
          const char32_t c = decode_utf8(shown, at).value;
          ASSERT_TRUE((c >= 0x20 && c < 0x7F) || c >= 0xA0 || c == '\n' || c == '\t') << first << " " << second;
        }
      }
}

TEST(Utf8, TakesWhatTheStandardAllows) {
  for (const char* text : {"", "plain", "\u00e4\u00f6", "\u0800", "\uffff", "\U00010000", "\U0010ffff", "a\u20acb"})
    EXPECT_TRUE(is_utf8(text)) << text;
  EXPECT_TRUE(is_utf8(std::string_view("a\0b", 3)));
}

// Tests the invalid sequences next to the limits of each lead byte, as in table 3-7 of the Unicode Standard.
TEST(Utf8, RefusesTheRest) {
  for (const char* text :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc2", "\xc2\x41", "\xc2\xc2", "\xe0\x9f\xbf", "\xe2\x82", "\xed\xa0\x80", "\xed\xbf\xbf",
        "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xfe", "a\xe9z", "\xf0\x9f\x98"})
    EXPECT_FALSE(is_utf8(text)) << text;
}

}  // namespace
}  // namespace treadle
