#include "cli/ending.h"

#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/files/temporary.h"
#include "treadle/error.h"

namespace treadle::cli {
namespace {

std::string pattern(const std::string& extension) {
  return (std::filesystem::temp_directory_path() / ("treadle-XXXXXX" + extension)).string();
}

[[noreturn]] void throw_cannot_make(const std::string& what) {
  throw Error(ErrorCode::io_error, fmt::format("cannot make a temporary {} in {}: {}", what,
                                               std::filesystem::temp_directory_path().string(), std::strerror(errno)));
}

// The signal ends the process when the handler returns, as its action is the default again (SA_RESETHAND).
void end_by(int signal) {
  remove_temporaries();
  raise(signal);
}

}  // namespace

SignalsRemoveTemporaries::SignalsRemoveTemporaries() {
  struct sigaction action {};
  action.sa_handler = end_by;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &before_[i]);
    // A shell without job control lets its background jobs ignore SIGINT, and nohup lets them ignore SIGHUP: they stay ignored. Python
    // ignores SIGPIPE, which would let commands write on into a closed pipe.
    if (before_[i].sa_handler != SIG_IGN || kSignals[i] == SIGPIPE) sigaction(kSignals[i], &action, nullptr);
  }
}

SignalsRemoveTemporaries::~SignalsRemoveTemporaries() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
}

TemporaryPath::TemporaryPath(const std::string& path) : path_(path) { note_temporary(path); }

TemporaryPath::~TemporaryPath() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
  forget_temporary(path_.string());
}

TemporaryPath TemporaryPath::folder() {
  std::string path = pattern("");
  if (!mkdtemp(path.data())) throw_cannot_make("folder");
  return TemporaryPath(path);
}

TemporaryPath TemporaryPath::file(const std::string& extension) {
  std::string path = pattern(extension);
  const int fd = mkstemps(path.data(), static_cast<int>(extension.size()));
  if (fd < 0) throw_cannot_make("file");
  ::close(fd);
  return TemporaryPath(path);
}

}  // namespace treadle::cli
