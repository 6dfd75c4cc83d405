// How long nodes take, of sessions, trainers and joint modules that count it.
#include "core/node_counters.h"

#include <fmt/format.h>

#include "exec/program/program.h"
#include "session/session_impl.h"
#include "treadle/error.h"
#include "treadle/profile.h"

namespace treadle {
namespace {

void add_counters(const exec::Program& program, int32_t parent, double ns_per_tick, std::vector<NodeCounter>& counters) {
  for (size_t i = 0; i < program.instructions().size(); ++i) {
    const exec::Instruction& instruction = program.instructions()[i];
    const TickHistogram sum = program.counters().sum(i);
    NodeCounter counter{.name = instruction.node->name, .op_type = instruction.node->op_type, .parent = parent};
    counter.total_ns = static_cast<double>(sum.total) * ns_per_tick;
    for (size_t b = 0; b < TickBuckets::kCount; ++b) {
      if (sum.counts[b] == 0) continue;
      const auto count = static_cast<int64_t>(sum.counts[b]);
      counter.calls += count;
      counter.histogram.push_back(
          {static_cast<double>(TickBuckets::low(b)) * ns_per_tick, static_cast<double>(TickBuckets::low(b + 1)) * ns_per_tick, count});
    }
    const auto index = static_cast<int32_t>(counters.size());
    counters.push_back(std::move(counter));
    for (const auto& body : instruction.bodies) add_counters(*body, index, ns_per_tick, counters);
  }
}

void reset_counters(const exec::Program& program) {
  program.counters().reset();
  for (const exec::Instruction& instruction : program.instructions())
    for (const auto& body : instruction.bodies) reset_counters(*body);
}

void expect_counters(const Runtime& runtime) {
  if (!runtime.options.node_counters)
    throw Error(ErrorCode::invalid_argument, fmt::format("{} counts no nodes: it was made without the option node_counters", runtime.name));
}

}  // namespace

std::vector<NodeCounter> Runtime::node_counters(const Executables& executables) const {
  expect_counters(*this);
  const double ns_per_tick = Recorder::of_process().ns_per_tick();
  std::vector<NodeCounter> counters;
  for (const auto& executable : executables) add_counters(*executable->program, -1, ns_per_tick, counters);
  return counters;
}

void Runtime::reset_node_counters(const Executables& executables) const {
  expect_counters(*this);
  for (const auto& executable : executables) reset_counters(*executable->program);
}

std::vector<NodeCounter> Session::node_counters() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->node_counters(impl_->compiled_now());
}

void Session::reset_node_counters() const {
  std::lock_guard lock(impl_->mutex);
  impl_->reset_node_counters(impl_->compiled_now());
}

}  // namespace treadle
