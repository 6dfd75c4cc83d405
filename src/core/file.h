// Whole files: mapped or read into a Storage, and written so that no half of one is ever seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "treadle/tensor.h"

namespace treadle {

/// The file mapped privately and read-only; its size is that at the time of the call, so nothing past the end of a cut-off file is read.
/// A file that another process truncates while it is mapped ends this one with SIGBUS, as with any mapping.
/// @throws Error(not_found) if there is no such file; Error(io_error) if it is not a regular file or cannot be read.
std::shared_ptr<Storage> map_file(const std::string& path);

/// Takes the pages of [data, data + size_bytes) out of the process's resident memory, if they belong to a file that map_file() maps:
/// whoever reads them again gets them from the file. Less than a megabyte waits until there is more of the same file, and goes with what
/// lies between. Does nothing for other memory.
/// @return whether it is such a file's.
bool drop_mapped_pages(const void* data, size_t size_bytes);
/// Takes what waits out as well, of all files.
void drop_waiting_pages();

/// Which bytes of which file, in which state: who has the same has the same contents, as long as every change shows in the times.
struct FileRange {
  uint64_t device = 0, inode = 0, file_bytes = 0, offset = 0, size_bytes = 0;
  int64_t modified_ns = 0, changed_ns = 0;  ///< when the file was mapped
};
/// Nothing for memory that is not a file's that map_file() maps.
std::optional<FileRange> mapped_range(const void* data, size_t size_bytes);

/// The same, read into memory.
std::shared_ptr<Storage> read_file(const std::string& path);

/// Writes to a temporary name beside `path`; commit() renames. Without a commit the temporary file is removed and `path` left as it was.
/// A file that is replaced hands on its permissions, and its owner where the system lets it; a new one has what the umask leaves.
class AtomicFile {
 public:
  /// @throws Error(io_error) if the folder cannot be written, or `path` is something else than a regular file.
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// @throws Error(io_error), for one when the disk is full.
  void write(std::span<const std::byte> bytes);
  void write_zeros(size_t count);
  size_t size_bytes() const noexcept { return size_bytes_; }
  /// Flushes and closes, but does not rename yet: what can fail for lack of space has then happened.
  void close();
  /// Closes if need be, and renames.
  void commit();
  /// The same, on disk before it returns: the bytes before the name, so that no power cut leaves a name without them.
  void commit_durably();

 private:
  void flush();
  void write_through(const std::byte* data, size_t size);

  std::string path_, temporary_path_;
  int fd_ = -1;
  bool committed_ = false;
  size_t size_bytes_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace treadle
