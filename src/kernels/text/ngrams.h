// Finds the n-grams of a pool in rows of tokens, with gaps if wanted.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "treadle/error.h"

namespace treadle::kernels {

/// n-grams of `shortest` to `longest` tokens, whose tokens stand 1 to 1 + max_skips places apart (the same distance within an n-gram).
struct NgramWindow {
  int64_t shortest = 1, longest = 1, max_skips = 0;
};

/// A prefix tree of n-grams. @tparam Token  std::string or int64_t.
template <typename Token>
class NgramIndex {
 public:
  /// @param pool     all 1-grams, then all 2-grams, …, token after token.
  /// @param starts   where the 1-grams, 2-grams, … begin in the pool.
  /// @param columns  of the n-grams, in the order of the pool.
  /// @throws Error(invalid_model) for starts that leave the pool, or too few columns.
  void build(const std::vector<Token>& pool, const std::vector<int64_t>& starts, const std::vector<int64_t>& columns,
             const NgramWindow& window) {
    columns_.assign(1, -1);
    auto size = static_cast<int64_t>(pool.size());
    tokens_.reserve(pool.size());
    edges_.reserve(pool.size());
    columns_.reserve(pool.size() + 1);
    size_t ngram = 0;
    for (size_t i = 0; i < starts.size(); ++i) {
      auto length = static_cast<int64_t>(i) + 1;
      int64_t first = starts[i], last = i + 1 < starts.size() ? starts[i + 1] : size;
      if (first < 0 || last < first || last > size || (last - first) % length != 0)
        throw Error(ErrorCode::invalid_model,
                    fmt::format("ngram_counts puts the {}-grams at [{}, {}) of {} pool elements", length, first, last, size));
      for (int64_t at = first; at < last; at += length, ++ngram) {
        if (ngram >= columns.size())
          throw Error(ErrorCode::invalid_model, fmt::format("ngram_indexes has {} elements, fewer than there are n-grams", columns.size()));
        if (length < window.shortest || length > window.longest) continue;
        uint32_t node = 0;
        for (int64_t k = 0; k < length; ++k) node = child_or_new(node, token_or_new(pool[static_cast<size_t>(at + k)]));
        if (columns_[node] < 0) columns_[node] = columns[ngram];
      }
    }
  }

  /// Calls found(column) for every occurrence in the row. 1-grams are counted once, not once for each distance.
  template <typename Given, typename Found>
  void count(const Given* row, int64_t length, const NgramWindow& window, Found found) const {
    std::vector<uint32_t> tokens(static_cast<size_t>(length));
    for (int64_t i = 0; i < length; ++i) tokens[static_cast<size_t>(i)] = token(row[i]);
    for (int64_t distance = 1; distance <= window.max_skips + 1 && distance <= std::max<int64_t>(length, 1); ++distance) {
      int64_t shortest = distance == 1 ? window.shortest : std::max<int64_t>(window.shortest, 2);
      if (shortest > window.longest) return;
      for (int64_t start = 0; start < length; ++start) {
        uint32_t node = 0;
        int64_t at = start;
        for (int64_t n = 1; n <= window.longest && at < length; ++n, at += distance) {
          node = child(node, tokens[static_cast<size_t>(at)]);
          if (node == 0) break;
          if (n >= shortest && columns_[node] >= 0) found(columns_[node]);
        }
      }
    }
  }

 private:
  static constexpr uint32_t kUnknown = UINT32_MAX;

  uint32_t token_or_new(const Token& token) { return tokens_.try_emplace(token, static_cast<uint32_t>(tokens_.size())).first->second; }
  uint32_t token(const Token& token) const {
    auto found = tokens_.find(token);
    return found == tokens_.end() ? kUnknown : found->second;
  }
  static uint64_t edge(uint32_t node, uint32_t token) { return uint64_t{node} << 32U | token; }
  uint32_t child_or_new(uint32_t node, uint32_t token) {
    auto [found, added] = edges_.try_emplace(edge(node, token), static_cast<uint32_t>(columns_.size()));
    if (added) columns_.push_back(-1);
    return found->second;
  }
  uint32_t child(uint32_t node, uint32_t token) const {
    if (token == kUnknown) return 0;
    auto found = edges_.find(edge(node, token));
    return found == edges_.end() ? 0 : found->second;
  }

  std::unordered_map<Token, uint32_t> tokens_;
  std::unordered_map<uint64_t, uint32_t> edges_;  // node 0 is the root
  std::vector<int64_t> columns_;                  // of a node; -1 if no n-gram ends there
};

}  // namespace treadle::kernels
