#include "graph/infer.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "graph/contract.h"
#include "graph/inferred_types.h"
#include "treadle/error.h"

namespace treadle {
namespace {

const Type kUnknownType;

thread_local std::vector<Assumption>* noted_assumptions = nullptr;  // where the infer_alone() in progress records assumptions

// State of nested inferences: nodes with bodies that contain other such nodes.
struct Nest {
  int depth = 0;
  std::unordered_map<const Body*, CarriedTypes> carried;
};
thread_local Nest nest;

struct Nested {
  const bool has_bodies;
  explicit Nested(const Node& node) : has_bodies(!node.bodies.empty()) { nest.depth += has_bodies ? 1 : 0; }
  ~Nested() {
    if (has_bodies && --nest.depth == 0) nest.carried.clear();
  }
};

std::optional<KnownValues> integers_of(const Tensor& tensor) {
  if (tensor.num_elements() > kMaxKnownValues) return std::nullopt;
  KnownValues values;
  auto copy = [&](auto* data) {
    for (int64_t i = 0; i < tensor.num_elements(); ++i) values.emplace_back(static_cast<int64_t>(data[i]));
  };
  switch (tensor.dtype()) {
    case DType::int64: copy(tensor.data<int64_t>()); break;
    case DType::int32: copy(tensor.data<int32_t>()); break;
    case DType::int16: copy(tensor.data<int16_t>()); break;
    case DType::int8: copy(tensor.data<int8_t>()); break;
    case DType::uint8: copy(tensor.data<uint8_t>()); break;
    case DType::boolean: copy(tensor.data<bool>()); break;
    default: return std::nullopt;
  }
  return values;
}

Dim merge_dims(const Dim& inferred, const Dim& declared, bool* contradiction) {
  if (inferred == declared) return inferred;
  if (inferred.is_const() && declared.is_const()) {
    if (contradiction) *contradiction = true;
    return inferred;
  }
  // Declarations may be wrong (for example a batch of 1 where the input is now symbolic), so they count only where inference finds nothing.
  // If the extent is known in a run, the executor compares it.
  return inferred.data_dependent() && !declared.data_dependent() ? declared : inferred;
}

struct Operands : ShortVector<InferContext::Operand> {
  Operands(const Graph& graph, const Node& node) : ShortVector(node.inputs.size()) {
    for (size_t i = 0; i < size(); ++i) {
      if (node.inputs[i] == kNoValue) continue;
      const Value& value = graph.value(node.inputs[i]);
      // Only large weights can be unaligned, and inference does not need their elements.
      const Tensor* content = graph.stored_tensor(node.inputs[i]);
      (*this)[i] = {&value.type, content && is_aligned(*content) ? content : nullptr, &value.known};
    }
  }
};

// Returns true if a tensor of this dtype can hold the integer exactly.
bool holds(DType dtype, int64_t value) {
  auto within = [&]<typename T>(T) { return value >= std::numeric_limits<T>::min() && value <= std::numeric_limits<T>::max(); };
  switch (dtype) {
    case DType::int32: return within(int32_t{});
    case DType::int16: return within(int16_t{});
    case DType::int8: return within(int8_t{});
    case DType::uint8: return within(uint8_t{});
    case DType::uint16: return within(uint16_t{});
    case DType::uint32: return within(uint32_t{});
    case DType::uint64: return value >= 0;
    case DType::float32: return value >= -(int64_t{1} << 24) && value <= int64_t{1} << 24;
    case DType::float64: return value >= -(int64_t{1} << 53) && value <= int64_t{1} << 53;
    default: return true;
  }
}

// Returns true if the elements can be tracked one by one. Their number must be known, and the dtype must represent each of them, because a
// run would otherwise wrap or round them.
bool fits(const KnownValues& values, const Type& type) {
  return type.is_static() && type.static_shape().num_elements() == static_cast<int64_t>(values.size()) &&
         std::all_of(values.begin(), values.end(), [&](const Dim& value) { return !value.is_const() || holds(type.dtype, value.value()); });
}

// Rejects types with more axes than a Shape can have, before other types are derived from them.
void check_rank(int64_t rank) {
  if (rank > kMaxRank)
    throw Error(ErrorCode::invalid_argument, fmt::format("a shape of rank {}; at most {} axes are supported", rank, kMaxRank));
}

// Everything that inference knows about the values of a graph and of its bodies.
struct Knowledge {
  std::vector<std::pair<Type, std::optional<KnownValues>>> values;
  std::vector<Knowledge> bodies;

