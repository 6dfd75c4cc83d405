// Finds n-grams of a vocabulary in rows of tokens, optionally with gaps between the tokens.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "treadle/error.h"

namespace treadle::kernels {

/// Matches n-grams of `shortest` to `longest` tokens. All tokens of an n-gram have the same distance, 1 to 1 + max_skips positions.
struct NgramWindow {
  int64_t shortest = 1, longest = 1, max_skips = 0;
};

/// Assigns numbers to keys in order of insertion. Uses open addressing, because allocating the nodes of a std::unordered_map took most of
/// the time of making a session with a large vocabulary.
template <typename Key>
class Numbering {
 public:
  static constexpr uint32_t kUnknown = UINT32_MAX;

  /// Reserves memory for this number of keys. @pre no key was added
  void reserve(size_t keys) {
    keys_.reserve(keys);
    slots_.assign(std::bit_ceil(2 * keys + 1), kUnknown);
  }
  /// Returns the key's number; a new key is added. @pre the number of keys is less than reserved
  uint32_t add(const Key& key) {
    uint32_t& slot = slots_[place(key)];
    if (slot == kUnknown) {
      slot = static_cast<uint32_t>(keys_.size());
      keys_.push_back(key);
    }
    return slot;
  }
  uint32_t find(const Key& key) const { return slots_.empty() ? kUnknown : slots_[place(key)]; }
  size_t size() const { return keys_.size(); }

 private:
  size_t place(const Key& key) const {
    // Returns the slot of a key. std::hash leaves integers unchanged. Multiplying them by an odd number near 2^64 / phi and taking the high
    // bits spreads them.
    uint64_t spread = uint64_t{std::hash<Key>()(key)} * 0x9e3779b97f4a7c15U;
    size_t mask = slots_.size() - 1, at = static_cast<size_t>(spread >> 32U) & mask;
    while (slots_[at] != kUnknown && keys_[slots_[at]] != key) at = (at + 1) & mask;
    return at;
  }

  std::vector<Key> keys_;
  std::vector<uint32_t> slots_;  // the number of slots is a power of two; at most half of them are used
};

/// A prefix tree of n-grams. @tparam Token  std::string or int64_t
template <typename Token>
class NgramIndex {
 public:
  /// @param pool     all 1-grams, then all 2-grams etc., as consecutive tokens
  /// @param starts   index in the pool where the 1-grams, 2-grams etc. begin
  /// @param columns  column of each n-gram, in the order of the pool
  /// @throws Error(invalid_model) if a start is outside the pool or there are too few columns
  void build(const std::vector<Token>& pool, const std::vector<int64_t>& starts, const std::vector<int64_t>& columns,
             const NgramWindow& window) {
    columns_.assign(1, -1);
    tokens_ = {};
    edges_ = {};
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
        for (int64_t k = 0; k < length; ++k) node = child_or_new(node, tokens_.add(pool[static_cast<size_t>(at + k)]));
        if (columns_[node] < 0) columns_[node] = columns[ngram];
      }
    }
  }

  /// Calls found(column) for each occurrence of an n-gram in the row. A 1-gram is found once, not once for each skip distance.
  template <typename Given, typename Found>
  void count(const Given* row, int64_t length, const NgramWindow& window, Found found) const {
    std::vector<uint32_t> tokens(static_cast<size_t>(length));
    for (int64_t i = 0; i < length; ++i) tokens[static_cast<size_t>(i)] = tokens_.find(row[i]);
    for (int64_t distance = 1; distance - 1 <= window.max_skips && distance <= std::max<int64_t>(length, 1); ++distance) {
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
  static constexpr uint32_t kUnknown = Numbering<Token>::kUnknown;

  static uint64_t edge(uint32_t node, uint32_t token) { return uint64_t{node} << 32U | token; }
  // Returns the child of a node for a token, and adds it if needed. Node 0 is the root; the edge with number n leads to node n + 1.
  uint32_t child_or_new(uint32_t node, uint32_t token) {
    uint32_t to = edges_.add(edge(node, token)) + 1;
    if (to == columns_.size()) columns_.push_back(-1);
    return to;
  }
  uint32_t child(uint32_t node, uint32_t token) const {
    if (token == kUnknown) return 0;
    uint32_t found = edges_.find(edge(node, token));
    return found == kUnknown ? 0 : found + 1;
  }

  Numbering<Token> tokens_;
  Numbering<uint64_t> edges_;
  std::vector<int64_t> columns_;  // column of each node; -1 if no n-gram ends there
};

}  // namespace treadle::kernels
