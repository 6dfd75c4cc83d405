#include "session/stoppable_run.h"

#include <algorithm>
#include <utility>

#include "session/deadline.h"
#include "session/run_names.h"
#include "treadle/error.h"

namespace treadle {

StoppableRun::StoppableRun(std::shared_ptr<const Runtime> runtime, std::shared_ptr<const Executable> executable, const RunOptions* options,
                           std::shared_ptr<const Monitor> monitor, std::string tag)
    : runtime_(std::move(runtime)),
      executable_(std::move(executable)),
      monitor_(std::move(monitor)),
      options_(options),
      tag_(options && !options->tag.empty() ? options->tag : std::move(tag)),
      control_(runtime_->control(options)) {
  if (options) pool_ = options->thread_pool;
  if (runtime_->gate) control_.memory.pass = &pass_.emplace(*runtime_->gate, /*ends_by_itself=*/false);
  if (control_.stop.deadline) control_.stop.caller = &caller_;
  if (RunObserver::needed(options, monitor_.get()))
    control_.observer = &observer_.emplace(*executable_, options, monitor_.get(), control_.run_id, runtime_->memory);
}

StoppableRun::~StoppableRun() = default;

void StoppableRun::start(std::vector<Datum> feeds, std::span<const Datum> bound, std::shared_ptr<exec::ValueCache> cache, bool compiled) {
  compiled_ = compiled;
  check_names(*executable_, options_, monitor_.get(), bound);
  if (control_.stop.deadline)
    for (Datum& feed : feeds)
      if (feed.is_tensor() && feed.tensor().storage()->lent()) feed = feed.tensor().clone();
  control_.feeds.later = std::any_of(feeds.begin(), feeds.end(), [](const Datum& feed) { return !feed.defined(); });
  std::vector<exec::OutputMemory> memory;
  add_output_memory(*executable_, options_, memory);
  AllocationScope scope(&runtime_->memory, MemoryClass::activations);
  run_ = executable_->executor->take();
  try {
    run_->start(feeds, bound, control_, memory);
  } catch (const Error& error) {
    if (executable_->explain) executable_->explain(*executable_, feeds, error);
    throw;
  }
  run_->set_cache(std::move(cache));
  count(feeds, {});
}

void StoppableRun::count(std::span<const Datum> inputs, std::span<const Datum> outputs) const {
  if (RunsInFlight::counts_runs()) runtime_->in_flight->count_bytes(bytes_of(inputs), bytes_of(outputs));
}

exec::Run& StoppableRun::run() const {
  if (left_behind_) throw_left(caller_);
  return *run_;
}

bool StoppableRun::advance(size_t steps) {
  run();
  runtime_->set_recorder(control_);
  run_->set_recorder(control_);
  bool at_end = false;
  const HookedRun hooked{.run_id = control_.run_id, .graph_id = executable_->id, .tag = tag_};
  try {
    if (control_.stop.deadline) {
      auto result = std::make_shared<bool>(false);
      runtime_->call(control_, caller_, hooked, [self = shared_from_this(), result, steps] { *result = self->run_->advance(steps); });
      at_end = *result;
    } else {
      auto here = [&] { at_end = run_->advance(steps); };
      runtime_->call(control_, caller_, hooked, std::ref(here));
    }
  } catch (...) {
    left_behind_ = caller_.left;
    throw;
  }
  if (at_end && observer_ && !std::exchange(has_ended_, true)) observer_->finish(compiled_);
  return at_end;
}

void StoppableRun::resume(std::span<const Datum> values) { run().resume(values); }

void StoppableRun::feed(size_t input, Datum value) {
  if (control_.stop.deadline && value.is_tensor() && value.tensor().storage()->lent()) value = value.tensor().clone();
  AllocationScope scope(&runtime_->memory, MemoryClass::activations);
  run().feed(input, value);
  count({&value, 1}, {});
}

bool StoppableRun::has_output(size_t k) const { return run().has_output(k); }

Datum StoppableRun::output(size_t k) const {
  AllocationScope scope(&runtime_->memory, MemoryClass::activations);
  Datum value = run().output(k);
  hand_over_all(value);
  count({}, {&value, 1});
  return value;
}

Datum StoppableRun::take_output(size_t k) {
  AllocationScope scope(&runtime_->memory, MemoryClass::activations);
  Datum value = run().take_output(k);
  hand_over_all(value);
  count({}, {&value, 1});
  return value;
}

std::vector<Datum> StoppableRun::take_outputs() {
  if (!run().finished()) throw Error(ErrorCode::invalid_argument, "the run is not at its end");
  std::vector<Datum> results(executable_->output_names.size());
  AllocationScope scope(&runtime_->memory, MemoryClass::activations);
  run_->take_outputs(results);
  results.resize(executable_->num_fetched);
  for (const Datum& result : results) hand_over_all(result);
  count({}, results);
  return results;
}

}  // namespace treadle
