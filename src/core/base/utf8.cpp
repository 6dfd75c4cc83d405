#include "core/base/utf8.h"

#include <bit>
#include <cstring>

namespace treadle {
namespace {

/// Returns the end of the ASCII characters that begin at `at`. If kPrintable, only characters from 0x20 to 0x7E count.
template <bool kPrintable>
size_t end_of_ascii(std::string_view text, size_t at) {
  constexpr uint64_t kHigh = 0x8080808080808080U;
  for (; at + sizeof(uint64_t) <= text.size(); at += sizeof(uint64_t)) {
    uint64_t eight;
    std::memcpy(&eight, text.data() + at, sizeof eight);
    uint64_t stops = eight & kHigh;
    if (kPrintable && stops == 0) stops = (~(eight + 0x6060606060606060U) | (eight + 0x0101010101010101U)) & kHigh;
    if (stops != 0) break;
  }
  // Checks the last eight bytes at once; some of them have been checked already.
  if (!kPrintable && at > 0 && at < text.size() && text.size() - at < sizeof(uint64_t)) {
    uint64_t eight;
    std::memcpy(&eight, text.data() + text.size() - sizeof eight, sizeof eight);
    if ((eight & kHigh) == 0) return text.size();
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < (kPrintable ? 0x7F : 0x80) && (!kPrintable || text[at] >= 0x20)) ++at;
  return at;
}

bool is_control(char32_t c) { return (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7F && c < 0xA0); }

}  // namespace

size_t find_not_utf8(std::string_view text) {
  for (size_t at = end_of_ascii<false>(text, 0); at < text.size(); at = end_of_ascii<false>(text, at)) {
    const CodePoint c = decode_utf8(text, at);
    if (c.value == kReplacementCharacter && c.size_bytes == 1) return at;
    at += c.size_bytes;
  }
  return std::string_view::npos;
}

std::string printable(std::string text) {
  constexpr char kDigits[] = "0123456789abcdef";
  size_t at = end_of_ascii<true>(text, 0);
  if (at == text.size()) return text;
  std::string shown = text.substr(0, at);
  while (at < text.size()) {
    const CodePoint c = decode_utf8(text, at);
    const bool hides = is_control(c.value) || (c.value == kReplacementCharacter && c.size_bytes == 1);
    for (size_t i = 0; i < c.size_bytes; ++i, ++at) {
      const auto byte = static_cast<unsigned char>(text[at]);
      if (hides)
        shown += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
      else
        shown += text[at];
    }
  }
  return shown;
}

}  // namespace treadle
