// The 32-bit variant of MurmurHash3 (Austin Appleby, public domain: smhasher, MurmurHash3_x86_32).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace treadle::kernels {

inline uint32_t murmur_hash3(std::span<const std::byte> bytes, uint32_t seed) {
  auto byte = [&](size_t i) { return static_cast<uint32_t>(bytes[i]); };
  auto scrambled = [](uint32_t word) { return std::rotl(word * 0xcc9e2d51U, 15) * 0x1b873593U; };
  uint32_t hash = seed;
  const size_t whole = bytes.size() / 4 * 4;
  for (size_t i = 0; i < whole; i += 4) {
    hash ^= scrambled(byte(i) | byte(i + 1) << 8U | byte(i + 2) << 16U | byte(i + 3) << 24U);
    hash = std::rotl(hash, 13) * 5 + 0xe6546b64U;
  }
  uint32_t rest = 0;
  for (size_t i = bytes.size(); i > whole; --i) rest = rest << 8U | byte(i - 1);
  hash ^= scrambled(rest);
  hash ^= static_cast<uint32_t>(bytes.size());
  hash = (hash ^ hash >> 16U) * 0x85ebca6bU;
  hash = (hash ^ hash >> 13U) * 0xc2b2ae35U;
  return hash ^ hash >> 16U;
}

}  // namespace treadle::kernels
