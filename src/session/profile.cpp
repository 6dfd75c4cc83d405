// Profiles of a session's runs.
#include "treadle/profile.h"

#include "exec/profile_plan.h"
#include "profile/analysis.h"
#include "session/session_impl.h"

namespace treadle {

void Session::Impl::start_profiling() {
  std::lock_guard lock(mutex);
  if (!recorder) {
    std::vector<std::unique_lock<std::mutex>> idle;  // a program that is being compiled does not know the recorder
    for (const Entry& other : others) idle.emplace_back(other.made->mutex);
    auto made = std::make_unique<Recorder>();
    // Runs under way read run_record, recorded or not: the first name of a recorder is what it is already.
    if (made->intern("run") != run_record) throw Error(ErrorCode::internal, "a recorder whose first name is not 0");
    main->program->name_records(*made);
    for (const Entry& other : others)
      if (other.made->executable) other.made->executable->program->name_records(*made);
    recorder = std::move(made);
  }
  profile_start = read_ticks();
  set_profiling(true);
}

void Session::start_profiling() { impl_->start_profiling(); }
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
    if (!impl_->recorder) throw Error(ErrorCode::invalid_argument, "profiling was not started");
    const exec::Program& program = *impl_->main->program;
    profile::RecordNames names{.run = impl_->run_record};
    exec::add_profiled_nodes(program, -1, profile.nodes, names.node);
    for (size_t i = 0; i < profile.nodes.size(); ++i)
      if (profile.nodes[i].parent < 0) profile.steps.push_back(static_cast<int32_t>(i));
    for (const auto& executable : impl_->compiled_now())
      if (executable != impl_->main) exec::add_profiled_nodes(*executable->program, -1, profile.nodes, names.node);
    profile::analyse(impl_->recorder->collect(), names, impl_->profile_start, profile);
    profile.buffers = exec::profiled_buffers(program);
  }
  profile.memory = memory();
  profile.memory_statistics = memory_statistics();
  profile.ns_per_event = profile::measure_ns_per_event();
  return profile;
}

}  // namespace treadle
