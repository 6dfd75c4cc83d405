// Descriptions of options, for listing them. A library built only for training lists no options, so it omits the texts.
#pragma once

#include <string_view>

namespace treadle {

#ifdef TREADLE_TRAINING_RUNTIME
struct OptionText {
  constexpr OptionText() = default;
  constexpr OptionText(const char* /*text*/) {}
  constexpr operator std::string_view() const { return {}; }
};
#else
using OptionText = std::string_view;
#endif

}  // namespace treadle
