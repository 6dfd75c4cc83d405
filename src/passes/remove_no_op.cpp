// Operators that give back what they get -> their input: a Reshape to the shape that is there, a Cast to the same dtype, a Slice of
// everything, a Pad by nothing, a Transpose that moves no axis, a Concat of one operand.
// Symbols that are equal as expressions are equal in every run, so that dynamic shapes count too.
#include <algorithm>

#include "passes/matching.h"
#include "passes/rules.h"

namespace treadle::passes {
namespace {

bool same_shape(const Graph& graph, const Node& node) { return graph.same_type_and_shape(node.inputs[0], node.outputs[0]); }

// An equal shape means that nothing moved unless an axis of more than one element did.
bool moves_no_axis(const Graph& graph, const Node& node) {
  const Type& type = graph.type(node.inputs[0]);
  const auto& perm = node.attributes.get_ints("perm");
  if (!type.has_rank()) return false;
  if (perm.empty()) return type.rank() < 2;
  int64_t last = -1;
  for (int64_t axis : perm) {
    if (axis < 0 || axis >= type.rank()) return false;
    if ((*type.shape)[static_cast<size_t>(axis)].is_const(1)) continue;
    if (axis < last) return false;
    last = axis;
  }
  return same_shape(graph, node);
}

// A slice of the full extent with step 1 begins at 0; a step of -1 would reverse.
bool takes_all(const Graph& graph, const Node& node) {
  if (!same_shape(graph, node)) return false;
  if (!node.has_input(4)) return true;
  auto steps = constant_ints(graph, node.inputs[4]);
  return steps && std::all_of(steps->begin(), steps->end(), [](int64_t step) { return step == 1; });
}

bool pads_nothing(const Graph& graph, const Node& node) {
  auto pads = node.has_input(1) ? constant_ints(graph, node.inputs[1]) : std::nullopt;
  return pads && std::all_of(pads->begin(), pads->end(), [](int64_t pad) { return pad == 0; });
}

bool keeps_dtype(const Graph& graph, const Node& node) {
  const Type& type = graph.type(node.inputs[0]);
  return type.is_tensor() && type.dtype != DType::undefined && type.dtype == graph.type(node.outputs[0]).dtype;
}

bool has_one_operand(const Graph&, const Node& node) { return node.num_formal_inputs == 1; }

struct NoOp {
  std::string_view op_type;
  bool (*holds)(const Graph&, const Node&);
};

constexpr NoOp kNoOps[] = {
    {"Reshape", same_shape},   {"Flatten", same_shape}, {"Squeeze", same_shape},     {"Unsqueeze", same_shape},    {"Expand", same_shape},
    {"Tile", same_shape},      {"Slice", takes_all},    {"Pad", pads_nothing},       {"Transpose", moves_no_axis}, {"Cast", keeps_dtype},
    {"CastLike", keeps_dtype}, {"Split", same_shape},   {"Concat", has_one_operand},
};

class RemoveNoOp final : public Rule {
 public:
  std::string_view name() const override { return "remove-no-op"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    if (!node.domain.empty() || node.outputs.size() != 1 || !node.has_input(0)) return std::nullopt;
    for (const NoOp& candidate : kNoOps)
      if (node.op_type == candidate.op_type)
        return candidate.holds(graph, node) ? std::optional(Patch::replacement(node.outputs[0], node.inputs[0])) : std::nullopt;
    return std::nullopt;
  }
};

}  // namespace

std::unique_ptr<Rule> remove_no_op() { return std::make_unique<RemoveNoOp>(); }

}  // namespace treadle::passes
