#include "cli/given_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

#include "treadle/error.h"

namespace treadle::cli {

void GivenOptions::need(bool is_met, std::string_view what, std::span<const std::string_view> options) const {
  if (is_met) return;
  for (const std::string_view option : options)
    if (command_.count(std::string(option)) > 0) throw Error(ErrorCode::invalid_argument, fmt::format("{} needs {}", option, what));
}

std::span<const std::string_view> sample_options() {
  static constexpr std::string_view kNames[] = {"--shapes", "--dim",   "--default-dim", "--seed",   "--preset", "--mean",
                                                "--std",    "--range", "--bgr",         "--resize", "--crop"};
  return kNames;
}

std::span<const std::string_view> session_options() {
  static constexpr std::string_view kNames[] = {"--threads", "--skip-pass", "--no-optimize", "--option", "--strict-symbols"};
  return kNames;
}

}  // namespace treadle::cli
