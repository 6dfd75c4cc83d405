#include "exec/run/run_memory.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "core/base/checked.h"
#include "exec/plan/plans.h"
#include "exec/run/run_control.h"
#include "graph/custom_ops.h"
#include "graph/dim_bounds.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "treadle/error.h"

namespace treadle::exec {
namespace {

using IsLent = std::function<bool(size_t input)>;

constexpr size_t kTooMuch = size_t{1} << 50;  // 1 PiB: more than any machine has; sums of such numbers do not overflow

/// Lower and upper bound of a number of bytes.
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

// Returns true if no node computes the output, because it is a feed, a constant, or known before the run.
bool is_found(const Program& program, SlotId output) {
  const LocationKind location = program.slots()[program.slots()[output].root].location;
  return location == LocationKind::feed || location == LocationKind::constant || location == LocationKind::known;
}

const Bytes kScalar = exactly(Storage::kAlignment);

// A program bound to extents, and the settings of its run.
struct Setting {
  Plans& plans;
  const Binding& binding;
  const Program& program;
  const RunControl& control;
  const IsLent& is_lent;
  bool at_once;

  const Slot& slot(SlotId index) const { return program.slots()[index]; }
  std::span<const SlotId> formal_inputs(const Instruction& instruction) const {
    return program.operands(instruction).first(static_cast<size_t>(instruction.node->num_formal_inputs));
  }
};

/// Computes the bytes of values, as far as they are known before the run.
class ValueSizes {
 public:
  explicit ValueSizes(const Setting& setting) : setting_(setting), bounds_(setting.binding.values()) {}

  /// Returns the bytes of a value. @param node  stored as unbounded() if the value has no upper bound
  Bytes of(SlotId index, const Node* node) {
    const Slot& slot = setting_.slot(index);
    if (slot.static_shape && slot.dtype != DType::string) return exactly(rounded(setting_.binding.bytes_of(index)));
    if (auto elements = most_elements(index); elements && slot.dtype != DType::undefined && slot.dtype != DType::string)
      return {0, rounded(size_bytes(slot.dtype, *elements))};
    note_unbounded(node);
    return {};
  }

  /// Returns the bytes of the copies that a node makes of its operands because it keeps them after it has ended.
  Bytes of_copies(const Instruction& instruction) {
    Bytes copies;
    for (const SlotId index : setting_.formal_inputs(instruction))
      if (index != kNoSlot && is_copied(index)) copies += of(index, instruction.node);
    return copies;
  }

  /// Returns true if a node that keeps this value must copy it, because its memory will be reused or belongs to the caller.
  bool is_copied(SlotId index) const {
    const Slot& root = setting_.slot(setting_.slot(index).root);
    if (setting_.slot(index).rewritten) return true;
    if (root.location == LocationKind::arena || root.location == LocationKind::known) return true;
    if (root.location != LocationKind::feed) return false;
    const auto inputs = setting_.program.input_slots();
    return setting_.is_lent(static_cast<size_t>(std::find(inputs.begin(), inputs.end(), setting_.slot(index).root) - inputs.begin()));
  }

  /// Returns the first node that of() has recorded; null if all values have an upper bound.
  const Node* unbounded() const { return unbounded_; }
  void note_unbounded(const Node* node) {
    if (!unbounded_) unbounded_ = node;
  }

 private:
  std::optional<int64_t> most_elements(SlotId index) {
    const Type& type = setting_.program.type(index);
    if (!type.is_tensor() || !type.shape) return std::nullopt;
    int64_t elements = 1;
    for (const Dim& dim : *type.shape) {
      const auto extent = bounds_.of(dim);
      if (!extent) return std::nullopt;
      if (__builtin_mul_overflow(elements, std::max<int64_t>(*extent, 0), &elements)) return std::nullopt;
    }
    return elements < static_cast<int64_t>(kTooMuch / sizeof(double) / 2) ? std::optional(elements) : std::nullopt;
  }

