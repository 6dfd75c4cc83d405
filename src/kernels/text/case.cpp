#include "kernels/text/case.h"

#include <langinfo.h>
#include <locale.h>
#include <wctype.h>

#include "kernels/text/utf8.h"

namespace treadle::kernels {
namespace {

/// Opens a locale whose character set is UTF-8; null if there is none.
locale_t open_utf8(const std::string& name) {
  locale_t locale = newlocale(LC_CTYPE_MASK, name.c_str(), nullptr);
  if (locale && std::string_view(nl_langinfo_l(CODESET, locale)) != "UTF-8") {
    freelocale(locale);
    return nullptr;
  }
  return locale;
}

// Returns the default locale. It is never freed, as any CaseMapper may use it.
locale_t default_locale() {
  static locale_t locale = [] {
    locale_t found = open_utf8("C.UTF-8");
    return found ? found : open_utf8("en_US.UTF-8");
  }();
  return locale;
}

char32_t map(char32_t c, bool lower, locale_t locale) {
  if (locale) return static_cast<char32_t>(lower ? towlower_l(static_cast<wint_t>(c), locale) : towupper_l(static_cast<wint_t>(c), locale));
  if (lower) return c >= 'A' && c <= 'Z' ? c + 32 : c;
  return c >= 'a' && c <= 'z' ? c - 32 : c;
}

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 128; }

// Maps the case of a text. A locale may map ASCII letters specially (as Turkish maps i); the default locale does not.
std::string map(std::string_view text, bool lower, locale_t locale, bool is_default) {
  std::string result;
  result.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    if (is_default && is_ascii(text[at])) {
      result.push_back(static_cast<char>(map(static_cast<char32_t>(text[at]), lower, nullptr)));
      ++at;
      continue;
    }
    CodePoint c = decode_utf8(text, at);
    if (c.value == kReplacementCharacter)
      result.append(text.substr(at, c.size_bytes));  // invalid bytes are copied unchanged
    else
      append_utf8(result, map(c.value, lower, locale));
    at += c.size_bytes;
  }
  return result;
}

}  // namespace

char32_t to_lower(char32_t c) { return map(c, true, default_locale()); }
char32_t to_upper(char32_t c) { return map(c, false, default_locale()); }

CaseMapper::CaseMapper(std::string_view locale) {
  if (locale.empty() || locale == "C" || locale == "POSIX") return;
  std::string name(locale);
  locale_ = open_utf8(name);
  if (!locale_ && name.find('.') == std::string::npos) locale_ = open_utf8(name + ".UTF-8");
}

CaseMapper::~CaseMapper() {
  if (locale_) freelocale(static_cast<locale_t>(locale_));
}

std::string CaseMapper::lower(std::string_view text) const {
  return map(text, true, locale_ ? static_cast<locale_t>(locale_) : default_locale(), !locale_);
}
std::string CaseMapper::upper(std::string_view text) const {
  return map(text, false, locale_ ? static_cast<locale_t>(locale_) : default_locale(), !locale_);
}

}  // namespace treadle::kernels
