// Regular expressions in RE2's syntax; matching takes time linear in the text.
//
// A pattern is compiled to a nondeterministic automaton whose states are simulated in parallel (Thompson 1968, "Regular Expression Search
// Algorithm"). Models contain patterns from strangers, for which backtracking could take exponential time.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace treadle::kernels {

/// A set of code points.
class CharSet {
 public:
  using Range = std::pair<char32_t, char32_t>;  // (first, last), both included
  static constexpr char32_t kLast = 0x10FFFF;

  void add(char32_t first, char32_t last) { ranges_.emplace_back(first, last); }
  void add(const CharSet& other) { ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end()); }
  /// Adds the other case (upper or lower) of each code point.
  void fold_case();
  void negate();
  /// Sorts and merges ranges. Must be called before contains().
  void finish();
  bool contains(char32_t c) const;

 private:
  std::vector<Range> ranges_;
  std::array<uint64_t, 2> ascii_{};
};

class Regex {
 public:
  /// Compiles a pattern. @throws Error(invalid_model) with the position of a syntax error, Error(not_implemented) for Unicode properties
  /// (\p) and \C, or Error(resource_exhausted) for a pattern with more than 2^16 states
  explicit Regex(std::string_view pattern);

  enum class Op : uint8_t { set, split, jump, assertion, match };
  enum class Assertion : uint8_t { text_begin, text_end, line_begin, line_end, word, not_word };
  struct Instruction {
    Op op;
    Assertion assertion = Assertion::text_begin;
    uint32_t a = 0, b = 0;  // a: next instruction; b: the other one of a split; a set continues with the following instruction
    uint32_t set = 0;
  };

  const std::vector<Instruction>& program() const { return program_; }
  const CharSet& set(uint32_t index) const { return sets_[index]; }
  /// Returns the set if the pattern is a single set repeated one or more times ("[a-z]+"), which needs no automaton; otherwise null.
  const CharSet* run_of() const;

 private:
  friend class RegexCompiler;
  std::vector<Instruction> program_;
  std::vector<CharSet> sets_;
};

/// Working memory for matching one Regex. Not thread-safe.
class RegexMatcher {
 public:
  explicit RegexMatcher(const Regex& regex);

  /// Returns true if the whole text matches.
  bool full_match(std::string_view text);
  /// Finds the leftmost match that begins at `from` or later; if several begin at the same position, the longest. Returns its first byte
  /// and its end (exclusive).
  std::optional<std::pair<size_t, size_t>> search(std::string_view text, size_t from);

 private:
  struct Thread {
    uint32_t instruction;
    size_t start;
  };
  struct Threads {
    std::vector<Thread> list;
    std::vector<uint32_t> place;  // index of each listed instruction in the list
  };
  static std::optional<std::pair<size_t, size_t>> search_run(const CharSet& set, std::string_view text, size_t from);
  template <typename OnMatch>
  void add(Threads& threads, uint32_t instruction, size_t start, std::string_view text, size_t at, OnMatch on_match);
  template <typename Seed, typename OnMatch>
  void run(std::string_view text, size_t from, Seed seed, OnMatch on_match);

  const Regex& regex_;
  Threads now_, next_;
  std::vector<uint32_t> stack_;
};

}  // namespace treadle::kernels
