#include "core/base/sha1.h"

#include <gtest/gtest.h>

namespace treadle {
namespace {

std::string sha1_of(const std::string& text) { return sha1(std::as_bytes(std::span(text.data(), text.size()))); }

// Expected values: examples of FIPS 180-4, and results of Python's hashlib for lengths around the end of a block.
TEST(Sha1, GivesThePublishedDigests) {
  EXPECT_EQ(sha1_of(""), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
  EXPECT_EQ(sha1_of("abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
  EXPECT_EQ(sha1_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"), "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
  EXPECT_EQ(sha1_of(std::string(1'000'000, 'a')), "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
}

TEST(Sha1, PadsEveryLengthAroundABlocksEnd) {
  EXPECT_EQ(sha1_of(std::string(55, 'x')), "cef734ba81a024479e09eb5a75b6ddae62e6abf1");
  EXPECT_EQ(sha1_of(std::string(56, 'x')), "901305367c259952f4e7af8323f480d59f81335b");
  EXPECT_EQ(sha1_of(std::string(63, 'x')), "0ddc4e0cccd9a12850deb5abb0853a4425559fec");
  EXPECT_EQ(sha1_of(std::string(64, 'x')), "bb2fa3ee7afb9f54c6dfb5d021f14b1ffe40c163");
  EXPECT_EQ(sha1_of(std::string(65, 'x')), "78c741ddc482e4cdf8c474a0876347a0905b6233");
  EXPECT_EQ(sha1_of(std::string(119, 'x')), "4300320394f7ee239bcdce7d3b8bcee173a0cd5c");
  EXPECT_EQ(sha1_of(std::string(120, 'x')), "ceb2821639c4b6dcb10bce0e522ca2e608ce056d");
}

}  // namespace
}  // namespace treadle
