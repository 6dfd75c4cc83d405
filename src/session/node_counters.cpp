// Node counters: number and durations of each node's executions, for clients that count them.
#include "core/trace/node_counters.h"

#include <fmt/format.h>

#include <algorithm>

#include "exec/plan/plans.h"
#include "session/session_impl.h"
#include "treadle/error.h"
#include "treadle/profile.h"

namespace treadle {
namespace {

void add_counted(exec::Plans& plans, int32_t parent, CountedNodes& counted) {
  const exec::Program& program = plans.program();
  for (const exec::Instruction& instruction : program.instructions()) {
    const auto index = static_cast<int32_t>(counted.size());
    counted.push_back(
        {instruction.node->name, instruction.node->op_type, parent, plans.counters().sum(index_of(program.id_of(instruction)))});
    for (const auto& body : instruction.bodies) add_counted(plans.of_body(*body), index, counted);
  }
}

NodeCounter counter_of(const CountedNode& node, int32_t first, double ns_per_tick) {
  NodeCounter counter{.name = node.name, .op_type = node.op_type, .parent = node.parent < 0 ? -1 : first + node.parent};
  counter.total_ns = static_cast<double>(node.sum.total) * ns_per_tick;
  for (size_t b = 0; b < TickBuckets::kCount; ++b) {
    if (node.sum.counts[b] == 0) continue;
    const auto count = static_cast<int64_t>(node.sum.counts[b]);
    counter.calls += count;
    counter.histogram.push_back(
        {static_cast<double>(TickBuckets::low(b)) * ns_per_tick, static_cast<double>(TickBuckets::low(b + 1)) * ns_per_tick, count});
  }
  return counter;
}

void reset_counters(exec::Plans& plans) {
  plans.counters().reset();
  for (const exec::Instruction& instruction : plans.program().instructions())
    for (const auto& body : instruction.bodies) reset_counters(plans.of_body(*body));
}

void expect_counters(const Runtime& runtime) {
  if (!runtime.options.node_counters)
    throw Error(ErrorCode::invalid_argument, fmt::format("{} counts no nodes: it was made without the option node_counters", runtime.name));
}

}  // namespace

void keep_counters(exec::Plans& plans, CountedNodes& kept) {
  CountedNodes leaving;
  add_counted(plans, -1, leaving);
  std::vector<int32_t> place;  // index in `kept` of each node in `leaving`
  for (CountedNode& node : leaving) {
    if (node.parent >= 0) node.parent = place[static_cast<size_t>(node.parent)];
    auto same = std::find_if(kept.begin(), kept.end(), [&](const CountedNode& other) {
      return other.name == node.name && other.op_type == node.op_type && other.parent == node.parent;
    });
    place.push_back(static_cast<int32_t>(same - kept.begin()));
    if (same == kept.end()) {
      kept.push_back(std::move(node));
      continue;
    }
    same->sum.total += node.sum.total;
    for (size_t b = 0; b < TickBuckets::kCount; ++b) same->sum.counts[b] += node.sum.counts[b];
  }
}

std::vector<NodeCounter> Runtime::node_counters(const Executables& executables, const CountedNodes& kept) const {
  expect_counters(*this);
  const double ns_per_tick = Recorder::of_process().ns_per_tick();
  std::vector<NodeCounter> counters;
  auto add = [&](const CountedNodes& counted) {
    const auto first = static_cast<int32_t>(counters.size());
    for (const CountedNode& node : counted) counters.push_back(counter_of(node, first, ns_per_tick));
  };
  for (const auto& executable : executables) {
    CountedNodes counted;
    add_counted(executable->executor->plans(), -1, counted);
    add(counted);
  }
  add(kept);
  return counters;
}

void Runtime::reset_node_counters(const Executables& executables) const {
  expect_counters(*this);
  for (const auto& executable : executables) reset_counters(executable->executor->plans());
}

std::vector<NodeCounter> Session::node_counters() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->node_counters(impl_->compiled_now(), impl_->kept_counters);
}

void Session::reset_node_counters() const {
  std::lock_guard lock(impl_->mutex);
  impl_->reset_node_counters(impl_->compiled_now());
  impl_->kept_counters.clear();
}

}  // namespace treadle
