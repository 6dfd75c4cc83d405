#include "exec/explain/out_of_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <new>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "core/allocation.h"
#include "core/checked.h"
#include "core/held_memory.h"
#include "exec/explain/profile_plan.h"
#include "exec/plan/budget.h"
#include "exec/program/parallel_plan.h"
#include "graph/layers.h"
#include "treadle/out_of_memory.h"

namespace treadle::exec {
namespace {

constexpr size_t kMostNamed = 6;  // values, and nodes of the model: the text is for a terminal

size_t aligned(size_t bytes) { return align_up(bytes, Storage::kAlignment); }

std::string quoted(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMostNamed); ++i) text += fmt::format("{}\"{}\"", i ? ", " : "", names[i]);
  return names.size() > kMostNamed ? text + fmt::format(" and {} more", names.size() - kMostNamed) : text;
}

bool stands_for_others(const Node& node) { return node.sources.size() > 1 || (node.sources.size() == 1 && node.sources[0] != node.name); }

std::string short_name(const Node& node) {
  return fmt::format("{} \"{}\"{}", node.op_type, node.name, stands_for_others(node) ? fmt::format(" ({})", quoted(node.sources)) : "");
}

// Constants and packed weights, with the layers of the nodes that use them.
std::vector<LiveBytes> held_weights(const Program& program) {
  std::unordered_map<std::string_view, const Node*> nodes;  // by name
  for (const Instruction& instruction : program.instructions()) nodes.emplace(instruction.node->name, instruction.node);
  const Graph& graph = program.graph();
  std::vector<MemoryHolding> holdings;
  add_held_weights(program, holdings);
  std::vector<LiveBytes> live;
  for (const MemoryHolding& holding : holdings) {
    const Node* user = nullptr;
    if (const auto found = nodes.find(holding.name); holding.memory_class == MemoryClass::packed && found != nodes.end())
      user = found->second;
    else if (const ValueId value = graph.find_value(holding.name); value != kNoValue && !graph.value(value).uses.empty())
      user = &graph.node(graph.value(value).uses.front().node);
    live.push_back({fmt::format("\"{}\" ({})", holding.name, memory_class_name(holding.memory_class)), holding.size_bytes,
                    user ? layer_of(*user) : ""});
  }
  return live;
}

/// The arena of a run on the host, and what lies beside it.
class HostMemory {
 public:
  HostMemory(const RunState& state, const RunControl& control, RunPoint at)
      : state_(state), program_(state.program()), binding_(state.binding()), control_(control), at_(at) {
    if (!at_.begun) {
      at_.step = fullest_step();
      at_.instruction = state_.budget() ? state_.budget()->instruction_at(at_.step) : id_at<InstructionId>(at_.step);
    }
    for (BufferId b : program_.buffers().ids())
      if (is_alive(b, at_.step)) alive_.push_back(b);
  }

  std::string text() {
    const bool is_empty = program_.instructions().empty();
    std::string text;
    if (!at_.begun && !is_empty)
      text += fmt::format("most memory is needed at step {} of {}, {}\n", at_.step + 1, program_.instructions().size(), describe(node()));
    if (!is_empty) text += describe_origin(node());
    if (!program_.is_body()) text += describe_account(control_);
    text += arena_text();
    find_live();
    text += describe_largest(live_);
    return text + remedies();
  }

 private:
  const Node& node() const { return *program_.instructions()[at_.instruction].node; }
  const Slot& slot(SlotId index) const { return program_.slots()[index]; }
  size_t size_of(BufferId buffer) const { return binding_.buffer_sizes()[buffer]; }

  bool is_alive(BufferId buffer, size_t step) const {
    if (size_of(buffer) == 0) return false;
    const auto at = static_cast<int32_t>(step);
    if (const BudgetedPlan* plan = state_.budget().get())
      return std::any_of(plan->stays[buffer].begin(), plan->stays[buffer].end(),
                         [&](const BudgetedPlan::Stay& stay) { return stay.first <= at && at <= stay.last; });
    const Program::BufferInfo& info = program_.buffers()[buffer];
    if (!at_.begun || !at_.by_readiness || !program_.parallel()) return info.first <= InstructionId{at} && InstructionId{at} <= info.last;
    // Neither over before the instruction begins, nor begun after its end.
    const ParallelPlan& plan = *program_.parallel();
    const size_t b = index_of(buffer);
    const auto accesses = std::span(plan.accesses).subspan(plan.first_access[b], plan.first_access[b + 1] - plan.first_access[b]);
    const bool is_over =
        std::all_of(accesses.begin(), accesses.end(), [&](InstructionId a) { return plan.reach.before(a, at_.instruction); });
    const bool is_later =
        std::all_of(accesses.begin(), accesses.end(), [&](InstructionId a) { return plan.reach.before(at_.instruction, a); });
    return !is_over && !is_later;
  }

