#include "tests/fuzz/mutation.h"

#include <algorithm>
#include <cctype>

namespace treadle::fuzz {
namespace {

constexpr size_t kLongestPiece = 64, kLongestText = 64;

template <typename T>
T at(const std::string& bytes, size_t place) {
  T value;
  std::memcpy(&value, bytes.data() + place, sizeof value);
  return value;
}

struct CountedText {
  size_t place, size;
};

// Finds texts: lengths of 8 bytes, each followed by as many printable characters.
std::vector<CountedText> texts_in(const std::string& bytes) {
  std::vector<CountedText> found;
  for (size_t place = 0; place + 8 < bytes.size(); ++place) {
    const auto size = at<uint64_t>(bytes, place);
    if (size == 0 || size > kLongestText || size > bytes.size() - place - 8) continue;
    const auto* text = reinterpret_cast<const unsigned char*>(bytes.data()) + place + 8;
    if (std::all_of(text, text + size, [](unsigned char c) { return c >= 0x20 && c < 0x7F; })) found.push_back({place, size});
  }
  return found;
}

}  // namespace

uint64_t Mutator::hard_number() {
  static const std::vector<uint64_t> kHard{0,         1,          2,          3,          4,          7,          8,           16,
                                           31,        63,         64,         127,        128,        255,        256,         4095,
                                           4096,      65535,      65536,      0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x100000000, ~0ULL,
                                           ~0ULL - 1, 1ULL << 62, 1ULL << 63, ~0ULL >> 1, 1ULL << 40, 1000000007};
  const uint64_t hard = one_of(kHard);
  return one_in(4) ? 0 - hard : hard;
}

// Mostly returns one change, because with several the first refused change hides the others.
size_t Mutator::num_changes() { return one_in(4) ? 2 + below(3) : 1; }

void Mutator::change_number(std::string& bytes) {
  static const std::vector<size_t> kSizes{1, 1, 2, 4, 4, 8, 8, 8};
  const size_t size = std::min(one_of(kSizes), bytes.size());
  size_t place = below(bytes.size() - size + 1);
  // Prefers small numbers of 8 bytes, because these are likely to be counts, extents or indices.
  for (int tries = 0; size == 8 && tries < 64 && at<uint64_t>(bytes, place) > 4096; ++tries) place = below(bytes.size() - size + 1);
  uint64_t value = 0;
  std::memcpy(&value, bytes.data() + place, size);
  switch (below(4)) {
    case 0: value = hard_number(); break;
    case 1: value += below(2) == 0 ? 1 : ~0ULL; break;
    case 2: value = below(24); break;
    default: value ^= 1ULL << below(8 * size);
  }
  std::memcpy(bytes.data() + place, &value, size);
}

void Mutator::change_piece(std::string& bytes, bool keeps_size) {
  const size_t size = 1 + below(std::min(kLongestPiece, bytes.size())), from = below(bytes.size() - size + 1);
  const std::string piece = bytes.substr(from, size);
  const size_t to = below(bytes.size() - size + 1);
  if (keeps_size || one_in(3))
    bytes.replace(to, size, piece);
  else if (one_in(2))
    bytes.insert(to, piece);
  else if (bytes.size() > size)
    bytes.erase(from, size);
}

void Mutator::change_binary(std::string& bytes) {
  for (size_t changes = num_changes(); changes > 0 && !bytes.empty(); --changes) {
    switch (below(4)) {
      case 0: bytes[below(bytes.size())] ^= static_cast<char>(1U << below(8)); break;
      case 1: change_piece(bytes, one_in(2)); break;
      case 2:
        if (one_in(8)) bytes.resize(below(bytes.size() + 1));
        break;
      default: change_number(bytes);
    }
  }
}

void Mutator::change_counted_text(std::string& bytes, const std::vector<std::string>& words) {
  const std::vector<CountedText> texts = texts_in(bytes);
  if (texts.empty()) return change_number(bytes);
  const CountedText changed = one_of(texts), other = one_of(texts);
  std::string text = bytes.substr(other.place + 8, other.size);
  if (!words.empty() && one_in(2)) text = one_of(words);
  if (one_in(16)) text += static_cast<char>(0x80 + below(128));
  if (one_in(16)) text.clear();
  const uint64_t size = text.size();
  bytes.replace(changed.place, 8 + changed.size, std::string(reinterpret_cast<const char*>(&size), 8) + text);
}

void Mutator::change_stream(std::string& bytes, const std::vector<std::string>& words) {
  for (size_t changes = num_changes(); changes > 0 && bytes.size() > 16; --changes) {
    switch (below(8)) {
      case 0: bytes[below(bytes.size())] ^= static_cast<char>(1U << below(8)); break;
      case 1: change_piece(bytes, /*keeps_size=*/true); break;
      case 2: change_piece(bytes, /*keeps_size=*/false); break;
      case 3:
      case 4: change_counted_text(bytes, words); break;
      default: change_number(bytes);
    }
  }
}

// Changes a number or a word of a text.
void Mutator::change_token(std::string& text) {
  auto is_part = [&](size_t i) {
    return std::isalnum(static_cast<unsigned char>(text[i])) != 0 || text[i] == '.' || text[i] == '-' || text[i] == '_';
  };
  size_t from = below(text.size());
  for (int tries = 0; tries < 32 && !is_part(from); ++tries) from = below(text.size());
  if (!is_part(from)) return;
  size_t end = from;
  while (from > 0 && is_part(from - 1)) --from;
  while (end < text.size() && is_part(end)) ++end;
  static const std::vector<std::string> kOthers{"0",
                                                "-1",
                                                "1",
                                                "2",
                                                "1e308",
                                                "1e999",
                                                "-0.0",
                                                "9223372036854775807",
                                                "9223372036854775808",
                                                "18446744073709551615",
                                                "-9223372036854775808",
                                                "4294967296",
                                                "2147483648",
                                                "null",
                                                "true",
                                                "{}",
                                                "[]",
                                                "\"\"",
                                                "NaN",
                                                "0.5",
                                                "1e-320",
                                                "99999999999999999999"};
  std::string other = one_of(kOthers);
  if (one_in(4)) other = std::to_string(static_cast<int64_t>(hard_number()));
  text.replace(from, end - from, other);
}

void Mutator::change_text(std::string& text) {
  for (size_t changes = num_changes(); changes > 0 && !text.empty(); --changes) {
    switch (below(8)) {
      case 0: text[below(text.size())] = static_cast<char>(number()); break;
      case 1: change_piece(text, one_in(2)); break;
      case 2: text.insert(below(text.size() + 1), 1, "{}[],:\"\\\n;0-"[below(12)]); break;
      case 3: text.erase(below(text.size()), 1); break;
      default: change_token(text);
    }
  }
}

}  // namespace treadle::fuzz
