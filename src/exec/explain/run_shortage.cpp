#include "exec/explain/run_shortage.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "core/base/checked.h"
#include "core/values/allocation.h"
#include "exec/explain/profile_plan.h"
#include "exec/memory/shortage.h"
#include "exec/program/load_shortage.h"
#include "exec/program/parallel_plan.h"
#include "memory/planner.h"
#include "treadle/out_of_memory.h"

namespace treadle::exec {
namespace {

size_t aligned(size_t bytes) { return align_up(bytes, Storage::kAlignment); }

// Lists constants and packed weights with the layers of the nodes that use them.
std::vector<LiveBytes> held_weights(const Program& program) {
  std::unordered_map<std::string_view, const Node*> nodes;  // by node name
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

/// Describes a run on the host: its arena, and its values outside of the arena.
class HostMemory {
 public:
  explicit HostMemory(const RunSnapshot& run)
      : run_(run), program_(run.binding.program()), binding_(run.binding), step_(run.step), instruction_(run.instruction) {
    if (!run_.begun) {
      step_ = fullest_step();
      instruction_ = run_.budget ? run_.budget->instruction_at(step_) : id_at<InstructionId>(step_);
    }
    for (BufferId b : program_.buffers().ids())
      if (is_alive(b, step_)) alive_.push_back(b);
  }

  std::string text() {
    const bool is_empty = program_.instructions().empty();
    std::string text;
    if (!run_.begun && !is_empty)
      text += fmt::format("most memory is needed at step {} of {}, {}\n", step_ + 1, program_.instructions().size(), describe(node()));
    if (!is_empty) text += describe_origin(node());
    if (!program_.is_body()) text += describe_account(run_.account);
    text += arena_text();
    find_live();
    text += describe_largest(live_);
    return text + remedies();
  }

 private:
  const Node& node() const { return *program_.instructions()[instruction_].node; }
  const Slot& slot(SlotId index) const { return program_.slots()[index]; }
  size_t size_of(BufferId buffer) const { return binding_.buffer_sizes()[buffer]; }

  bool is_alive(BufferId buffer, size_t step) const {
    if (size_of(buffer) == 0) return false;
    const auto at = static_cast<int32_t>(step);
    if (const BudgetedPlan* plan = run_.budget)
      return std::any_of(plan->stays[buffer].begin(), plan->stays[buffer].end(),
                         [&](const BudgetedPlan::Stay& stay) { return stay.first <= at && at <= stay.last; });
    const BufferInfo& info = program_.buffers()[buffer];
    if (!run_.begun || !run_.by_readiness || !program_.parallel()) return info.first <= InstructionId{at} && InstructionId{at} <= info.last;
    // A buffer counts as in use unless all of its accesses are ordered before the instruction, or all after it.
    const ParallelPlan& plan = *program_.parallel();
    const size_t b = index_of(buffer);
    const auto accesses = std::span(plan.accesses).subspan(plan.first_access[b], plan.first_access[b + 1] - plan.first_access[b]);
    const bool is_over = std::all_of(accesses.begin(), accesses.end(), [&](InstructionId a) { return plan.reach.before(a, instruction_); });
    const bool is_later =
        std::all_of(accesses.begin(), accesses.end(), [&](InstructionId a) { return plan.reach.before(instruction_, a); });
    return !is_over && !is_later;
  }

  // Returns the live bytes in the arena for a run in order: one entry (step, bytes) per step at which they change.
  std::vector<std::pair<int32_t, size_t>> bytes_in_order() const {
    std::vector<memory::Buffer> lives;
    for (BufferId b : program_.buffers().ids()) {
      const BufferInfo& info = program_.buffers()[b];
      if (const BudgetedPlan* plan = run_.budget)
        for (const BudgetedPlan::Stay& stay : plan->stays[b]) lives.push_back({size_of(b), stay.first, stay.last + 1});
      else
        lives.push_back({size_of(b), static_cast<int32_t>(info.first), static_cast<int32_t>(info.last) + 1});
    }
    return memory::live_bytes(lives, Storage::kAlignment);
  }
  size_t fullest_step() const {
    const auto live = bytes_in_order();
    const auto most = std::ranges::max_element(live, {}, [](const auto& at) { return at.second; });
    return most == live.end() ? 0 : static_cast<size_t>(most->first);
  }

  // Returns the largest sum of a node's operands and scratch, which must be in memory at the same time.
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
    const size_t planned = run_.planned_bytes;
    size_t in_use = 0;
    std::vector<std::pair<size_t, size_t>> places;  // (offset, size) of each buffer
    for (BufferId b : alive_) {
      in_use += aligned(size_of(b));
      // Before the first step, the run has set no offsets, so the offsets of the plan are used.
      size_t offset = run_.begun ? run_.places[b] : RunSnapshot::kAway;
      if (const BudgetedPlan* plan = run_.budget; plan && !run_.begun)
        offset = plan->stays[b].front().offset;
      else if (!run_.begun)
        offset = binding_.offsets().offsets[b];
      if (offset != RunSnapshot::kAway) places.emplace_back(offset, aligned(size_of(b)));
    }
    std::sort(places.begin(), places.end());
    size_t free = 0, reached = 0;
    for (const auto& [offset, size] : places) {
      if (offset > reached) free = std::max(free, offset - reached);
      reached = std::max(reached, offset + size);
    }
    if (planned > reached) free = std::max(free, planned - reached);
    const std::string of_plan = run_.budget ? "by a plan that moves idle values"
                                            : fmt::format("planned, the bound of any plan is {}", binding_.offsets().lower_bound_bytes);
    return fmt::format("{}arena: {} bytes allocated, {} {}; {} {} at this node, largest free block {}\n",
                       program_.is_body() ? "body's " : "", run_.arena_bytes, planned, of_plan, in_use,
                       run_.by_readiness ? "may be in use" : "in use", free);
  }

  // @param of  the node whose layer the bytes are counted in; null: the layer is not known
  void add(const std::string& name, std::string_view what, size_t bytes, const Node* maker, const Node* of) {
    if (bytes > 0)
      live_.push_back(
          {fmt::format("\"{}\" ({}{})", name, what, maker ? ", of " + short_name(*maker) : ""), bytes, of ? layer_of(*of) : ""});
  }

  void find_live() {
    const auto instructions = program_.instructions();
    for (BufferId b : alive_) {
      const BufferInfo& info = program_.buffers()[b];
      const Node& maker = *instructions[info.slot == kNoSlot ? info.instruction : info.first].node;
      if (info.slot == kNoSlot)
        add(maker.name, "scratch", size_of(b), nullptr, &maker);
      else
        add(program_.name(info.slot), memory_class_name(program_.class_of_buffer(b)), size_of(b), &maker, &maker);
    }
    for (const auto& [index, bytes] : run_.held) {
      const LocationKind location = slot(index).location;
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
    const size_t capacity = program_.is_body() ? SIZE_MAX : run_.arena_capacity;
    return describe_smaller_batch(program_, binding_, program_.is_body() ? "the body's arena" : "the arena", run_.planned_bytes, capacity,
                                  [&](const std::vector<int64_t>& values) {
                                    OffsetPlan plan{.sizes = binding_.buffer_sizes_for(values)};
                                    add_offsets(program_, plan);
                                    return plan.arena_bytes;
                                  });
  }

  // Returns suggestions for using less memory, with numbers of bytes where they can be computed without a run.
  std::string remedies() const {
    if (program_.instructions().empty()) return {};
    if (program_.is_body()) {  // the error of the surrounding run describes the other options
      const std::string batch = smaller_batch();
      return batch.empty() ? batch : "to need less: " + batch + "\n";
    }
    std::vector<std::string> list;
    const size_t planned = run_.planned_bytes, largest = largest_node_bytes();
    const bool is_limited = run_.arena_capacity != SIZE_MAX || program_.planning().arena_share < 1;
    if (!is_limited && !run_.budget && largest < planned)
      list.push_back(fmt::format("with memory_limit_bytes, idle values move to a file: an arena of {} to {} bytes in place of {}", largest,
                                 planned - Storage::kAlignment, planned));
    if (program_.parallel() && !run_.budget) {
      size_t most = 0;
      for (const auto& [step, bytes] : bytes_in_order()) most = std::max(most, bytes);
      if (most < planned) list.push_back(fmt::format("with execution_mode=sequential, {} bytes of the arena are in use at once", most));
    }
    if (std::string batch = smaller_batch(); !batch.empty()) list.push_back(std::move(batch));
    if (run_.account) {
      const size_t activations = run_.account->statistics()[MemoryClass::activations].bytes;
      const size_t own = aligned(run_.arena_bytes) + held_bytes_;
      if (activations > own)
        list.push_back(
            fmt::format("{} bytes of activations are not this run's: other runs have them, bodies, or the next runs", activations - own));
    }
    std::string text;
    for (const std::string& remedy : list) text += (text.empty() ? "to need less: " : "; ") + remedy;
    return text.empty() ? text : text + "\n";
  }

  const RunSnapshot& run_;
  const Program& program_;
  const Binding& binding_;
  size_t step_;  // the step at which memory ran out; before the run has begun, the step that needs most memory
  InstructionId instruction_;
  std::vector<BufferId> alive_;
  std::vector<LiveBytes> live_;
  size_t held_bytes_ = 0;  // bytes of activations outside of the arena
};

}  // namespace

namespace {

// Returns the symbol that most inputs have as their first extent, which is probably the batch size, and the names of these inputs.
std::pair<int32_t, std::vector<std::string>> batch_of(const Program& program) {
  std::map<int32_t, std::vector<std::string>> inputs;
  const auto own = program.input_slots();
  const auto& symbols = program.extents().symbols;
  for (const SymbolicExtent& extent : program.extents().of_shapes) {
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
  } catch (const std::exception&) {  // ignored: the model does not accept this batch, or too little memory is left for planning
  }
  if (!found) found = half;
  if (!found || found->second >= planned) return {};
  return fmt::format("with {} in place of {} as the first extent of {}, {} takes at most {} bytes in place of {}", found->first, now,
                     quoted(inputs), arena, found->second, planned);
}

std::string describe_memory(const RunSnapshot& run) { return HostMemory(run).text(); }

std::string describe_unbound(const Program& program, const MemoryAccount* account) {
  return describe_account(account) + "the arena for these extents is not planned yet\n" + describe_largest(held_weights(program));
}

}  // namespace treadle::exec
