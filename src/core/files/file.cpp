#include "core/files/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>

#include "core/base/fork_mutex.h"
#include "core/files/temporary.h"
#include "treadle/error.h"

namespace treadle {
namespace {

constexpr size_t kBufferBytes = size_t{256} * 1024;  // larger buffers mean fewer writes
// Pages are dropped only for this many bytes or more: each system call flushes the TLBs of all threads, which does not pay off for less.
constexpr size_t kWorthDropping = size_t{1} << 20;
constexpr size_t kMaxReadBytes = size_t{1} << 30;  // Linux transfers at most 2 GiB - 4 KiB per call

std::string reason(int code) { return std::generic_category().message(code); }

[[noreturn]] void throw_io(const char* what, const std::string& path, int code) {
  throw Error(code == ENOENT ? ErrorCode::not_found : ErrorCode::io_error,
              std::string("cannot ") + what + " \"" + path + "\": " + reason(code));
}

/// A file opened for reading, closed by the destructor.
struct InputFile {
  int fd;
  size_t size_bytes = 0;
  FileRange whole;

  explicit InputFile(const std::string& path)
      // O_NONBLOCK: opening a FIFO must not wait for a writer before the FIFO is rejected.
      : fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (fd < 0) throw_io("open", path, errno);
    struct stat info {};
    int failure = ::fstat(fd, &info) != 0 ? errno : 0;
    if (failure || !S_ISREG(info.st_mode)) {
      ::close(fd);
      if (failure) throw_io("examine", path, failure);
      throw Error(ErrorCode::io_error, "\"" + path + "\" is not a regular file");
    }
    size_bytes = static_cast<size_t>(info.st_size);
    auto nanoseconds = [](const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; };
    whole = {info.st_dev, info.st_ino, size_bytes, 0, size_bytes, nanoseconds(info.st_mtim), nanoseconds(info.st_ctim)};
  }
  ~InputFile() { ::close(fd); }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
};

void drop(const std::pair<uintptr_t, uintptr_t>& range) {
  static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (range.first + page - 1) / page * page, end = range.second / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

// Gives a new file the permissions of the file that it replaces: it must not be readable by more users. If the group cannot be kept, the
// group gets the rights of other users.
void take_permissions(int fd, const struct stat& old) {
  mode_t mode = old.st_mode & 0777;
  const bool keeps_group = ::fchown(fd, old.st_uid, old.st_gid) == 0 || ::fchown(fd, static_cast<uid_t>(-1), old.st_gid) == 0;
  if (!keeps_group) mode &= ~mode_t{0070} | (mode & 0007) << 3;
  ::fchmod(fd, mode);  // the result is ignored, because some file systems have no modes
}

/// The files mapped at present. Pages of other memory must not be dropped: their contents would be lost.
class Mappings {
 public:
  static Mappings& all() {
    static Mappings* const mappings = new Mappings;  // never destroyed: tensors of static objects may unmap later
    return *mappings;
  }
  void add(const void* data, const FileRange& whole) {
    std::lock_guard lock(mutex_);
    files_[reinterpret_cast<uintptr_t>(data)] = {.size_bytes = whole.size_bytes, .whole = whole};
  }
  std::optional<FileRange> find(const void* data, size_t size_bytes) {
    std::lock_guard lock(mutex_);
    auto found = around(reinterpret_cast<uintptr_t>(data), size_bytes);
    if (found == files_.end()) return std::nullopt;
    FileRange range = found->second.whole;
    range.offset = reinterpret_cast<uintptr_t>(data) - found->first;
    range.size_bytes = size_bytes;
    return range;
  }
  void remove(const void* data) {
    std::lock_guard lock(mutex_);
    files_.erase(reinterpret_cast<uintptr_t>(data));
  }
  /// Notes that these bytes have been read for the last time. Returns the range of pages that should be dropped now. @return nullopt if the
  /// bytes do not belong to a mapped file; an empty range if too few are noted for a system call to be worth it
  std::optional<std::pair<uintptr_t, uintptr_t>> note(const void* data, size_t size_bytes) {
    auto begin = reinterpret_cast<uintptr_t>(data);
    std::lock_guard lock(mutex_);
    auto found = around(begin, size_bytes);
    if (found == files_.end()) return std::nullopt;
    Mapped& file = found->second;
    file.read_begin = std::min(file.read_begin, begin);
    file.read_end = std::max(file.read_end, begin + size_bytes);
    file.read_bytes += size_bytes;
    if (file.read_bytes < kWorthDropping) return std::pair{begin, begin};
    return take(file);
  }
  /// Drops all noted pages, while holding the lock, since nothing else keeps the files mapped.
  void drop_waiting() {
    std::lock_guard lock(mutex_);
    for (auto& [data, file] : files_)
      if (file.read_bytes > 0) drop(take(file));
  }

 private:
  struct Mapped {
    size_t size_bytes = 0;
    uintptr_t read_begin = UINTPTR_MAX, read_end = 0;  // covers all bytes read since the last drop
    size_t read_bytes = 0;
    FileRange whole;
  };
  static std::pair<uintptr_t, uintptr_t> take(Mapped& file) {
    const std::pair all{file.read_begin, file.read_end};
    file = {.size_bytes = file.size_bytes, .whole = file.whole};
    return all;
  }
  std::map<uintptr_t, Mapped>::iterator around(uintptr_t begin, size_t size_bytes) {
    auto after = files_.upper_bound(begin);
    if (after == files_.begin()) return files_.end();
    auto found = std::prev(after);
    const uintptr_t offset = begin - found->first;
    return offset <= found->second.size_bytes && size_bytes <= found->second.size_bytes - offset ? found : files_.end();
  }
  ForkMutex mutex_;
  std::map<uintptr_t, Mapped> files_;
};

}  // namespace

std::shared_ptr<Storage> map_file(const std::string& path) {
  InputFile file(path);
  if (file.size_bytes == 0) return Storage::allocate(0);
  void* data = ::mmap(nullptr, file.size_bytes, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED) throw_io("map", path, errno);
  try {
    Mappings::all().add(data, file.whole);
    return Storage::borrow_read_only(data, file.size_bytes, [data, size = file.size_bytes] {
      Mappings::all().remove(data);
      ::munmap(data, size);
    });
  } catch (...) {
    Mappings::all().remove(data);
    ::munmap(data, file.size_bytes);
    throw;
  }
}

bool drop_mapped_pages(const void* data, size_t size_bytes) {
  const auto range = Mappings::all().note(data, size_bytes);
  if (range) drop(*range);
  return range.has_value();
}

void drop_waiting_pages() { Mappings::all().drop_waiting(); }

std::optional<FileRange> mapped_range(const void* data, size_t size_bytes) { return Mappings::all().find(data, size_bytes); }

std::shared_ptr<Storage> read_file(const std::string& path) {
  InputFile file(path);
  auto storage = Storage::allocate(file.size_bytes);
  for (size_t done = 0; done < file.size_bytes;) {
    ssize_t got = ::read(file.fd, storage->data() + done, std::min(file.size_bytes - done, kMaxReadBytes));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_io("read", path, errno);
    if (got == 0)
      throw Error(ErrorCode::io_error, "\"" + path + "\" became shorter while it was read: " + std::to_string(done) + " bytes of " +
                                           std::to_string(file.size_bytes));
    done += static_cast<size_t>(got);
  }
  return storage;
}

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
  std::error_code ignored;
  auto status = std::filesystem::symlink_status(path, ignored);
  if (std::filesystem::is_symlink(status)) {  // keep the link, replace its target
    auto target = std::filesystem::canonical(path, ignored);
    if (!ignored) path_ = target.string();
    status = std::filesystem::status(path_, ignored);
  }
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) && !std::filesystem::is_symlink(status))
    throw Error(ErrorCode::io_error, "\"" + path + "\" is not a regular file");
  struct stat old {};
  const bool replaces = ::stat(path_.c_str(), &old) == 0 && S_ISREG(old.st_mode);
  static std::atomic<unsigned> counter{0};
  do {
    temporary_path_ = path_ + ".tmp-" + std::to_string(::getpid()) + "-" + std::to_string(counter++);
    fd_ = ::open(temporary_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, replaces ? 0600 : 0666);
  } while (fd_ < 0 && errno == EEXIST);
  if (fd_ >= 0) note_temporary(temporary_path_);
  if (fd_ < 0) throw Error(ErrorCode::io_error, "cannot create \"" + temporary_path_ + "\": " + reason(errno));
  if (replaces) take_permissions(fd_, old);
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!committed_) ::unlink(temporary_path_.c_str());
  forget_temporary(temporary_path_);
}

