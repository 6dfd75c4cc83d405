#include "exec/run/node_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "core/trace/recorder.h"
#include "core/values/allocation.h"
#include "treadle/error.h"

namespace treadle::exec {

// Reads the operands of a dynamic instruction from the run's state.
class NodeRunner::Operands final : public OperandSource {
 public:
  Operands(const RunState& state, const Instruction& instruction) : state_(state), slots_(state.program().operands(instruction)) {}
  Datum operand(size_t input, bool kept) const override { return slots_[input] == kNoSlot ? Datum() : state_.value(slots_[input], kept); }

 private:
  const RunState& state_;
  std::span<const SlotId> slots_;
};

void NodeRunner::execute_dynamic(const Instruction& instruction, Evaluator& evaluator) {
  evaluator.pool = control_.threads.pool;
  evaluator.run_id = control_.run_id;
  evaluator.stop_requested = [control = &control_] { return control->stop.stopping(); };
  take(instruction, run_dynamic(frames_, instruction, state_.binding(), control_, Operands(state_, instruction), evaluator));
}

void NodeRunner::execute_deferred(const Instruction& instruction, std::function<bool()> stop_requested,
                                  std::function<void(std::vector<Datum> outputs, std::exception_ptr error)> done) const {
  run_deferred(instruction, state_.binding(), control_, Operands(state_, instruction), std::move(stop_requested), std::move(done));
}

void NodeRunner::take(const Instruction& instruction, std::vector<Datum> made) {
  const auto slots = program_.operands(instruction).subspan(instruction.num_inputs);
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] == kNoSlot) continue;
    if (!made[i].defined()) throw Error(ErrorCode::internal, fmt::format("output {} was not made", i));
    state_.hold(slots[i], std::move(made[i]));
  }
}

// Adds the node's time to the counters; other threads may do so at the same time. @return the node's end time
uint64_t NodeRunner::count(const Instruction& instruction, uint64_t start) const {
  const uint64_t end = read_ticks();
  if (control_.counts_nodes) counters_->add_shared(index_of(program_.id_of(instruction)), end - start);
  return end;
}

void NodeRunner::record_time(const Instruction& instruction, uint64_t start) const {
  if (!is_timed()) return;
  const uint64_t end = count(instruction, start);
  if (control_.recording.recorder) control_.recording.record_node(instruction.record_name, start, end);
}

// Records the node's time. The cost of a dynamic node is known only after it has run, so it is recorded here too.
void NodeRunner::record(const Instruction& instruction, uint64_t start) const {
  if (!control_.recording.recorder || !instruction.dynamic || !instruction.bodies.empty()) return record_time(instruction, start);
  const uint64_t end = count(instruction, start);
  std::vector<Datum> operands;
  for (SlotId slot : program_.operands(instruction)) operands.push_back(slot == kNoSlot ? Datum() : state_.value(slot, /*shared=*/false));
  const Cost cost = cost_of(program_, instruction, operands);
  control_.recording.record_node(instruction.record_name, start, end, cost.flops, cost.bytes);
}

// Calls the observer. The observer may hold locks, so it must not pause for other jobs.
template <typename Tell>
void NodeRunner::tell_observer(Tell&& tell) const {
  if (!control_.observer) return;
  const LoopBreakScope stays(nullptr);
  control_.stop.call(tell);
}

uint64_t NodeRunner::begin_watched(const Instruction& instruction) const {
  tell_observer([&] { control_.observer->before(state_, instruction); });
  return is_timed() ? read_ticks() : 0;
}

void NodeRunner::end_watched(const Instruction& instruction, uint64_t start) const {
  record(instruction, start);
  tell_ended(instruction, nullptr);
}

void NodeRunner::tell_ended(const Instruction& instruction, const Device* device) const {
  tell_observer([&] { control_.observer->after(state_, instruction, device); });
}

void NodeRunner::execute_watched(const Instruction& instruction, Evaluator& evaluator) {
  const uint64_t start = begin_watched(instruction);
  {
    const UnderWay node(control_.stop.caller, instruction.node);
    execute(instruction, evaluator);
  }
  end_watched(instruction, start);
}

void NodeRunner::run_again(const Instruction& instruction, void** pointers, void* scratch, sharing::Turn& turn) {
  try {
    if (!committed_.load(std::memory_order_relaxed)) control_.stop.check();
    std::optional<LoopBreakScope> breaks;
    if (turn.has_duty()) take_turn(program_.id_of(instruction), turn, breaks);
    const UnderWay node(control_.stop.caller, instruction.node);
    const uint64_t start = is_timed() ? read_ticks() : 0;
    run_static(instruction, state_.binding(), pointers, scratch, control_);
    record(instruction, start);
  } catch (...) {
    rethrow_from(instruction);
  }
}

