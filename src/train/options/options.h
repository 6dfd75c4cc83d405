// Tables of the trainers' options. set_option(), the command line, Python and docs/options.md are derived from them.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "session/option_table.h"
#include "treadle/train.h"

namespace treadle {

// The types of members that can be options of each struct. Trainer options may also be members of nested structs (Part).
template <>
struct OptionMembers<train::TrainerOptions> {
  template <typename T>
  using Part = PartMember<train::TrainerOptions, T>;
  using Any = std::variant<Part<bool>, Part<int>, Part<int64_t>, Part<uint64_t>, Part<double>, Part<std::optional<int64_t>>,
                           Part<std::optional<double>>, Part<std::string>, Part<std::vector<std::string>>, Part<std::vector<float>>,
                           ChoiceMember<train::TrainerOptions>, TextMember<train::TrainerOptions>>;
};
template <>
struct OptionMembers<train::ParameterGroup> {
  using Any = std::variant<double train::ParameterGroup::*, std::optional<double> train::ParameterGroup::*>;
};
template <>
struct OptionMembers<train::Initialization> {
  using Any = std::variant<double train::Initialization::*, TextMember<train::Initialization>>;
};

namespace train {

const OptionTable<TrainerOptions>& trainer_option_table();
/// Returns the rows of those options that still affect what steps compute after their graphs have been built. Checkpoints and artifacts
/// contain these options.
std::span<const Option<TrainerOptions>> step_options();
/// The options that one entry of TrainerOptions::groups has, and those that one entry of TrainerOptions::initialization has.
const OptionTable<ParameterGroup>& group_table();
const OptionTable<Initialization>& initialization_table();

inline constexpr const char* kGroupForm = "PATTERN,PATTERN;rate_factor=F;weight_decay=W";
inline constexpr const char* kInitializeForm = "PATTERN,PATTERN;initializer=NAME;scale=F";

// These functions parse a text and set the option that it describes. @throws Error if the text is invalid
void set_loss(TrainerOptions& options, const std::string& name_or_path);
void add_group(TrainerOptions& options, const std::string& text);
void add_initialization(TrainerOptions& options, const std::string& text);

/// Checks all options. @throws Error(invalid_argument) for a number outside of its range, an option that has no effect together with the
/// others, or a combination that is not supported.
void check_options(const TrainerOptions& options);

/// Returns, by name and with defaults filled in, the settings that affect the result of a step in addition to model, data and learning
/// rate: loss, optimizer and its hyperparameters, schedule, clipping and groups.
std::vector<std::pair<std::string, std::string>> settings_of(const TrainerOptions& options);

/// Returns the table of trainer options in Markdown, for docs/options.md.
std::string trainer_options_markdown();

}  // namespace train
}  // namespace treadle
