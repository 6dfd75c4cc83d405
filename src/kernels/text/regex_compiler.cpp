#include <fmt/format.h>

#include <algorithm>

#include "kernels/text/regex.h"
#include "kernels/text/utf8.h"
#include "treadle/error.h"

namespace treadle::kernels {

/// Parses a pattern into a tree and compiles the tree to a program. The tree is needed because repetitions emit the code of their operand
/// several times.
class RegexCompiler {
 public:
  RegexCompiler(std::string_view pattern, Regex& regex) : pattern_(pattern), regex_(regex) {}

  void compile() {
    uint32_t root = parse_alternatives();
    if (at_ < pattern_.size()) fail("unexpected )");
    emit(root);
    push({.op = Regex::Op::match});
  }

 private:
  static constexpr size_t kMaxInstructions = size_t{1} << 16;
  static constexpr int kMaxRepeat = 1000;  // RE2 has the same limit
  static constexpr int kMaxDepth = 250;
  static constexpr int kUnbounded = -1;

  struct Node {
    enum class Kind : uint8_t { empty, set, assertion, sequence, alternatives, repeat };
    Kind kind = Kind::empty;
    Regex::Assertion assertion = Regex::Assertion::text_begin;
    uint32_t set = 0;
    int least = 0, most = 0;
    std::vector<uint32_t> children = {};
  };
  struct Flags {
    bool fold_case = false, multi_line = false, dot_newline = false;
  };

