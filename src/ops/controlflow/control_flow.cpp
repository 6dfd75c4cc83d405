// If, Loop and Scan: schemas and type inference. They have no kernels: the executor runs their bodies.
#include <fmt/format.h>

#include <algorithm>

#include "graph/infer.h"
#include "graph/inferred_types.h"
#include "graph/op_def.h"
#include "ops/controlflow/control_flow_upgrade.h"
#include "ops/list.h"
#include "ops/tensor/movement.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

// Joins two types into one type that covers both. Where their extents differ, the result has a new symbolic extent, whose value is known
// only during the run. Later joins keep these symbols as they are, so repeated joins reach a fixed point.
class Joiner {
 public:
  Joiner(InferContext& c, std::string_view hint) : context_(c), hint_(hint) {}

  Type join(const Type& a, const Type& b) {
    Type result = join_kinds(a, b);
    if (a.is_tensor() && b.is_tensor()) result.shape = join_shapes(a.shape, b.shape);
    if (!(result == a)) changed_ = true;
    return result;
  }

  // The elements of a sequence or optional may differ in shape. So the joined type has a shape only if `a` and `b` have the same shape.
  static Type join_elements(const Type& a, const Type& b) {
    Type result = join_kinds(a, b);
    if (a.shape && b.shape && *a.shape == *b.shape) result.shape = a.shape;
    return result;
  }

  bool changed() const { return changed_; }
  void start_round() { changed_ = false; }

 private:
  static Type join_kinds(const Type& a, const Type& b) {
    // One type is an optional and the other is the type of its content (a body may return either), so the kind of the result is unknown.
    if (a.kind != Type::Kind::unknown && b.kind != Type::Kind::unknown && a.kind != b.kind) return {};
    if (a.kind == Type::Kind::unknown || b.kind == Type::Kind::unknown) {
      // A value of unknown type may have any shape, so the result has only the kind and dtype of the known type.
      Type result = a.kind == Type::Kind::unknown ? b : a;
      result.shape.reset();
      return result;
    }
    if (a.dtype != DType::undefined && b.dtype != DType::undefined && a.dtype != b.dtype)
      throw Error(ErrorCode::invalid_model, fmt::format("one value is {} here and {} there", to_string(a), to_string(b)));
    Type result = a;
    result.shape.reset();
    if (a.dtype == DType::undefined) result.dtype = b.dtype;
    if (a.element && b.element) result.element = std::make_shared<const Type>(join_elements(*a.element, *b.element));
    return result;
  }

  std::optional<SymbolicShape> join_shapes(const std::optional<SymbolicShape>& a, const std::optional<SymbolicShape>& b) {
    if (!a || !b || a->size() != b->size()) return std::nullopt;
    SymbolicShape result = *a;
    for (size_t i = 0; i < result.size(); ++i) {
      const bool gave_way = std::find(free_.begin(), free_.end(), result[i]) != free_.end();
      if (gave_way || result[i] == (*b)[i]) continue;
      result[i] = context_.data_dependent_dim(hint_);
      free_.push_back(result[i]);
    }
    return result;
  }

  InferContext& context_;
  std::string_view hint_;
  std::vector<Dim> free_;
  bool changed_ = false;
};

// Replaces extents that depend on the data of one iteration by new symbols: outside the loop, such an extent has no single value.
Type outside_of_loop(InferContext& c, Type type, std::string_view hint) {
  if (type.shape)
    for (Dim& extent : *type.shape)
      if (extent.data_dependent()) extent = c.data_dependent_dim(hint);
  return type;
}

std::optional<bool> known_condition(InferContext& c, int input) {
  const auto value = c.known(input);
  if (!value || value->size() != 1 || !(*value)[0].is_const()) return std::nullopt;
  return (*value)[0].value() != 0;
}

void infer_if(InferContext& c) {
  const Body &then_body = c.body("then_branch"), &else_body = c.body("else_branch");
  const size_t num_then = then_body.graph->outputs.size(), num_else = else_body.graph->outputs.size();
  if (num_then != num_else || static_cast<int>(num_then) < c.num_outputs())
    throw Error(ErrorCode::invalid_model,
                fmt::format("the branches have {} and {} outputs, the node {}", num_then, num_else, c.num_outputs()));
  if (auto condition = known_condition(c, 0)) {
    std::vector<Type> types = c.infer_body(*condition ? then_body : else_body, {});
    try {
      c.infer_body(*condition ? else_body : then_body, {});
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): shapes may be impossible in a branch that is never taken
    }
    for (int i = 0; i < c.num_outputs(); ++i) c.set_output(i, std::move(types[static_cast<size_t>(i)]));
    return;
  }
  const std::vector<Type> then_types = c.infer_body(then_body, {}), else_types = c.infer_body(else_body, {});
  Joiner joiner(c, "if");
  for (int i = 0; i < c.num_outputs(); ++i)
    c.set_output(i, joiner.join(then_types[static_cast<size_t>(i)], else_types[static_cast<size_t>(i)]));
}

