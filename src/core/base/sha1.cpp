#include "core/base/sha1.h"

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

namespace treadle {
namespace {

constexpr size_t kBlock = 64;

using State = std::array<uint32_t, 5>;

uint32_t big_endian(const std::byte* at) {
  return std::to_integer<uint32_t>(at[0]) << 24U | std::to_integer<uint32_t>(at[1]) << 16U | std::to_integer<uint32_t>(at[2]) << 8U |
         std::to_integer<uint32_t>(at[3]);
}

void add_block(State& state, const std::byte* block) {
  // A ring of the last 16 words of the message schedule.
  std::array<uint32_t, 16> words{};
  for (size_t i = 0; i < words.size(); ++i) words[i] = big_endian(block + 4 * i);
  auto [a, b, c, d, e] = state;
  auto round = [&](size_t t, uint32_t f, uint32_t k) {
    uint32_t& word = words[t % 16];
    if (t >= 16) word = std::rotl(words[(t + 13) % 16] ^ words[(t + 8) % 16] ^ words[(t + 2) % 16] ^ word, 1);
    const uint32_t next = std::rotl(a, 5) + f + e + k + word;
    e = d, d = c, c = std::rotl(b, 30), b = a, a = next;
  };
  for (size_t t = 0; t < 20; ++t) round(t, (b & c) | (~b & d), 0x5a827999U);
  for (size_t t = 20; t < 40; ++t) round(t, b ^ c ^ d, 0x6ed9eba1U);
  for (size_t t = 40; t < 60; ++t) round(t, (b & c) | (b & d) | (c & d), 0x8f1bbcdcU);
  for (size_t t = 60; t < 80; ++t) round(t, b ^ c ^ d, 0xca62c1d6U);
  state = {state[0] + a, state[1] + b, state[2] + c, state[3] + d, state[4] + e};
}

}  // namespace

std::string sha1(std::span<const std::byte> data) {
  State state = {0x67452301U, 0xefcdab89U, 0x98badcfeU, 0x10325476U, 0xc3d2e1f0U};
  const size_t whole = data.size() / kBlock * kBlock, rest = data.size() - whole;
  for (size_t at = 0; at < whole; at += kBlock) add_block(state, data.data() + at);
  // Padding: a one bit, zeros, and the length in bits. It may need an additional block.
  std::array<std::byte, 2 * kBlock> tail{};
  if (rest > 0) std::memcpy(tail.data(), data.data() + whole, rest);
  tail[rest] = std::byte{0x80};
  const size_t size = rest + 9 <= kBlock ? kBlock : 2 * kBlock;
  const uint64_t bits = uint64_t{data.size()} * 8;
  for (size_t i = 0; i < 8; ++i) tail[size - 1 - i] = static_cast<std::byte>(bits >> (8 * i));
  for (size_t at = 0; at < size; at += kBlock) add_block(state, tail.data() + at);
  std::string text;
  for (uint32_t word : state)
    for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 15U];
  return text;
}

}  // namespace treadle
