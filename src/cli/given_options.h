// Rejects options that the user has given but that would have no effect.
#pragma once

#include <initializer_list>
#include <span>
#include <string_view>

namespace CLI {
class App;
}

namespace treadle::cli {

/// The options that a command line contains, without those left at their defaults.
class GivenOptions {
 public:
  explicit GivenOptions(const CLI::App& command) : command_(command) {}

  /// Throws if one of the options is given although a condition is not met.
  /// @throws Error(invalid_argument), such as "--bits needs --mode weights"
  void need(bool is_met, std::string_view what, std::span<const std::string_view> options) const;
  void need(bool is_met, std::string_view what, std::initializer_list<std::string_view> options) const {
    need(is_met, what, std::span(options.begin(), options.size()));
  }

 private:
  const CLI::App& command_;
};

/// Returns the names of the options that add_sample_options(), add_input_options() and add_session_options() add.
std::span<const std::string_view> sample_options();
std::span<const std::string_view> session_options();

}  // namespace treadle::cli
