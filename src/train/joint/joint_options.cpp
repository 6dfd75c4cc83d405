#include "train/joint/joint_options.h"

#include <map>
#include <string_view>

#include "session/options.h"

namespace treadle::train {
namespace {

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
