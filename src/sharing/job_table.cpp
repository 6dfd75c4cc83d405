#include "sharing/job_table.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <mutex>
#include <set>
#include <string>

#include "core/base/fork_mutex.h"
#include "core/base/futex.h"
#include "core/base/logging.h"
#include "core/base/utf8.h"
#include "treadle/error.h"
#include "treadle/out_of_memory.h"

namespace treadle::sharing {
namespace {

constexpr char kMagic[8] = {'t', 'r', 'e', 'a', 'd', 'l', 'e', '1'};
constexpr const char* kFileName = "/jobs-4";  // a new layout of the file gets a new name, so that versions of the library do not interfere
constexpr int kCoordinatorByte = kMaxJobs;

// The slots that this process has locked. File locks do not conflict within a process, so it must record them itself.
struct Owned {
  ForkMutex mutex;
  uint32_t generation = 0;
  uint64_t slots = 0;
  bool coordinator = false;
};
Owned& owned() {
  static Owned& all = *new Owned;
  return all;
}

// Returns a number that identifies this process among all present and past ones of the machine. Two copies of this library in the process
// get the same number.
uint64_t process_token() {
  std::string text = std::to_string(getpid());
  struct stat space {};
  if (stat("/proc/self/ns/pid", &space) == 0) text += ' ' + std::to_string(space.st_ino);
  std::ifstream in("/proc/self/stat");
  std::string line;
  std::getline(in, line);
  // Field 22 is the start time. Field 2 may contain spaces, and ends with the last parenthesis.
  size_t at = line.rfind(')');
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = line.find(' ', at + 1);
  if (at != std::string::npos) text += line.substr(at, line.find(' ', at + 1) - at);
  return std::hash<std::string>{}(text);
}

[[noreturn]] void throw_io(const std::string& what, const std::string& path) {
  throw Error(ErrorCode::io_error, fmt::format("{} \"{}\": {}", what, path, std::strerror(errno)));
}

}  // namespace

uint64_t now_ns() noexcept {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000U + static_cast<uint64_t>(time.tv_nsec);
}

void make_sharing_folder(const std::string& folder) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) throw_io("cannot make the folder", folder);
  struct stat info {};
  if (lstat(folder.c_str(), &info) != 0) throw_io("cannot use the folder", folder);
  if (!S_ISDIR(info.st_mode)) throw Error(ErrorCode::io_error, fmt::format("\"{}\" is no folder", folder));
  // Another user could have created the folder in /dev/shm first, and could then control this user's jobs.
  if (info.st_uid != geteuid() || (info.st_mode & 0022) != 0)
    throw Error(ErrorCode::io_error, fmt::format("the folder \"{}\" belongs to user {} with mode {:o}; it must belong to user {} and be "
                                                 "writable by nobody else",
                                                 folder, info.st_uid, info.st_mode & 0777, geteuid()));
}

JobTable& JobTable::get() {
  static JobTable& table = *new JobTable;  // never destroyed: threads may run sessions while static objects are destroyed
  return table;
}

JobTable::JobTable() {
  fork_generation();
  std::string why;
  if (map_shared(&why)) return;
  TREADLE_LOG(warning, "jobs are seen by this process only: {}", why);
  void* memory = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw OutOfMemory("no memory for the job table");
  page_ = static_cast<Page*>(memory);
  for (JobSlot& slot : page_->slots) new (&slot) JobSlot;
}

bool JobTable::map_shared(std::string* why) {
  int fd = -1;
  try {
    const std::string folder = sharing_folder();
    make_sharing_folder(folder);
    path_ = folder + kFileName;
    // The file is never closed: closing any descriptor of it would release all of the process's locks on it.
    fd = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) throw_io("cannot open", path_);
    // Allocates storage now, since touching a page without storage would end the process.
    if (int error = posix_fallocate(fd, 0, sizeof(Page)); error != 0) {
      errno = error;
      throw_io("no room for", path_);
    }
    void* memory = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) throw_io("cannot map", path_);
    page_ = static_cast<Page*>(memory);
    // Everything begins as zero, except for shares, which claim() sets.
    std::memcpy(page_->magic, kMagic, sizeof kMagic);
    fd_ = fd;
    return true;
  } catch (const Error& error) {
    *why = error.what();
    if (fd >= 0) close(fd);
    return false;
  }
}

bool JobTable::lock_byte(int byte) {
  if (fd_ < 0) return true;
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return fcntl(fd_, F_SETLK, &lock) == 0;
}

void JobTable::unlock_byte(int byte) {
  if (fd_ < 0) return;
  struct flock lock {};
  lock.l_type = F_UNLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  fcntl(fd_, F_SETLK, &lock);
}