  const Setting& setting_;
  UpperBounds bounds_;
  const Node* unbounded_ = nullptr;
};

/// Computes the peak number of bytes that nodes allocate while a program runs.
class ProgramMemory {
 public:
  ProgramMemory(const Setting& setting, ValueSizes& sizes) : setting_(setting), program_(setting.program), sizes_(sizes) {}

  Bytes most() {
    most_ = alive_ = before_nodes();
    for (const Instruction& instruction : program_.instructions()) {
      if (instruction.dynamic && !instruction.is_yield) run(instruction);  // the caller supplies the outputs of a Yield
      release(instruction);
    }
    return most_;
  }

 private:
  // Returns the bytes allocated before the first node runs: a body's results, or copies of a run's outputs that no node computes.
  Bytes before_nodes() {
    Bytes bytes;
    if (program_.is_body()) {
      for (SlotId index : program_.preallocated()) bytes += sizes_.of(index, nullptr);
      return bytes;
    }
    for (SlotId index : program_.output_slots())
      if (is_found(program_, index) && (setting_.slot(setting_.slot(index).root).location != LocationKind::feed || sizes_.is_copied(index)))
        bytes += sizes_.of(index, nullptr);
    return bytes;
  }

  void run(const Instruction& instruction) {
    const Bytes during = bytes_during(instruction);
    if (setting_.at_once)
      most_ += during;
    else
      most_.raise_to(alive_ + during);
    for (SlotId index : program_.operands(instruction).subspan(instruction.num_inputs)) {
      if (index == kNoSlot || setting_.slot(index).location != LocationKind::held || setting_.slot(index).root != index) continue;
      const Bytes bytes = sizes_.of(index, instruction.node);
      alive_ += bytes;
      if (setting_.at_once) most_ += bytes;
      held_[index] = bytes;
    }
    if (!setting_.at_once) most_.raise_to(alive_);
  }

  // Also counts copies of a custom kernel's operands, because that kernel may still run while other nodes do.
  Bytes bytes_during(const Instruction& instruction);

  void release(const Instruction& instruction) {
    for (SlotId index : program_.releases().subspan(instruction.first_release, instruction.num_releases)) {
      auto found = held_.find(index);
      if (found == held_.end()) continue;
      alive_ -= found->second;
      held_.erase(found);
    }
  }

  const Setting& setting_;
  const Program& program_;
  ValueSizes& sizes_;
  Bytes most_, alive_;
  std::map<SlotId, Bytes> held_;  // size of each live value with memory of its own (LocationKind::held), by the slot that its views share
};

/// Computes how many bytes an If, Loop or Scan allocates while it runs.
class ControlFlowMemory {
 public:
  ControlFlowMemory(const Setting& setting, ValueSizes& sizes, const Instruction& instruction)
      : setting_(setting), sizes_(sizes), instruction_(instruction), node_(*instruction.node) {}

  Bytes most() {
    std::vector<Body> bodies;
    for (size_t b = 0; b < instruction_.bodies.size(); ++b) {
      std::optional<Body> body;
      try {
        body = find_body(b);
      } catch (const Error&) {  // ignored: a branch that is not taken may reject these shapes; a branch that is taken throws in the run
      }
      if (!body) {
        sizes_.note_unbounded(&node_);
        return {};
      }
      bodies.push_back(std::move(*body));
    }
    const Bytes copies = sizes_.of_copies(instruction_);
    switch (node_.op->control_flow) {
      case ControlFlow::if_: return copies + one_of(bodies);
      case ControlFlow::loop: return copies + iterations(bodies.front(), 1, trips_of_loop());
      case ControlFlow::scan: return copies + scanned_slice() + iterations(bodies.front(), 0, trips_of_scan());
      case ControlFlow::none: break;
    }
    return {};
  }

 private:
  struct Body {
    Bytes arena;  // in use until the If, Loop or Scan ends
    Bytes total;  // in use during one iteration, including its results
    std::vector<Bytes> results;
  };

