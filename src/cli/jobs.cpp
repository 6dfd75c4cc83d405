// Implements the commands `treadle jobs` and `treadle coordinator`.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/terminal.h"
#include "core/base/nearest.h"
#include "sharing/coordinator.h"
#include "sharing/job_fields.h"
#include "sharing/job_table.h"
#include "sharing/policy.h"
#include "sharing/quantities.h"
#include "treadle/error.h"
#include "treadle/sharing.h"

namespace treadle::cli {
namespace {

std::atomic<bool> interrupted{false};

void stop_at_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = true; };
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

std::string state_of(const JobStatus& job) {
  if (job.suspended || job.share_percent == 0) return job.active > 0 ? "stopping" : "suspended";
  return job.running > 0 ? "running" : "idle";
}

std::string percent_of(uint64_t part, uint64_t whole) {
  return whole == 0 ? "-" : fmt::format("{:.0f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string table_text(const std::vector<JobStatus>& jobs) {
  TextTable table(
      {"id", "name", "pid", "class", "share", "granted", "state", "runs", "step", "idle", "gave way", "limit", "device", "host", "disk"});
  for (const JobStatus& job : jobs)
    table.add({std::to_string(job.id), job.name, std::to_string(job.pid), std::string(sharing::class_name(job.job_class)),
               fmt::format("{}%", job.share_percent), fmt::format("{}%", job.granted_percent), state_of(job), std::to_string(job.runs),
               fmt::format("{:.2f} ms", static_cast<double>(job.average_step_ns) / 1e6), percent_of(job.idle_ns, job.run_ns),
               percent_of(job.gave_way_ns, job.run_ns),
               job.memory_limit_bytes == 0 ? "none" : sharing::format_bytes(job.memory_limit_bytes),
               sharing::format_bytes(job.device_bytes), sharing::format_bytes(job.host_bytes), sharing::format_bytes(job.disk_bytes)});
  return table.to_text() + (jobs.empty() ? "  (no jobs)\n" : "");
}

nlohmann::json json_of(const std::vector<JobStatus>& jobs) {
  auto list = nlohmann::json::array();
  for (const JobStatus& job : jobs) {
    nlohmann::json& entry = list.emplace_back();
    sharing::for_each_job_field([&](const auto& field) { entry[std::string(field.json)] = job.*field.member; });
    entry["class"] = sharing::class_name(job.job_class);
  }
  return list;
}

// Prints the table of jobs repeatedly until a signal arrives. Clears the screen in between, if the output is a terminal.
int watch() {
  stop_at_signals();
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  while (!interrupted) {
    if (terminal) clear_screen();
    show_text(stdout, table_text(list_jobs()));
    std::fflush(stdout);
    for (int i = 0; i < 10 && !interrupted; ++i) usleep(50'000);
  }
  return 0;
}

struct SetOptions {
  std::vector<std::string> jobs;
  std::string share, memory, host_memory, job_class;
  bool suspend = false, resume = false;
};

// Says so if a job holds more than its new limits: its runs release what they can, and fail if that is not enough.
void warn_of_limits(const JobStatus& job) {
  auto warn = [&](const char* option, uint64_t limit, uint64_t held, const char* where) {
    if (limit == 0 || held <= limit) return;
    show_on(stderr,
            "treadle jobs: warning: job {} \"{}\" holds {} {}, more than its new limit {} {}. Its runs move or release what they can, and "
            "fail if they need more\n",
            job.id, job.name, sharing::format_bytes(held), where, option, sharing::format_bytes(limit));
  };
  // The limit of the device's memory is that of the host's for sessions on `cpu`, which hold nothing on a device.
  if (job.device_bytes > 0)
    warn("--memory", job.memory_limit_bytes, job.device_bytes, "on its device");
  else
    warn("--memory", job.memory_limit_bytes, job.host_bytes, "of the host's memory");
  warn("--host-memory", job.host_limit_bytes, job.host_bytes, "of the host's memory");
}

[[noreturn]] void throw_no_job(const std::string& wanted) {
  std::vector<std::string> names;
  for (const JobStatus& job : list_jobs()) names.push_back(job.name);
  throw Error(ErrorCode::not_found, names.empty() ? fmt::format("there is no job \"{}\": nothing runs in a job now", wanted)
                                                  : fmt::format("there is no job \"{}\"; is it {}? `treadle jobs` lists all", wanted,
                                                                nearest_names(wanted, names)));
}

// Changes one job. Its present state is read before the change, as the job reacts at once.
void set_one(uint64_t id, const JobChange& change) {
  const std::vector<JobStatus> jobs = list_jobs();
  const auto found = std::find_if(jobs.begin(), jobs.end(), [&](const JobStatus& job) { return job.id == id; });
  set_job(id, change);
  if (found == jobs.end()) return;
  JobStatus job = *found;
  job.memory_limit_bytes = change.memory_limit_bytes.value_or(0), job.host_limit_bytes = change.host_limit_bytes.value_or(0);
  warn_of_limits(job);
}

int set_jobs(const SetOptions& options) {
  JobChange change;
  if (!options.share.empty()) change.share_percent = sharing::parse_percent(options.share);
  if (!options.memory.empty()) change.memory_limit_bytes = sharing::parse_bytes(options.memory);
  if (!options.host_memory.empty()) change.host_limit_bytes = sharing::parse_bytes(options.host_memory);
  if (!options.job_class.empty()) change.job_class = sharing::parse_class(options.job_class);
  if (options.suspend || options.resume) change.suspended = options.suspend;
  for (const std::string& wanted : options.jobs) {
    uint64_t id = 0;
    const auto [end, error] = std::from_chars(wanted.data(), wanted.data() + wanted.size(), id);
    if (error == std::errc() && end == wanted.data() + wanted.size()) {
      set_one(id, change);
      continue;
    }
    bool found = false;
    for (const JobStatus& job : list_jobs()) {
      if (job.name != wanted) continue;
      set_one(job.id, change);
      found = true;
    }
    if (!found) throw_no_job(wanted);
  }
  return 0;
}

}  // namespace

Command add_jobs(CLI::App& app) {
  app.description("List or change the jobs that share this machine");
  auto options = std::make_shared<SetOptions>();
  auto json = std::make_shared<bool>(false), live = std::make_shared<bool>(false);
  app.add_flag("--json", *json, "Print JSON, with times in nanoseconds");
  app.add_flag("--watch", *live, "Update the table until Ctrl-C");
  CLI::App* set = app.add_subcommand("set", "Change jobs; takes effect within one node");
  set->add_option("job", options->jobs, "Id or name; all jobs of that name")->required();
  set->add_option("--share", options->share, "Percent of the time that its runs may take: 0 to 100");
  set->add_option("--memory", options->memory, "Limit of the memory of its device, on cpu of the host's: 512MiB, 2GiB, none");
  set->add_option("--host-memory", options->host_memory, "Limit of the host's memory, also for what has no room on the device");
  set->add_option("--class", options->job_class, "guaranteed or opportunistic");
  auto* suspend = set->add_flag("--suspend", options->suspend, "Stop before the next node");
  set->add_flag("--resume", options->resume, "Go on")->excludes(suspend);
  app.footer("Example: treadle jobs set train --share 30 --memory 2GiB");
  return [options, json, live, set] {
    if (set->parsed()) return set_jobs(*options);
    if (*live) return watch();
    if (*json)
      show_json(json_of(list_jobs()));
    else
      show_text(stdout, table_text(list_jobs()));
    return 0;
  };
}

Command add_coordinator(CLI::App& app) {
  app.description("Steer the jobs of this machine by a policy; a local socket and files steer it");
  auto options = std::make_shared<sharing::CoordinatorOptions>();
  std::string policies;
  for (const auto& [name, text] : sharing::policy_table()) policies += fmt::format("\n  {:<10} {}", name, text);
  app.add_option("--policy", options->policy, "What opportunistic jobs may do beside guaranteed ones")->capture_default_str();
  app.add_option("--period", options->period_ms, "Milliseconds between two updates of the policy")->capture_default_str();
  app.add_option("--control", options->control_file, "File to read when it changes: a line per job, NAME share=30 memory=2GiB");
  app.add_option("--status", options->status_file, "File to write once a second, as JSON");
  app.footer("Policies:" + policies);
  return [options] {
    stop_at_signals();
    sharing::Coordinator coordinator(*options);
    show("coordinator of {} with policy {}\n", sharing::coordinator_socket(), options->policy);
    std::fflush(stdout);
    coordinator.run(interrupted);
    return 0;
  };
}

}  // namespace treadle::cli
