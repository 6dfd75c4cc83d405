#include "session/attach.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "core/fork_mutex.h"
#include "core/logging.h"
#include "session/profiling.h"
#include "session/runtime.h"
#include "sharing/job_table.h"
#include "sharing/turn.h"
#include "treadle/error.h"

namespace treadle {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMemory = 1, kKernelPhases = 2, kOneRequest = 4;  // a request: its number, and what is wanted
constexpr const char* kComplete = ".recording";
constexpr const char* kIncomplete = ".incomplete";
constexpr const char* kBegin = "profile-";

std::string files_of(uint64_t job, uint64_t request) { return fmt::format("{}{}-{}-", kBegin, job, request / kOneRequest); }

// The job of "profile-12-3-0.part"; 0: it is another file.
uint64_t job_of(const std::string& file) {
  uint64_t job = 0;
  if (!file.starts_with(kBegin)) return 0;
  const char* const first = file.data() + std::char_traits<char>::length(kBegin);
  const auto [end, error] = std::from_chars(first, file.data() + file.size(), job);
  return error == std::errc() && end != file.data() + file.size() && *end == '-' ? job : 0;
}

// Of jobs that are no more, or of one that nobody else asks: their askers have been killed.
void remove_left_over(const std::string& folder, uint64_t job) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const uint64_t of = job_of(entry.path().filename().string());
    if (of != 0 && (of == job || sharing::JobTable::get().find(of) < 0)) fs::remove(entry.path(), error);
  }
}

// Recordings are read as they lie in memory: not from a file that another user has put there.
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
  const bool is_parents = made_in != 0 && made_in != here;  // the child has none of its threads
  if (until == 0 && !is_parents) return;
  const uint64_t request = slot.profile_request.load(std::memory_order_relaxed);
  const bool begins = until != 0 && request != followed_.load(std::memory_order_relaxed) && sharing::now_ns() < until;
  if ((!begins && !is_parents) || !take_turn()) return;
  // One that is still being written ends by itself: waiting for it here could be for ever, with what this thread holds.
  if (is_parents || !profiler_ || profiler_->stream->has_ended()) {
    profiler_.reset();
    made_in_ = 0;
    if (begins && request != followed_) begin(runtime, request);
  }
  busy_in_.store(0, std::memory_order_release);
}

// One thread at a time; in a forked child nobody waits for one of the parent's.
bool AttachedProfile::take_turn() noexcept {
  const uint32_t here = fork_generation() + 1;
  uint32_t seen = busy_in_.load(std::memory_order_relaxed);
  return seen != here && busy_in_.compare_exchange_strong(seen, here, std::memory_order_acquire);
}

// A disk that is full is the asker's trouble, and no run's.
void AttachedProfile::begin(const Runtime& runtime, uint64_t request) {
  static std::atomic<uint32_t> clients{0};  // of the process: each has a file
  followed_ = request;
  try {
    const std::shared_ptr<sharing::JobState>& job = runtime.job->state();
    const std::string file =
        fmt::format("{}/{}{}", sharing_folder(), files_of(job->slot().id, request), clients.fetch_add(1, std::memory_order_relaxed));
    const ProfilerOptions options{
        .memory = (request & kMemory) != 0, .kernel_phases = (request & kKernelPhases) != 0, .stream_to = file + AttachRequest::kPart};
    profile::AwaitedFile ends{.is_over =
                                  [&slot = job->slot(), request] {
                                    return slot.profile_request.load(std::memory_order_relaxed) != request ||
                                           sharing::now_ns() >= slot.profile_until_ns.load(std::memory_order_acquire);
                                  },
                              .complete = file + kComplete,
                              .incomplete = file + kIncomplete};
    auto plan = [&runtime](const Profiling& of) { return runtime.profile_plan(of); };
    // Without an owner: it is part of the client.
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
  sharing::JobSlot& slot = table.page().slots[index];
  const uint64_t now = sharing::now_ns();
  uint64_t taken_until = slot.profile_taken_until_ns;
  until_ns_ = now + static_cast<uint64_t>(options.seconds * 1e9);
  if (taken_until > now || !slot.profile_taken_until_ns.compare_exchange_strong(taken_until, until_ns_))
    throw Error(ErrorCode::resource_exhausted, fmt::format("another process records job {} ({}) already; try again in {:.1f} s", job,
                                                           sharing::status_of(slot).name, static_cast<double>(taken_until - now) / 1e9));
  slot_ = index;
  remove_left_over(folder_, job);
  const uint64_t request = (table.page().last_profile.fetch_add(1) + 1) * kOneRequest + (options.memory ? kMemory : 0) +
                           (options.kernel_phases ? kKernelPhases : 0);
  begin_ = files_of(job, request);
  slot.profile_request.store(request);
  slot.profile_until_ns.store(until_ns_, std::memory_order_release);
}

AttachRequest::~AttachRequest() {
  stop();
  for (const std::string& file : files("")) {
    std::error_code error;
    fs::remove(file, error);
  }
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
      if (!file.ends_with(kPart)) throw;  // ended before anything was written
    }
  }
  return profiles;
}

}  // namespace treadle