void NodeRunner::renew_buffers(InstructionId id) {
  const auto buffers = program_.buffers();  // sorted by the first instruction that uses them
  auto buffer = std::partition_point(buffers.begin(), buffers.end(), [&](const BufferInfo& b) { return b.first < id; });
  for (; buffer != buffers.end() && buffer->first == id; ++buffer) {
    const BufferId b = buffers.id_of(*buffer);
    if (const size_t bytes = state_.binding().buffer_sizes()[b]; bytes > 0)
      control_.memory.context->allocator->renew(state_.arena() + state_.place_of(b), bytes);
  }
}

Datum* NodeRunner::cached(const Instruction& instruction) const {
  if (!has_cache() || instruction.num_outputs != 1) return nullptr;
  const SlotId slot = program_.operands(instruction)[instruction.num_inputs];
  if (slot == kNoSlot) return nullptr;
  const auto found = cache_->find(program_.name(slot));
  return found == cache_->end() ? nullptr : &found->second;
}

void NodeRunner::expect_as_made(const Instruction& instruction, const Datum& cached, const Datum& made) const {
  const bool is_same =
      cached.is_tensor() && cached.tensor().dtype() == made.tensor().dtype() && cached.tensor().shape() == made.tensor().shape();
  if (is_same) return;
  const std::string& name = program_.name(program_.operands(instruction)[instruction.num_inputs]);
  throw Error(ErrorCode::invalid_argument,
              fmt::format("the cached value \"{}\" is {}, the node makes {}", name, describe(cached), describe(made)));
}

void NodeRunner::execute_cached(const Instruction& instruction, Evaluator& evaluator) {
  Datum* const entry = cached(instruction);
  if (!entry) return execute_watched(instruction, evaluator);
  const SlotId slot = program_.operands(instruction)[instruction.num_inputs];
  if (!entry->defined()) {
    execute_watched(instruction, evaluator);
    Datum made = state_.value(slot, /*shared=*/true);
    *entry = made.is_tensor() ? Datum(made.tensor().clone()) : made;
    return;
  }
  if (!program_.slots()[slot].static_shape || instruction.dynamic) return state_.hold(slot, *entry);
  Datum target = state_.value(slot, /*shared=*/false);
  expect_as_made(instruction, *entry, target);
  Tensor(target.tensor()).copy_from(entry->tensor());
}

void NodeRunner::run(InstructionId id, Evaluator& evaluator, sharing::Turn& turn) {
  const Instruction& instruction = program_.instructions()[id];
  try {
    check_before(id);
    std::optional<LoopBreakScope> breaks;
    if (turn.has_duty()) [[unlikely]]
      take_turn(id, turn, breaks);
    if (has_cache()) [[unlikely]]
      return execute_cached(instruction, evaluator);
    if (!instruction.dynamic && !control_.watched()) [[likely]]
      return execute(instruction, evaluator);
    const auto start = std::chrono::steady_clock::now();
    execute_watched(instruction, evaluator);
    if (!instruction.dynamic) return;
    const auto elapsed = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
    std::atomic<uint32_t>& average = state_.plans().measured_ns(id);
    const auto before = static_cast<int64_t>(average.load(std::memory_order_relaxed));
    average.store(static_cast<uint32_t>(std::min<int64_t>((3 * before + elapsed) / 4, UINT32_MAX)), std::memory_order_relaxed);
  } catch (...) {
    rethrow_from(instruction);
  }
}

void NodeRunner::rethrow_from(const Instruction& instruction) const {
  std::string operands;
  for (int i = 0; i < instruction.node->num_formal_inputs; ++i) {
    SlotId slot = program_.operands(instruction)[static_cast<size_t>(i)];
    if (slot == kNoSlot) continue;
    const Slot& info = program_.slots()[slot];
    std::string type = info.static_shape ? std::string(short_name_of(info.dtype)) + to_string(state_.binding().shape(slot))
                                         : describe(state_.held(info.root));
    operands += (operands.empty() ? "" : ", ") + program_.name(slot) + " " + type;
  }
  exec::rethrow_from(instruction, "while running", operands);
}

}  // namespace treadle::exec
