#include "kernels/text/regex.h"

#include <algorithm>

#include "kernels/text/case.h"
#include "kernels/text/utf8.h"

namespace treadle::kernels {

void CharSet::fold_case() {
  constexpr char32_t kLargestFolded = 2048;  // longer ranges cover whole scripts in both cases, so they need no case folding
  std::vector<Range> ranges = ranges_;
  for (auto [first, last] : ranges) {
    if (last - first > kLargestFolded) continue;
    for (char32_t c = first; c <= last; ++c) {
      char32_t lower = to_lower(c), upper = to_upper(c);
      if (lower != c) add(lower, lower);
      if (upper != c) add(upper, upper);
    }
  }
}

void CharSet::negate() {
  finish();
  std::vector<Range> gaps;
  char32_t next = 0;
  for (auto [first, last] : ranges_) {
    if (first > next) gaps.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next <= kLast) gaps.emplace_back(next, kLast);
  ranges_ = std::move(gaps);
}

void CharSet::finish() {
  std::sort(ranges_.begin(), ranges_.end());
  std::vector<Range> merged;
  for (auto range : ranges_) {
    if (!merged.empty() && range.first <= merged.back().second + 1)
      merged.back().second = std::max(merged.back().second, range.second);
    else
      merged.push_back(range);
  }
  ranges_ = std::move(merged);
  ascii_ = {};
  for (auto [first, last] : ranges_)
    for (char32_t c = first; c <= last && c < 128; ++c) ascii_[c / 64] |= uint64_t{1} << (c % 64);
}

bool CharSet::contains(char32_t c) const {
  if (c < 128) return ascii_[c / 64] >> (c % 64) & 1U;
  auto after = std::upper_bound(ranges_.begin(), ranges_.end(), c, [](char32_t value, const Range& range) { return value < range.first; });
  return after != ranges_.begin() && c <= std::prev(after)->second;
}

// Recognizes the program of x+: x, then a split that either goes back to x or ends.
const CharSet* Regex::run_of() const {
  constexpr std::array kRun{Op::set, Op::split, Op::set, Op::jump, Op::match};
  const auto& p = program_;
  if (!std::equal(p.begin(), p.end(), kRun.begin(), kRun.end(), [](const Instruction& i, Op op) { return i.op == op; })) return nullptr;
  return p[0].set == p[2].set && p[1].a == 2 && p[1].b == 4 && p[3].a == 1 ? &sets_[p[0].set] : nullptr;
}

RegexMatcher::RegexMatcher(const Regex& regex) : regex_(regex) {
  for (Threads* threads : {&now_, &next_}) {
    threads->list.reserve(regex.program().size());
    threads->place.resize(regex.program().size());
  }
}

namespace {

bool is_word(std::string_view text, size_t at) {
  if (at >= text.size()) return false;
  char c = text[at];
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
}

bool holds(Regex::Assertion assertion, std::string_view text, size_t at) {
  switch (assertion) {
    case Regex::Assertion::text_begin: return at == 0;
    case Regex::Assertion::text_end: return at == text.size();
    case Regex::Assertion::line_begin: return at == 0 || text[at - 1] == '\n';
    case Regex::Assertion::line_end: return at == text.size() || text[at] == '\n';
    default: break;
  }
  bool boundary = (at > 0 && is_word(text, at - 1)) != is_word(text, at);
  return boundary == (assertion == Regex::Assertion::word);
}

}  // namespace

// Adds an instruction as a thread, and all instructions that it reaches without reading a character. If an instruction is already listed,
// the listed thread stays, as it started first.
template <typename OnMatch>
void RegexMatcher::add(Threads& threads, uint32_t instruction, size_t start, std::string_view text, size_t at, OnMatch on_match) {
  stack_.assign(1, instruction);
  while (!stack_.empty()) {
    uint32_t i = stack_.back();
    stack_.pop_back();
    uint32_t place = threads.place[i];
    if (place < threads.list.size() && threads.list[place].instruction == i) continue;
    threads.place[i] = static_cast<uint32_t>(threads.list.size());
    threads.list.push_back({i, start});
    const Regex::Instruction& code = regex_.program()[i];
    switch (code.op) {
      case Regex::Op::set: break;
      case Regex::Op::split:
        stack_.push_back(code.b);
        stack_.push_back(code.a);
        break;
      case Regex::Op::jump: stack_.push_back(code.a); break;
      case Regex::Op::assertion:
        if (holds(code.assertion, text, at)) stack_.push_back(i + 1);
        break;
      case Regex::Op::match: on_match(start, at); break;
    }
  }
}

// Runs the automaton until no thread is left and no further match can begin.
// @param seed      seed(at) returns true if a match may begin at `at`
// @param on_match  on_match(start, end) may be called several times
template <typename Seed, typename OnMatch>
void RegexMatcher::run(std::string_view text, size_t from, Seed seed, OnMatch on_match) {
  now_.list.clear();
  for (size_t at = from;;) {
    if (seed(at)) add(now_, 0, at, text, at, on_match);
    if (at >= text.size() || (now_.list.empty() && !seed(at + 1))) return;
    CodePoint c = decode_utf8(text, at);
    size_t after = at + c.size_bytes;
    next_.list.clear();
    for (const Thread& thread : now_.list) {
      const Regex::Instruction& code = regex_.program()[thread.instruction];
      if (code.op == Regex::Op::set && regex_.set(code.set).contains(c.value))
        add(next_, thread.instruction + 1, thread.start, text, after, on_match);
    }
    std::swap(now_, next_);
    at = after;
  }
}

bool RegexMatcher::full_match(std::string_view text) {
  bool matched = false;
  run(
      text, 0, [](size_t at) { return at == 0; }, [&](size_t, size_t end) { matched |= end == text.size(); });
  return matched;
}

std::optional<std::pair<size_t, size_t>> RegexMatcher::search_run(const CharSet& set, std::string_view text, size_t from) {
  size_t start = from;
  bool found = false;
  for (size_t at = from; at < text.size();) {
    const CodePoint c = decode_utf8(text, at);
    if (set.contains(c.value)) {
      if (!found) start = at;
      found = true;
    } else if (found) {
      return std::pair{start, at};
    }
    at += c.size_bytes;
  }
  if (!found) return std::nullopt;
  return std::pair{start, text.size()};
}

std::optional<std::pair<size_t, size_t>> RegexMatcher::search(std::string_view text, size_t from) {
  if (const CharSet* set = regex_.run_of()) return search_run(*set, text, from);
  std::optional<std::pair<size_t, size_t>> best;
  run(
      text, from, [&](size_t) { return !best; },
      [&](size_t start, size_t end) {
        if (!best || start < best->first || (start == best->first && end > best->second)) best = {start, end};
      });
  return best;
}

}  // namespace treadle::kernels
