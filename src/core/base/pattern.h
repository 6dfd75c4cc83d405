// Patterns over names.
#pragma once

#include <fnmatch.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

namespace treadle {

/// `*` matches any text, `?` one byte. Every other byte matches itself, including brackets, which names of nodes contain.
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

/// True if the name equals the pattern or matches it as the shell's: also [...] for one byte of a set. `*` also matches dots and slashes.
inline bool matches_shell(const std::string& pattern, const std::string& name) {
  return pattern == name || fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}
inline bool matches_any(std::span<const std::string> patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) { return matches_shell(pattern, name); });
}

}  // namespace treadle
