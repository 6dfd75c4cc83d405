#include "kernels/text/case.h"

#include <gtest/gtest.h>

#include "kernels/text/utf8.h"

namespace treadle::kernels {
namespace {

TEST(CaseMapper, MapsLettersOfAnyScript) {
  CaseMapper mapper("");
  EXPECT_EQ(mapper.lower("Ab1 \xc3\x89\xce\xa9"), "ab1 \xc3\xa9\xcf\x89");  // É Ω
  EXPECT_EQ(mapper.upper("ab1 \xc3\xa9\xd0\xb6"), "AB1 \xc3\x89\xd0\x96");  // é ж
}

TEST(CaseMapper, MapsEveryAsciiCharacterAsTheTablesDo) {
  for (char32_t c = 0; c < 128; ++c) {
    std::string text(1, static_cast<char>(c));
    EXPECT_EQ(CaseMapper("").lower(text), std::string(1, static_cast<char>(to_lower(c))));
    EXPECT_EQ(CaseMapper("").upper(text), std::string(1, static_cast<char>(to_upper(c))));
  }
}

TEST(CaseMapper, KeepsBytesThatAreNoText) {
  EXPECT_EQ(CaseMapper("").upper("a\xff"
                                 "b"),
            "A\xff"
            "B");
}

TEST(CaseMapper, TakesTheDefaultForALocaleThatIsNotThere) { EXPECT_EQ(CaseMapper("xx_YY").upper("i"), "I"); }

TEST(Utf8, RoundTripsEveryLengthOfSequence) {
  for (char32_t c : {U'a', U'\u007f', U'\u0080', U'\u07ff', U'\u0800', U'\uffff', U'\U00010000', U'\U0010ffff'}) {
    std::string text;
    append_utf8(text, c);
    CodePoint decoded = decode_utf8(text, 0);
    EXPECT_EQ(decoded.value, c);
    EXPECT_EQ(decoded.size_bytes, text.size());
  }
}

TEST(Utf8, CountsABadByteAsOneCharacter) {
  EXPECT_EQ(count_utf8("\xc3"), 1);              // a sequence that is cut off
  EXPECT_EQ(count_utf8("\xc0\xaf"), 2);          // an overlong encoding
  EXPECT_EQ(count_utf8("\xed\xa0\x80"), 3);      // an encoded surrogate
  EXPECT_EQ(count_utf8("\xf4\x90\x80\x80"), 4);  // a code point above U+10FFFF
}

}  // namespace
}  // namespace treadle::kernels
