// The options of a trainer as a table: set_option() and the command line are made from it.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "treadle/train.h"

namespace treadle::train {

struct TrainerOptionInfo {
  std::string_view name;  ///< as set_option() takes it
  std::string_view text;
  std::function<void(TrainerOptions&, const std::string& value)> set;  ///< lists grow. @throws Error(invalid_argument)
  bool is_flag = false;
  std::optional<std::string_view> argument =
      std::nullopt;  ///< on the command line; none: "--" and the name with dashes; empty: no argument of a trainer
};

std::span<const TrainerOptionInfo> trainer_option_table();

}  // namespace treadle::train