// Forgets locks after a fork: the child has none of its parent's. @pre the caller holds the mutex
void JobTable::forget_parents_locks() {
  if (owned().generation == fork_generation()) return;
  owned().generation = fork_generation();
  owned().slots = 0;
  owned().coordinator = false;
}

// Resets a slot. @pre the caller holds the slot's lock
void JobTable::clear(int index) {
  JobSlot& slot = page_->slots[index];
  slot.state = SlotState::free;
  slot.id = 0;
  slot.running = slot.active = 0;
  end_guaranteed(*page_, index);
}

int JobTable::claim() {
  const uint64_t own = process_token();
  std::lock_guard lock(owned().mutex);
  forget_parents_locks();
  for (int i = 0; i < kMaxJobs; ++i) {
    if ((owned().slots >> i & 1U) != 0) continue;
    JobSlot& slot = page_->slots[i];
    // Skips the slot of another copy of this library in this process: locking it would succeed, since the process holds that lock already.
    if (slot.state.load() == SlotState::live && slot.owner.load() == own && slot.pid.load() == getpid() && fd_ >= 0) continue;
    if (!lock_byte(i)) continue;
    clear(i);
    owned().slots |= uint64_t{1} << i;
    slot.job_class = 0;
    slot.share = slot.granted = kFullShare;
    slot.suspended = slot.publishes = slot.memory_changes = 0;
    slot.memory_limit = slot.host_limit = 0;
    slot.profile_until_ns = slot.profile_request = slot.profile_taken_until_ns = 0;
    slot.threads = 0;
    slot.cpu = -1;
    for (auto* counter :
         {&slot.runs, &slot.run_ns, &slot.idle_ns, &slot.gave_way_ns, &slot.last_step_ns, &slot.average_step_ns, &slot.device_bytes,
          &slot.host_bytes, &slot.disk_bytes, &slot.peak_bytes, &slot.moved_bytes, &slot.moves, &slot.moving_ns})
      *counter = 0;
    slot.pid = getpid();
    slot.owner = own;
    slot.id = page_->last_id.fetch_add(1) + 1;
    refresh(slot);
    return i;
  }
  throw Error(ErrorCode::resource_exhausted, fmt::format("there are {} jobs already, as many as the table \"{}\" holds", kMaxJobs, path_));
}

void JobTable::give_back(int index) {
  std::lock_guard lock(owned().mutex);
  forget_parents_locks();
  const uint64_t bit = uint64_t{1} << index;
  if ((owned().slots & bit) == 0) return;  // in a forked child the slot is the parent's
  clear(index);
  owned().slots &= ~bit;
  unlock_byte(index);
}

void JobTable::sweep() {
  if (fd_ < 0) return;
  std::lock_guard lock(owned().mutex);
  forget_parents_locks();
  const uint64_t own = process_token();
  for (int i = 0; i < kMaxJobs; ++i) {
    JobSlot& slot = page_->slots[i];
    if (slot.state.load() != SlotState::live || (owned().slots >> i & 1U) != 0) continue;
    if (slot.owner.load() == own && slot.pid.load() == getpid()) continue;
    if (!lock_byte(i)) continue;  // the lock is held, so the slot's process is alive
    clear(i);
    unlock_byte(i);
  }
}

int JobTable::find(uint64_t id) {
  for (int i = 0; i < kMaxJobs; ++i)
    if (page_->slots[i].state.load(std::memory_order_acquire) == SlotState::live && page_->slots[i].id.load() == id) return i;
  return -1;
}

bool JobTable::lock_coordinator() {
  std::lock_guard lock(owned().mutex);
  forget_parents_locks();
  if (owned().coordinator || !lock_byte(kCoordinatorByte)) return false;
  owned().coordinator = true;
  page_->coordinator_pid = getpid();
  return true;
}

void JobTable::unlock_coordinator() {
  std::lock_guard lock(owned().mutex);
  forget_parents_locks();
  if (!owned().coordinator) return;
  owned().coordinator = false;
  page_->coordinator_beat_ns = 0;
  page_->coordinator_pid = 0;
  end_grants(*page_);
  unlock_byte(kCoordinatorByte);
}

int64_t JobTable::coordinator_pid() {
  std::lock_guard lock(owned().mutex);
  forget_parents_locks();
  if (owned().coordinator) return getpid();
  if (fd_ < 0) return 0;
  struct flock lock_info {};
  lock_info.l_type = F_WRLCK;
  lock_info.l_whence = SEEK_SET;
  lock_info.l_start = kCoordinatorByte;
  lock_info.l_len = 1;
  if (fcntl(fd_, F_GETLK, &lock_info) != 0 || lock_info.l_type == F_UNLCK) return 0;
  return lock_info.l_pid > 0 ? lock_info.l_pid : page_->coordinator_pid.load();
}

