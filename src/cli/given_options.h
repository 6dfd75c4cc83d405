// Rejects options that the user has given but that would have no effect.
#pragma once

#include <initializer_list>
#include <span>
#include <string_view>

namespace CLI {
class App;
}

namespace treadle::cli {

/// The options that the user has given on the command line.
class GivenOptions {
 public:
  explicit GivenOptions(const CLI::App& command) : command_(command) {}

  /// Checks that none of `options` is given unless the condition `is_met`, which `what` describes.
  /// @throws Error(invalid_argument) with a text such as "--bits needs --mode weights"
  void need(bool is_met, std::string_view what, std::span<const std::string_view> options) const;
  void need(bool is_met, std::string_view what, std::initializer_list<std::string_view> options) const {
    need(is_met, what, std::span(options.begin(), options.size()));
  }

 private:
  const CLI::App& command_;
};

/// Return the names of the options that add_sample_options(), add_input_options() and add_session_options() add.
std::span<const std::string_view> sample_options();
std::span<const std::string_view> session_options();

}  // namespace treadle::cli