  [[noreturn]] void fail(std::string_view what) const {
    throw Error(ErrorCode::invalid_model, fmt::format("the pattern \"{}\" is wrong at byte {}: {}", pattern_, at_, what));
  }
  bool done() const { return at_ >= pattern_.size(); }
  bool looking_at(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  bool take(std::string_view text) {
    if (!looking_at(text)) return false;
    at_ += text.size();
    return true;
  }
  char32_t take_char() {
    if (done()) fail("it ends too early");
    CodePoint c = decode_utf8(pattern_, at_);
    at_ += c.size_bytes;
    return c.value;
  }
  uint32_t add_node(Node node) {
    nodes_.push_back(std::move(node));
    return static_cast<uint32_t>(nodes_.size() - 1);
  }
  uint32_t add_set(CharSet set, bool negated = false) {
    if (flags_.fold_case) set.fold_case();
    if (negated) set.negate();
    set.finish();
    regex_.sets_.push_back(std::move(set));
    return add_node({.kind = Node::Kind::set, .set = static_cast<uint32_t>(regex_.sets_.size() - 1)});
  }
  uint32_t add_char(char32_t c) {
    CharSet set;
    set.add(c, c);
    return add_set(std::move(set));
  }
  uint32_t add_assertion(Regex::Assertion assertion) { return add_node({.kind = Node::Kind::assertion, .assertion = assertion}); }

  uint32_t parse_alternatives() {
    if (++depth_ > kMaxDepth) fail("too many nested groups");
    Flags outer = flags_;
    Node alternatives{.kind = Node::Kind::alternatives};
    do alternatives.children.push_back(parse_sequence());
    while (take("|"));
    flags_ = outer;
    --depth_;
    return alternatives.children.size() == 1 ? alternatives.children[0] : add_node(std::move(alternatives));
  }

  uint32_t parse_sequence() {
    Node sequence{.kind = Node::Kind::sequence};
    while (!done() && !looking_at("|") && !looking_at(")")) {
      if (take("\\Q")) {
        while (!done() && !take("\\E")) sequence.children.push_back(add_char(take_char()));
        continue;
      }
      uint32_t atom = parse_atom();
      sequence.children.push_back(parse_repeats(atom));
    }
    return add_node(std::move(sequence));
  }

  uint32_t parse_repeats(uint32_t atom) {
    bool repeated = false;
    for (;;) {
      int least, most;
      size_t before = at_;
      if (take("*"))
        least = 0, most = kUnbounded;
      else if (take("+"))
        least = 1, most = kUnbounded;
      else if (take("?"))
        least = 0, most = 1;
      else if (!take_counts(least, most))
        return atom;
      if (repeated) {
        at_ = before;
        fail("a repetition of a repetition");
      }
      repeated = true;
      take("?");  // laziness affects neither whether the text matches nor the longest match
      if (least > kMaxRepeat || most > kMaxRepeat || (most >= 0 && most < least)) fail("bad repetition counts");
      atom = add_node({.kind = Node::Kind::repeat, .least = least, .most = most, .children = {atom}});
    }
  }

  // Parses "{n}", "{n,}" or "{n,m}". Any other opening brace is a literal.
  bool take_counts(int& least, int& most) {
    size_t before = at_;
    auto number = [&](int& value) {
      size_t first = at_;
      value = 0;
      while (!done() && pattern_[at_] >= '0' && pattern_[at_] <= '9')
        value = std::min(value * 10 + (pattern_[at_++] - '0'), kMaxRepeat + 1);
      return at_ > first;
    };
    if (take("{") && number(least)) {
      most = least;
      if (take(",") && !number(most)) most = kUnbounded;
      if (take("}")) return true;
    }
    at_ = before;
    return false;
  }

  uint32_t parse_atom() {
    if (take("(")) return parse_group();
    if (take("[")) return parse_class();
    if (take("\\")) return parse_escape();
    if (take("^")) return add_assertion(flags_.multi_line ? Regex::Assertion::line_begin : Regex::Assertion::text_begin);
    if (take("$")) return add_assertion(flags_.multi_line ? Regex::Assertion::line_end : Regex::Assertion::text_end);
    if (take(".")) {
      CharSet set;
      set.add(0, '\n' - 1);
      set.add('\n' + 1, CharSet::kLast);
      if (flags_.dot_newline) set.add('\n', '\n');
      return add_set(std::move(set));
    }
    if (looking_at("*") || looking_at("+") || looking_at("?")) fail("nothing to repeat");
    return add_char(take_char());
  }

  uint32_t parse_group() {
    if (take("?P<") || (looking_at("?<") && !looking_at("?<=") && !looking_at("?<!") && take("?<"))) {
      size_t end = pattern_.find('>', at_);
      if (end == std::string_view::npos || end == at_) fail("bad name of a group");
      at_ = end + 1;
    } else if (take("?")) {
      Flags flags = flags_;
      bool value = true;
      for (;;) {
        if (take(":")) break;
        if (take(")")) {  // the flags apply to the rest of the enclosing group
          flags_ = flags;
          return add_node({.kind = Node::Kind::sequence});
        }
        if (take("-"))
          value = false;
        else if (take("i"))
          flags.fold_case = value;
        else if (take("m"))
          flags.multi_line = value;
        else if (take("s"))
          flags.dot_newline = value;
        else if (!take("U"))
          fail("unknown kind of group");
      }
      Flags outer = std::exchange(flags_, flags);
      uint32_t group = close_group();
      flags_ = outer;
      return group;
    }
    return close_group();
  }
  uint32_t close_group() {
    uint32_t group = parse_alternatives();
    if (!take(")")) fail("missing )");
    return group;
  }

  static bool perl_class(char32_t letter, CharSet& set) {
    CharSet members;
    switch (letter | 0x20U) {
      case 'd': members.add('0', '9'); break;
      case 's':
        members.add('\t', '\n');
        members.add('\f', '\r');
        members.add(' ', ' ');
        break;
      case 'w':
        members.add('0', '9');
        members.add('A', 'Z');
        members.add('a', 'z');
        members.add('_', '_');
        break;
      default: return false;
    }
    if ((letter & 0x20U) == 0) members.negate();
    set.add(members);
    return true;
  }

  uint32_t parse_escape() {
    if (done()) fail("a lone backslash");
    CharSet set;
    char letter = pattern_[at_];
    if (perl_class(static_cast<unsigned char>(letter), set)) {
      ++at_;
      return add_set(std::move(set));
    }
    switch (letter) {
      case 'A': ++at_; return add_assertion(Regex::Assertion::text_begin);
      case 'z': ++at_; return add_assertion(Regex::Assertion::text_end);
      case 'b': ++at_; return add_assertion(Regex::Assertion::word);
      case 'B': ++at_; return add_assertion(Regex::Assertion::not_word);
      default: return add_char(parse_escaped_char());
    }
  }

  char32_t parse_escaped_char() {
    char32_t c = take_char();
    auto digits = [&](int base, int limit) {
      char32_t value = 0;
      for (int i = 0; i < limit && !done(); ++i, ++at_) {
        int digit = pattern_[at_] >= '0' && pattern_[at_] <= '9' ? pattern_[at_] - '0'
                    : (pattern_[at_] | 0x20) >= 'a'              ? (pattern_[at_] | 0x20) - 'a' + 10
                                                                 : 99;
        if (digit >= base) break;
        value = value * static_cast<char32_t>(base) + static_cast<char32_t>(digit);
      }
      if (value > CharSet::kLast) fail("a code point above U+10FFFF");
      return value;
    };
    switch (c) {
      case 'a': return '\a';
      case 'f': return '\f';
      case 't': return '\t';
      case 'n': return '\n';
      case 'r': return '\r';
      case 'v': return '\v';
      case 'x':
        if (take("{")) {
          char32_t value = digits(16, 8);
          if (!take("}")) fail("bad hexadecimal escape");
          return value;
        }
        return digits(16, 2);
      case 'p':
      case 'P':
      case 'C':
        throw Error(ErrorCode::not_implemented,
                    fmt::format("the pattern \"{}\" uses \\{}, which this build lacks", pattern_, static_cast<char>(c)));
      default: break;
    }
    if (c >= '0' && c <= '7') {
      if (c != '0' && (done() || pattern_[at_] < '0' || pattern_[at_] > '7')) fail("back references are no part of RE2's syntax");
      --at_;
      return digits(8, 3);
    }
    if (c < 128 && (c == '_' || !((c >= '0' && c <= '9') || ((c | 0x20U) >= 'a' && (c | 0x20U) <= 'z')))) return c;
    fail("unknown escape");
  }

  bool take_posix_class(CharSet& set) {
    struct Posix {
      std::string_view name;
      std::vector<CharSet::Range> ranges;
    };
    static const Posix kClasses[] = {{"alnum", {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}}},
                                     {"alpha", {{'A', 'Z'}, {'a', 'z'}}},
                                     {"ascii", {{0, 127}}},
                                     {"blank", {{'\t', '\t'}, {' ', ' '}}},
                                     {"cntrl", {{0, 31}, {127, 127}}},
                                     {"digit", {{'0', '9'}}},
                                     {"graph", {{'!', '~'}}},
                                     {"lower", {{'a', 'z'}}},
                                     {"print", {{' ', '~'}}},
                                     {"punct", {{'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'}}},
                                     {"space", {{'\t', '\r'}, {' ', ' '}}},
                                     {"upper", {{'A', 'Z'}}},
                                     {"word", {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}, {'_', '_'}}},
                                     {"xdigit", {{'0', '9'}, {'A', 'F'}, {'a', 'f'}}}};
    if (!looking_at("[:")) return false;
    for (const Posix& posix : kClasses) {
      for (bool negated : {false, true}) {
        if (!take(fmt::format("[:{}{}:]", negated ? "^" : "", posix.name))) continue;
        CharSet members;
        for (auto [first, last] : posix.ranges) members.add(first, last);
        if (negated) members.negate();
        set.add(members);
        return true;
      }
    }
    return false;
  }

