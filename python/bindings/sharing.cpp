// Jobs that share a device.
#include "treadle/sharing.h"

#include <nanobind/stl/shared_ptr.h>

#include "bindings.h"

namespace treadle::python {
namespace {

JobClass class_from(const std::string& name) {
  if (name == "guaranteed") return JobClass::guaranteed;
  if (name == "opportunistic") return JobClass::opportunistic;
  throw Error(ErrorCode::invalid_argument, "the class of a job is \"guaranteed\" or \"opportunistic\", not \"" + name + "\"");
}

std::string class_name(JobClass job_class) { return job_class == JobClass::guaranteed ? "guaranteed" : "opportunistic"; }

JobChange change_from(std::optional<double> share, std::optional<bool> suspended, const std::optional<std::string>& job_class,
                      std::optional<uint64_t> memory_limit, std::optional<uint64_t> host_limit) {
  JobChange change{.share_percent = share, .suspended = suspended, .memory_limit_bytes = memory_limit, .host_limit_bytes = host_limit};
  if (job_class) change.job_class = class_from(*job_class);
  return change;
}

}  // namespace

void register_sharing(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<JobStatus>(module, "JobStatus", "A job as it was when asked.")
      .def_ro("id", &JobStatus::id)
      .def_ro("name", &JobStatus::name)
      .def_ro("pid", &JobStatus::pid)
      .def_prop_ro("job_class", [](const JobStatus& status) { return class_name(status.job_class); })
      .def_ro("share", &JobStatus::share_percent, "Percent, as set.")
      .def_ro("granted", &JobStatus::granted_percent, "Percent, as the coordinator's policy leaves it.")
      .def_ro("suspended", &JobStatus::suspended)
      .def_ro("running", &JobStatus::running, "Runs under way.")
      .def_ro("active", &JobStatus::active, "Threads that compute now: of a suspended job, those whose node has not ended yet.")
      .def_ro("threads", &JobStatus::threads)
      .def_ro("runs", &JobStatus::runs, "That have ended.")
      .def_ro("run_ns", &JobStatus::run_ns, "From begin to end, of all of them.")
      .def_ro("idle_ns", &JobStatus::idle_ns, "Slept for the share, and suspended.")
      .def_ro("gave_way_ns", &JobStatus::gave_way_ns)
      .def_ro("last_step_ns", &JobStatus::last_step_ns)
      .def_ro("average_step_ns", &JobStatus::average_step_ns)
      .def_ro("memory_limit", &JobStatus::memory_limit_bytes, "Bytes; 0: none.")
      .def_ro("host_limit", &JobStatus::host_limit_bytes, "Bytes; 0: none.")
      .def_ro("device_bytes", &JobStatus::device_bytes)
      .def_ro("host_bytes", &JobStatus::host_bytes, "Held in the host's memory, by sessions on `cpu` or for want of room on a device.")
      .def_ro("disk_bytes", &JobStatus::disk_bytes, "A device's values in a file, because the host's limit is reached.")
      .def_ro("peak_bytes", &JobStatus::peak_bytes, "The most of device and host together.")
      .def_ro("moved_bytes", &JobStatus::moved_bytes)
      .def_ro("moves", &JobStatus::moves)
      .def_ro("moving_ns", &JobStatus::moving_ns);
  nb::class_<Job>(module, "Job", "A name under which sessions run; other processes of the user see it.")
      .def(
          "__init__",
          [](Job* self, const std::string& name, const std::string& job_class, double share, uint64_t memory_limit, uint64_t host_limit) {
            new (self) Job({.name = name,
                            .job_class = class_from(job_class),
                            .share_percent = share,
                            .memory_limit_bytes = memory_limit,
                            .host_limit_bytes = host_limit});
          },
          "name"_a = "", "job_class"_a = "guaranteed", "share"_a = 100.0, "memory_limit"_a = 0, "host_limit"_a = 0,
          "job_class: \"guaranteed\" or \"opportunistic\"; share: percent; memory_limit: bytes of the device, on `cpu` of the host; "
          "host_limit: bytes of the host, also for what has no room on a device; 0: none.")
      .def_prop_ro("id", &Job::id)
      .def_prop_rw(
          "share", [](const Job& job) { return job.status().share_percent; }, &Job::set_share, "Percent; acted on within one node.")
      .def_prop_rw(
          "memory_limit", [](const Job& job) { return job.status().memory_limit_bytes; }, &Job::set_memory_limit, "Bytes; 0: none.")
      .def_prop_rw(
          "host_limit", [](const Job& job) { return job.status().host_limit_bytes; }, &Job::set_host_limit, "Bytes; 0: none.")
      .def_prop_rw(
          "job_class", [](const Job& job) { return class_name(job.status().job_class); },
          [](Job& job, const std::string& name) { job.set_class(class_from(name)); })
      .def("suspend", &Job::suspend, "Runs stop before their next node.")
      .def("resume", &Job::resume)
      .def("status", &Job::status);
  module.def("list_jobs", &list_jobs, "All jobs of this user on this machine.");
  module.def(
      "set_job",
      [](uint64_t id, std::optional<double> share, std::optional<bool> suspended, std::optional<std::string> job_class,
         std::optional<uint64_t> memory_limit,
         std::optional<uint64_t> host_limit) { set_job(id, change_from(share, suspended, job_class, memory_limit, host_limit)); },
      "id"_a, nb::kw_only(), "share"_a = nb::none(), "suspended"_a = nb::none(), "job_class"_a = nb::none(), "memory_limit"_a = nb::none(),
      "host_limit"_a = nb::none(), "Changes a job of any process of this user.");
  module.def("sharing_folder", &sharing_folder, "Where the job table and the coordinator's socket are.");
}

}  // namespace treadle::python
