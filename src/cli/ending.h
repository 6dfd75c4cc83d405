// Ends the program in order when a signal ends it.
#pragma once

#include <array>
#include <csignal>
#include <filesystem>
#include <string>

namespace treadle::cli {

/// While this object exists, SIGINT, SIGTERM, SIGHUP and SIGPIPE remove the temporary files before they end the process. Commands that end
/// in order on a signal set handlers of their own.
class SignalsRemoveTemporaries {
 public:
  SignalsRemoveTemporaries();
  ~SignalsRemoveTemporaries();
  SignalsRemoveTemporaries(const SignalsRemoveTemporaries&) = delete;
  SignalsRemoveTemporaries& operator=(const SignalsRemoveTemporaries&) = delete;

  static constexpr std::array<int, 4> kSignals{SIGINT, SIGTERM, SIGHUP, SIGPIPE};

 private:
  std::array<struct sigaction, kSignals.size()> before_{};
};

/// A path in the folder of temporary files. What is there is removed with the object, or by the signal that ends the process.
class TemporaryPath {
 public:
  /// Makes an empty folder. @throws Error(io_error)
  static TemporaryPath folder();
  /// Makes an empty file whose name ends with `extension`. @throws Error(io_error)
  static TemporaryPath file(const std::string& extension);
  ~TemporaryPath();
  TemporaryPath(const TemporaryPath&) = delete;
  TemporaryPath& operator=(const TemporaryPath&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  explicit TemporaryPath(const std::string& path);

  std::filesystem::path path_;
};

}  // namespace treadle::cli