  // Bytes in the arena, step by step, one step after the other.
  std::vector<size_t> bytes_by_step() const {
    std::vector<size_t> begins(program_.instructions().size() + 1, 0), ends(begins);
    const auto add = [&](BufferId buffer, int32_t first, int32_t last) {
      begins[static_cast<size_t>(first)] += aligned(size_of(buffer));
      ends[static_cast<size_t>(last) + 1] += aligned(size_of(buffer));
    };
    for (BufferId b : program_.buffers().ids()) {
      if (const BudgetedPlan* plan = state_.budget().get())
        for (const BudgetedPlan::Stay& stay : plan->stays[b]) add(b, stay.first, stay.last);
      else
        add(b, static_cast<int32_t>(program_.buffers()[b].first), static_cast<int32_t>(program_.buffers()[b].last));
    }
    std::vector<size_t> live(program_.instructions().size(), 0);
    size_t now = 0;
    for (size_t step = 0; step < live.size(); ++step) live[step] = now = now + begins[step] - ends[step];
    return live;
  }
  size_t fullest_step() const {
    const std::vector<size_t> live = bytes_by_step();
    return static_cast<size_t>(std::max_element(live.begin(), live.end()) - live.begin());
  }

  // Operands and scratch of the node that needs most: they have to be in memory at the same time.
  size_t largest_node_bytes() const {
    size_t most = 0;
    std::vector<BufferId> touched;
    for (const Instruction& instruction : program_.instructions()) {
      touched.assign(1, instruction.scratch_buffer);
      for (SlotId operand : program_.operands(instruction)) touched.push_back(operand == kNoSlot ? kNoBuffer : slot(operand).buffer);
      std::sort(touched.begin(), touched.end());
      touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
      size_t bytes = 0;
      for (BufferId buffer : touched)
        if (buffer != kNoBuffer) bytes += aligned(size_of(buffer));
      most = std::max(most, bytes);
    }
    return most;
  }

  std::string arena_text() const {
    if (program_.num_buffers() == 0) return {};
    const size_t planned = state_.needed_arena_bytes();
    size_t in_use = 0;
    std::vector<std::pair<size_t, size_t>> places;  // offset, size
    for (BufferId b : alive_) {
      in_use += aligned(size_of(b));
      // Of the plan: the run may not have come so far.
      size_t offset = at_.begun ? state_.place_of(b) : RunState::kAway;
      if (const BudgetedPlan* plan = state_.budget().get(); plan && !at_.begun)
        offset = plan->stays[b].front().offset;
      else if (!at_.begun)
        offset = binding_.offsets().offsets[b];
      if (offset != RunState::kAway) places.emplace_back(offset, aligned(size_of(b)));
    }
    std::sort(places.begin(), places.end());
    size_t free = 0, reached = 0;
    for (const auto& [offset, size] : places) {
      if (offset > reached) free = std::max(free, offset - reached);
      reached = std::max(reached, offset + size);
    }
    if (planned > reached) free = std::max(free, planned - reached);
    const std::string of_plan = state_.budget() ? "by a plan that moves idle values"
                                                : fmt::format("planned, the bound of any plan is {}", binding_.offsets().lower_bound_bytes);
    return fmt::format("{}arena: {} bytes allocated, {} {}; {} {} at this node, largest free block {}\n",
                       program_.is_body() ? "body's " : "", state_.arena_bytes(), planned, of_plan, in_use,
                       at_.by_readiness ? "may be in use" : "in use", free);
  }

  // @param of  whose layer it is in; null: not known
  void add(const std::string& name, std::string_view what, size_t bytes, const Node* maker, const Node* of) {
    if (bytes > 0)
      live_.push_back(
          {fmt::format("\"{}\" ({}{})", name, what, maker ? ", of " + short_name(*maker) : ""), bytes, of ? layer_of(*of) : ""});
  }

  void find_live() {
    const auto instructions = program_.instructions();
    for (BufferId b : alive_) {
      const Program::BufferInfo& info = program_.buffers()[b];
      const Node& maker = *instructions[info.slot == kNoSlot ? info.instruction : info.first].node;
      if (info.slot == kNoSlot)
        add(maker.name, "scratch", size_of(b), nullptr, &maker);
      else
        add(program_.name(info.slot), memory_class_name(program_.class_of_buffer(b)), size_of(b), &maker, &maker);
    }
    for (SlotId index : program_.slots().ids()) {
      const LocationKind location = slot(index).location;
      if (slot(index).root != index || (location != LocationKind::held && location != LocationKind::feed)) continue;
      const Datum& value = state_.held(index);
      if (!value.is_tensor() || !value.tensor().defined()) continue;
      const size_t bytes = value.tensor().size_bytes();
      if (location == LocationKind::held && !slot(index).is_output) held_bytes_ += aligned(bytes);
      const std::string_view what = location == LocationKind::feed ? "fed"
                                    : slot(index).is_gradient      ? memory_class_name(MemoryClass::gradients)
                                    : slot(index).is_output        ? "output"
                                                                   : memory_class_name(MemoryClass::activations);
      add(program_.name(index), what, bytes, nullptr, nullptr);
    }
    for (LiveBytes& weights : held_weights(program_)) live_.push_back(std::move(weights));
  }

