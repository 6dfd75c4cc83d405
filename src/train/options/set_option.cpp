// Sets options of trainers and joint modules from texts. The training-only library has a stub instead, because artifacts contain their
// options.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "train/options/options.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

// Parses PATTERN,PATTERN;NAME=VALUE;..., where the settings after the patterns are separated by ";".
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

std::string requests_text(const JointOptions& options) {
  std::map<std::string, std::string> names;
  for (const auto& [name, request] : options.gradient_requests) names[name] = name_of(request);
  return pairs_text(names);
}

void add_requests(JointOptions& options, const std::string& text) {
  std::map<std::string, std::string> names;
  add_pairs(names, text, "NAME=REQUEST");
  for (const auto& [name, request] : names) options.gradient_requests[name] = gradient_request_named(request);
}

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

const OptionTable<JointOptions>& joint_option_table() {
  using J = JointOptions;
  static const OptionTable<J> table({
      {{.name = "outputs", .text = "outputs that are handed out; all if not given"}, &J::outputs},
      {{.name = "inputs", .text = "inputs whose gradients are wanted, too"}, &J::inputs},
      {{.name = "parameters", .text = "what is trained, names or patterns; all float initializers if not given"}, &J::parameters},
      {{.name = "frozen", .text = "of these what is not, names or patterns"}, &J::frozen},
      {{.name = "plain_outputs", .python = "-", .text = "outputs of any type behind the others, for which no gradient is handed in"},
       &J::plain_outputs},
      {{.name = "states", .python = "-", .text = "inputs that hold running statistics: the forward pass writes the new ones there"},
       &J::states},
      {{.name = "unbiased_variance", .python = "-", .text = "running variances take the batch's over n - 1"}, &J::unbiased_variance},
      {{.name = "sparse_gradients", .text = "tables whose gradients are handed out by rows, names or patterns"}, &J::sparse_gradients},
      {{.name = "gradient_requests",
        .python = "-",
        .type = "NAME=REQUEST, separated by \",\"",
        .text = "what becomes of a parameter's or input's gradient: null, write or add; write if not given"},
       TextMember<J>{requests_text, add_requests}},
      {{.name = "zero_gradients", .python = "-", .text = "gradients of zeros for inputs that the outputs do not depend on; 0: none"},
       &J::zero_gradients},
      {{.name = "forward_only", .python = "-", .text = "there is no backward pass"}, &J::forward_only},
      {{.name = "inference",
        .python = "-",
        .text = "with forward_only: BatchNormalization takes its running statistics, and Dropout drops nothing"},
       &J::inference},
  });
  return table;
}

void set_option(JointOptions& options, std::string_view name, const std::string& value) {
  if (name.starts_with(kOfSession)) return treadle::set_option(options.session, name.substr(kOfSession.size()), value);
  joint_option_table().set(options, name, value);
}

std::string joint_options_markdown() { return joint_option_table().markdown(JointOptions()); }

}  // namespace treadle::train
