// Partial runs: a frame that outlives the call that made it.
#include <algorithm>
#include <exception>
#include <new>

#include "core/float_mode.h"
#include "session/deadline.h"
#include "session/session_impl.h"
#include "sharing/turn.h"
#include "treadle/error.h"

namespace treadle {

// Shared with the thread that a run with a deadline takes place on: it may outlive the PartialRun.
struct PartialRun::Impl : std::enable_shared_from_this<PartialRun::Impl> {
  std::shared_ptr<const Session::Impl> session;  // the pool, the flag that closing sets
  std::shared_ptr<const Executable> executable;
  std::shared_ptr<ThreadPool> pool;  // of the run's options
  exec::Caller caller;
  std::optional<MemoryGate::Pass> pass;
  std::unique_ptr<exec::Frame> frame;
  uint64_t run_id = 0;
  std::string tag;
  bool left_behind = false;  // its deadline passed while a node did not return: the frame is that node's
  std::shared_ptr<ValueCache> cache;

  void expect_here() const {
    if (left_behind) throw_left(caller);
  }

  // Everything that the run calls goes through here: allocation, the register of runs in flight, and hooks.
  bool advance(size_t stop = SIZE_MAX) {
    expect_here();
    const auto deadline = frame->control().deadline;
    bool at_end = false;
    auto step = [&] {
      if (!deadline) {
        RunsInFlight::Entry entry(*session->in_flight, run_id, tag);
        at_end = advance_here(stop);
        return;
      }
      struct Outcome {
        bool at_end = false;
        std::exception_ptr failure;
        std::shared_ptr<RunsInFlight::Entry> entry;
      };
      auto outcome = std::make_shared<Outcome>();
      auto entry = outcome->entry = session->in_flight->enter(run_id, tag);
      const bool ended = run_until(*deadline, caller, [run = shared_from_this(), outcome, stop]() mutable {
        outcome->entry->runs_on_this_thread();
        try {
          outcome->at_end = run->advance_here(stop);
        } catch (...) {
          outcome->failure = std::current_exception();
        }
        auto in_flight_until_here = std::move(outcome->entry);
        run.reset();  // with all that it holds, if nobody will ask for more: who closes the session waits for that
      });
      left_behind = !ended;
      if (left_behind) {
        entry->caller_left();
        entry.reset();
      }
      expect_here();
      if (outcome->failure) std::rethrow_exception(outcome->failure);
      at_end = outcome->at_end;
    };
    session->with_hooks({.run_id = run_id, .graph_id = executable->id, .tag = tag}, std::ref(step));
    return at_end;
  }

 private:
  bool advance_here(size_t stop) {
    AllocationScope scope(&session->memory, MemoryClass::activations);
    const exec::RunControl& control = frame->control();
    PoolCaller caller(control.pool);
    sharing::RunScope shared(control.job, control.pool ? control.pool->num_threads() : 1);
    std::optional<DenormalsAsZero> mode;
    if (control.denormals_as_zero) mode.emplace();
    try {
      return frame->advance(stop);
    } catch (const std::bad_alloc&) {
      throw Error(ErrorCode::resource_exhausted, "out of memory");
    }
  }
};

namespace {

void expect_yield(const exec::Frame& frame) {
  if (!frame.at_yield())
    throw Error(ErrorCode::invalid_argument, frame.finished() ? "the run is at its end, not at a Yield" : "the run is not at a Yield");
}

}  // namespace

PartialRun::PartialRun(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
PartialRun::~PartialRun() = default;
PartialRun::PartialRun(PartialRun&&) noexcept = default;
PartialRun& PartialRun::operator=(PartialRun&&) noexcept = default;

PartialRun Session::partial_run(const std::map<std::string, Datum>& feeds, std::shared_ptr<ValueCache> cache,
                                const RunOptions* options) const {
  auto run = std::make_shared<PartialRun::Impl>();
  run->session = impl_;
  run->cache = cache ? std::move(cache) : std::make_shared<ValueCache>();
  const std::vector<std::string> fed = impl_->fed_values(feeds);
  Request request{impl_->main->output_names, fed, {}};
  std::vector<std::string> kept;
  for (const auto& [name, value] : *run->cache) kept.push_back(name);
  request.targets = kept;
  run->executable = impl_->executable(request, nullptr);
  run->tag = options && !options->tag.empty() ? options->tag : "partial run";
  if (options) run->pool = options->thread_pool;
  AllocationScope scope(&impl_->memory, MemoryClass::activations);
  run->frame = std::make_unique<exec::Frame>(*run->executable->program);
  std::vector<Datum> arranged = arrange(*run->executable, feeds);
  try {
    exec::RunControl control = impl_->control(options);
    run->run_id = control.run_id;
    if (impl_->gate) control.pass = &run->pass.emplace(*impl_->gate, /*waits=*/false);
    if (control.deadline) {
      control.caller = &run->caller;
      for (Datum& feed : arranged)
        if (feed.is_tensor() && feed.tensor().storage()->lent()) feed = feed.tensor().clone();
    }
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

size_t PartialRun::steps_left() const {
  impl_->expect_here();
  return impl_->frame->steps_left();
}

size_t PartialRun::advance_steps(size_t count) {
  const size_t left = steps_left();
  if (left > 0 && count > 0) impl_->advance(impl_->frame->position() + std::min(count, left));
  return steps_left();
}

bool PartialRun::at_yield() const {
  impl_->expect_here();
  return impl_->frame->at_yield();
}
const std::shared_ptr<ValueCache>& PartialRun::cache() const { return impl_->cache; }
bool PartialRun::finished() const {
  impl_->expect_here();
  return impl_->frame->finished();
}

std::vector<std::pair<std::string, Datum>> PartialRun::yielded() const {
  impl_->expect_here();
  expect_yield(*impl_->frame);
  std::vector<Datum> values = impl_->frame->yielded();
  const Node& node = *impl_->frame->yield().node;
  std::vector<std::pair<std::string, Datum>> named;
  for (size_t i = 0; i < values.size(); ++i)
    named.emplace_back(node.has_input(i) ? impl_->executable->graph->value(node.inputs[i]).name : "", std::move(values[i]));
  return named;
}

bool PartialRun::resume(std::span<const Datum> values) {
  impl_->expect_here();
  expect_yield(*impl_->frame);
  impl_->frame->resume(values);
  return impl_->advance();
}

std::vector<Datum> PartialRun::outputs() {
  if (!finished()) throw Error(ErrorCode::invalid_argument, "the run is not at its end");
  std::vector<Datum> results(impl_->executable->output_names.size());
  impl_->frame->take_outputs(results);
  results.resize(impl_->executable->num_fetched);
  for (const Datum& result : results) hand_over_all(result);
  return results;
}

}  // namespace treadle
