#include "exec/placed/issuing.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/trace/recorder.h"
#include "exec/run/run_instruction.h"

namespace treadle::exec {

Issuing::Issuing(RunStreams& streams, PlacedMemory& memory, PlacedValues& values, StepWork& work, const NodeRunner& nodes,
                 FirstError& error)
    : steps_(memory.steps()),
      streams_(streams),
      memory_(memory),
      values_(values),
      work_(work),
      nodes_(nodes),
      control_(nodes.control()),
      error_(error),
      recorded_(memory, values, nodes) {}

bool Issuing::goes_one_by_one(const sharing::Turn& turn) const { return turn.has_duty() || control_.observer || nodes_.has_cache(); }

void Issuing::issue(StepCursor& cursor, size_t end) {
  try {
    sharing::Turn turn(control_.job, control_.recording.recorder, control_.recording.run, control_.stop.interruption());
    while (cursor.next() < end && !error_.stopped()) {
      std::span<const StepId> bulk = steps_.bulk_from(cursor.next());
      bulk = bulk.first(std::min(bulk.size(), end - cursor.next()));
      if (goes_one_by_one(turn)) {
        for (const StepId s : bulk) issue_alone(s, turn);
      } else if (memory_.residency()) {
        for (const StepId s : bulk) issue_within_limits(s, turn);
      } else {
        issue(bulk);
      }
      cursor.go_to(cursor.next() + bulk.size());
    }
  } catch (...) {
    error_.note(std::current_exception());
  }
}

void Issuing::run(StepCursor& cursor, size_t end) {
  issue(cursor, end);
  streams_.wait_for_all(error_);
  try {
    if (Residency* residency = memory_.residency()) residency->settle();
  } catch (...) {
    error_.note(std::current_exception());
  }
}

void Issuing::rethrow_on_device(const StreamPlan::Step& step) {
  if (step.is_copy()) throw;
  const Instruction& instruction = steps_.instruction(step);
  try {
    rethrow_from(instruction, fmt::format("while running on {}", steps_.device(steps_.device_of(step)).name()), "");
  } catch (...) {
    error_.note(std::current_exception(), step.instruction);
    throw;
  }
}

void Issuing::issue_within_limits(StepId s, sharing::Turn& turn) {
  if (error_.stopped()) return;
  const StreamPlan::Step& step = steps_[s];
  if (turn.has_duty() || (!step.is_copy() && (step.host_waits || steps_.instruction(step).dynamic))) return issue_alone(s, turn);
  try {
    prepare(s, turn);
  } catch (...) {
    rethrow_on_device(step);
  }
  issue(std::span(&s, 1));
  if (!error_.stopped()) memory_.residency()->after(s);
}

void Issuing::issue_alone(StepId s, sharing::Turn& turn) {
  const StreamPlan::Step& step = steps_[s];
  if (control_.observer && !step.is_copy()) control_.stop.call([&] { control_.observer->ready(nodes_.state(), steps_.instruction(step)); });
  Residency* const residency = memory_.residency();
  const auto wait = [&] {
    streams_.wait_for_all(error_);
    if (residency) residency->note_all_done();
  };
  if (turn.has_duty() || residency) {
    wait();
    if (error_.stopped()) return;
    try {
      prepare(s, turn);
    } catch (...) {
      rethrow_on_device(step);
    }
  }
  issue(std::span(&s, 1));
  if (!residency) return;
  if (!error_.stopped()) residency->after(s);
  wait();
}

void Issuing::prepare(StepId s, sharing::Turn& turn) {
  const StreamPlan::Step& step = steps_[s];
  control_.stop.check();
  if (!step.is_copy()) {
    if (turn.has_duty()) turn.before_node(nodes_.state().binding().costs().hint(step.instruction));
    values_.make_outputs(step);
  }
  Stream& on = streams_.at(step.stream);
  if (SharedEngine* engine = control_.job ? on.device().shared_engine() : nullptr)
    engine->set_gives_way(on, turn.gives_way() ? std::function<void()>([this] { control_.stop.check(); }) : nullptr);
  if (Residency* residency = memory_.residency()) residency->before(s);
}

void Issuing::issue(std::span<const StepId> bulk) {
  const StreamPlan::Step& first = steps_[bulk.front()];
  Stream& queue = streams_.at(first.stream);
  const uint64_t since = control_.recording.recorder ? read_ticks() : 0;
  streams_.wait_before(first);
  Datum* const cached = bulk.size() == 1 && !first.is_copy() ? nodes_.cached(steps_.instruction(first)) : nullptr;
  const bool is_cached = cached && cached->defined();
  if (first.is_copy())
    work_.copy(bulk.front(), queue);
  else if (is_cached)
    work_.put_cached(bulk.front(), *cached, queue);
  else
    issue_kernels(bulk, queue);
  if (control_.recording.recorder) record_launches(bulk, since);
  // Observers and caches read a node's outputs right after the node, so the host waits for every step. It also waits for copies, because an
  // observer may read the operands of the next node before that node runs, and a copy may bring them to the host.
  const bool host_waits = steps_[bulk.back()].host_waits || cached || control_.observer;
  streams_.record_behind(bulk.back(), host_waits);
  const bool makes_shapes = !first.is_copy() && steps_.instruction(first).dynamic;
  if ((host_waits || makes_shapes) && !error_.stopped()) take_up(bulk);
  if (cached && !is_cached && !error_.stopped()) *cached = work_.to_cache(bulk.front());
  for (const StepId s : bulk) values_.let_go(s, queue);
}

void Issuing::issue_kernels(std::span<const StepId> bulk, Stream& queue) {
  const Instruction& instruction = steps_.instruction(steps_[bulk.front()]);
  if (!instruction.bodies.empty()) {
    // The bodies' steps are issued by this thread. So it first waits for the stream, which waits for all steps that the instruction depends
    // on.
    const Stream::Work work = work_.kernel(bulk.front(), queue);
    queue.synchronize();
    return work();
  }
  if (!recorded_.may_record(bulk, queue)) {
    enqueue_kernels(bulk, queue);
  } else {
    if (error_.stopped() || submit_again(bulk, queue)) return;
    recorded_.record(bulk, queue, [&] {
      enqueue_kernels(bulk, queue);
      return !error_.stopped();
    });
  }
  for (const StepId s : bulk) values_.keep(steps_.operands(steps_[s]), queue);
}

// The work of a single kernel checks whether the run is to stop. Recorded work does not check this, so the check comes before it is
// submitted.
bool Issuing::submit_again(std::span<const StepId> bulk, Stream& queue) {
  try {
    control_.stop.check();
    return recorded_.submit_again(bulk, queue);
  } catch (...) {
    rethrow_on_device(steps_[bulk.front()]);
  }
}

void Issuing::enqueue_kernels(std::span<const StepId> bulk, Stream& queue) {
  const std::string& name = steps_.instruction(steps_[bulk.front()]).node->name;
  if (bulk.size() == 1) {
    queue.enqueue(work_.kernel(bulk.front(), queue), name);
  } else {
    std::vector<Stream::Work> works;
    for (const StepId s : bulk) works.push_back(work_.kernel(s, queue));
    queue.enqueue(
        [works = std::move(works)] {
          for (const Stream::Work& work : works) work();
        },
        name);
  }
}

// Work on the host's own stream runs at once, and has no launch to record.
void Issuing::record_launches(std::span<const StepId> bulk, uint64_t since) const {
  if (steps_.device_of(steps_[bulk.front()]) == DevicePlacement::kHost) return;
  const uint64_t now = read_ticks();
  for (const StepId s : bulk)
    control_.recording.recorder->record(steps_.record_name(s), RecordKind::launch, since, now, 0, 0, control_.recording.run);
}

void Issuing::take_up(std::span<const StepId> bulk) {
  for (const StepId s : bulk) {
    if (steps_[s].is_copy()) continue;
    try {
      work_.take_up(s, streams_.at(steps_[s].stream));
    } catch (...) {
      rethrow_on_device(steps_[s]);
    }
  }
}

}  // namespace treadle::exec
