// Executes If, Loop and Scan. Their bodies are programs of their own, which run with values of the node's operands.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "exec/run/run_instruction.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "treadle/error.h"

namespace treadle::exec {
namespace {

bool truth(const Datum& datum, std::string_view what) {
  const Tensor& tensor = datum.tensor();
  if (tensor.dtype() != DType::boolean || tensor.num_elements() != 1)
    throw Error(ErrorCode::invalid_argument, fmt::format("{} must be one bool, it is {}", what, describe(tensor)));
  return *tensor.data<bool>();
}

int64_t only_element(const Tensor& tensor, std::string_view what) {
  if (tensor.num_elements() != 1)
    throw Error(ErrorCode::invalid_argument, fmt::format("{} must be one element, it is {}", what, describe(tensor)));
  return *tensor.data<int64_t>();
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

  /// @param empty_shape  shape of a slice if there was no iteration
  Tensor result(const Shape& empty_shape) const {
    Shape slice = slices_.empty() ? empty_shape : slices_[0].shape();
    DType dtype = slices_.empty() ? dtype_ : slices_[0].dtype();
    int axis = normalize_axis(axis_, slice.rank() + 1, "the axis of a scan output");
    Shape shape = slice;
    auto count = static_cast<int64_t>(slices_.size());
    shape.insert(axis, count);
    Tensor stacked(dtype, shape);
    int64_t outer = slice.product(0, axis), inner = slice.product(axis, slice.rank());
    for (int64_t i = 0; i < count; ++i) {
      const Tensor& from = slices_[static_cast<size_t>(reverse_ ? count - 1 - i : i)];
      for (int64_t o = 0; o < outer; ++o) copy(from, o * inner, stacked, (o * count + i) * inner, inner);
    }
    return stacked;
  }

  static void copy(const Tensor& from, int64_t from_index, const Tensor& to, int64_t to_index, int64_t count) {
    if (from.dtype() == DType::string) {
      std::copy_n(from.data<std::string>() + from_index, count, to.data<std::string>() + to_index);
      return;
    }
    if (is_sub_byte(from.dtype())) throw Error(ErrorCode::not_implemented, "packed sub-byte types cannot be stacked by Loop or Scan");
    auto element = static_cast<int64_t>(bits_of(from.dtype()) / 8);
    std::memcpy(to.raw() + to_index * element, from.raw() + from_index * element, static_cast<size_t>(count * element));
  }

 private:
  DType dtype_;
  int64_t axis_;
  bool reverse_;
  std::vector<Tensor> slices_;
};

// Returns the shape of a scan output's slice if no iteration ran: the inferred shape where the feeds' shapes determine it, otherwise the
// one that the body declares, with 0 for extents that it does not declare.
Shape slice_shape(const ControlFlowCall& call, size_t output) {
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

void run_if(ControlFlowCall& instruction) {
  const Node& node = *instruction.instruction().node;
  std::string_view branch = truth(instruction.input(0), "the condition") ? "then_branch" : "else_branch";
  for (size_t b = 0; b < node.bodies.size(); ++b) {
    if (node.bodies[b].attribute != branch) continue;
    std::vector<Datum> results = instruction.run_body(b, {});
    for (size_t i = 0; i < node.outputs.size(); ++i) instruction.set_output(static_cast<int>(i), results[i]);
  }
}

void run_loop(ControlFlowCall& instruction) {
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
    std::vector<Datum> results = instruction.run_body(0, std::move(inputs));
    condition = truth(results[0], "the body's condition");
    for (size_t i = 0; i < num_carried; ++i) carried[i] = results[1 + i];
    for (size_t i = 0; i < scans.size(); ++i) scans[i].push(results[1 + num_carried + i].tensor());
  }
  for (size_t i = 0; i < num_carried; ++i) instruction.set_output(static_cast<int>(i), std::move(carried[i]));
  for (size_t i = 0; i < scans.size(); ++i)
    instruction.set_output(static_cast<int>(num_carried + i), scans[i].result(slice_shape(instruction, 1 + num_carried + i)));
}

Tensor take_slice(const Tensor& sequence, int axis, int64_t index) {
  Shape shape = sequence.shape();
  int64_t outer = shape.product(0, axis), length = shape[axis], inner = shape.product(axis + 1, shape.rank());
  shape.erase(axis);
  Tensor slice(sequence.dtype(), shape);
  for (int64_t o = 0; o < outer; ++o) Stack::copy(sequence, (o * length + index) * inner, slice, o * inner, inner);
  return slice;
}

int64_t entry_or(const std::vector<int64_t>& values, size_t i, int64_t otherwise) { return i < values.size() ? values[i] : otherwise; }

void run_scan(ControlFlowCall& instruction) {
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
    std::vector<Datum> results = instruction.run_body(0, std::move(inputs));
    for (size_t i = 0; i < num_states; ++i) states[i] = results[i];
    for (size_t i = 0; i < stacks.size(); ++i) stacks[i].push(results[num_states + i].tensor());
  }
  for (size_t i = 0; i < num_states; ++i) instruction.set_output(static_cast<int>(i), std::move(states[i]));
  for (size_t i = 0; i < stacks.size(); ++i)
    instruction.set_output(static_cast<int>(num_states + i), stacks[i].result(slice_shape(instruction, num_states + i)));
}

}  // namespace

void run_control_flow(ControlFlowCall& instruction) {
  switch (instruction.instruction().node->op->control_flow) {
    case ControlFlow::if_: return run_if(instruction);
    case ControlFlow::loop: return run_loop(instruction);
    case ControlFlow::scan: return run_scan(instruction);
    case ControlFlow::none: break;
  }
}

}  // namespace treadle::exec
