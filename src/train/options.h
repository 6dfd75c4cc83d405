// The options of a trainer as a table: set_option() and the command line are made from it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/option_text.h"
#include "treadle/train.h"

namespace treadle::train {

struct TrainerOptionInfo {
  std::string_view name;  ///< as set_option() takes it
  OptionText text;
  void (*write)(std::string_view name, TrainerOptions&, const std::string& value);
  bool is_flag = false;
  std::optional<std::string_view> argument =
      std::nullopt;  ///< on the command line; none: "--" and the name with dashes; empty: no argument of a trainer

  /// Lists grow. @throws Error(invalid_argument)
  void set(TrainerOptions& options, const std::string& value) const { write(name, options, value); }
};

std::span<const TrainerOptionInfo> trainer_option_table();

}  // namespace treadle::train
