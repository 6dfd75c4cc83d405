#include "exec/run/run_memory.h"

#include <algorithm>
#include <map>
#include <optional>

#include "core/checked.h"
#include "core/thread_pool.h"
#include "graph/custom_ops.h"
#include "graph/dim_bounds.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "treadle/error.h"

namespace treadle::exec {
namespace {

using IsLent = std::function<bool(size_t input)>;

constexpr size_t kTooMuch = size_t{1} << 50;  // sums of such do not overflow, and no machine has so much

/// Of a value, or of several: what they have at least, and at the most.
struct Bytes {
  size_t certain = 0, possible = 0;
  Bytes& operator+=(const Bytes& other) {
    certain += other.certain;
    possible += other.possible;
    return *this;
  }
  Bytes& operator-=(const Bytes& other) {
    certain -= other.certain;
    possible -= other.possible;
    return *this;
  }
  friend Bytes operator+(Bytes a, const Bytes& b) { return a += b; }
  friend Bytes operator*(const Bytes& a, const Bytes& times) {
    auto product = [](size_t x, size_t y) {
      size_t result = 0;
      return __builtin_mul_overflow(x, y, &result) ? kTooMuch : std::min(result, kTooMuch);
    };
    return {product(a.certain, times.certain), product(a.possible, times.possible)};
  }
  void raise_to(const Bytes& other) {
    certain = std::max(certain, other.certain);
    possible = std::max(possible, other.possible);
  }
};

Bytes exactly(size_t bytes) { return {bytes, bytes}; }

// An output that no node makes.
bool is_found(const Program& program, SlotId output) {
  const LocationKind location = program.slots()[program.slots()[output].root].location;
  return location == LocationKind::feed || location == LocationKind::constant || location == LocationKind::known;
}

const Bytes kScalar = exactly(Storage::kAlignment);

class Estimate {
 public:
  Estimate(Plans& plans, const Binding& binding, const RunControl& control, const IsLent& is_lent, bool at_once)
      : plans_(plans),
        binding_(binding),
        program_(binding.program()),
        control_(control),
        is_lent_(is_lent),
        at_once_(at_once),
        bounds_(binding.values()) {
    run();
  }

  const Bytes& most() const { return most_; }
  const Node* unbounded() const { return unbounded_; }

  /// Of a value that has memory of its own.
  Bytes size_of(SlotId index, const Node* node) {
    const Slot& slot = this->slot(index);
    if (slot.static_shape && slot.dtype != DType::string)
      return exactly(rounded(size_bytes(slot.dtype, binding_.shape(index).num_elements())));
    if (auto elements = most_elements(index); elements && slot.dtype != DType::undefined && slot.dtype != DType::string)
      return {0, rounded(size_bytes(slot.dtype, *elements))};
    if (!unbounded_) unbounded_ = node;
    return {};
  }

  /// True if a node that keeps the value beyond its own end gets a copy.
  bool is_copied(SlotId index) const {
    const Slot& root = slot(slot(index).root);
    if (slot(index).rewritten) return true;
    if (root.location == LocationKind::arena || root.location == LocationKind::known) return true;
    if (root.location != LocationKind::feed) return false;
    const auto inputs = program_.input_slots();
    return is_lent_(static_cast<size_t>(std::find(inputs.begin(), inputs.end(), slot(index).root) - inputs.begin()));
  }

 private:
  struct BodyNeed {
    Bytes arena;  // stays until the node is done
    Bytes total;  // of an iteration, its results included
    std::vector<Bytes> results;
  };

  const Slot& slot(SlotId index) const { return program_.slots()[index]; }

  std::optional<int64_t> most_elements(SlotId index) {
    const Type& type = program_.type(index);
    if (!type.is_tensor() || !type.shape) return std::nullopt;
    int64_t elements = 1;
    for (const Dim& dim : *type.shape) {
      const auto extent = bounds_.of(dim);
      if (!extent) return std::nullopt;
      if (__builtin_mul_overflow(elements, std::max<int64_t>(*extent, 0), &elements)) return std::nullopt;
    }
    return elements < static_cast<int64_t>(kTooMuch / sizeof(double) / 2) ? std::optional(elements) : std::nullopt;
  }

  void run() {
    std::map<SlotId, Bytes> held;  // by root slot
    Bytes alive;
    if (program_.is_body())
      for (SlotId index : program_.preallocated()) alive += size_of(index, nullptr);
    else
      for (SlotId index : program_.output_slots())  // of what is handed out as it was found
        if (is_found(program_, index) && (slot(slot(index).root).location != LocationKind::feed || is_copied(index)))
          alive += size_of(index, nullptr);
    most_ = alive;
    for (const Instruction& instruction : program_.instructions()) {
      if (!instruction.dynamic || instruction.is_yield) {  // what comes back from a Yield is the caller's
        release(instruction, held, alive);
        continue;
      }
      const Bytes during = instruction.bodies.empty() ? of_kernel(instruction) : of_control_flow(instruction);
      if (at_once_) {
        most_ += during;
      } else {
        most_.raise_to(alive + during);
      }
      for (SlotId index : program_.operands(instruction).subspan(instruction.num_inputs)) {
        if (index == kNoSlot || slot(index).location != LocationKind::held || slot(index).root != index) continue;
        const Bytes bytes = size_of(index, instruction.node);
        alive += bytes;
        if (at_once_) most_ += bytes;
        held[index] = bytes;
      }
      if (!at_once_) most_.raise_to(alive);
      release(instruction, held, alive);
    }
  }

