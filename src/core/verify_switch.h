// Checks of the library's own work, which debug builds make and which others can be asked for.
#pragma once

#include <cstdlib>
#include <string_view>

namespace treadle {

/// True in debug builds. The environment variable says otherwise: "0" is no, any other text is yes.
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
