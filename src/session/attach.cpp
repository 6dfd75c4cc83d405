#include "session/attach.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "core/base/fork_mutex.h"
#include "core/base/logging.h"
#include "session/profiling.h"
#include "session/runtime.h"
#include "sharing/job_table.h"
#include "sharing/turn.h"
#include "treadle/error.h"

namespace treadle {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMemory = 1, kKernelPhases = 2, kOneRequest = 4;  // a request is encoded as its number times kOneRequest, plus flags
constexpr const char* kComplete = ".recording";
constexpr const char* kIncomplete = ".incomplete";
constexpr const char *kBegin = "profile-", *kAsker = "asker-";

std::string files_of(uint64_t job, uint64_t number) { return fmt::format("{}{}-{}-", kBegin, job, number); }

std::string asker_path(const std::string& folder, uint64_t job, uint64_t number) {
  return fmt::format("{}/{}{}-{}", folder, kAsker, job, number);
}

// True while the asking process exists: it holds a lock on its asker file, which the kernel releases when the process ends.
bool is_asked(const std::string& asker) noexcept {
  const int file = open(asker.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return false;
  const bool is_locked = flock(file, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  close(file);
  return is_locked;
}

// Returns the job and the request number in a name such as "profile-12-3-0.part" or "asker-12-3"; nullopt for other files.
std::optional<std::pair<uint64_t, uint64_t>> request_of(const std::string& file) {
  const bool is_asker = file.starts_with(kAsker);
  if (!is_asker && !file.starts_with(kBegin)) return std::nullopt;
  const char *at = file.data() + std::char_traits<char>::length(is_asker ? kAsker : kBegin), *const end = file.data() + file.size();
  uint64_t job = 0, number = 0;
  auto read = [&](uint64_t& value) {
    const auto [next, error] = std::from_chars(at, end, value);
    at = next;
    return error == std::errc();
  };
  if (!read(job) || at == end || *at++ != '-' || !read(number)) return std::nullopt;
  if (is_asker ? at != end : at == end || *at != '-') return std::nullopt;
  return std::pair{job, number};
}

// Deletes the files of asking processes that were killed.
void remove_left_over(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const auto request = request_of(entry.path().filename().string());
    if (!request) continue;
    const std::string asker = asker_path(folder, request->first, request->second);
    if (entry.path().string() != asker) {
      if (!is_asked(asker)) fs::remove(entry.path(), error);
      continue;
    }
    // Deletes the file only while holding its lock: a process that locks it later then sees that it was deleted, and makes a new one.
    const int file = open(asker.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) continue;
    if (flock(file, LOCK_EX | LOCK_NB) == 0) fs::remove(entry.path(), error);
    close(file);
  }
}

// Makes and locks the asker file. Its lock shows that this process still waits for the profile.
int make_asker(const std::string& path) {
  while (true) {
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0) throw Error(ErrorCode::io_error, fmt::format("cannot write {}: {}", path, std::strerror(errno)));
    struct stat info {};
    if (flock(file, LOCK_EX) == 0 && fstat(file, &info) == 0 && info.st_nlink > 0) return file;
    const int failure = errno;
    close(file);
    if (info.st_nlink == 0 && info.st_ino != 0) continue;  // another process has deleted the file as left over before this one locked it
    throw Error(ErrorCode::io_error, fmt::format("cannot lock {}: {}", path, std::strerror(failure)));
  }
}

// Recordings are read without validating each record, so a file that belongs to another user is refused.
void check_owner(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != geteuid())
    throw Error(ErrorCode::io_error, fmt::format("{} is no file of user {}, and is not read", path, geteuid()));
}

}  // namespace

AttachedProfile::AttachedProfile() = default;
AttachedProfile::~AttachedProfile() = default;
void AttachedProfile::end() noexcept { profiler_.reset(); }

void AttachedProfile::follow(const Runtime& runtime) {
  const sharing::JobSlot& slot = runtime.job->state()->slot();
  const uint64_t until = slot.profile_until_ns.load(std::memory_order_acquire);
  const uint32_t here = fork_generation() + 1, made_in = made_in_.load(std::memory_order_relaxed);
  // True if the profiler was made before a fork, by the parent process: its writing thread does not exist in this child.
  const bool is_parents = made_in != 0 && made_in != here;
  if (until == 0 && !is_parents) return;
  const uint64_t request = slot.profile_request.load(std::memory_order_relaxed);
  const bool begins = until != 0 && request != followed_.load(std::memory_order_relaxed) && sharing::now_ns() < until;
  if ((!begins && !is_parents) || !take_turn()) return;
  // Keeps a profiler whose writing thread is still at work. Waiting for that thread here could block forever, as this thread may hold locks
  // that the recording needs.
  if (is_parents || !profiler_ || profiler_->stream->has_ended()) {
    profiler_.reset();
    made_in_ = 0;
    if (begins && request != followed_) begin(runtime, request);
  }
  busy_in_.store(0, std::memory_order_release);
}

// Lets one thread at a time change the profiler. A turn that the parent's thread had when this process was forked does not count.
bool AttachedProfile::take_turn() noexcept {
  const uint32_t here = fork_generation() + 1;
  uint32_t seen = busy_in_.load(std::memory_order_relaxed);
  return seen != here && busy_in_.compare_exchange_strong(seen, here, std::memory_order_acquire);
}