  SlotId operand(size_t k) const { return setting_.program.operands(instruction_)[k]; }
  size_t num_scanned() const { return static_cast<size_t>(node_.attributes.get_int("num_scan_inputs")); }
  size_t num_carried() const {
    const auto formal = static_cast<size_t>(node_.num_formal_inputs);
    if (node_.op->control_flow == ControlFlow::loop) return formal > 2 ? formal - 2 : 0;
    return formal - num_scanned();
  }

  static Bytes one_of(const std::vector<Body>& branches) {
    Bytes branch = branches.front().total;
    for (const Body& body : branches)
      branch = {std::min(branch.certain, body.total.certain), std::max(branch.possible, body.total.possible)};
    return branch;
  }

  // Binds body `b` to the extents that it will have in the run. Returns nothing if the values of some symbols are unknown before the run.
  std::optional<Body> find_body(size_t b) {
    const Program& body = *instruction_.bodies[b];
    std::vector<int64_t> values(body.extents().num_expressions, -1);
    const auto known = setting_.binding.values();
    std::copy_n(known.begin(), std::min(values.size(), known.size()), values.begin());
    for (int32_t symbol : body.extents().symbols)
      if (values[static_cast<size_t>(symbol)] < 0) return std::nullopt;
    const RunControl& control = setting_.control;
    const std::shared_ptr<const Binding> bound =
        setting_.plans.of_body(body).bindings().get(values, control.threads.most(), control.threads.pool);
    const auto& captures = node_.bodies[b].captures;
    const size_t given = body.input_slots().size() - captures.size();
    const IsLent is_lent = [&](size_t input) {
      if (input < given) return false;
      return sizes_.is_copied(operand(static_cast<size_t>(node_.num_formal_inputs) + static_cast<size_t>(captures[input - given].second)));
    };
    const Setting inside{setting_.plans.of_body(body), *bound, body, control, is_lent, setting_.at_once};
    ValueSizes sizes(inside);
    const Bytes most = ProgramMemory(inside, sizes).most();
    sizes_.note_unbounded(sizes.unbounded());
    Body need{exactly(rounded(bound->offsets().arena_bytes)), {}, {}};
    need.total = need.arena + most;
    for (SlotId output : body.output_slots()) {
      need.results.push_back(sizes.of(output, &node_));
      const LocationKind location = body.slots()[body.slots()[output].root].location;
      // A result that the body does not compute is copied, unless it is an input that can be passed on unchanged.
      if (location == LocationKind::constant || (location != LocationKind::held && sizes.is_copied(output)))
        need.total += need.results.back();
    }
    return need;
  }

  /// @param first_carried  index of the body's first loop-carried output; scan outputs follow the carried ones.
  Bytes iterations(const Body& body, size_t first_carried, const Bytes& trips) const {
    Bytes carried, slices;
    for (size_t k = first_carried; k < body.results.size(); ++k) (k < first_carried + num_carried() ? carried : slices) += body.results[k];
    const Bytes last_but_one{trips.certain > 0 ? trips.certain - 1 : 0, trips.possible > 0 ? trips.possible - 1 : 0};
    const Bytes again{trips.certain > 1, trips.possible > 1}, once{trips.certain > 0, trips.possible > 0};
    const Bytes stacked = slices * trips;
    Bytes most = (kScalar + kScalar) * once + carried * again + slices * last_but_one + body.total * once;
    most.raise_to(body.arena * once + carried * once + stacked + stacked);
    return most;
  }

  /// Returns the value of an int64 operand of one element that is constant or that the feeds' shapes determine; otherwise nullopt.
  std::optional<int64_t> known_value(SlotId index) const {
    const Slot& slot = setting_.slot(index);
    const Binding& binding = setting_.binding;
    if (slot.dtype != DType::int64) return std::nullopt;
    const Tensor* tensor = nullptr;
    if (slot.location == LocationKind::known) tensor = &binding.known(index);
    if (setting_.slot(slot.root).location == LocationKind::constant && binding.constant(slot.root).is_tensor())
      tensor = &binding.constant(slot.root).tensor();
    if (!tensor || tensor->num_elements() != 1) return std::nullopt;
    return *tensor->data<int64_t>();
  }

