#include "core/files/content_digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace treadle {
namespace {

std::vector<std::byte> contents(size_t size_bytes) {
  std::vector<std::byte> bytes(size_bytes);
  for (size_t i = 0; i < size_bytes; ++i) bytes[i] = static_cast<std::byte>(i * 131 + (i >> 8));
  return bytes;
}

TEST(ContentDigest, EqualContentsHaveEqualDigestsAtAnyAddress) {
  for (size_t size : {0, 1, 1023, 1024, 1025, 32 * 1024, 40'000, 1'100'000}) {
    const auto bytes = contents(size);
    std::vector<std::byte> moved(size + 3);
    if (size > 0) std::memcpy(moved.data() + 3, bytes.data(), size);
    EXPECT_EQ(digest_of(bytes), digest_of(std::span(moved).subspan(3))) << size;
  }
}

TEST(ContentDigest, EveryBitCounts) {
  for (size_t size : {1, 1024, 33 * 1024 + 5, 1'100'000}) {
    auto bytes = contents(size);
    const ContentDigest before = digest_of(bytes);
    for (size_t at = 0; at < size; at += size / 97 + 1) {
      for (int bit : {0, 7}) {
        bytes[at] ^= std::byte{1} << bit;
        EXPECT_FALSE(digest_of(bytes) == before) << "byte " << at << " of " << size;
        bytes[at] ^= std::byte{1} << bit;
      }
    }
    EXPECT_EQ(digest_of(bytes), before);
  }
}

TEST(ContentDigest, ZerosOfAnotherNumberAreOtherContents) {
  const std::vector<std::byte> zeros(70'000);
  for (size_t size : {0, 1, 8, 1023, 1024, 2048, 32 * 1024, 33 * 1024, 70'000})
    for (size_t other : {2, 1000, 1025, 31 * 1024, 69'999})
      EXPECT_FALSE(digest_of(std::span(zeros).first(size)) == digest_of(std::span(zeros).first(other))) << size << ' ' << other;
}

TEST(ContentDigest, BlocksInAnotherOrderAreOtherContents) {
  auto bytes = contents(64 * 1024);
  const ContentDigest before = digest_of(bytes);
  std::swap_ranges(bytes.begin(), bytes.begin() + 1024, bytes.begin() + 5 * 1024);
  EXPECT_FALSE(digest_of(bytes) == before);
}

}  // namespace
}  // namespace treadle
