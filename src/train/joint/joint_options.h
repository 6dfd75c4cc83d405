// The table of the options of joint modules.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "session/option_table.h"
#include "treadle/train.h"

namespace treadle {

template <>
struct OptionMembers<train::JointOptions> {
  using Any = std::variant<bool train::JointOptions::*, std::vector<std::string> train::JointOptions::*, TextMember<train::JointOptions>>;
};

namespace train {

const OptionTable<JointOptions>& joint_option_table();
/// Returns the table of options in Markdown, for docs/options.md.
std::string joint_options_markdown();

}  // namespace train
}  // namespace treadle
