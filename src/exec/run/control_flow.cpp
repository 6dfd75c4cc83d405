#include "exec/run/control_flow.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "core/devices/device.h"
#include "exec/run/frame.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "treadle/error.h"

namespace treadle::exec {
namespace {

/// One execution of an If, Loop or Scan: its operands, outputs and bodies.
class ControlFlowRun {
 public:
  ControlFlowRun(BodyRunner& bodies, const Instruction& instruction, const Binding& binding, const RunControl& control,
                 const OperandSource& operands)
      : bodies_(bodies),
        instruction_(instruction),
        binding_(binding),
        control_(control),
        operands_(operands),
        inputs_(instruction.num_inputs),
        outputs_(instruction.num_outputs) {}

  const Instruction& instruction() const { return instruction_; }
  bool has_input(int i) const { return instruction_.node->has_input(static_cast<size_t>(i)); }
  const Datum& input(int i) {
    const auto k = static_cast<size_t>(i);
    if (!inputs_[k].defined() && has_input(i)) inputs_[k] = operands_.operand(k, /*kept=*/true);
    return inputs_[k];
  }
  void set_output(int i, Datum datum) {
    if (i < static_cast<int>(outputs_.size())) outputs_[static_cast<size_t>(i)] = std::move(datum);
  }
  /// Returns the value of a symbolic extent; negative if the feeds' shapes do not determine it.
  int64_t value_of(const Dim& extent) const {
    const auto index = static_cast<size_t>(extent.expr()->index);
    return index < binding_.values().size() ? binding_.values()[index] : -1;
  }
  size_t num_body_outputs(size_t b) const { return instruction_.bodies[b]->output_slots().size(); }
  /// Runs body `b` with these formal inputs, and adds the captured values. @return one value per output of the body
  std::vector<Datum> run_body(size_t b, std::vector<Datum> formal_inputs) {
    return run_body(b, std::move(formal_inputs), [&](auto&&... args) { bodies_.run(*instruction_.bodies[b], args..., BodyRunner::kNone); });
  }
  /// Runs the only body once more. Its results may be in the making (BodyRunner::Rounds), except on the host.
  std::vector<Datum> run_round(std::vector<Datum> formal_inputs, size_t looked_at = BodyRunner::kNone) {
    if (!rounds_) rounds_ = bodies_.rounds(*instruction_.bodies[0]);
    return run_body(0, std::move(formal_inputs), [&](auto&&... args) { rounds_->run(args..., looked_at); });
  }
  /// Waits for the results of all rounds.
  void finish_rounds() {
    if (rounds_) rounds_->finish();
  }
  std::vector<Datum> take_outputs() { return std::move(outputs_); }

 private:
  template <typename Run>
  std::vector<Datum> run_body(size_t b, std::vector<Datum> formal_inputs, Run&& run) {
    const Program& body = *instruction_.bodies[b];
    const Node& node = *instruction_.node;
    for (const auto& capture : node.bodies[b].captures)
      formal_inputs.push_back(operands_.operand(static_cast<size_t>(node.num_formal_inputs + capture.second), /*kept=*/false));
    std::vector<Datum> results(body.output_slots().size());
    // Each iteration gets a different run_id, mixed as in splitmix64, so that random operators produce new numbers.
    RunControl control = control_;
    control.feeds = {};  // the special rules for feeds apply only to the surrounding run's feeds
    uint64_t mixed = control_.run_id + ++iterations_ * 0x9E3779B97F4A7C15U;
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9U;
    control.run_id = mixed ^ mixed >> 27;
    run(std::span<const Datum>(formal_inputs), std::span<Datum>(results), control, binding_.values());
    return results;
  }

  BodyRunner& bodies_;
  const Instruction& instruction_;
  const Binding& binding_;
  const RunControl& control_;
  const OperandSource& operands_;
  std::vector<Datum> inputs_, outputs_;
  uint64_t iterations_ = 0;
  std::unique_ptr<BodyRunner::Rounds> rounds_;  // null before the first round
};

class SeparateRounds final : public BodyRunner::Rounds {
 public:
  SeparateRounds(BodyRunner& bodies, const Program& body) : bodies_(bodies), body_(body) {}
  void run(std::span<const Datum> feeds, std::span<Datum> results, const RunControl& control, std::span<const int64_t> parent_values,
           size_t looked_at) override {
    bodies_.run(body_, feeds, results, control, parent_values, looked_at);
  }

