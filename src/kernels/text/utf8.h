// UTF-8: code points of a string. A byte that is no part of a valid sequence counts as one U+FFFD.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace treadle::kernels {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;

struct CodePoint {
  char32_t value;
  size_t size_bytes;
};

/// The code point at `at` < text.size().
inline CodePoint decode_utf8(std::string_view text, size_t at) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  unsigned lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  size_t size = lead >= 0xF0 && lead < 0xF5 ? 4 : lead >= 0xE0 && lead < 0xF0 ? 3 : lead >= 0xC2 && lead < 0xE0 ? 2 : 0;
  if (size == 0 || at + size > text.size()) return {kReplacementCharacter, 1};
  char32_t value = lead & (0x7FU >> size);
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0U) != 0x80) return {kReplacementCharacter, 1};
    value = value << 6U | (byte(i) & 0x3FU);
  }
  constexpr char32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < kSmallest[size] || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) return {kReplacementCharacter, 1};
  return {value, size};
}

inline void append_utf8(std::string& text, char32_t value) {
  auto add = [&](char32_t bits) { text.push_back(static_cast<char>(bits)); };
  if (value < 0x80) return add(value);
  if (value < 0x800) {
    add(0xC0 | value >> 6U);
  } else {
    if (value < 0x10000) {
      add(0xE0 | value >> 12U);
    } else {
      add(0xF0 | value >> 18U);
      add(0x80 | (value >> 12U & 0x3FU));
    }
    add(0x80 | (value >> 6U & 0x3FU));
  }
  add(0x80 | (value & 0x3FU));
}

/// Number of code points.
inline int64_t count_utf8(std::string_view text) {
  int64_t count = 0;
  for (size_t at = 0; at < text.size(); at += decode_utf8(text, at).size_bytes) ++count;
  return count;
}

}  // namespace treadle::kernels
