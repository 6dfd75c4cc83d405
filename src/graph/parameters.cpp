#include "graph/parameters.h"

#include "graph/custom_ops.h"
#include "graph/op_def.h"

namespace treadle {
namespace {

constexpr size_t kMostGrowth = 2, kLittleBytes = 65'536;
constexpr int kMostSteps = 8;  // maximum length of a path from a parameter to a value that is computed ahead

constexpr int kMostVisits = 256;  // limit of visited values: if nodes read a value many times, there are more paths than values

enum class Follows : uint8_t { none, constants, parameters };

Follows follows(const Graph& graph, ValueId id, int steps, int& visits) {
  if (--visits < 0) return Follows::none;
  const Value& value = graph.value(id);
  if (value.kind != Value::Kind::computed) {
    if (!value.constant.defined()) return Follows::none;
    return value.kind == Value::Kind::parameter ? Follows::parameters : Follows::constants;
  }
  if (steps == 0 || value.producer == kNoNode || !may_be_computed_ahead(graph, graph.node(value.producer))) return Follows::none;
  Follows found = Follows::constants;
  for (ValueId input : graph.node(value.producer).inputs) {
    if (input == kNoValue) continue;
    const Follows of_input = follows(graph, input, steps - 1, visits);
    if (of_input == Follows::none) return Follows::none;
    if (of_input == Follows::parameters) found = of_input;
  }
  return found;
}

size_t bytes_of(const Type& type) { return type.is_static() ? size_bytes(type.dtype, type.static_shape().num_elements()) : 0; }

}  // namespace

bool may_be_computed_ahead(const Graph& graph, const Node& node) {
  if (!node.op || !node.op->deterministic || node.op->control_flow != ControlFlow::none || !node.bodies.empty() || node.op->barrier ||
      node.op->updated_input || is_custom_op(*node.op))
    return false;
  size_t read_bytes = 0, made_bytes = 0;
  for (ValueId input : node.inputs)
    if (input != kNoValue && graph.type(input).is_tensor() && graph.type(input).dtype != DType::string)
      read_bytes += bytes_of(graph.type(input));
  for (ValueId output : node.outputs) {
    if (output == kNoValue || graph.is_output(output)) return false;
    const Type& type = graph.type(output);
    if (!type.is_tensor() || !type.is_static() || type.dtype == DType::string || type.dtype == DType::undefined) return false;
    made_bytes += bytes_of(type);
  }
  return made_bytes <= kMostGrowth * read_bytes + kLittleBytes;
}

bool is_stored(const Graph& graph, ValueId id) {
  if (id == kNoValue) return false;
  int visits = kMostVisits;
  const Follows found = follows(graph, id, kMostSteps, visits);
  return found == Follows::parameters || (found == Follows::constants && graph.value(id).kind != Value::Kind::computed);
}

}  // namespace treadle
