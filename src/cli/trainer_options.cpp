#include "cli/trainer_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>

#include "train/options/options.h"

namespace treadle::cli {
namespace {

// Command-line names of trainer options, if they are not "--" and the option's name with dashes. Empty: commands add the option themselves.
constexpr std::pair<std::string_view, std::string_view> kArguments[] = {
    {"output", "--loss-of"}, {"int32_labels", ""}, {"communicator", ""},   {"communicator_deadline_s", ""},
    {"bucket_bytes", ""},    {"reduction", ""},    {"shard_optimizer", ""}};

std::string argument_of(std::string_view name) {
  for (const auto& [option, argument] : kArguments)
    if (option == name) return std::string(argument);
  std::string argument = fmt::format("--{}", name);
  std::replace(argument.begin(), argument.end(), '_', '-');
  return argument;
}

std::string help_of(const Option<train::TrainerOptions>& row) {
  std::string text(row.text);
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  const std::string usual = row.get({}), type = row.type.empty() ? std::string() : fmt::format(" ({})", row.type);
  const bool is_off = usual.empty() || usual == "0";
  return fmt::format("{}{}{}", text, type, is_off ? std::string() : fmt::format("; default {}", usual));
}

}  // namespace

void add_trainer_options(CLI::App& app, train::TrainerOptions& options) {
  for (const Option<train::TrainerOptions>& row : train::trainer_option_table().rows()) {
    const std::string argument = argument_of(row.name);
    if (argument.empty()) continue;
    if (row.form == OptionForm::flag) {
      app.add_flag_callback(
             argument, [&options, &row] { row.set(options, "1"); }, help_of(row))
          ->group(kTrainerGroup);
      continue;
    }
    app.add_option_function<std::vector<std::string>>(
           argument,
           [&options, &row](const std::vector<std::string>& values) {
             for (const std::string& value : values) row.set(options, value);
           },
           help_of(row))
        ->allow_extra_args(false)
        ->take_all()
        ->group(kTrainerGroup);
  }
}

}  // namespace treadle::cli