  void release(const Instruction& instruction, std::map<SlotId, Bytes>& held, Bytes& alive) const {
    for (SlotId index : program_.releases().subspan(instruction.first_release, instruction.num_releases)) {
      auto found = held.find(index);
      if (found == held.end()) continue;
      alive -= found->second;
      held.erase(found);
    }
  }

  // A kernel from outside may go on elsewhere while other nodes run: then it has operands of its own.
  Bytes of_kernel(const Instruction& instruction) {
    return at_once_ && instruction.kernel && is_custom_op(*instruction.node->op) ? copies_for(instruction) : Bytes{};
  }

  Bytes copies_for(const Instruction& instruction) {
    Bytes copies;
    for (int i = 0; i < instruction.node->num_formal_inputs; ++i)
      if (const SlotId index = program_.operands(instruction)[static_cast<size_t>(i)]; index != kNoSlot && is_copied(index))
        copies += size_of(index, instruction.node);
    return copies;
  }

  Bytes of_control_flow(const Instruction& instruction) {
    std::vector<BodyNeed> bodies;
    for (size_t b = 0; b < instruction.bodies.size(); ++b) {
      std::optional<BodyNeed> need;
      try {
        need = of_body(instruction, b);
      } catch (const Error&) {  // a branch that is not taken need not take these shapes; one that is will say so
      }
      if (!need) {
        if (!unbounded_) unbounded_ = instruction.node;
        return {};
      }
      bodies.push_back(std::move(*need));
    }
    const Bytes copies = copies_for(instruction);
    switch (instruction.node->op->control_flow) {
      case ControlFlow::if_: {
        Bytes branch = bodies.front().total;
        for (const BodyNeed& body : bodies)
          branch = {std::min(branch.certain, body.total.certain), std::max(branch.possible, body.total.possible)};
        return copies + branch;
      }
      case ControlFlow::loop: return copies + of_iterations(bodies.front(), 1, num_carried(instruction), trips_of_loop(instruction));
      case ControlFlow::scan:
        return copies + scanned_slice(instruction) + of_iterations(bodies.front(), 0, num_carried(instruction), trips_of_scan(instruction));
      case ControlFlow::none: break;
    }
    return {};
  }

  static size_t num_carried(const Instruction& instruction) {
    const auto formal = static_cast<size_t>(instruction.node->num_formal_inputs);
    if (instruction.node->op->control_flow == ControlFlow::loop) return formal > 2 ? formal - 2 : 0;
    return formal - static_cast<size_t>(instruction.node->attributes.get_int("num_scan_inputs"));
  }

  // A body whose symbols the run around it knows is bound as the run will find it.
  std::optional<BodyNeed> of_body(const Instruction& instruction, size_t b) {
    const Program& body = *instruction.bodies[b];
    std::vector<int64_t> values(body.extents().num_expressions, -1);
    std::copy_n(binding_.values().begin(), std::min(values.size(), binding_.values().size()), values.begin());
    for (int32_t symbol : body.extents().symbols)
      if (values[static_cast<size_t>(symbol)] < 0) return std::nullopt;
    const int threads = control_.threads.most();
    const std::shared_ptr<const Binding> bound = plans_.of_body(body).bindings().get(values, threads, control_.threads.pool);
    const auto formal = static_cast<size_t>(instruction.node->num_formal_inputs);
    const size_t given = body.input_slots().size() - instruction.node->bodies[b].captures.size();
    const IsLent is_lent = [&](size_t input) {
      if (input < given) return false;
      const auto capture = static_cast<size_t>(instruction.node->bodies[b].captures[input - given].second);
      return is_copied(program_.operands(instruction)[formal + capture]);
    };
    Estimate inside(plans_.of_body(body), *bound, control_, is_lent, at_once_);
    if (!unbounded_) unbounded_ = inside.unbounded();
    BodyNeed need{exactly(rounded(bound->offsets().arena_bytes)), {}, {}};
    need.total = need.arena + inside.most();
    for (SlotId output : body.output_slots()) {
      need.results.push_back(inside.size_of(output, instruction.node));
      const LocationKind location = body.slots()[body.slots()[output].root].location;
      // What is no result of the body's own is copied, unless it was handed in and may be handed on.
      if (location == LocationKind::constant || (location != LocationKind::held && inside.is_copied(output)))
        need.total += need.results.back();
    }
    return need;
  }