// Errors, such as a full disk, are logged and do not fail the run.
void AttachedProfile::begin(const Runtime& runtime, uint64_t request) {
  static std::atomic<uint32_t> clients{0};  // counts the clients in this process, as each writes its own file
  followed_ = request;
  try {
    const std::shared_ptr<sharing::JobState>& job = runtime.job->state();
    const uint64_t id = job->slot().id, number = request / kOneRequest;
    const std::string folder = sharing_folder(), asker = asker_path(folder, id, number);
    if (!is_asked(asker)) return;
    const std::string file = fmt::format("{}/{}{}", folder, files_of(id, number), clients.fetch_add(1, std::memory_order_relaxed));
    const ProfilerOptions options{
        .memory = (request & kMemory) != 0, .kernel_phases = (request & kKernelPhases) != 0, .stream_to = file + AttachRequest::kPart};
    profile::AwaitedFile ends{.is_over =
                                  [&slot = job->slot(), request, asker] {
                                    return slot.profile_request.load(std::memory_order_relaxed) != request ||
                                           sharing::now_ns() >= slot.profile_until_ns.load(std::memory_order_acquire) || !is_asked(asker);
                                  },
                              .is_wanted = [asker] { return is_asked(asker); },
                              .complete = file + kComplete,
                              .incomplete = file + kIncomplete};
    auto plan = [&runtime](const Profiling& of) { return runtime.profile_plan(of); };
    // Passes null as the owner: the profiler is a member of the client, so it need not keep the client alive.
    profiler_ = std::make_unique<Profiler::Impl>(nullptr, runtime, options, std::move(plan), std::move(ends));
    made_in_ = fork_generation() + 1;
  } catch (const std::exception& error) {
    TREADLE_LOG(warning, "another process asked for a profile of {}: {}", runtime.name, error.what());
  }
}

AttachRequest::AttachRequest(uint64_t job, const AttachOptions& options) : job_(job), folder_(sharing_folder()) {
  sharing::JobTable& table = sharing::JobTable::get();
  table.sweep();
  const int index = table.find(job);
  if (index < 0) throw Error(ErrorCode::not_found, fmt::format("there is no job {}", job));
  slot_ = index;
  remove_left_over(folder_);
  const uint64_t number = table.page().last_profile.fetch_add(1) + 1;
  begin_ = files_of(job, number);
  asker_path_ = asker_path(folder_, job, number);
  asker_ = make_asker(asker_path_);
  try {
    ask(number * kOneRequest + (options.memory ? kMemory : 0) + (options.kernel_phases ? kKernelPhases : 0), options.seconds);
  } catch (...) {
    end_asking();
    throw;
  }
}

// Writes the request to the job's slot. The slot stays occupied by an earlier request as long as its asking process holds the lock, because
// that process still reads the files after the recording has ended.
void AttachRequest::ask(uint64_t request, double seconds) {
  sharing::JobSlot& slot = sharing::JobTable::get().page().slots[slot_];
  uint64_t others = slot.profile_request;
  if ((others != 0 && is_asked(asker_path(folder_, job_, others / kOneRequest))) ||
      !slot.profile_request.compare_exchange_strong(others, request)) {
    const uint64_t until = slot.profile_taken_until_ns, now = sharing::now_ns();
    throw Error(ErrorCode::resource_exhausted,
                fmt::format("another process records job {} ({}) already; try again{}", job_, sharing::status_of(slot).name,
                            until > now ? fmt::format(" in {:.1f} s", static_cast<double>(until - now) / 1e9) : ""));
  }
  until_ns_ = sharing::now_ns() + static_cast<uint64_t>(seconds * 1e9);
  slot.profile_taken_until_ns.store(until_ns_);
  slot.profile_until_ns.store(until_ns_, std::memory_order_release);
}

void AttachRequest::end_asking() noexcept {
  unlink(asker_path_.c_str());
  close(asker_);
}

AttachRequest::~AttachRequest() {
  stop();
  for (const std::string& file : files("")) {
    std::error_code error;
    fs::remove(file, error);
  }
  end_asking();
}

void AttachRequest::stop() noexcept {
  sharing::JobSlot& slot = sharing::JobTable::get().page().slots[slot_];
  uint64_t own = until_ns_;
  if (slot.id.load() != job_ || !slot.profile_until_ns.compare_exchange_strong(own, 0)) return;
  own = until_ns_;
  slot.profile_taken_until_ns.compare_exchange_strong(own, 0);
}

bool AttachRequest::is_alive() const {
  sharing::JobTable& table = sharing::JobTable::get();
  table.sweep();
  return table.find(job_) == slot_;
}

std::vector<std::string> AttachRequest::files(const std::string& end) const {
  std::vector<std::string> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(begin_) && name.ends_with(end)) found.push_back(entry.path().string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<Profile> AttachRequest::profiles(bool cut_off) const {
  if (const std::vector<std::string> incomplete = files(kIncomplete); !incomplete.empty())
    throw Error(ErrorCode::io_error, fmt::format("the job could not write all of its recording to {}: is there room?", folder_));
  std::vector<std::string> readable = files(kComplete);
  if (cut_off)
    for (std::string& file : files(kPart)) readable.push_back(std::move(file));
  std::vector<Profile> profiles;
  for (const std::string& file : readable) {
    check_owner(file);
    try {
      Profile profile = read_profile_recording(file);
      if (!profile.runs.empty()) profiles.push_back(std::move(profile));
    } catch (const Error&) {
      if (!file.ends_with(kPart)) throw;  // ignored: the process ended before it had written anything to this file
    }
  }
  return profiles;
}

}  // namespace treadle
