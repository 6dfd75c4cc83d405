// Partial runs: a frame that outlives the call that made it.
#include <algorithm>

#include "session/session_impl.h"
#include "sharing/turn.h"
#include "treadle/error.h"

namespace treadle {

struct PartialRun::Impl {
  std::shared_ptr<const Session::Impl> session;  // the pool, the flag that closing sets
  std::shared_ptr<const Executable> executable;
  std::unique_ptr<exec::Frame> frame;
  uint64_t run_id = 0;

  std::shared_ptr<ValueCache> cache;

  bool advance(size_t stop = SIZE_MAX) {
    RunsInFlight::Entry entry(session->in_flight, run_id, "partial run");
    const exec::RunControl& control = frame->control();
    sharing::RunScope shared(control.job, control.pool ? control.pool->num_threads() : 1);
    return frame->advance(stop);
  }
};

namespace {

void expect_yield(const exec::Frame& frame) {
  if (!frame.at_yield())
    throw Error(ErrorCode::invalid_argument, frame.finished() ? "the run is at its end, not at a Yield" : "the run is not at a Yield");
}

}  // namespace

PartialRun::PartialRun(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PartialRun::~PartialRun() = default;
PartialRun::PartialRun(PartialRun&&) noexcept = default;
PartialRun& PartialRun::operator=(PartialRun&&) noexcept = default;

PartialRun Session::partial_run(const std::map<std::string, Datum>& feeds, std::shared_ptr<ValueCache> cache,
                                const RunOptions* options) const {
  auto run = std::make_unique<PartialRun::Impl>();
  run->session = impl_;
  run->cache = cache ? std::move(cache) : std::make_shared<ValueCache>();
  Request request{impl_->main->output_names, {}, {}};
  std::vector<std::string> kept;
  for (const auto& [name, value] : *run->cache) kept.push_back(name);
  request.targets = kept;
  run->executable = impl_->executable(request, nullptr);
  run->frame = std::make_unique<exec::Frame>(*run->executable->program);
  std::vector<Datum> arranged = arrange(*run->executable, feeds);
  try {
    exec::RunControl control = impl_->control(options);
    run->run_id = control.run_id;
    run->frame->start(arranged, {}, control);
    run->frame->set_cache(run->cache);
  } catch (const Error& error) {
    impl_->explain(*run->executable, arranged, error);
  }
  return PartialRun(std::move(run));
}

bool PartialRun::advance() { return impl_->advance(); }

bool PartialRun::advance_until(std::string_view name) {
  const auto instructions = impl_->executable->program->instructions();
  for (size_t i = 0; i < instructions.size(); ++i) {
    const Node& node = *instructions[i].node;
    if (node.name == name || std::find(node.sources.begin(), node.sources.end(), name) != node.sources.end()) return impl_->advance(i + 1);
  }
  throw Error(ErrorCode::not_found, "the optimised graph has no node \"" + std::string(name) + "\"");
}

bool PartialRun::at_yield() const { return impl_->frame->at_yield(); }
const std::shared_ptr<ValueCache>& PartialRun::cache() const { return impl_->cache; }
bool PartialRun::finished() const { return impl_->frame->finished(); }

std::vector<std::pair<std::string, Datum>> PartialRun::yielded() const {
  expect_yield(*impl_->frame);
  std::vector<Datum> values = impl_->frame->yielded();
  const Node& node = *impl_->frame->yield().node;
  std::vector<std::pair<std::string, Datum>> named;
  for (size_t i = 0; i < values.size(); ++i)
    named.emplace_back(node.has_input(i) ? impl_->executable->graph->value(node.inputs[i]).name : "", std::move(values[i]));
  return named;
}

bool PartialRun::resume(std::span<const Datum> values) {
  expect_yield(*impl_->frame);
  impl_->frame->resume(values);
  return impl_->advance();
}

std::vector<Datum> PartialRun::outputs() {
  if (!finished()) throw Error(ErrorCode::invalid_argument, "the run is not at its end");
  std::vector<Datum> results(impl_->executable->output_names.size());
  impl_->frame->take_outputs(results);
  results.resize(impl_->executable->num_fetched);
  return results;
}

}  // namespace treadle
