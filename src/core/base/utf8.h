// Code points of UTF-8 strings. A byte that is not part of a valid sequence counts as U+FFFD.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace treadle {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;

struct CodePoint {
  char32_t value;
  size_t size_bytes;
};

/// Decodes the code point at `at`. @pre at < text.size()
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

/// Returns the offset of the first byte that is not valid UTF-8; npos if there is none.
size_t find_not_utf8(std::string_view text);
inline bool is_utf8(std::string_view text) { return find_not_utf8(text) == std::string_view::npos; }

/// Escapes text for terminals, logs and errors: control characters except tabs and line ends, and bytes that are not UTF-8, become \xNN.
/// Text from files may contain anything, including sequences that control a terminal.
std::string printable(std::string text);

}  // namespace treadle
