// Compiles the non-inline part of the library fmt once. Header-only fmt would cost about three seconds per file that formats a message, a
// third of a clean build. If Debian's libfmt were linked, wheels would depend on it.
#include <fmt/format-inl.h>

namespace fmt::detail {

// Instances that <fmt/format.h> declares as extern or that its inline functions call.
template auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl<char>(locale_ref) -> char;
template auto locale_ref::get<std::locale>() const -> std::locale;
template auto dragonbox::to_decimal(float) noexcept -> dragonbox::decimal_fp<float>;
template auto dragonbox::to_decimal(double) noexcept -> dragonbox::decimal_fp<double>;

}  // namespace fmt::detail