  std::string smaller_batch() const {
    const size_t capacity = !program_.is_body() && control_.pass ? control_.pass->arena_capacity(0) : SIZE_MAX;
    return describe_smaller_batch(program_, binding_, program_.is_body() ? "the body's arena" : "the arena", state_.needed_arena_bytes(),
                                  capacity, [&](const std::vector<int64_t>& values) { return binding_.arena_bytes_for(values); });
  }

  // What would need less, with the bytes that are known without running.
  std::string remedies() const {
    if (program_.instructions().empty()) return {};
    if (program_.is_body()) {  // the rest stands with the run around it
      const std::string batch = smaller_batch();
      return batch.empty() ? batch : "to need less: " + batch + "\n";
    }
    std::vector<std::string> list;
    const size_t planned = state_.needed_arena_bytes(), largest = largest_node_bytes();
    const bool is_limited = (control_.pass && control_.pass->arena_capacity(0) != SIZE_MAX) || program_.arena_share() < 1;
    if (!is_limited && !state_.budget() && largest < planned)
      list.push_back(fmt::format("with memory_limit_bytes, idle values move to a file: an arena of {} to {} bytes in place of {}", largest,
                                 planned - Storage::kAlignment, planned));
    if (program_.parallel() && !state_.budget()) {
      const std::vector<size_t> in_order = bytes_by_step();
      const size_t most = *std::max_element(in_order.begin(), in_order.end());
      if (most < planned) list.push_back(fmt::format("with execution_mode=sequential, {} bytes of the arena are in use at once", most));
    }
    if (std::string batch = smaller_batch(); !batch.empty()) list.push_back(std::move(batch));
    if (control_.memory && control_.memory->account) {
      const size_t activations = control_.memory->account->statistics()[MemoryClass::activations].bytes;
      const size_t own = aligned(state_.arena_bytes()) + held_bytes_;
      if (activations > own)
        list.push_back(
            fmt::format("{} bytes of activations are not this run's: other runs have them, bodies, or the next runs", activations - own));
    }
    std::string text;
    for (const std::string& remedy : list) text += (text.empty() ? "to need less: " : "; ") + remedy;
    return text.empty() ? text : text + "\n";
  }

  const RunState& state_;
  const Program& program_;
  const Binding& binding_;
  const RunControl& control_;
  RunPoint at_;
  std::vector<BufferId> alive_;
  std::vector<LiveBytes> live_;
  size_t held_bytes_ = 0;  // of activations apart from the arena
};

}  // namespace