void AtomicFile::write_through(const std::byte* data, size_t size) {
  while (size > 0) {
    ssize_t done = ::write(fd_, data, std::min(size, kMaxReadBytes));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) throw Error(ErrorCode::io_error, "cannot write \"" + path_ + "\": " + reason(errno));
    data += done;
    size -= static_cast<size_t>(done);
  }
}

void AtomicFile::flush() {
  write_through(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  size_bytes_ += bytes.size();
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  if (bytes.size() > kBufferBytes) return write_through(bytes.data(), bytes.size());
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

void AtomicFile::write_zeros(size_t count) {
  const std::vector<std::byte> zeros(std::min(count, kBufferBytes));
  for (size_t done = 0; done < count; done += zeros.size()) write(std::span(zeros).first(std::min(zeros.size(), count - done)));
}

void AtomicFile::close() {
  if (fd_ < 0) return;
  flush();
  int failure = ::close(fd_) != 0 ? errno : 0;
  fd_ = -1;
  if (failure) throw Error(ErrorCode::io_error, "cannot write \"" + path_ + "\": " + reason(failure));
}

void AtomicFile::commit() {
  close();
  if (::rename(temporary_path_.c_str(), path_.c_str()) != 0)
    throw Error(ErrorCode::io_error, "cannot rename \"" + temporary_path_ + "\" to \"" + path_ + "\": " + reason(errno));
  committed_ = true;
}

void AtomicFile::commit_durably() {
  if (fd_ >= 0) {
    flush();
    if (::fsync(fd_) != 0) throw Error(ErrorCode::io_error, "cannot write \"" + path_ + "\": " + reason(errno));
  }
  commit();
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  const int fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;  // the folder may be unreadable
  ::fsync(fd);         // may fail on some file systems; the file is complete anyway
  ::close(fd);
}

}  // namespace treadle
