// A temporary file without a name for values that do not fit in memory. It disappears with the process.
#pragma once

#include <cstddef>
#include <string>

namespace treadle::memory {

/// A temporary file for values that do not fit into memory. Not thread-safe.
class SpillFile {
 public:
  /// @param folder  empty: the system's temporary folder. @throws Error(io_error) if no file can be created there
  explicit SpillFile(const std::string& folder);
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  /// Writes bytes at an offset. @throws Error(io_error), for instance if the disk is full
  void write(size_t offset, const void* data, size_t size_bytes);
  void read(size_t offset, void* data, size_t size_bytes) const;

 private:
  int fd_ = -1;
};

}  // namespace treadle::memory
