#include "core/files/temporary.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>

namespace treadle {
namespace {

constexpr size_t kMostNoted = 32, kLongest = 1024;  // few are open at a time; a signal handler cannot allocate memory for more

enum class NoteState : uint32_t { free, being_written, noted };

struct Note {
  std::atomic<NoteState> state{NoteState::free};
  char path[kLongest];
};
std::array<Note, kMostNoted> notes;

// Removes the files of a folder; folders in it stay. Reads entries by the system call, as readdir() allocates memory.
void remove_files_in(int folder) {
  struct Entry {
    uint64_t inode;
    int64_t offset;
    uint16_t size_bytes;
    uint8_t type;
    char name[1];
  };
  alignas(Entry) std::array<char, 4096> buffer;
  while (true) {
    const long read = ::syscall(SYS_getdents64, folder, buffer.data(), buffer.size());
    if (read <= 0) return;
    for (long at = 0; at < read;) {
      const auto* entry = reinterpret_cast<const Entry*>(buffer.data() + at);
      ::unlinkat(folder, entry->name, 0);
      at += entry->size_bytes;
    }
  }
}

void remove_path(const char* path) {
  if (::unlink(path) == 0 || errno == ENOENT) return;
  // Another process, which the same signal ends, may still add files.
  constexpr int kTries = 20;
  constexpr timespec kPause{0, 20'000'000};
  for (int i = 0; i < kTries; ++i) {
    const int folder = ::open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return;
    remove_files_in(folder);
    ::close(folder);
    if (::rmdir(path) == 0 || (errno != ENOTEMPTY && errno != EEXIST)) return;
    ::nanosleep(&kPause, nullptr);
  }
}

}  // namespace

void note_temporary(const std::string& path) noexcept {
  if (path.size() >= kLongest) return;
  for (Note& note : notes) {
    NoteState expected = NoteState::free;
    if (!note.state.compare_exchange_strong(expected, NoteState::being_written)) continue;
    std::memcpy(note.path, path.c_str(), path.size() + 1);
    note.state = NoteState::noted;
    return;
  }
}

void forget_temporary(const std::string& path) noexcept {
  for (Note& note : notes)
    if (note.state == NoteState::noted && path == note.path) note.state = NoteState::free;
}

void remove_temporaries() noexcept {
  for (Note& note : notes)
    if (note.state == NoteState::noted) remove_path(note.path);
}

}  // namespace treadle
