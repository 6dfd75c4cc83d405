// A 64-bit checksum for files that Treadle writes. It detects damaged files, but does not protect against tampering.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace treadle::compiled {

/// Returns the checksum of the bytes. Runs four independent chains of multiplications over 64-bit words, so that memory limits its speed.
inline uint64_t checksum(std::span<const std::byte> bytes) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15ULL;
  auto mix = [](uint64_t sum, uint64_t word) {
    sum = (sum ^ word) * kOdd;
    return sum ^ sum >> 29;
  };
  uint64_t sums[4] = {1, 2, 3, 4};
  size_t at = 0;
  for (; at + 32 <= bytes.size(); at += 32) {
    uint64_t words[4];
    std::memcpy(words, bytes.data() + at, 32);
    for (int i = 0; i < 4; ++i) sums[i] = mix(sums[i], words[i]);
  }
  for (; at < bytes.size(); ++at) sums[0] = mix(sums[0], static_cast<uint64_t>(bytes[at]));
  uint64_t sum = bytes.size();
  for (uint64_t part : sums) sum = mix(sum, part);
  return sum;
}

}  // namespace treadle::compiled
