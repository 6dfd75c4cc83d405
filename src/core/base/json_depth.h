// A limit on the nesting of JSON, because code that writes or walks it is recursive.
#pragma once

#include <cstddef>
#include <string_view>

namespace treadle {

inline constexpr size_t kMaxJsonDepth = 100;  // reports have 8 levels

/// True if arrays and objects nest at most kMaxJsonDepth deep. Unspecified for text that is not JSON.
inline bool is_shallow_json(std::string_view text) {
  size_t depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
      case '"':
        for (++i; i < text.size() && text[i] != '"'; ++i)
          if (text[i] == '\\') ++i;
        break;
      case '[':
      case '{':
        if (++depth > kMaxJsonDepth) return false;
        break;
      case ']':
      case '}':
        if (depth > 0) --depth;
        break;
      default: break;
    }
  }
  return true;
}

}  // namespace treadle
