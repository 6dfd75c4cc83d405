// Sets options of trainers from texts. The reduced training library has a stub instead of this file, because artifacts fix its options.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "session/options.h"
#include "train/options/options.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

// Parses a text of the form PATTERN,PATTERN;NAME=VALUE;NAME=VALUE: names of parameters, and settings for these.
template <typename P>
P parse_patterns(const OptionTable<P>& table, const std::string& value, const char* form) {
  P made;
  size_t end = std::min(value.find(';'), value.size());
  add_names(made.parameters, value.substr(0, end));
  bool is_right = !made.parameters.empty();
  while (is_right && end < value.size()) {
    const size_t begin = end + 1, equals = value.find('=', begin);
    end = std::min(value.find(';', begin), value.size());
    is_right = equals < end;
    if (is_right) table.set(made, value.substr(begin, equals - begin), value.substr(equals + 1, end - equals - 1));
  }
  if (!is_right) throw Error(ErrorCode::invalid_argument, fmt::format("\"{}\" is given, {} is expected", value, form));
  return made;
}

constexpr std::string_view kOfSession = "session.";

}  // namespace

void add_group(TrainerOptions& options, const std::string& value) {
  options.groups.push_back(parse_patterns(group_table(), value, kGroupForm));
}

void add_initialization(TrainerOptions& options, const std::string& value) {
  if (value.find(";initializer=") == std::string::npos)
    throw Error(ErrorCode::invalid_argument, fmt::format("\"{}\" is given, {} is expected", value, kInitializeForm));
  options.initialization.push_back(parse_patterns(initialization_table(), value, kInitializeForm));
}

void set_loss(TrainerOptions& options, const std::string& value) {
  const bool is_file = value.find_first_of("./") != std::string::npos;
  options.loss_model = is_file ? std::optional(Model::load(value)) : std::nullopt;
  options.loss = is_file ? Loss::graph : loss_named(value);
}

void set_option(TrainerOptions& options, std::string_view name, const std::string& value) {
  if (name.starts_with(kOfSession)) return treadle::set_option(options.session, name.substr(kOfSession.size()), value);
  trainer_option_table().set(options, name, value);
}

}  // namespace treadle::train