// Infers the types of a loop body's outputs. Outputs from `first_output` on become, in the next iteration, the inputs from `first_input`
// on. `types` has the types of the body's inputs. The carried ones are generalized until another iteration does not change them.
std::vector<Type> infer_carried(InferContext& c, const Body& body, std::vector<Type>& types, size_t first_input, size_t first_output,
                                size_t num_carried) {
  Joiner joiner(c, "carried");
  CarriedTypes& settled = carried_types(body);
  for (size_t i = 0; i < settled.types.size() && i < num_carried; ++i)
    types[first_input + i] = joiner.join(types[first_input + i], settled.types[i]);
  // This loop ends: each round makes at least one more rank or extent unknown, and what is unknown stays unknown.
  for (int round = 0;; ++round) {
    std::vector<Type> outputs = c.infer_body(body, types);
    if (outputs.size() < first_output + num_carried)
      throw Error(ErrorCode::invalid_model,
                  fmt::format("the body has {} outputs, at least {} expected", outputs.size(), first_output + num_carried));
    joiner.start_round();
    for (size_t i = 0; i < num_carried; ++i) {
      // The body's input may declare a more specific type than `types` has.
      const Type before = body.graph->type(body.graph->inputs[first_input + i]);
      if (before.kind != Type::Kind::unknown) types[first_input + i] = joiner.join(before, outputs[first_output + i]);
    }
    if (!joiner.changed()) {
      settled = {first_input,
                 {types.begin() + static_cast<int64_t>(first_input), types.begin() + static_cast<int64_t>(first_input + num_carried)}};
      return outputs;
    }
    if (round == 1000) throw Error(ErrorCode::internal, "the types of loop-carried values do not settle");
  }
}

// The output is the initial value if the loop has no iteration, and otherwise the body's last value. The output's type must cover both.
void set_carried_output(InferContext& c, int output, const Type& initial, const Type& last) {
  Joiner joiner(c, "final");
  c.set_output(output, joiner.join(initial, last));
}

// Returns true if the loop never ends early: the body returns a constant true, or passes on its input condition, which is true initially.
bool condition_stays_true(InferContext& c, const Graph& body) {
  ValueId condition = body.outputs[0];
  while (true) {
    const Value& value = body.value(condition);
    if (value.is_constant())
      return body.is_scalar_constant(condition, 1) || (value.known && value.known->size() == 1 && (*value.known)[0].is_const(1)) ||
             (body.constant_tensor(condition) && body.constant_tensor(condition)->dtype() == DType::boolean &&
              body.constant_tensor(condition)->num_elements() == 1 && *body.constant_tensor(condition)->data<bool>());
    if (value.known && value.known->size() == 1) return (*value.known)[0].is_const() && !(*value.known)[0].is_const(0);
    if (condition == body.inputs[1]) return !c.has_input(1) || known_condition(c, 1).value_or(false);
    if (value.kind != Value::Kind::computed || !body.node(value.producer).is("Identity")) return false;
    condition = body.node(value.producer).inputs[0];
  }
}

void infer_loop(InferContext& c) {
  const Body& body = c.body("body");
  const size_t num_carried = c.num_inputs() > 2 ? static_cast<size_t>(c.num_inputs()) - 2 : 0;
  if (body.graph->inputs.size() < 2)
    throw Error(ErrorCode::invalid_model, fmt::format("the body has {} inputs, at least 2 expected", body.graph->inputs.size()));
  // Bodies may declare the iteration number and the condition as scalars or as vectors of one element.
  const auto as_declared = [&](size_t i) {
    const Type& declared = body.graph->type(body.graph->inputs[i]);
    return declared.has_rank() && declared.rank() == 1 ? SymbolicShape{1} : SymbolicShape{};
  };
  std::vector<Type> types{Type::tensor(DType::int64, as_declared(0)), Type::tensor(DType::boolean, as_declared(1))};
  for (size_t i = 0; i < num_carried; ++i) types.push_back(c.input(static_cast<int>(i) + 2));
  const std::vector<Type> outputs = infer_carried(c, body, types, 2, 1, num_carried);

  std::optional<Dim> trips;
  if (condition_stays_true(c, *body.graph) && (!c.has_input(1) || known_condition(c, 1).value_or(false)))
    if (auto limit = c.known(0); limit && limit->size() == 1) trips = at_least_zero((*limit)[0]);
  const Dim length = trips ? *trips : c.data_dependent_dim("trips");
  for (size_t i = 0; i < static_cast<size_t>(c.num_outputs()); ++i) {
    if (1 + i >= outputs.size())
      throw Error(ErrorCode::invalid_model, fmt::format("the body has {} outputs, the node {}", outputs.size(), c.num_outputs()));
    if (i < num_carried) {
      set_carried_output(c, static_cast<int>(i), c.input(static_cast<int>(i) + 2), outputs[1 + i]);
      continue;
    }
    Type stacked = outside_of_loop(c, outputs[1 + i], "scan");
    if (stacked.shape) stacked.shape->insert(stacked.shape->begin(), length);
    c.set_output(static_cast<int>(i), std::move(stacked));
  }
}

