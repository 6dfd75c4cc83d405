// UTF-8 decoding and encoding for text operators.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/utf8.h"

namespace treadle::kernels {

using treadle::CodePoint;
using treadle::decode_utf8;
using treadle::kReplacementCharacter;

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

/// Returns the number of code points.
inline int64_t count_utf8(std::string_view text) {
  int64_t count = 0;
  for (size_t at = 0; at < text.size(); at += decode_utf8(text, at).size_bytes) ++count;
  return count;
}

}  // namespace treadle::kernels
