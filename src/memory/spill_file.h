// A file for what does not fit in memory: without a name, gone with the process.
#pragma once

#include <cstddef>
#include <string>

namespace treadle::memory {

/// Of one thread at a time.
class SpillFile {
 public:
  /// @param folder  empty: the system's for temporary files. @throws Error(io_error) if no file can be made there.
  explicit SpillFile(const std::string& folder);
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  /// @throws Error(io_error), for one when the disk is full.
  void write(size_t offset, const void* data, size_t size_bytes);
  void read(size_t offset, void* data, size_t size_bytes) const;

 private:
  int fd_ = -1;
};

}  // namespace treadle::memory