  explicit Knowledge(const Graph& graph) {
    for (size_t i = 0; i < graph.num_values(); ++i) {
      const Value& value = graph.value(ValueId{static_cast<uint32_t>(i)});
      values.emplace_back(value.type, value.known);
    }
    for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id))
      for (const Body& body : graph.node(id).bodies) bodies.emplace_back(*body.graph);
  }
  void restore(Graph& graph) const {
    for (size_t i = 0; i < values.size(); ++i) {
      Value& value = graph.value(ValueId{static_cast<uint32_t>(i)});
      std::tie(value.type, value.known) = values[i];
    }
    auto body_knowledge = bodies.begin();
    for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id))
      for (const Body& body : graph.node(id).bodies) (body_knowledge++)->restore(*body.graph);
  }
};

}  // namespace

int normalize_axis(int64_t axis, int rank, std::string_view what) {
  if (axis < -rank || axis >= rank)
    throw Error(ErrorCode::invalid_argument, fmt::format("{} = {} is outside [{}, {})", what, axis, -rank, rank));
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

std::optional<KnownValues> InferContext::Operand::known_values() const {
  return constant ? integers_of(*constant) : known ? *known : std::nullopt;
}

InferContext::InferContext(const Node& node, SymbolTable& symbols, std::span<const Operand> inputs, InferBody infer_body)
    : outputs(node.outputs.size()), node_(node), symbols_(symbols), inputs_(inputs), infer_body_(std::move(infer_body)) {}

const Type& InferContext::input(int i) const { return has_input(i) ? *inputs_[static_cast<size_t>(i)].type : kUnknownType; }
const Tensor* InferContext::constant(int i) const { return has_input(i) ? inputs_[static_cast<size_t>(i)].constant : nullptr; }

std::optional<KnownValues> InferContext::known(int i) const {
  if (!has_input(i)) return std::nullopt;
  const Operand& operand = inputs_[static_cast<size_t>(i)];
  return operand.known_values();
}

std::optional<std::vector<int64_t>> InferContext::known_ints(int i) const {
  auto values = known(i);
  if (!values) return std::nullopt;
  std::vector<int64_t> result;
  for (const Dim& value : *values) {
    if (!value.is_const()) return std::nullopt;
    result.push_back(value.value());
  }
  return result;
}

int InferContext::axis(std::string_view name, int64_t otherwise, int rank) const {
  return normalize_axis(get_int(name, otherwise), rank, name);
}

void InferContext::set_output(int i, Type type) {
  if (i < static_cast<int>(outputs.size())) outputs[static_cast<size_t>(i)].type = std::move(type);
}

void InferContext::set_known(int i, KnownValues values) {
  if (i < static_cast<int>(outputs.size()) && static_cast<int64_t>(values.size()) <= kMaxKnownValues)
    outputs[static_cast<size_t>(i)].known = std::move(values);
}

SymbolicShape InferContext::data_dependent_shape(std::string_view hint, int rank) {
  check_rank(rank);
  SymbolicShape shape;
  for (int axis = 0; axis < rank; ++axis) shape.push_back(data_dependent_dim(hint));
  return shape;
}

const Body& InferContext::body(std::string_view attribute) const {
  const Body* found = node_.body(attribute);
  if (!found) throw Error(ErrorCode::invalid_model, fmt::format("the attribute \"{}\" (a graph) is missing", attribute));
  return *found;
}

std::vector<Type> InferContext::infer_body(const Body& body, std::span<const Type> formal_inputs) {
  std::vector<Type> types(formal_inputs.begin(), formal_inputs.end());
  size_t num_formal = body.graph->inputs.size() - body.captures.size();
  if (types.size() != num_formal)
    throw Error(ErrorCode::invalid_model,
                fmt::format("the body \"{}\" has {} inputs, the node gives it {}", body.attribute, num_formal, types.size()));
  for (const auto& capture : body.captures) types.push_back(*inputs_[static_cast<size_t>(node_.num_formal_inputs + capture.second)].type);
  return infer_body_(body, types);
}

Type merge(const Type& inferred, const Type& declared, bool* contradiction) {
  if (inferred.kind == Type::Kind::unknown) return declared;
  if (declared.kind == Type::Kind::unknown) return inferred;
  if (inferred.kind != declared.kind) {
    if (contradiction) *contradiction = true;
    return inferred;
  }
  Type result = inferred;
  if (result.dtype == DType::undefined) result.dtype = declared.dtype;
  if (result.key_dtype == DType::undefined) result.key_dtype = declared.key_dtype;
  if (inferred.dtype != DType::undefined && declared.dtype != DType::undefined && inferred.dtype != declared.dtype && contradiction)
    *contradiction = true;
  if (!result.shape) {
    result.shape = declared.shape;
  } else if (declared.shape) {
    if (result.shape->size() != declared.shape->size()) {
      if (contradiction) *contradiction = true;
    } else {
      for (size_t i = 0; i < result.shape->size(); ++i)
        (*result.shape)[i] = merge_dims((*result.shape)[i], (*declared.shape)[i], contradiction);
    }
  }
  if (!result.element)
    result.element = declared.element;
  else if (declared.element)
    result.element = std::make_shared<const Type>(merge(*result.element, *declared.element, contradiction));
  return result;
}

bool infer_node(Graph& graph, NodeId id, const InferOptions& options) {
  Node& node = graph.node(id);
  if (!node.op) throw Error(ErrorCode::not_implemented, "unknown operator").add_context(describe(node));
  try {
    graph.symbols().charge_inference();
    check_contract(graph, node);
    const Operands operands(graph, node);
    const Nested nested(node);
    std::map<const Body*, Knowledge> before_loop;
    bool changed = false;
    auto set = [&](auto& known, auto now) {
      changed = changed || known != now;
      known = std::move(now);
    };
    auto infer_body = [&](const Body& body, std::span<const Type> types) {
      Graph& inside = *body.graph;
      // A loop infers its body again with weaker types of the carried values, so the results for the stronger types are discarded first.
      bool again = false;
      if (node.op->control_flow != ControlFlow::if_) {
        auto [knowledge, first] = before_loop.try_emplace(&body, inside);
        again = !first;
        if (again) knowledge->second.restore(inside);
      }
      const size_t num_formal = inside.inputs.size() - body.captures.size();
      const auto settled = nest.carried.find(&body);
      auto is_settled = [&](size_t i) {  // true: types[i] of a carried value replaces a declared type
        return settled != nest.carried.end() && i >= settled->second.first_input &&
               i - settled->second.first_input < settled->second.types.size();
      };
      for (size_t i = 0; i < types.size(); ++i) {
        Value& input = inside.value(inside.inputs[i]);
        set(input.type, (again && i < num_formal) || is_settled(i) ? types[i] : merge(types[i], input.type));
      }
      for (const auto& capture : body.captures) {
        const auto& operand = operands[static_cast<size_t>(node.num_formal_inputs + capture.second)];
        Value& input = inside.value(capture.first);
        set(input.known, operand.known_values());
      }
      changed |= infer(inside, options);
      std::vector<Type> result;
      for (ValueId output : inside.outputs) result.push_back(inside.type(output));
      return result;
    };
    InferContext context(node, graph.symbols(), operands, std::ref(infer_body));
    if (node.op->infer) node.op->infer(context);
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] == kNoValue) continue;
      Value& output = graph.value(node.outputs[i]);
      auto& [type, known] = context.outputs[i];
      if (type.has_rank()) check_rank(type.rank());
      if (!(type == output.type)) {
        bool contradiction = false;
        Type merged = merge(type, output.type, &contradiction);
        if (contradiction && options.warn)
          options.warn(fmt::format("{}: output \"{}\" is declared {}, inferred {}; the inferred type is taken", describe(node), output.name,
                                   to_string(output.type), to_string(type)));
        set(output.type, std::move(merged));
      }
      check_output_type(graph, node, i, output.type);
      if (known && fits(*known, output.type)) set(output.known, std::move(known));
    }
    return changed;
  } catch (Error& error) {
    error.add_context(describe(node) + ", during shape inference", describe_operands(graph, node));
    throw;
  }
}

Inferred infer_alone(const Graph& graph, const Node& node) {
  const Operands operands(graph, node);
  InferContext context(node, graph.symbols(), operands, {});
  std::vector<Assumption> assumptions;
  struct Noting {
    std::vector<Assumption>* before;
    explicit Noting(std::vector<Assumption>& target) : before(std::exchange(noted_assumptions, &target)) {}
    ~Noting() { noted_assumptions = before; }
  };
  {
    const Noting noting(assumptions);
    if (node.op->infer) node.op->infer(context);
  }
  Inferred result{{}, std::move(assumptions)};
  result.outputs.reserve(context.outputs.size());
  for (InferContext::Output& output : context.outputs) result.outputs.push_back(std::move(output.type));
  return result;
}

CarriedTypes& carried_types(const Body& body) { return nest.carried[&body]; }

void assume_equal(const Dim& a, const Dim& b, std::string_view what) {
  if (noted_assumptions && a != b) noted_assumptions->push_back({a, b, std::string(what)});
}

bool notes_assumptions() noexcept { return noted_assumptions != nullptr; }

bool infer(Graph& graph, const InferOptions& options) {
  bool changed = false;
  for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id)) changed |= infer_node(graph, id, options);
  return changed;
}

}  // namespace treadle
