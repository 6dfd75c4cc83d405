// Valid plans of small graphs, which the verifier's tests break.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "exec/plan/budget.h"
#include "exec/plan/device_placement.h"
#include "exec/plan/stream_plan.h"
#include "exec/verify/verify_plan.h"
#include "tests/exec/host_program.h"
#include "tests/exec/random_graphs.h"
#include "treadle/tensor.h"

namespace treadle::testing {

/// A program, a binding, and the plan to break. A value has the name of its node with "_out" appended.
class BreakablePlan {
 public:
  using Plan = exec::DescribedPlan;

  explicit BreakablePlan(std::shared_ptr<Graph> graph, const exec::ProgramOptions& options = {.pieces_in_place = true})
      : program(std::make_unique<testing::HostProgram>(std::move(graph), options)) {
    std::vector<int64_t> symbols(program->extents().num_expressions, 4);
    binding = program->plans().bindings().get(symbols, 1);
    plan = exec::describe_plan(*binding);
  }

  exec::SlotId value(const std::string& name) const {
    for (exec::SlotId v : plan.values.ids())
      if (plan.values[v].name == name) return v;
    throw std::out_of_range(name);
  }
  Plan::Value& value_of(const std::string& name) { return plan.values[value(name)]; }
  /// Returns the place of the root of the value: of the value in whose memory it lies.
  exec::PlaceId place(const std::string& name) const {
    const exec::SlotId root = plan.values[value(name)].root;
    for (exec::PlaceId p : plan.places.ids())
      if (plan.places[p].root == root) return p;
    throw std::out_of_range(name);
  }
  Plan::Place& place_of(const std::string& name) { return plan.places[place(name)]; }
  size_t step(const std::string& node) const {
    for (size_t s = 0; s < plan.steps.size(); ++s)
      if (plan.steps[s].node && plan.steps[s].node->name == node) return s;
    throw std::out_of_range(node);
  }
  Plan::Operand& operand(const std::string& node, size_t k) { return plan.operands[plan.steps[step(node)].first_operand + k]; }
  Plan::Operand& output(const std::string& node, size_t k = 0) { return operand(node, plan.steps[step(node)].num_inputs + k); }

  /// Moves the value into the bytes of another one, at its beginning.
  void put_into(const std::string& name, const std::string& other) {
    const exec::SlotId moved = value(name), root = value_of(other).root;
    const exec::PlaceId at = place(other);
    const size_t begin = plan.places[at].offset;
    value_of(name).root = root;
    for (Plan::Operand& operand : plan.operands)
      if (operand.value == moved) operand.place = at, operand.at = begin;
  }
  /// Moves the root's place, and everything that points into it.
  void move_place(const std::string& name, size_t offset) {
    const exec::PlaceId moved = place(name);
    const size_t before = plan.places[moved].offset;
    for (Plan::Operand& operand : plan.operands)
      if (operand.place == moved) operand.at = operand.at - before + offset;
    plan.places[moved].offset = offset;
  }

  std::unique_ptr<testing::HostProgram> program;
  std::shared_ptr<const exec::Binding> binding;
  Plan plan;
};

inline Tensor ramp(const Shape& shape) {
  Tensor x(DType::float32, shape);
  float next = 0;
  for (float& value : x.span<float>()) value = next += 0.125F;
  return x;
}

/// Makes the plan of a chain that has values with several readers, a value computed in place, and a view. The output has memory of its own.
inline BreakablePlan chain(const exec::ProgramOptions& options = {.pieces_in_place = true}) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {16, 16}), w = b.constant("w", ramp({16, 16}));
  ValueId first = b.node("Tanh", {x}, {}, "first");
  ValueId product = b.node("MatMul", {first, w}, {}, "product");
  ValueId flat = b.node("Reshape", {product, b.ints("flat", {256})}, {}, "view");
  ValueId sum =
      b.node("Add", {b.node("Neg", {flat}, {}, "negated"), b.node("Reshape", {first, b.ints("flat2", {256})}, {}, "view2")}, {}, "sum");
  ValueId again = b.node("MatMul", {b.node("Reshape", {sum, b.ints("square", {16, 16})}, {}, "view3"), first}, {}, "again");
  b.output(b.node("MatMul", {again, first}, {}, "last"));
  return BreakablePlan(b.finish(), options);
}

/// Makes a plan with a value that has a data-dependent extent.
inline BreakablePlan held() {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {4, 4});
  ValueId places = b.node("NonZero", {x}, {}, "places");
  ValueId numbers = b.node("Cast", {places}, {{"to", int64_t{1}}}, "numbers");
  ValueId total = b.node("ReduceSum", {numbers}, {{"keepdims", int64_t{0}}}, "total");
  b.output(b.node("Add", {b.node("Tanh", {x}, {}, "other"), total}, {}, "last"));
  return BreakablePlan(b.finish(), {.parallel = true, .pieces_in_place = true});
}