  /// @param first_carried  the body's output that is carried first; scan outputs come after those that are carried.
  Bytes of_iterations(const BodyNeed& body, size_t first_carried, size_t num_carried, const Bytes& trips) const {
    Bytes carried, slices;
    for (size_t k = first_carried; k < body.results.size(); ++k) (k < first_carried + num_carried ? carried : slices) += body.results[k];
    const Bytes last_but_one{trips.certain > 0 ? trips.certain - 1 : 0, trips.possible > 0 ? trips.possible - 1 : 0};
    const Bytes again{trips.certain > 1, trips.possible > 1}, once{trips.certain > 0, trips.possible > 0};
    const Bytes stacked = slices * trips;
    Bytes most = (kScalar + kScalar) * once + carried * again + slices * last_but_one + body.total * once;
    most.raise_to(body.arena * once + carried * once + stacked + stacked);
    return most;
  }

  /// The first element of an int64 operand whose value is known before the run.
  std::optional<int64_t> known_value(SlotId index) const {
    const Slot& root = slot(slot(index).root);
    if (slot(index).dtype != DType::int64) return std::nullopt;
    const Tensor* tensor = nullptr;
    if (slot(index).location == LocationKind::known) tensor = &binding_.known(index);
    if (root.location == LocationKind::constant && binding_.constant(slot(index).root).is_tensor())
      tensor = &binding_.constant(slot(index).root).tensor();
    if (!tensor || tensor->num_elements() != 1) return std::nullopt;
    return *tensor->data<int64_t>();
  }

  Bytes trips_of_loop(const Instruction& instruction) {
    const auto operands = program_.operands(instruction);
    // A scan output's extent is known where the condition stays true.
    for (size_t k = instruction.num_inputs + num_carried(instruction); k < operands.size(); ++k)
      if (operands[k] != kNoSlot && slot(operands[k]).static_shape && binding_.shape(operands[k]).rank() > 0)
        return exactly(static_cast<size_t>(binding_.shape(operands[k])[0]));
    constexpr int64_t kMany = 1 << 30;
    const auto limit = operands[0] != kNoSlot ? known_value(operands[0]) : std::nullopt;
    const bool stacks = instruction.bodies[0]->output_slots().size() > 1 + num_carried(instruction);
    if (limit && *limit <= 0) return {};
    if (!stacks) return {1, limit ? static_cast<size_t>(std::min<int64_t>(*limit, 2)) : 2};  // a third one needs no more
    if (!limit || *limit > kMany) {
      if (!unbounded_) unbounded_ = instruction.node;
      return {1, 1};
    }
    return {1, static_cast<size_t>(*limit)};
  }

  SlotId scanned(const Instruction& instruction, size_t k) const { return program_.operands(instruction)[num_carried(instruction) + k]; }
  static int64_t axis_of(const Instruction& instruction, size_t k) {
    const auto& axes = instruction.node->attributes.get_ints("scan_input_axes");
    return k < axes.size() ? axes[k] : 0;
  }

  Bytes trips_of_scan(const Instruction& instruction) {
    const SlotId first = scanned(instruction, 0);
    if (slot(first).static_shape) {
      const Shape& shape = binding_.shape(first);
      return exactly(static_cast<size_t>(shape[normalise_axis(axis_of(instruction, 0), shape.rank(), "scan_input_axes")]));
    }
    if (!unbounded_) unbounded_ = instruction.node;
    return {1, 1};
  }

  // One of each scanned input, for the iteration under way.
  Bytes scanned_slice(const Instruction& instruction) const {
    Bytes bytes;
    const auto count = static_cast<size_t>(instruction.node->attributes.get_int("num_scan_inputs"));
    for (size_t k = 0; k < count; ++k) {
      const SlotId index = scanned(instruction, k);
      if (!slot(index).static_shape) continue;
      Shape shape = binding_.shape(index);
      const int axis = normalise_axis(axis_of(instruction, k), shape.rank(), "scan_input_axes");
      if (shape[axis] == 0) continue;
      shape.erase(axis);
      bytes += exactly(rounded(size_bytes(slot(index).dtype, shape.num_elements())));
    }
    return bytes;
  }

  Plans& plans_;
  const Binding& binding_;
  const Program& program_;
  const RunControl& control_;
  const IsLent& is_lent_;
  const bool at_once_;
  UpperBounds bounds_;
  Bytes most_;
  const Node* unbounded_ = nullptr;
};

}  // namespace

RunMemory memory_beside_arena(Plans& plans, const Binding& binding, const RunControl& control, const IsLent& is_lent, bool at_once) {
  const Program& program = binding.program();
  const auto instructions = program.instructions();
  const auto outputs = program.output_slots();
  if (std::none_of(instructions.begin(), instructions.end(), [](const Instruction& instruction) { return instruction.dynamic; }) &&
      std::none_of(outputs.begin(), outputs.end(), [&](SlotId output) { return is_found(program, output); }))
    return {};
  const Estimate estimate(plans, binding, control, is_lent, at_once);
  return {estimate.most().certain, estimate.most().possible, estimate.unbounded()};
}

}  // namespace treadle::exec
