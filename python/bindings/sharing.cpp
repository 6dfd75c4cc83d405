// Binds Job: a group of sessions and trainers that shares the machine's devices with other jobs.
#include "treadle/sharing.h"

#include <nanobind/stl/shared_ptr.h>

#include "bindings.h"
#include "sharing/job_fields.h"
#include "sharing/quantities.h"

namespace treadle::python {
namespace {

JobChange change_from(std::optional<double> share, std::optional<bool> suspended, const std::optional<std::string>& job_class,
                      std::optional<uint64_t> memory_limit, std::optional<uint64_t> host_limit) {
  JobChange change{.share_percent = share, .suspended = suspended, .memory_limit_bytes = memory_limit, .host_limit_bytes = host_limit};
  if (job_class) change.job_class = sharing::parse_class(*job_class);
  return change;
}

}  // namespace

void register_sharing(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<JobStatus> status(module, "JobStatus", "A job as it was when asked.");
  sharing::for_each_job_field([&](const auto& field) {
    if constexpr (std::is_same_v<decltype(field.member), JobClass JobStatus::*>)
      status.def_prop_ro(
          "job_class", [](const JobStatus& job) { return sharing::class_name(job.job_class); }, field.meaning);
    else
      status.def_ro(field.name, field.member, field.meaning);
  });
  nb::class_<Job>(module, "Job", "A name under which sessions run; other processes of the user see it.")
      .def(
          "__init__",
          [](Job* self, const std::string& name, const std::string& job_class, double share, uint64_t memory_limit, uint64_t host_limit) {
            new (self) Job({.name = name,
                            .job_class = sharing::parse_class(job_class),
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
          "job_class", [](const Job& job) { return sharing::class_name(job.status().job_class); },
          [](Job& job, const std::string& name) { job.set_class(sharing::parse_class(name)); })
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
