// Options of trainers and joint modules from texts. A library that only trains from artifacts, which have their options, has a stub.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/nearest.h"
#include "train/options.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

// `settings` are NAME=VALUE behind the patterns, separated by ";".
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

void set_option(JointOptions& options, std::string_view name, const std::string& value) {
  using J = JointOptions;
  if (name.starts_with(kOfSession)) return treadle::set_option(options.session, name.substr(kOfSession.size()), value);
  if (name == "zero_gradients") return void(options.zero_gradients = parse_flag(value));
  static const std::vector<std::pair<std::string, std::vector<std::string> J::*>> lists = {{"outputs", &J::outputs},
                                                                                           {"inputs", &J::inputs},
                                                                                           {"parameters", &J::parameters},
                                                                                           {"frozen", &J::frozen},
                                                                                           {"plain_outputs", &J::plain_outputs},
                                                                                           {"sparse_gradients", &J::sparse_gradients}};
  std::vector<std::string> names{"zero_gradients"};
  for (const auto& [each, member] : lists) {
    if (each == name) return add_names(options.*member, value);
    names.push_back(each);
  }
  throw Error(ErrorCode::not_found, fmt::format("a joint module has no option \"{}\"; is it {}?", name, nearest_names(name, names)));
}

}  // namespace treadle::train
