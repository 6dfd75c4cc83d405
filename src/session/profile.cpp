// Profiles of runs: of sessions, trainers and joint modules.
#include "treadle/profile.h"

#include <fmt/chrono.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <span>

#include "core/file.h"
#include "exec/program/binding.h"
#include "exec/program/profile_plan.h"
#include "profile/analysis.h"
#include "profile/trace_rows.h"
#include "session/session_impl.h"

namespace treadle {

void Runtime::start_profiling(const Executables& executables) {
  if (!recorder) {
    auto made = std::make_unique<Recorder>();
    // Runs under way read run_record, recorded or not: the first name of a recorder is what it is already.
    if (made->intern("run") != run_record) throw Error(ErrorCode::internal, "a recorder whose first name is not 0");
    for (const auto& executable : executables) executable->program->name_records(*made);
    recorder = std::move(made);
  }
  profile_start = read_ticks();
  set_profiling(true);
}

void Runtime::set_profiling(bool on) {
  if (!recorder) throw Error(ErrorCode::invalid_argument, "profiling was not started");
  profiling.store(on, std::memory_order_release);
}

Profile Runtime::traced(const Executables& executables) const {
  if (!recorder) throw Error(ErrorCode::invalid_argument, "profiling was not started");
  Profile profile;
  auto trace = std::make_shared<ProfileTrace>();
  for (const auto& executable : executables) exec::add_profiled_nodes(*executable->program, -1, profile.nodes, trace->node_of);
  trace->recording = recorder->collect();
  trace->first_ticks = profile_start;
  profile.trace = std::move(trace);
  return profile;
}

Profile Runtime::make_profile(const Executables& executables) const {
  Profile profile = traced(executables);
  const exec::Program& main = *executables.front()->program;
  for (size_t i = 0; i < profile.nodes.size() && profile.steps.size() < main.instructions().size(); ++i)
    if (profile.nodes[i].parent < 0) profile.steps.push_back(static_cast<int32_t>(i));
  profile::analyse(profile.trace->recording, {.run = run_record, .node = profile.trace->node_of}, profile_start, profile);
  profile.buffers = exec::profiled_buffers(main);
  if (const auto plan = main.bindings().latest_plan()) {
    profile.memory.arena_bytes = plan->arena_bytes;
    profile.memory.arena_lower_bound_bytes = plan->lower_bound_bytes;
    for (const ProfiledBuffer& buffer : profile.buffers) profile.memory.arena_sum_bytes += buffer.size_bytes;
  }
  profile.memory_statistics = memory.account->statistics();
  profile.ns_per_event = profile::measure_ns_per_event();
  return profile;
}

std::string Runtime::end_profiling(const Executables& executables, TraceFormat format) {
  if (!profiling.exchange(false)) throw Error(ErrorCode::invalid_argument, "profiling is not on");
  std::string path =
      fmt::format("{}{:%Y-%m-%d_%H-%M-%S}_{}.json", options.profile_file_prefix, fmt::localtime(std::time(nullptr)), getpid());
  const std::string text = profile_to_trace(traced(executables), format);
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
  return path;
}

void Session::start_profiling() {
  std::lock_guard lock(impl_->mutex);
  std::vector<std::unique_lock<std::mutex>> idle;  // a program that is being compiled does not know the recorder
  Runtime::Executables made{impl_->main};
  if (!impl_->recorder)
    for (const Impl::Entry& other : impl_->others) {
      idle.emplace_back(other.made->mutex);
      if (other.made->executable) made.push_back(other.made->executable);
    }
  impl_->start_profiling(made);
}

void Session::pause_profiling() {
  std::lock_guard lock(impl_->mutex);
  impl_->set_profiling(false);
}

void Session::resume_profiling() {
  std::lock_guard lock(impl_->mutex);
  impl_->set_profiling(true);
}

Profile Session::profile() const {
  Profile profile;
  {
    std::lock_guard lock(impl_->mutex);
    profile = impl_->make_profile(impl_->compiled_now());
  }
  profile.memory = memory();
  return profile;
}

std::string Session::end_profiling() {
  std::lock_guard lock(impl_->mutex);
  return impl_->end_profiling(impl_->compiled_now(), TraceFormat::onnxruntime);
}

}  // namespace treadle
