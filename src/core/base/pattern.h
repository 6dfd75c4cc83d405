// Matches names against patterns.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

namespace treadle {

/// True if the pattern matches the whole text: * matches any text, ? one byte. All other characters match only themselves, even the
/// brackets that names of nodes contain.
inline bool matches(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, retry = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      retry = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p, ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++retry;  // lets the last star match one more byte
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

inline bool matches_any(std::span<const std::string> patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) { return matches(pattern, name); });
}

}  // namespace treadle
