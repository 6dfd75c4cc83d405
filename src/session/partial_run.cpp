// Partial runs: a frame that outlives the call that made it.
#include "session/session_impl.h"
#include "treadle/error.h"

namespace treadle {

struct PartialRun::Impl {
  std::shared_ptr<const Session::Impl> session;  // the pool, the flag that closing sets
  std::shared_ptr<const Executable> executable;
  std::unique_ptr<exec::Frame> frame;
  uint64_t run_id = 0;

  bool advance() {
    RunsInFlight::Entry entry(session->in_flight, run_id, "partial run");
    return frame->advance();
  }
};

PartialRun::PartialRun(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PartialRun::~PartialRun() = default;
PartialRun::PartialRun(PartialRun&&) noexcept = default;
PartialRun& PartialRun::operator=(PartialRun&&) noexcept = default;

PartialRun Session::partial_run(const std::map<std::string, Datum>& feeds) const {
  auto run = std::make_unique<PartialRun::Impl>();
  run->session = impl_;
  run->executable = impl_->main;
  run->frame = std::make_unique<exec::Frame>(*run->executable->program);
  std::vector<Datum> arranged = arrange(*run->executable, feeds);
  try {
    exec::RunControl control = impl_->control(nullptr);
    run->run_id = control.run_id;
    run->frame->start(arranged, {}, control);
  } catch (const Error& error) {
    impl_->explain(*run->executable, arranged, error);
  }
  return PartialRun(std::move(run));
}

bool PartialRun::advance() { return impl_->advance(); }
bool PartialRun::finished() const { return impl_->frame->finished(); }

std::vector<std::pair<std::string, Datum>> PartialRun::yielded() const {
  if (finished()) throw Error(ErrorCode::invalid_argument, "the run is at its end, not at a Yield");
  std::vector<Datum> values = impl_->frame->yielded();
  const Node& node = *impl_->frame->yield().node;
  std::vector<std::pair<std::string, Datum>> named;
  for (size_t i = 0; i < values.size(); ++i)
    named.emplace_back(node.has_input(i) ? impl_->executable->graph->value(node.inputs[i]).name : "", std::move(values[i]));
  return named;
}

bool PartialRun::resume(std::span<const Datum> values) {
  if (finished()) throw Error(ErrorCode::invalid_argument, "the run is at its end, not at a Yield");
  impl_->frame->resume(values);
  return impl_->advance();
}

std::vector<Datum> PartialRun::outputs() {
  if (!finished()) throw Error(ErrorCode::invalid_argument, "the run is not at its end");
  std::vector<Datum> results(impl_->executable->output_names.size());
  impl_->frame->take_outputs(results);
  return results;
}

}  // namespace treadle
