// Switches for checks of the library's own work, on by default in debug builds.
#pragma once

#include <cstdlib>
#include <string_view>

namespace treadle {

/// True in debug builds. The environment variable overrides this: "0" is off, any other text is on.
inline bool verifies_by_default(const char* variable) {
#ifdef NDEBUG
  constexpr bool kDebug = false;
#else
  constexpr bool kDebug = true;
#endif
  const char* wish = std::getenv(variable);
  return wish && *wish != '\0' ? std::string_view(wish) != "0" : kDebug;
}

}  // namespace treadle