void refresh(JobSlot& slot) {
  uint32_t word = slot.word.load();
  for (;;) {
    // Reads the fields after the word: if another thread changes a field and then the word, the exchange below fails, and the loop repeats.
    const uint32_t share = std::min(slot.share.load(), slot.granted.load());
    uint32_t duties = 0;
    if (slot.suspended.load() != 0 || share == 0)
      duties |= kSuspended;
    else if (share < kFullShare)
      duties |= kThrottled;
    if (static_cast<JobClass>(slot.job_class.load()) == JobClass::opportunistic)
      duties |= kGivesWay;
    else if (slot.publishes.load() != 0)
      duties |= kPublishes;
    if (slot.word.compare_exchange_weak(word, (word & ~uint32_t{kAnyDuty}) + kOneChange + duties)) break;
  }
  futex_wake_shared(slot.word);
}

void end_grants(Page& page) {
  page.beside = Beside::none;
  page.max_beside_ns = 0;
  for (JobSlot& slot : page.slots) {
    if (slot.state.load() != SlotState::live) continue;
    if (slot.granted.exchange(kFullShare) == kFullShare && slot.publishes.exchange(0) == 0) continue;
    slot.publishes = 0;
    refresh(slot);
  }
}

// Makes values safe, because other processes also write to the page: names are made printable, and classes are limited to the two that
// exist.
JobStatus status_of(const JobSlot& slot) {
  JobStatus status;
  status.id = slot.id;
  status.name = printable(std::string(slot.name, strnlen(slot.name, kNameBytes)));
  std::replace_if(
      status.name.begin(), status.name.end(), [](unsigned char c) { return c <= 0x20; }, '?');
  status.pid = slot.pid;
  const bool is_opportunistic = slot.job_class.load() == static_cast<uint32_t>(JobClass::opportunistic);
  status.job_class = is_opportunistic ? JobClass::opportunistic : JobClass::guaranteed;
  status.share_percent = slot.share_percent();
  status.granted_percent = slot.granted.load() / 100.0;
  status.suspended = slot.suspended.load() != 0;
  status.running = slot.running;
  status.active = slot.active;
  status.threads = slot.threads;
  status.runs = slot.runs;
  status.run_ns = slot.run_ns;
  status.idle_ns = slot.idle_ns;
  status.gave_way_ns = slot.gave_way_ns;
  status.last_step_ns = slot.last_step_ns;
  status.average_step_ns = slot.average_step_ns;
  status.memory_limit_bytes = slot.memory_limit;
  status.host_limit_bytes = slot.host_limit;
  status.device_bytes = slot.device_bytes;
  status.host_bytes = slot.host_bytes;
  status.disk_bytes = slot.disk_bytes;
  status.peak_bytes = slot.peak_bytes;
  status.moved_bytes = slot.moved_bytes;
  status.moves = slot.moves;
  status.moving_ns = slot.moving_ns;
  return status;
}

uint32_t share_from_percent(double percent) {
  if (!(percent >= 0 && percent <= 100))
    throw Error(ErrorCode::invalid_argument, fmt::format("a share of {} %; it must be from 0 to 100", percent));
  return static_cast<uint32_t>(std::lround(percent * 100));
}

void end_guaranteed(Page& page, int index) {
  const uint64_t bit = uint64_t{1} << index;
  if ((page.guaranteed_running.load() & bit) == 0) return;
  page.guaranteed_ended_ns.store(now_ns());  // before the bit is cleared, so that a reader that finds the bit cleared sees the time
  page.guaranteed_running.fetch_and(~bit);
}

void apply(Page& page, int index, const JobChange& change) {
  JobSlot& slot = page.slots[index];
  if (change.job_class && *change.job_class != JobClass::guaranteed && *change.job_class != JobClass::opportunistic)
    throw Error(ErrorCode::invalid_argument, fmt::format("{} is no class of jobs", static_cast<int>(*change.job_class)));
  // The share comes first: an invalid one throws, and nothing may have changed by then.
  if (change.share_percent) slot.share = share_from_percent(*change.share_percent);
  if (change.suspended) slot.suspended = *change.suspended ? 1 : 0;
  bool memory = false;
  if (change.memory_limit_bytes) memory |= slot.memory_limit.exchange(*change.memory_limit_bytes) != *change.memory_limit_bytes;
  if (change.host_limit_bytes) memory |= slot.host_limit.exchange(*change.host_limit_bytes) != *change.host_limit_bytes;
  if (memory) {
    slot.memory_changes.fetch_add(1);
    futex_wake_shared(slot.memory_changes);
  }
  if (change.job_class) {
    slot.job_class = static_cast<uint32_t>(*change.job_class);
    if (*change.job_class != JobClass::guaranteed)
      end_guaranteed(page, index);
    else if (slot.active.load() != 0)
      page.guaranteed_running.fetch_or(uint64_t{1} << index);
  }
  refresh(slot);
}

}  // namespace treadle::sharing
