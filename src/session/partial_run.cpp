// Partial runs: one call begins the run, and later calls continue it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>

#include "core/base/nearest.h"
#include "session/refusals.h"
#include "session/session_impl.h"
#include "session/sparse_outputs.h"
#include "session/stoppable_run.h"
#include "treadle/error.h"

namespace treadle {

struct PartialRun::Impl {
  std::shared_ptr<StoppableRun> run;
  std::shared_ptr<ValueCache> cache;
  std::shared_ptr<const Session::Impl> session;

  IdSpan<exec::InstructionId, const exec::Instruction> instructions() const { return run->executable().program->instructions(); }
  std::vector<exec::InstructionId> ends_of(std::string_view node) const;
};

// Returns the last instructions of a node, given its name in the model or in the optimized graph. Normally these are the instructions with
// that name or that compute the node's values (if a pass replaced it by several nodes). If the node was fused into others, there is none,
// so the instructions whose sources include it are returned.
std::vector<exec::InstructionId> PartialRun::Impl::ends_of(std::string_view name) const {
  std::span<const std::string> values;
  for (const onnx::NodeDef& def : session->model.impl().def.graph.nodes)
    if (def.name == name || (def.name.empty() && !def.outputs.empty() && def.outputs[0] == name)) values = def.outputs;
  const exec::Program& program = *run->executable().program;
  auto is_value = [&](exec::SlotId slot) {
    return slot != exec::kNoSlot && std::find(values.begin(), values.end(), program.name(slot)) != values.end();
  };
  std::vector<exec::InstructionId> ends, stand_for_it;
  std::vector<std::string> names;
  for (exec::InstructionId i : instructions().ids()) {
    const exec::Instruction& instruction = instructions()[i];
    const Node& node = *instruction.node;
    const auto outputs = program.operands(instruction).subspan(instruction.num_inputs);
    if (node.name == name || std::any_of(outputs.begin(), outputs.end(), is_value)) ends.push_back(i);
    if (std::find(node.sources.begin(), node.sources.end(), name) != node.sources.end()) stand_for_it.push_back(i);
    names.push_back(node.name);
    names.insert(names.end(), node.sources.begin(), node.sources.end());
  }
  if (!ends.empty()) return ends;
  if (stand_for_it.empty())
    throw Error(ErrorCode::not_found, fmt::format("the optimised graph has no node \"{}\"; is it {}?", name, nearest_names(name, names)));
  return stand_for_it;
}

PartialRun::PartialRun(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
PartialRun::~PartialRun() = default;
PartialRun::PartialRun(PartialRun&&) noexcept = default;
PartialRun& PartialRun::operator=(PartialRun&&) noexcept = default;

PartialRun Session::partial_run(const std::map<std::string, Datum>& feeds, std::shared_ptr<ValueCache> cache,
                                const RunOptions* options) const {
  if (!cache) cache = std::make_shared<ValueCache>();
  std::vector<std::string> kept;
  for (const auto& [name, value] : *cache) kept.push_back(name);
  ChosenProgram chosen = impl_->choose_program(
      {.outputs = impl_->main->output_names, .options = options, .kept = kept, .takes_feeds_later = true}, RunFeeds(feeds, options));
  auto run = std::make_shared<StoppableRun>(impl_, chosen.executable, options, chosen.monitor, "partial run");
  run->start(std::move(chosen.feeds), {}, cache, chosen.compiled);
  return PartialRun(std::make_shared<PartialRun::Impl>(PartialRun::Impl{std::move(run), std::move(cache), impl_}));
}

void PartialRun::feed(std::string_view name, Datum value) {
  const auto& inputs = impl_->run->executable().input_names;
  const size_t input = position_of(inputs, name);
  if (input == inputs.size())
    throw Error(ErrorCode::invalid_argument, fmt::format("the run has no input \"{}\"; its inputs are: {}", name, fmt::join(inputs, ", ")));
  impl_->run->feed(input, std::move(value));
}

std::vector<Datum> PartialRun::fetch(std::span<const std::string> names) const {
  const auto& outputs = impl_->run->executable().output_names;
  std::vector<Datum> values;
  for (const std::string& name : names) {
    const size_t k = position_of(outputs, name);
    if (k == outputs.size()) refuse("a partial run", "fetches of other values", name);
    if (!impl_->run->has_output(k))
      throw Error(ErrorCode::invalid_argument, fmt::format("the run has not come as far as to make \"{}\"", name));
    values.push_back(impl_->run->output(k));
  }
  make_sparse(impl_->session->sparse_outputs, names, values);
  return values;
}

std::vector<Datum> PartialRun::advance(std::string_view until, const std::map<std::string, Datum>& feeds,
                                       std::span<const std::string> fetches) {
  for (const auto& [name, value] : feeds) feed(name, value);
  until.empty() ? advance() : advance_until(until);
  return fetch(fetches);
}

bool PartialRun::advance() { return impl_->run->advance(); }

bool PartialRun::advance_until(std::string_view name) {
  size_t steps = 0;
  for (exec::InstructionId end : impl_->ends_of(name)) steps = std::max(steps, impl_->run->run().steps_through(end));
  return impl_->run->advance(steps);
}

size_t PartialRun::steps_left() const { return impl_->run->run().steps_left(); }

size_t PartialRun::advance_steps(size_t count) {
  const size_t left = steps_left();
  if (left > 0 && count > 0) impl_->run->advance(std::min(count, left));
  return steps_left();
}

bool PartialRun::at_yield() const { return impl_->run->run().yield() != nullptr; }
const std::shared_ptr<ValueCache>& PartialRun::cache() const { return impl_->cache; }
bool PartialRun::finished() const { return impl_->run->run().finished(); }

std::vector<std::pair<std::string, Datum>> PartialRun::yielded() const {
  exec::Run& run = impl_->run->run();
  const Node& node = *exec::expect_yield(run).node;
  std::vector<Datum> values = run.yielded();
  std::vector<std::pair<std::string, Datum>> named;
  for (size_t i = 0; i < values.size(); ++i)
    named.emplace_back(node.has_input(i) ? impl_->run->executable().graph->value(node.inputs[i]).name : "", std::move(values[i]));
  return named;
}

bool PartialRun::resume(std::span<const Datum> values) {
  impl_->run->resume(values);
  return impl_->run->advance();
}

std::vector<Datum> PartialRun::outputs() {
  const std::vector<std::string>& names = impl_->session->main->output_names;
  std::vector<Datum> ordered = in_order_of(names, impl_->run->executable(), impl_->run->take_outputs());
  make_sparse(impl_->session->sparse_outputs, names, ordered);
  return ordered;
}

}  // namespace treadle
