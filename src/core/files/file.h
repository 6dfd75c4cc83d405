// Whole files: mapped or read into a Storage, and written atomically.
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

/// Maps the file privately and read-only. Its size is taken at the call, so nothing past the end of a truncated file is read. If another
/// process truncates the file while it is mapped, reading it ends this process with SIGBUS, as with any mapping.
/// @throws Error(not_found) if the file does not exist; Error(io_error) if it is not a regular file or cannot be read
std::shared_ptr<Storage> map_file(const std::string& path);

/// Removes the pages of [data, data + size_bytes) from resident memory if they belong to a file that map_file() maps; they are read from
/// the file again when needed. Smaller ranges are only noted until they amount to a megabyte of the file, and then dropped together with
/// the pages between them. Does nothing for other memory.
/// @return true if the bytes belong to a mapped file
bool drop_mapped_pages(const void* data, size_t size_bytes);
/// Drops the pages of all ranges that drop_mapped_pages() has only noted.
void drop_waiting_pages();

/// Identifies a range of bytes in one state of a file. Equal ranges have equal contents, if every change of the file shows in its times.
struct FileRange {
  uint64_t device = 0, inode = 0, file_bytes = 0, offset = 0, size_bytes = 0;
  int64_t modified_ns = 0, changed_ns = 0;  ///< times of the file when it was mapped
};
/// Returns the file range that is mapped at `data`; nullopt for memory that map_file() did not map.
std::optional<FileRange> mapped_range(const void* data, size_t size_bytes);

/// Reads the file into memory instead of mapping it. Limits and errors are those of map_file().
std::shared_ptr<Storage> read_file(const std::string& path);

/// Writes to a temporary file next to `path`; commit() renames it. Without commit() the temporary file is removed and `path` stays
/// unchanged. A replaced file passes on its permissions and, if the system allows, its owner; a new file gets the umask's permissions.
class AtomicFile {
 public:
  /// Creates the temporary file. @throws Error(io_error) if the folder is not writable, or `path` is not a regular file
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends bytes. @throws Error(io_error), for instance if the disk is full
  void write(std::span<const std::byte> bytes);
  void write_zeros(size_t count);
  size_t size_bytes() const noexcept { return size_bytes_; }
  /// Flushes and closes, but does not rename: afterwards, lack of space cannot make commit() fail.
  void close();
  /// Closes the temporary file if necessary, and renames it to `path`.
  void commit();
  /// Commits, and waits until the contents and then the name are on disk, so that a power failure leaves no name without contents.
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