 private:
  BodyRunner& bodies_;
  const Program& body_;
};

// Returns the tensor in the host's memory, so that the host can read its elements. Copies it if it is on a device.
Tensor readable(const Tensor& tensor) { return tensor.storage()->device() ? tensor.clone() : tensor; }

bool truth(const Datum& datum, std::string_view what) {
  const Tensor& tensor = datum.tensor();
  if (tensor.dtype() != DType::boolean || tensor.num_elements() != 1)
    throw Error(ErrorCode::invalid_argument, fmt::format("{} must be one bool, it is {}", what, describe(tensor)));
  return *readable(tensor).data<bool>();
}

int64_t only_element(const Tensor& tensor, std::string_view what) {
  if (tensor.num_elements() != 1)
    throw Error(ErrorCode::invalid_argument, fmt::format("{} must be one element, it is {}", what, describe(tensor)));
  return *readable(tensor).data<int64_t>();
}

/// Copies ranges of elements between tensors of one dtype. Copies within a device all use one stream.
class ElementCopies {
 public:
  void add(const Tensor& from, int64_t from_index, const Tensor& to, int64_t to_index, int64_t count) {
    if (from.dtype() == DType::string) {
      std::copy_n(from.data<std::string>() + from_index, count, to.data<std::string>() + to_index);
      return;
    }
    if (is_sub_byte(from.dtype())) throw Error(ErrorCode::not_implemented, "packed sub-byte types cannot be stacked by Loop or Scan");
    const auto element = static_cast<int64_t>(bits_of(from.dtype()) / 8);
    std::byte* const target = to.raw() + to_index * element;
    const std::byte* const source = from.raw() + from_index * element;
    Device* const device = beyond_reach(to);
    if (!device && !beyond_reach(from)) {
      std::memcpy(target, source, static_cast<size_t>(count * element));
    } else if (device && device == beyond_reach(from)) {
      if (!stream_) stream_ = device->create_stream("control flow");
      stream_->copy(target, source, static_cast<size_t>(count * element), CopyKind::device_to_device);
    } else {
      part(to, target, count).copy_from(part(from, source, count));
    }
  }
  /// Waits until all copies are done.
  void finish() {
    if (stream_) stream_->synchronize();
  }

 private:
  static Device* beyond_reach(const Tensor& tensor) {
    Device* const device = tensor.storage()->device().get();
    return device && !device->memory_is_hosts() ? device : nullptr;
  }
  static Tensor part(const Tensor& of, const std::byte* at, int64_t count) {
    return {of.dtype(), Shape{count}, of.storage(), static_cast<size_t>(at - of.storage()->data())};
  }

  std::unique_ptr<Stream> stream_;  // null if no copy was made within a device
};

/// Allocates a tensor in the same memory (host or device) as `like`.
Tensor make_beside(const Tensor& like, DType dtype, const Shape& shape) {
  const std::shared_ptr<Device>& device = like.storage()->device();
  return device ? Tensor(dtype, shape, device->allocate_somewhere(size_bytes(dtype, shape.num_elements()))) : Tensor(dtype, shape);
}

/// Collects slices of equal shape and dtype, and stacks them along a new axis.
class Stack {
 public:
  Stack(DType dtype, int64_t axis, bool reverse) : dtype_(dtype), axis_(axis), reverse_(reverse) {}

  void push(const Tensor& slice) {
    if (!slices_.empty() && (slice.shape() != slices_[0].shape() || slice.dtype() != slices_[0].dtype()))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("a scan output is {} in one iteration and {} in another", describe(slices_[0]), describe(slice)));
    slices_.push_back(slice.contiguous());
  }

  /// @param empty_shape  shape of one slice, used if there were no iterations
  Tensor result(const Shape& empty_shape) const {
    Shape slice = slices_.empty() ? empty_shape : slices_[0].shape();
    DType dtype = slices_.empty() ? dtype_ : slices_[0].dtype();
    int axis = normalize_axis(axis_, slice.rank() + 1, "the axis of a scan output");
    Shape shape = slice;
    auto count = static_cast<int64_t>(slices_.size());
    shape.insert(axis, count);
    Tensor stacked = slices_.empty() ? Tensor(dtype, shape) : make_beside(slices_[0], dtype, shape);
    int64_t outer = slice.product(0, axis), inner = slice.product(axis, slice.rank());
    ElementCopies copies;
    for (int64_t i = 0; i < count; ++i) {
      const Tensor& from = slices_[static_cast<size_t>(reverse_ ? count - 1 - i : i)];
      for (int64_t o = 0; o < outer; ++o) copies.add(from, o * inner, stacked, (o * count + i) * inner, inner);
    }
    copies.finish();
    return stacked;
  }