// Checks the attributes of a Scan that are lists. Each list must be absent or have one element per scanned input or output.
void check_scan_lists(const InferContext& c, const Body& body, size_t scanned, size_t num_states) {
  const size_t stacked = body.graph->outputs.size() - std::min(body.graph->outputs.size(), num_states);
  for (auto [name, count] : {std::pair("scan_input_axes", scanned), std::pair("scan_input_directions", scanned),
                             std::pair("scan_output_axes", stacked), std::pair("scan_output_directions", stacked)})
    if (const size_t given = c.get_ints(name).size(); given != 0 && given != count)
      throw Error(ErrorCode::invalid_model, fmt::format("{} has {} elements; {} expected", name, given, count));
}

int64_t entry_or(const std::vector<int64_t>& values, size_t i, int64_t otherwise) { return i < values.size() ? values[i] : otherwise; }

void infer_scan(InferContext& c) {
  const Body& body = c.body("body");
  const int64_t scanned = c.get_int("num_scan_inputs");
  if (scanned < 1 || scanned > c.num_inputs())
    throw Error(ErrorCode::invalid_argument, fmt::format("num_scan_inputs = {}, the node has {} inputs", scanned, c.num_inputs()));
  const size_t num_states = static_cast<size_t>(c.num_inputs() - scanned);
  check_scan_lists(c, body, static_cast<size_t>(scanned), num_states);
  std::vector<Type> types;
  std::optional<Dim> length;
  for (size_t i = 0; i < static_cast<size_t>(c.num_inputs()); ++i) {
    Type type = c.input(static_cast<int>(i));
    if (i >= num_states && type.shape) {
      const int axis = normalize_axis(entry_or(c.get_ints("scan_input_axes"), i - num_states, 0), type.rank(), "scan_input_axes");
      const Dim extent = (*type.shape)[static_cast<size_t>(axis)];
      length = length ? unify(*length, extent, "lengths of the scanned inputs") : extent;
      type.shape->erase(type.shape->begin() + axis);
    }
    types.push_back(std::move(type));
  }
  if (!length) length = c.data_dependent_dim("trips");
  const std::vector<Type> outputs = infer_carried(c, body, types, 0, 0, num_states);
  for (size_t i = 0; i < static_cast<size_t>(c.num_outputs()); ++i) {
    if (i >= outputs.size())
      throw Error(ErrorCode::invalid_model, fmt::format("the body has {} outputs, the node {}", outputs.size(), c.num_outputs()));
    if (i < num_states) {
      set_carried_output(c, static_cast<int>(i), c.input(static_cast<int>(i)), outputs[i]);
      continue;
    }
    Type stacked = outside_of_loop(c, outputs[i], "scan");
    if (stacked.shape) {
      const int axis = normalize_axis(entry_or(c.get_ints("scan_output_axes"), i - num_states, 0), stacked.rank() + 1, "scan_output_axes");
      stacked.shape->insert(stacked.shape->begin() + axis, *length);
    }
    c.set_output(static_cast<int>(i), std::move(stacked));
  }
}

}  // namespace

std::vector<OpDef> control_flow_ops() {
  using None = AttributeDef::NoDefault;
  using Required = AttributeDef::Required;
  const std::vector<Port> any_outputs = {{"outputs", kAnything, "", Presence::variadic}};
  return {
      {.name = "If",
       .since = {1, 11, 13, 16, 19, 21, 23, 24, 25},
       .inputs = {{"cond", kBool}},
       .outputs = any_outputs,
       .attributes = {{"then_branch", Required{}}, {"else_branch", Required{}}},
       .infer = infer_if,
       .control_flow = ControlFlow::if_},
      {.name = "Loop",
       .since = {1, 11, 13, 16, 19, 21, 23, 24, 25},
       .inputs = {{"M", kInt64, "", Presence::optional},
                  {"cond", kBool, "", Presence::optional},
                  {"v_initial", kAnything, "", Presence::variadic}},
       .outputs = any_outputs,
       .attributes = {{"body", Required{}}},
       .infer = infer_loop,
       .control_flow = ControlFlow::loop},
      {.name = "Scan",
       .since = {8, 9, 11, 16, 19, 21, 23, 24, 25},
       .upgrade = {{8, batched_scan_to_nested}},
       .inputs = {{"initial_state_and_scan_inputs", kAnything, "", Presence::variadic}},
       .outputs = any_outputs,
       .attributes = {{"body", Required{}},
                      {"num_scan_inputs", Required{}, at_least(1)},
                      {"scan_input_axes", None{}},
                      {"scan_input_directions", None{}, zero_or_one()},
                      {"scan_output_axes", None{}},
                      {"scan_output_directions", None{}, zero_or_one()}},
       .infer = infer_scan,
       .control_flow = ControlFlow::scan},
  };
}

}  // namespace treadle::ops
