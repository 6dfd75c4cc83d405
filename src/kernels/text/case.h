// Upper and lower case of code points by the C library's tables.
#pragma once

#include <string>
#include <string_view>

namespace treadle::kernels {

/// Simple case mappings: one code point to one code point.
char32_t to_lower(char32_t c);
char32_t to_upper(char32_t c);

/// The case mappings of a locale, for StringNormalizer.
class CaseMapper {
 public:
  /// @param locale  such as "en_US" or "tr_TR.UTF-8". If it is empty or not installed, the default is used, which follows Unicode.
  explicit CaseMapper(std::string_view locale);
  ~CaseMapper();
  CaseMapper(const CaseMapper&) = delete;
  CaseMapper& operator=(const CaseMapper&) = delete;

  std::string lower(std::string_view text) const;
  std::string upper(std::string_view text) const;

 private:
  void* locale_ = nullptr;  // null means the default locale
};

}  // namespace treadle::kernels