 private:
  DType dtype_;
  int64_t axis_;
  bool reverse_;
  std::vector<Tensor> slices_;
};

// Returns the shape of a slice of a scan output, for a loop without iterations: the inferred extents if the feeds' shapes determine them,
// otherwise the extents that the body declares, with 0 for undeclared ones.
Shape slice_shape(const ControlFlowRun& call, size_t output) {
  const Program& body = *call.instruction().bodies[0];
  const Graph& graph = *call.instruction().node->bodies[0].graph;
  const Type& type = body.type(body.output_slots()[output]);
  const Type declared = graph.declared_outputs.size() == graph.outputs.size() ? graph.declared_outputs[output] : Type{};
  Shape shape;
  if (!type.has_rank() && !declared.has_rank()) return shape;
  const bool is_told = declared.has_rank() && (!type.has_rank() || type.rank() == declared.rank());
  for (size_t i = 0; i < (type.has_rank() ? type : declared).shape->size(); ++i) {
    int64_t extent = -1;
    if (type.has_rank()) extent = (*type.shape)[i].is_const() ? (*type.shape)[i].value() : call.value_of((*type.shape)[i]);
    if (extent < 0 && is_told && (*declared.shape)[i].is_const()) extent = (*declared.shape)[i].value();
    shape.push_back(std::max<int64_t>(extent, 0));
  }
  return shape;
}

DType dtype_of_output(const Program& body, size_t output) { return body.type(body.output_slots()[output]).dtype; }

void run_if(ControlFlowRun& instruction) {
  const Node& node = *instruction.instruction().node;
  std::string_view branch = truth(instruction.input(0), "the condition") ? "then_branch" : "else_branch";
  for (size_t b = 0; b < node.bodies.size(); ++b) {
    if (node.bodies[b].attribute != branch) continue;
    std::vector<Datum> results = instruction.run_body(b, {});
    for (size_t i = 0; i < node.outputs.size(); ++i) instruction.set_output(static_cast<int>(i), results[i]);
  }
}

void run_loop(ControlFlowRun& instruction) {
  const Node& node = *instruction.instruction().node;
  const Program& body = *instruction.instruction().bodies[0];
  int64_t trips = INT64_MAX;
  if (instruction.has_input(0)) trips = only_element(instruction.input(0).tensor(), "the number of trips");
  bool condition = !instruction.has_input(1) || truth(instruction.input(1), "the condition");
  size_t num_carried = node.num_formal_inputs > 2 ? static_cast<size_t>(node.num_formal_inputs) - 2 : 0;
  size_t num_outputs = instruction.num_body_outputs(0);
  std::vector<Datum> carried;
  for (size_t i = 0; i < num_carried; ++i) carried.push_back(instruction.input(static_cast<int>(i) + 2));
  std::vector<Stack> scans;
  for (size_t i = 1 + num_carried; i < num_outputs; ++i) scans.emplace_back(dtype_of_output(body, i), 0, false);
  const auto as_declared = [&](Tensor scalar, size_t i) {
    const Type& type = body.type(body.input_slots()[i]);
    return type.has_rank() && type.rank() == 1 ? scalar.reshaped(Shape{1}) : scalar;
  };
  for (int64_t trip = 0; trip < trips && condition; ++trip) {
    std::vector<Datum> inputs{as_declared(Tensor::scalar<int64_t>(trip), 0), as_declared(Tensor::scalar<bool>(condition), 1)};
    for (Datum& value : carried) inputs.push_back(std::move(value));
    std::vector<Datum> results = instruction.run_round(std::move(inputs), /*looked_at=*/0);
    condition = truth(results[0], "the body's condition");
    for (size_t i = 0; i < num_carried; ++i) carried[i] = results[1 + i];
    for (size_t i = 0; i < scans.size(); ++i) scans[i].push(results[1 + num_carried + i].tensor());
  }
  instruction.finish_rounds();
  for (size_t i = 0; i < num_carried; ++i) instruction.set_output(static_cast<int>(i), std::move(carried[i]));
  for (size_t i = 0; i < scans.size(); ++i)
    instruction.set_output(static_cast<int>(num_carried + i), scans[i].result(slice_shape(instruction, 1 + num_carried + i)));
}

// Returns a slice along an axis. The slice is a view of the sequence's memory if all axes before this one have extent 1 and elements are
// whole bytes.
Tensor take_slice(const Tensor& sequence, int axis, int64_t index) {
  Shape shape = sequence.shape();
  const int64_t outer = shape.product(0, axis), length = shape[axis], inner = shape.product(axis + 1, shape.rank());
  shape.erase(axis);
  const DType dtype = sequence.dtype();
  if (outer == 1 && dtype != DType::string && !is_sub_byte(dtype)) {
    const auto begin = static_cast<size_t>(sequence.raw() - sequence.storage()->data());
    return {dtype, shape, sequence.storage(), begin + static_cast<size_t>(index) * size_bytes(dtype, inner)};
  }
  Tensor slice = make_beside(sequence, dtype, shape);
  ElementCopies copies;
  for (int64_t o = 0; o < outer; ++o) copies.add(sequence, (o * length + index) * inner, slice, o * inner, inner);
  copies.finish();
  return slice;
}

int64_t entry_or(const std::vector<int64_t>& values, size_t i, int64_t otherwise) { return i < values.size() ? values[i] : otherwise; }

void run_scan(ControlFlowRun& instruction) {
  const Node& node = *instruction.instruction().node;
  const Program& body = *instruction.instruction().bodies[0];
  auto num_scanned = static_cast<size_t>(node.attributes.get_int("num_scan_inputs"));
  size_t num_states = static_cast<size_t>(node.num_formal_inputs) - num_scanned, num_outputs = instruction.num_body_outputs(0);
  const auto& axes = node.attributes.get_ints("scan_input_axes");
  const auto& directions = node.attributes.get_ints("scan_input_directions");
  const auto& output_axes = node.attributes.get_ints("scan_output_axes");
  const auto& output_directions = node.attributes.get_ints("scan_output_directions");
  std::vector<Datum> states;
  for (size_t i = 0; i < num_states; ++i) states.push_back(instruction.input(static_cast<int>(i)));
  int64_t length = -1;
  std::vector<Tensor> scanned;
  std::vector<int> scan_axes;
  for (size_t i = 0; i < num_scanned; ++i) {
    scanned.push_back(instruction.input(static_cast<int>(num_states + i)).tensor());
    scan_axes.push_back(normalize_axis(entry_or(axes, i, 0), scanned[i].shape().rank(), "scan_input_axes"));
    int64_t extent = scanned[i].shape()[scan_axes[i]];
    if (length >= 0 && extent != length)
      throw Error(ErrorCode::invalid_argument, fmt::format("scanned inputs of lengths {} and {}", length, extent));
    length = extent;
  }
  std::vector<Stack> stacks;
  for (size_t i = num_states; i < num_outputs; ++i)
    stacks.emplace_back(dtype_of_output(body, i), entry_or(output_axes, i - num_states, 0),
                        entry_or(output_directions, i - num_states, 0) == 1);
  for (int64_t step = 0; step < length; ++step) {
    std::vector<Datum> inputs;
    for (Datum& state : states) inputs.push_back(std::move(state));
    for (size_t i = 0; i < num_scanned; ++i) {
      bool reverse = entry_or(directions, i, 0) == 1;
      inputs.emplace_back(take_slice(scanned[i], scan_axes[i], reverse ? length - 1 - step : step));
    }
    std::vector<Datum> results = instruction.run_round(std::move(inputs));
    for (size_t i = 0; i < num_states; ++i) states[i] = results[i];
    for (size_t i = 0; i < stacks.size(); ++i) stacks[i].push(results[num_states + i].tensor());
  }
  instruction.finish_rounds();
  for (size_t i = 0; i < num_states; ++i) instruction.set_output(static_cast<int>(i), std::move(states[i]));
  for (size_t i = 0; i < stacks.size(); ++i)
    instruction.set_output(static_cast<int>(num_states + i), stacks[i].result(slice_shape(instruction, num_states + i)));
}

}  // namespace

std::unique_ptr<BodyRunner::Rounds> BodyRunner::rounds(const Program& body) { return std::make_unique<SeparateRounds>(*this, body); }

void HostBodies::run(const Program& body, std::span<const Datum> feeds, std::span<Datum> results, const RunControl& control,
                     std::span<const int64_t> parent_values, size_t) {
  frames_.of_body(body).run(feeds, results, control, {}, {}, parent_values);
}

std::vector<Datum> run_control_flow(BodyRunner& bodies, const Instruction& instruction, const Binding& binding, const RunControl& control,
                                    const OperandSource& operands) {
  ControlFlowRun run(bodies, instruction, binding, control, operands);
  switch (instruction.node->op->control_flow) {
    case ControlFlow::if_: run_if(run); break;
    case ControlFlow::loop: run_loop(run); break;
    case ControlFlow::scan: run_scan(run); break;
    case ControlFlow::none: break;
  }
  return run.take_outputs();
}

}  // namespace treadle::exec
