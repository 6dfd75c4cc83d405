#include "memory/spill_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "treadle/error.h"

namespace treadle::memory {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 30;  // limit per call: Linux transfers less than 2 GiB

[[noreturn]] void throw_io(const std::string& what, int code) {
  throw Error(ErrorCode::io_error, "cannot " + what + ": " + std::generic_category().message(code));
}

std::string folder_or_default(const std::string& folder) {
  if (!folder.empty()) return folder;
  const char* temporary = std::getenv("TMPDIR");
  return temporary && *temporary ? temporary : "/tmp";
}

}  // namespace

SpillFile::SpillFile(const std::string& folder) {
  std::string path = folder_or_default(folder) + "/treadle-spill-XXXXXX";
  fd_ = ::mkstemp(path.data());
  if (fd_ < 0) throw_io("make a file for spilled values at \"" + path + "\"", errno);
  ::unlink(path.c_str());
  ::fcntl(fd_, F_SETFD, FD_CLOEXEC);
}

SpillFile::~SpillFile() { ::close(fd_); }

void SpillFile::write(size_t offset, const void* data, size_t size_bytes) {
  const auto* from = static_cast<const char*>(data);
  for (size_t done = 0; done < size_bytes;) {
    ssize_t count = ::pwrite(fd_, from + done, std::min(size_bytes - done, kMaxBytes), static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw_io("write " + std::to_string(size_bytes) + " spilled bytes", count < 0 ? errno : ENOSPC);
    done += static_cast<size_t>(count);
  }
}

void SpillFile::read(size_t offset, void* data, size_t size_bytes) const {
  auto* to = static_cast<char*>(data);
  for (size_t done = 0; done < size_bytes;) {
    ssize_t count = ::pread(fd_, to + done, std::min(size_bytes - done, kMaxBytes), static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw_io("read " + std::to_string(size_bytes) + " spilled bytes", count < 0 ? errno : EIO);
    done += static_cast<size_t>(count);
  }
}

}  // namespace treadle::memory
