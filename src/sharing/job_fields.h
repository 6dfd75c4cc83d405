// Lists the fields of a job's status. Lines, JSON, tables and Python's attributes are made from this list.
#pragma once

#include <string>
#include <string_view>
#include <tuple>

#include "treadle/sharing.h"

namespace treadle::sharing {

template <typename T>
struct JobField {
  const char* name;       ///< name in lines, in the coordinator's files and in Python
  std::string_view json;  ///< key in the output of `treadle jobs --json`
  T JobStatus::*member;
  const char* meaning;
};
template <typename T>
JobField(const char*, std::string_view, T JobStatus::*, const char*) -> JobField<T>;

inline constexpr std::tuple kJobFields{
    JobField{"id", "id", &JobStatus::id, "Its number in the table of jobs."},
    JobField{"name", "name", &JobStatus::name, "As the program or the environment names it."},
    JobField{"pid", "pid", &JobStatus::pid, "Of its process."},
    JobField{"class", "class", &JobStatus::job_class, "\"guaranteed\" or \"opportunistic\"."},
    JobField{"share", "share_percent", &JobStatus::share_percent, "Percent, as set."},
    JobField{"granted", "granted_percent", &JobStatus::granted_percent, "Percent, as the coordinator's policy leaves it."},
    JobField{"suspended", "suspended", &JobStatus::suspended, "Whether its runs wait for leave to go on."},
    JobField{"running", "running", &JobStatus::running, "Runs under way."},
    JobField{"active", "active", &JobStatus::active, "Threads that compute now: of a suspended job, those whose node has not ended yet."},
    JobField{"threads", "threads", &JobStatus::threads, "Threads that its runs may use."},
    JobField{"runs", "runs", &JobStatus::runs, "Runs that have ended."},
    JobField{"run_ns", "run_ns", &JobStatus::run_ns, "From begin to end, of all runs that have ended."},
    JobField{"idle_ns", "idle_ns", &JobStatus::idle_ns, "Slept for the share, and suspended."},
    JobField{"gave_way_ns", "gave_way_ns", &JobStatus::gave_way_ns, "Waited for jobs of the class \"guaranteed\"."},
    JobField{"last_step_ns", "last_step_ns", &JobStatus::last_step_ns, "The last run, from begin to end."},
    JobField{"average_step_ns", "average_step_ns", &JobStatus::average_step_ns, "A run, on average over recent ones."},
    JobField{"memory_limit", "memory_limit_bytes", &JobStatus::memory_limit_bytes, "Bytes; 0: none."},
    JobField{"host_limit", "host_limit_bytes", &JobStatus::host_limit_bytes, "Bytes; 0: none."},
    JobField{"device_bytes", "device_bytes", &JobStatus::device_bytes, "Held in the device's memory."},
    JobField{"host_bytes", "host_bytes", &JobStatus::host_bytes,
             "Held in the host's memory, by sessions on `cpu` or for want of room on a device."},
    JobField{"disk_bytes", "disk_bytes", &JobStatus::disk_bytes, "A device's values in a file, because the host's limit is reached."},
    JobField{"peak_bytes", "peak_bytes", &JobStatus::peak_bytes, "The most of device and host together."},
    JobField{"moved_bytes", "moved_bytes", &JobStatus::moved_bytes, "Moved between device, host and files."},
    JobField{"moves", "moves", &JobStatus::moves, "Moves between device, host and files."},
    JobField{"moving_ns", "moving_ns", &JobStatus::moving_ns, "What runs waited for the moves."},
};

/// Calls the function with each field.
template <typename F>
void for_each_job_field(F&& function) {
  std::apply([&](const auto&... field) { (function(field), ...); }, kJobFields);
}

}  // namespace treadle::sharing