  Bytes trips_of_loop() {
    const auto operands = setting_.program.operands(instruction_);
    // If the extent of a scan output is known, it is the number of iterations.
    for (size_t k = instruction_.num_inputs + num_carried(); k < operands.size(); ++k)
      if (operands[k] != kNoSlot && setting_.slot(operands[k]).static_shape && setting_.binding.shape(operands[k]).rank() > 0)
        return exactly(static_cast<size_t>(setting_.binding.shape(operands[k])[0]));
    constexpr int64_t kMany = 1 << 30;
    const auto limit = operands[0] != kNoSlot ? known_value(operands[0]) : std::nullopt;
    const bool stacks = instruction_.bodies[0]->output_slots().size() > 1 + num_carried();
    if (limit && *limit <= 0) return {};
    // The memory does not grow after the second iteration.
    if (!stacks) return {1, limit ? static_cast<size_t>(std::min<int64_t>(*limit, 2)) : 2};
    if (!limit || *limit > kMany) {
      sizes_.note_unbounded(&node_);
      return {1, 1};
    }
    return {1, static_cast<size_t>(*limit)};
  }

  SlotId scanned(size_t k) const { return operand(num_carried() + k); }
  int64_t scanned_axis(size_t k) const {
    const auto& axes = node_.attributes.get_ints("scan_input_axes");
    return k < axes.size() ? axes[k] : 0;
  }

  Bytes trips_of_scan() {
    const SlotId first = scanned(0);
    if (setting_.slot(first).static_shape) {
      const Shape& shape = setting_.binding.shape(first);
      return exactly(static_cast<size_t>(shape[normalize_axis(scanned_axis(0), shape.rank(), "scan_input_axes")]));
    }
    sizes_.note_unbounded(&node_);
    return {1, 1};
  }

  // Returns the bytes of one slice of each scanned input, as one iteration uses them.
  Bytes scanned_slice() const {
    Bytes bytes;
    for (size_t k = 0; k < num_scanned(); ++k) {
      const SlotId index = scanned(k);
      if (!setting_.slot(index).static_shape) continue;
      Shape shape = setting_.binding.shape(index);
      const int axis = normalize_axis(scanned_axis(k), shape.rank(), "scan_input_axes");
      if (shape[axis] == 0) continue;
      shape.erase(axis);
      bytes += exactly(rounded(size_bytes(setting_.slot(index).dtype, shape.num_elements())));
    }
    return bytes;
  }

  const Setting& setting_;
  ValueSizes& sizes_;
  const Instruction& instruction_;
  const Node& node_;
};

Bytes ProgramMemory::bytes_during(const Instruction& instruction) {
  if (!instruction.bodies.empty()) return ControlFlowMemory(setting_, sizes_, instruction).most();
  const bool may_be_deferred = setting_.at_once && instruction.kernel && is_custom_op(*instruction.node->op);
  return may_be_deferred ? sizes_.of_copies(instruction) : Bytes{};
}

}  // namespace

RunMemory memory_beside_arena(Plans& plans, const Binding& binding, const RunControl& control, const IsLent& is_lent, bool at_once) {
  const Program& program = binding.program();
  const auto instructions = program.instructions();
  const auto outputs = program.output_slots();
  if (std::none_of(instructions.begin(), instructions.end(), [](const Instruction& instruction) { return instruction.dynamic; }) &&
      std::none_of(outputs.begin(), outputs.end(), [&](SlotId output) { return is_found(program, output); }))
    return {};
  const Setting setting{plans, binding, program, control, is_lent, at_once};
  ValueSizes sizes(setting);
  const Bytes most = ProgramMemory(setting, sizes).most();
  return {most.certain, most.possible, sizes.unbounded()};
}

}  // namespace treadle::exec
