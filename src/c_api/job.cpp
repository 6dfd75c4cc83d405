// Implements the jobs of the C ABI.
#include "c_api/job.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "c_api/arguments.h"
#include "c_api/status.h"

namespace {

using namespace treadle::c_api;
using treadle::JobStatus;

constexpr size_t kFirstVersion = offsetof(treadle_job_status, share_percent);

// Fills the caller's struct. Programs built with older headers have a shorter struct, which gets only the members that it has.
void fill(treadle_job_status& out, const JobStatus& status) {
  treadle_job_status all{};
  all.struct_size = out.struct_size;
  all.id = status.id;
  all.pid = status.pid;
  status.name.copy(all.name, sizeof all.name - 1);
  all.job_class = static_cast<int32_t>(status.job_class);
  all.suspended = status.suspended ? 1 : 0;
  all.share_percent = status.share_percent;
  all.granted_percent = status.granted_percent;
  all.running = status.running;
  all.runs = status.runs;
  all.run_ns = status.run_ns;
  all.idle_ns = status.idle_ns;
  all.gave_way_ns = status.gave_way_ns;
  all.average_step_ns = status.average_step_ns;
  all.memory_limit_bytes = status.memory_limit_bytes;
  all.device_bytes = status.device_bytes;
  all.host_bytes = status.host_bytes;
  all.moved_bytes = status.moved_bytes;
  all.host_limit_bytes = status.host_limit_bytes;
  all.disk_bytes = status.disk_bytes;
  std::memcpy(&out, &all, std::min(out.struct_size, sizeof all));
}

}  // namespace

extern "C" {

treadle_status* treadle_job_create(const char* name, int32_t job_class, double share_percent, uint64_t memory_limit_bytes,
                                   treadle_job** out) {
  return call(__func__, {within(job_class, TREADLE_GUARANTEED, TREADLE_OPPORTUNISTIC, "job_class", "0 or 1"), needed(out, "out")}, [&] {
    const treadle::JobOptions options{.name = name ? name : "",
                                      .job_class = static_cast<treadle::JobClass>(job_class),
                                      .share_percent = share_percent,
                                      .memory_limit_bytes = memory_limit_bytes};
    *out = make<treadle_job>(std::make_shared<treadle::Job>(options)).release();
  });
}

void treadle_job_release(treadle_job* job) { dispose(job); }

treadle_status* treadle_job_get_status(const treadle_job* job, treadle_job_status* out) {
  return call(__func__, {handle(job, "job"), needed(out, "out"), sized(out, kFirstVersion, "out")},
              [&] { fill(*out, job->job->status()); });
}

treadle_status* treadle_job_set_share(treadle_job* job, double share_percent) {
  return call(__func__, {handle(job, "job")}, [&] { job->job->set_share(share_percent); });
}

treadle_status* treadle_job_set_suspended(treadle_job* job, int suspended) {
  return call(__func__, {handle(job, "job")}, [&] { job->job->set({.suspended = suspended != 0}); });
}

treadle_status* treadle_job_set_memory_limit(treadle_job* job, uint64_t bytes) {
  return call(__func__, {handle(job, "job")}, [&] { job->job->set_memory_limit(bytes); });
}

treadle_status* treadle_job_set_host_limit(treadle_job* job, uint64_t bytes) {
  return call(__func__, {handle(job, "job")}, [&] { job->job->set_host_limit(bytes); });
}

treadle_status* treadle_jobs_list(treadle_job_status* out, size_t capacity, size_t* num_jobs) {
  const auto entry = [](const treadle_job_status& one) { return sized(&one, kFirstVersion, ""); };
  return call(__func__, {list_of(out, capacity, "out", entry), needed(num_jobs, "num_jobs")}, [&] {
    const std::vector<JobStatus> jobs = treadle::list_jobs();
    for (size_t i = 0; i < std::min(capacity, jobs.size()); ++i) fill(out[i], jobs[i]);
    *num_jobs = jobs.size();
  });
}

treadle_status* treadle_jobs_set_share(uint64_t id, double share_percent) {
  return call(__func__, {}, [&] { treadle::set_job(id, {.share_percent = share_percent}); });
}

}  // extern "C"