namespace {

// The symbol that is the first extent of most inputs, and these.
std::pair<int32_t, std::vector<std::string>> batch_of(const Program& program) {
  std::map<int32_t, std::vector<std::string>> inputs;
  const auto own = program.input_slots();
  const auto symbols = program.symbols();
  for (const Program::SymbolicExtent& extent : program.symbolic_extents()) {
    const bool is_symbol = std::find(symbols.begin(), symbols.end(), extent.expression) != symbols.end();
    if (is_symbol && extent.position == 0 && std::find(own.begin(), own.end(), extent.slot) != own.end())
      inputs[extent.expression].push_back(program.name(extent.slot));
  }
  const auto most =
      std::max_element(inputs.begin(), inputs.end(), [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  if (most == inputs.end()) return {-1, {}};
  return *most;
}

}  // namespace

std::string describe_smaller_batch(const Program& program, const Binding& binding, std::string_view arena, size_t planned, size_t capacity,
                                   const std::function<size_t(const std::vector<int64_t>&)>& arena_bytes) {
  const auto [symbol, inputs] = batch_of(program);
  if (symbol < 0) return {};
  std::vector<int64_t> values(binding.values().begin(), binding.values().end());
  int64_t& extent = values[static_cast<size_t>(symbol)];
  const int64_t now = extent;
  std::optional<std::pair<int64_t, size_t>> half, found;
  try {
    while (extent > 1 && !found) {
      extent /= 2;
      const size_t needed = arena_bytes(values);
      if (!half) half = {extent, needed};
      if (needed <= capacity) found = {extent, needed};
    }
  } catch (const std::exception&) {  // the model takes no such batch, or too little memory is left to plan
  }
  if (!found) found = half;
  if (!found || found->second >= planned) return {};
  return fmt::format("with {} in place of {} as the first extent of {}, {} takes at most {} bytes in place of {}", found->first, now,
                     quoted(inputs), arena, found->second, planned);
}

std::string describe_account(const RunControl& control) {
  return describe_account(control.memory ? control.memory->account.get() : nullptr);
}

std::string describe_account(const MemoryAccount* account) {
  const std::shared_ptr<const HeldMemory> held = held_memory(account);
  return held ? describe_account(*held) : std::string();
}

std::string describe_account(const HeldMemory& held) {
  std::string text;
  for (const auto& [name, statistics] : held.accounts) {
    std::string classes;
    for (size_t c = 0; text.empty() && c < kNumMemoryClasses; ++c)
      if (const size_t bytes = statistics.classes[c].bytes; bytes > 0)
        classes += fmt::format("{}{} {}", classes.empty() ? ": " : ", ", memory_class_name(static_cast<MemoryClass>(c)), bytes);
    text += fmt::format("{} has {} bytes{}{}\n", name, statistics.total.bytes,
                        statistics.limit_bytes > 0 ? fmt::format(" of a limit of {}", statistics.limit_bytes) : "", classes);
  }
  return text;
}

std::string describe_origin(const Node& node) {
  std::string text = stands_for_others(node) ? fmt::format("the node stands for {} of the model\n", quoted(node.sources)) : "";
  if (const std::vector<std::string> layers = layers_of(node); !layers.empty())
    text += fmt::format("it is in the layer {}\n", layers.back());
  return text;
}

std::string layer_of(const Node& node) {
  const std::vector<std::string> layers = layers_of(node);
  return layers.empty() ? std::string() : layers[layers.size() - std::min<size_t>(layers.size(), 2)];
}

namespace {

std::string describe_layers(const std::vector<LiveBytes>& live) {
  std::map<std::string, size_t> bytes;
  for (const LiveBytes& item : live)
    if (!item.layer.empty()) bytes[item.layer] += item.size_bytes;
  std::vector<std::pair<std::string, size_t>> layers(bytes.begin(), bytes.end());
  std::stable_sort(layers.begin(), layers.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (size_t i = 0; i < std::min(layers.size(), kMostNamed); ++i)
    text += fmt::format("{}{} {} bytes", text.empty() ? "by layer: " : ", ", layers[i].first, layers[i].second);
  if (layers.size() > kMostNamed) text += fmt::format(" and {} layers more", layers.size() - kMostNamed);
  return text.empty() ? text : text + "\n";
}

}  // namespace

std::string describe_largest(std::vector<LiveBytes> live) {
  if (live.empty()) return {};
  std::stable_sort(live.begin(), live.end(), [](const LiveBytes& a, const LiveBytes& b) { return a.size_bytes > b.size_bytes; });
  std::string text;
  for (size_t i = 0; i < std::min(live.size(), kMostNamed); ++i)
    text += fmt::format("{}{} {} bytes", text.empty() ? "largest alive: " : ", ", live[i].what, live[i].size_bytes);
  if (live.size() > kMostNamed) {
    size_t rest = 0;
    for (size_t i = kMostNamed; i < live.size(); ++i) rest += live[i].size_bytes;
    text += fmt::format(" and {} more of {} bytes together", live.size() - kMostNamed, rest);
  }
  return text + "\n" + describe_layers(live);
}

std::string describe_memory(const RunState& state, const RunControl& control, const RunPoint& at) {
  return state.has_binding() ? HostMemory(state, control, at).text() : describe_unbound(state.program(), control);
}

std::string describe_unbound(const Program& program, const RunControl& control) {
  return describe_account(control) + "the arena for these extents is not planned yet\n" + describe_largest(held_weights(program));
}

void rethrow_with_memory(const std::function<std::string(const OutOfMemory&)>& details, std::string_view where, Details details_are) {
  const auto go_on_longer = [&](const OutOfMemory& error) {
    if (details_are == Details::if_none && error.is_described()) return;
    std::optional<OutOfMemory> made;
    try {
      const std::string text = details(error);
      made.emplace(error);
      made->add_context(std::string(where));
      made->describe(text);
    } catch (const std::exception&) {  // too little memory is left to say more
      return;
    }
    throw OutOfMemory(*made);
  };
  try {
    throw;
  } catch (const OutOfMemory& error) {
    go_on_longer(error);
    throw;
  } catch (const std::bad_alloc&) {
    const OutOfMemory error("out of memory");
    go_on_longer(error);
    throw OutOfMemory(error);
  }
}

}  // namespace treadle::exec
