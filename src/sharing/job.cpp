// The public API: jobs, and the list of all jobs.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <mutex>

#include "core/base/fork_mutex.h"
#include "sharing/memory_watch.h"
#include "sharing/quantities.h"
#include "sharing/turn.h"
#include "treadle/error.h"

namespace treadle {

Job::Job(const JobOptions& options) : state_(std::make_shared<sharing::JobState>(options)) {}
Job::~Job() = default;

uint64_t Job::id() const { return state_->slot().id; }
void Job::set_share(double percent) { set({.share_percent = percent}); }
void Job::suspend() { set({.suspended = true}); }
void Job::resume() { set({.suspended = false}); }
void Job::set_class(JobClass job_class) { set({.job_class = job_class}); }
void Job::set_memory_limit(uint64_t bytes) { set({.memory_limit_bytes = bytes}); }
void Job::set_host_limit(uint64_t bytes) { set({.host_limit_bytes = bytes}); }
void Job::set(const JobChange& change) {
  state_->set(change);
  if (change.memory_limit_bytes || change.host_limit_bytes) sharing::MemoryWatch::get().tell(state_->index());
}
JobStatus Job::status() const { return sharing::status_of(state_->slot()); }

std::vector<JobStatus> list_jobs() {
  sharing::JobTable& table = sharing::JobTable::get();
  table.sweep();
  std::vector<JobStatus> jobs;
  for (const sharing::JobSlot& slot : table.page().slots)
    if (slot.state.load(std::memory_order_acquire) == sharing::SlotState::live) jobs.push_back(sharing::status_of(slot));
  std::sort(jobs.begin(), jobs.end(), [](const JobStatus& a, const JobStatus& b) { return a.id < b.id; });
  return jobs;
}

void set_job(uint64_t id, const JobChange& change) {
  sharing::JobTable& table = sharing::JobTable::get();
  table.sweep();
  const int slot = table.find(id);
  if (slot < 0) throw Error(ErrorCode::not_found, fmt::format("there is no job {}", id));
  sharing::apply(table.page(), slot, change);
  if (change.memory_limit_bytes || change.host_limit_bytes) sharing::MemoryWatch::get().tell(slot);
}

std::string sharing_folder() {
  if (const char* folder = std::getenv("TREADLE_SHARING_DIR"); folder && *folder) return folder;
  return fmt::format("/dev/shm/treadle-{}", geteuid());
}

std::shared_ptr<Job> environment_job() {
  static ForkMutex& mutex = *new ForkMutex;
  static std::weak_ptr<Job>& last = *new std::weak_ptr<Job>;  // all sessions share this job as long as one of them exists
  const char* job_class = std::getenv("TREADLE_JOB_CLASS");
  if (!job_class || !*job_class) return nullptr;
  {
    std::lock_guard lock(mutex);
    if (auto job = last.lock()) return job;
  }
  auto with_name = [](const char* variable, auto&& parse) {
    const char* text = std::getenv(variable);
    if (!text || !*text) return;
    try {
      parse(text);
    } catch (const Error& error) {
      throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}", variable, error.what()));
    }
  };
  JobOptions options;
  with_name("TREADLE_JOB_CLASS", [&](const char* text) { options.job_class = sharing::parse_class(text); });
  with_name("TREADLE_JOB_NAME", [&](const char* text) { options.name = text; });
  with_name("TREADLE_JOB_SHARE", [&](const char* text) { options.share_percent = sharing::parse_percent(text); });
  with_name("TREADLE_JOB_MEMORY", [&](const char* text) { options.memory_limit_bytes = sharing::parse_bytes(text); });
  with_name("TREADLE_JOB_HOST_MEMORY", [&](const char* text) { options.host_limit_bytes = sharing::parse_bytes(text); });
  auto job = std::make_shared<Job>(options);
  std::lock_guard lock(mutex);
  if (auto first = last.lock()) return first;
  last = job;
  return job;
}

}  // namespace treadle