/// Makes a plan with a Concat whose inputs are written directly to their places in the output.
inline BreakablePlan pieces() {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {16, 16}), w = b.constant("w", ramp({16, 16}));
  ValueId joined = b.node("Concat", {b.node("Tanh", {x}, {}, "left"), b.node("Exp", {x}, {}, "right")}, {{"axis", int64_t{0}}}, "join");
  b.output(b.node("MatMul", {joined, w}, {}, "last"));
  return BreakablePlan(b.finish());
}

/// Makes a plan with a Concat along an inner axis, so that rows of its inputs alternate in the output.
inline BreakablePlan rows() {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {1, 4, 4, 8});
  auto conv = [&](ValueId value, int64_t in, const std::string& name) {
    return b.node("NhwcConv", {value, b.constant("w" + name, ramp({16, in, 1, 1}))}, {}, name, "treadle");
  };
  ValueId joined = b.node("Concat", {conv(x, 8, "left"), conv(x, 8, "right")}, {{"axis", int64_t{3}}}, "join");
  auto halves = b.nodes("Split", {joined}, 2, {{"axis", int64_t{3}}, {"num_outputs", int64_t{2}}}, "cut");
  b.output(b.node("NhwcGlobalAveragePool", {conv(halves[1], 16, "after")}, {}, "last", "treadle"));
  b.output(b.node("NhwcGlobalAveragePool", {joined}, {}, "whole", "treadle"));
  return BreakablePlan(b.finish());
}

/// Makes a graph with two branches that join.
inline std::shared_ptr<Graph> branches() {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {16, 16}), y = b.input("y", DType::float32, {16, 16});
  ValueId left = b.node("MatMul", {b.node("Tanh", {x}, {}, "left"), x}, {}, "left2");
  ValueId right = b.node("MatMul", {b.node("Exp", {y}, {}, "right"), y}, {}, "right2");
  b.output(b.node("MatMul", {left, right}, {}, "both"));
  return b.finish();
}

inline BreakablePlan by_readiness(std::shared_ptr<Graph> graph = branches()) {
  BreakablePlan made(std::move(graph), {.parallel = true, .always_parallel = true, .pieces_in_place = true});
  made.plan = exec::describe_parallel_plan(*made.binding);
  return made;
}

/// Makes a plan for two devices besides the host. Nothing shares bytes in the devices' arenas.
inline BreakablePlan on_streams(std::shared_ptr<Graph> graph = branches()) {
  BreakablePlan made(std::move(graph), {.parallel = true});
  const exec::DevicePlacement placement = exec::place_instructions(*made.program, {.of_node = [](const Node& node) {
    return node.name == "both" ? 0 : node.name.starts_with("left") ? 1 : 2;
  }});
  const exec::StreamPlan streams = exec::plan_streams(*made.program, placement, 3, {.max_bulk = 1});
  IdVector<exec::LocationId, size_t> offsets(streams.locations.size(), 0);
  std::vector<size_t> arena_bytes(3, 0);
  for (exec::LocationId l : offsets.ids()) {
    if (streams.locations[l].memory != exec::StreamPlan::Location::Memory::planned) continue;
    size_t& end = arena_bytes[static_cast<size_t>(streams.locations[l].device)];
    offsets[l] = end;
    end += (made.binding->buffer_sizes()[streams.locations[l].buffer] + 63) / 64 * 64;
  }
  made.plan = exec::describe_plan(*made.binding, streams, offsets, arena_bytes);
  return made;
}

/// Makes a plan that contains a move of the kind `wanted`.
inline BreakablePlan under_budget(exec::DescribedPlan::Act wanted) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    BreakablePlan made(random_graph(seed, /*data_dependent=*/false));
    for (size_t tenths : {8, 7, 6}) {
      const size_t capacity = made.binding->offsets().arena_bytes * tenths / 10 / 64 * 64;
      made.plan = exec::describe_plan(*made.binding, *made.binding->budgets().within(capacity, {.free = seed % 2 == 0, .fixed = {}}));
      if (std::any_of(made.plan.steps.begin(), made.plan.steps.end(), [&](const auto& step) { return step.act == wanted; })) return made;
    }
  }
  throw std::out_of_range("no plan moves anything so");
}

/// Makes a plan with a state whose rows move down within its memory.
inline BreakablePlan growing() {
  GraphBuilder b;
  ValueId past = b.input("past", DType::float32, {3, 8, 4}), fresh = b.input("fresh", DType::float32, {3, 1, 4});
  b.output(b.node("Concat", {past, b.node("Tanh", {fresh}, {}, "row")}, {{"axis", int64_t{1}}}, "present"));
  BreakablePlan made(b.finish());
  return made;
}

}  // namespace treadle::testing