  uint32_t parse_class() {
    CharSet set;
    bool negated = take("^");
    for (bool first = true; first || !looking_at("]"); first = false) {
      if (done()) fail("missing ]");
      if (take_posix_class(set)) continue;
      if (looking_at("\\") && at_ + 1 < pattern_.size() && perl_class(static_cast<unsigned char>(pattern_[at_ + 1]), set)) {
        at_ += 2;
        continue;
      }
      char32_t low = take("\\") ? parse_escaped_char() : take_char(), high = low;
      if (looking_at("-") && !looking_at("-]") && at_ + 1 < pattern_.size()) {
        ++at_;
        high = take("\\") ? parse_escaped_char() : take_char();
        if (high < low) fail("a range that runs backwards");
      }
      set.add(low, high);
    }
    take("]");
    return add_set(std::move(set), negated);
  }

  uint32_t push(Regex::Instruction instruction) {
    if (regex_.program_.size() >= kMaxInstructions)
      throw Error(ErrorCode::resource_exhausted, fmt::format("the pattern \"{}\" needs more than {} states", pattern_, kMaxInstructions));
    regex_.program_.push_back(instruction);
    return static_cast<uint32_t>(regex_.program_.size() - 1);
  }
  uint32_t here() const { return static_cast<uint32_t>(regex_.program_.size()); }

  // Emits the code of a node. The code is entered at its first instruction and left after its last.
  void emit(uint32_t index) {
    const Node& node = nodes_[index];
    switch (node.kind) {
      case Node::Kind::empty: return;
      case Node::Kind::set: push({.op = Regex::Op::set, .set = node.set}); return;
      case Node::Kind::assertion: push({.op = Regex::Op::assertion, .assertion = node.assertion}); return;
      case Node::Kind::sequence:
        for (uint32_t child : node.children) emit(child);
        return;
      case Node::Kind::alternatives: return emit_alternatives(node);
      case Node::Kind::repeat: return emit_repeat(node);
    }
  }

  void emit_alternatives(const Node& node) {
    std::vector<uint32_t> ends;
    for (size_t i = 0; i + 1 < node.children.size(); ++i) {
      uint32_t split = push({.op = Regex::Op::split});
      regex_.program_[split].a = here();
      emit(node.children[i]);
      ends.push_back(push({.op = Regex::Op::jump}));
      regex_.program_[split].b = here();
    }
    emit(node.children.back());
    for (uint32_t end : ends) regex_.program_[end].a = here();
  }

  void emit_repeat(const Node& node) {
    for (int i = 0; i < node.least; ++i) emit(node.children[0]);
    if (node.most == kUnbounded) {
      uint32_t split = push({.op = Regex::Op::split});
      regex_.program_[split].a = here();
      emit(node.children[0]);
      push({.op = Regex::Op::jump, .a = split});
      regex_.program_[split].b = here();
      return;
    }
    std::vector<uint32_t> splits;
    for (int i = node.least; i < node.most; ++i) {
      uint32_t split = push({.op = Regex::Op::split});
      regex_.program_[split].a = here();
      splits.push_back(split);
      emit(node.children[0]);
    }
    for (uint32_t split : splits) regex_.program_[split].b = here();
  }

  std::string_view pattern_;
  Regex& regex_;
  size_t at_ = 0;
  int depth_ = 0;
  Flags flags_;
  std::vector<Node> nodes_;
};

Regex::Regex(std::string_view pattern) { RegexCompiler(pattern, *this).compile(); }

}  // namespace treadle::kernels
