#include "cli/attach.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <numeric>
#include <thread>

#include "treadle/error.h"
#include "treadle/sharing.h"

namespace treadle::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLook = std::chrono::milliseconds(20);
constexpr auto kPatience = std::chrono::seconds(20);  // how long to wait for a process to end its recording (usually 0.1 s)

// Handles SIGINT (Ctrl-C) while this object exists: records that it has come, so that the recording ends and its events are shown.
class Interruption {
 public:
  Interruption() {
    interrupted = false;
    struct sigaction action {};
    action.sa_handler = [](int) { interrupted = true; };
    sigaction(SIGINT, &action, &before_);
  }
  ~Interruption() { sigaction(SIGINT, &before_, nullptr); }
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;
  bool is_there() const { return interrupted; }

 private:
  static std::atomic<bool> interrupted;
  struct sigaction before_ {};
};
std::atomic<bool> Interruption::interrupted{false};

std::vector<JobStatus> jobs_of(const std::string& who) {
  std::vector<JobStatus> all = list_jobs(), found;
  auto take = [&](auto&& matches) {
    if (found.empty()) std::copy_if(all.begin(), all.end(), std::back_inserter(found), matches);
  };
  take([&](const JobStatus& job) { return std::to_string(job.pid) == who; });
  take([&](const JobStatus& job) { return std::to_string(job.id) == who; });
  take([&](const JobStatus& job) { return job.name == who; });
  if (found.empty())
    throw Error(ErrorCode::not_found,
                fmt::format("no process, job id or job name of this user is \"{}\": `treadle jobs` lists them. A program's sessions run in "
                            "a job with TREADLE_JOB_CLASS=guaranteed in its environment",
                            who));
  return found;
}

double total_ns(const Profile& profile) {
  return std::accumulate(profile.runs.begin(), profile.runs.end(), 0.0,
                         [](double sum, const ProfiledRun& run) { return sum + run.duration_ns; });
}

using Requests = std::vector<std::unique_ptr<AttachRequest>>;

bool any_alive(const Requests& requests) {
  return std::any_of(requests.begin(), requests.end(), [](const auto& request) { return request->is_alive(); });
}

void await_last_parts(const Requests& requests, const std::vector<JobStatus>& jobs) {
  const auto deadline = Clock::now() + kPatience;
  std::this_thread::sleep_for(kLook);  // a run that has just begun needs time to notice the request
  for (size_t i = 0; i < requests.size(); ++i)
    while (!requests[i]->is_complete() && requests[i]->is_alive()) {
      if (Clock::now() > deadline)
        throw Error(ErrorCode::timed_out,
                    fmt::format("process {} ({}) does not end its recording: is it stopped?", jobs[i].pid, jobs[i].name));
      std::this_thread::sleep_for(kLook);
    }
}

}  // namespace

AttachedClients attach(const std::string& who, const AttachOptions& options) {
  const std::vector<JobStatus> jobs = jobs_of(who);
  const Interruption interruption;
  Requests requests;
  const auto start = Clock::now(),
             end = start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.seconds));
  for (const JobStatus& job : jobs) requests.push_back(std::make_unique<AttachRequest>(job.id, options));
  AttachedClients attached;
  while (Clock::now() < end && !interruption.is_there() && !attached.all_ended) {
    std::this_thread::sleep_for(std::min<Clock::duration>(kLook, end - Clock::now()));
    attached.all_ended = !any_alive(requests);
  }
  attached.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  for (const auto& request : requests) request->stop();
  await_last_parts(requests, jobs);
  for (size_t i = 0; i < jobs.size(); ++i)
    for (Profile& profile : requests[i]->profiles(/*cut_off=*/!requests[i]->is_alive()))
      attached.clients.push_back({fmt::format("{}, process {}", jobs[i].name, jobs[i].pid), std::move(profile)});
  if (attached.clients.empty() && attached.all_ended)
    throw Error(ErrorCode::not_found, fmt::format("process {} ({}) ended after {:.1f} s, before a run of it was recorded", jobs[0].pid,
                                                  jobs[0].name, attached.seconds));
  if (attached.clients.empty())
    throw Error(ErrorCode::invalid_argument, fmt::format("no run of \"{}\" began and ended within {:.1f} s", who, attached.seconds));
  std::stable_sort(attached.clients.begin(), attached.clients.end(),
                   [](const AttachedClient& a, const AttachedClient& b) { return total_ns(a.profile) > total_ns(b.profile); });
  return attached;
}

}  // namespace treadle::cli
