// Reshape(x, Concat(extents of x at their own positions, constants)) -> Reshape(x, constant with 0 for these extents); 0 means "as in x".
// The extent may also be that of another value, if it is the same number or symbol. If all others are positive constants, one computed
// extent becomes -1.
#include <algorithm>
#include <map>

#include "graph/inferred_types.h"
#include "passes/list.h"
#include "passes/matching.h"
#include "treadle/error.h"

namespace treadle::passes {
namespace {

using Target = std::vector<int64_t>;

// Returns the extent if it is a number or a symbol named in the model; otherwise null.
const Dim* named_extent(const Type& type, size_t axis) {
  if (!type.has_rank() || axis >= type.shape->size()) return nullptr;
  const Dim& dim = (*type.shape)[axis];
  const bool is_named = dim.is_const() || (dim.expr()->kind == Expr::Kind::symbol && dim.expr()->symbol.find('#') == std::string::npos);
  return is_named ? &dim : nullptr;
}

bool have_same_extent(const Graph& graph, ValueId a, ValueId b, size_t axis) {
  const Dim *one = named_extent(graph.type(a), axis), *other = named_extent(graph.type(b), axis);
  return one != nullptr && other != nullptr && *one == *other;
}

// Returns true if the value is a vector of one element, which is the extent of `data` on axis `place`. `plain` is the graph with types
// inferred without knowledge of elements.
bool is_extent_of(const Graph& graph, const Graph& plain, ValueId id, ValueId data, size_t place) {
  const Node* node = producer_of(graph, id);
  const bool is_row = node && node->is("Unsqueeze") && constant_ints(graph, node->inputs[1]) == Target{0};
  if (is_row) node = producer_of(graph, node->inputs[0]);
  if (!node || !node->is("Gather") || node->attributes.get_int("axis") != 0) return false;
  const Type& index = graph.type(node->inputs[1]);
  const Node* shape = producer_of(graph, node->inputs[0]);
  if (!index.has_rank() || index.rank() != (is_row ? 0 : 1) || !shape || !shape->is("Shape")) return false;
  const bool is_all = shape->attributes.get_int("start") == 0 && !shape->attributes.find("end");
  if (!is_all || constant_ints(graph, node->inputs[1]) != Target{static_cast<int64_t>(place)}) return false;
  const ValueId of = shape->inputs[0];
  return of == data || (is_row && have_same_extent(graph, of, data, place) && have_same_extent(plain, of, data, place));
}

bool is_one_element(const Type& type) {
  return type.has_rank() && type.rank() == 1 && (*type.shape)[0].is_const() && (*type.shape)[0].value() == 1;
}

const Node* computed_shape(const Graph& graph, const Node& node) {
  if (!node.is("Reshape") || node.attributes.get_int("allowzero") != 0) return nullptr;
  const Node* concat = producer_of(graph, node.inputs[1]);
  return concat && concat->is("Concat") ? concat : nullptr;
}

std::optional<Target> target_of(const Graph& graph, const Graph& plain, const Node& concat, ValueId data) {
  Target target;
  int num_computed = 0;
  for (ValueId input : concat.inputs) {
    if (const auto constant = constant_ints(graph, input)) {
      target.insert(target.end(), constant->begin(), constant->end());
    } else if (is_extent_of(graph, plain, input, data, target.size())) {
      target.push_back(0);
    } else {
      target.push_back(-1);
      if (++num_computed > 1 || !is_one_element(graph.type(input))) return std::nullopt;
    }
  }
  // An extent -1 cannot be inferred if another extent is 0 or -1.
  if (num_computed > 0 && std::count_if(target.begin(), target.end(), [](int64_t extent) { return extent < 1; }) > 1) return std::nullopt;
  return target;
}

// Infers types again without the elements of computed values, as other tools do. Such tools do not see that two extents are equal if only
// elements show it. A Reshape with a constant target makes the extents known for later nodes.
std::map<NodeId, Target> targets_in(const Graph& graph) {
  const std::unique_ptr<Graph> plain = graph.clone();
  const std::vector<NodeId> order = plain->order();
  for (const NodeId id : order)
    for (const ValueId output : plain->node(id).outputs) {
      if (output == kNoValue) continue;
      plain->value(output).known.reset();
      if (plain->type(output).is_tensor()) plain->value(output).type.shape.reset();
    }
  std::map<NodeId, Target> targets;
  for (const NodeId id : order) {
    const Node& node = plain->node(id);
    if (!node.bodies.empty()) continue;
    if (const Node* concat = computed_shape(graph, graph.node(id)))
      if (const auto target = target_of(graph, *plain, *concat, node.inputs[0])) {
        plain->set_input(id, 1, plain->add_constant("shape", Tensor::vector<int64_t>(*target)));
        targets.emplace(id, *target);
      }
    try {
      std::vector<Type> types = infer_alone(*plain, node).outputs;
      for (size_t i = 0; i < node.outputs.size(); ++i)
        if (node.outputs[i] != kNoValue && types[i].is_tensor()) plain->value(node.outputs[i]).type = std::move(types[i]);
    } catch (const Error&) {  // inference needs elements, so the outputs stay unknown
    }
  }
  return targets;
}

class OwnExtents final : public Rule {
 public:
  std::string_view name() const override { return "own-extents"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    if (!computed_shape(graph, node)) return std::nullopt;
    if (graph_ != &graph) targets_ = targets_in(graph), graph_ = &graph;
    const auto found = targets_.find(node.id);
    if (found == targets_.end()) return std::nullopt;
    return reshape_to(node, found->second);
  }

 private:
  // The graph of the last call of match(), and the targets found in it. Since then, only this rule has changed the graph.
  mutable const Graph* graph_ = nullptr;
  mutable std::map<NodeId, Target> targets_;
};

}  // namespace

Pass own_extents() {
  return rule_pass<OwnExtents>(kBasic, kForPatterns,
                               "Reshape to extents of its own input -> Reshape to a constant with 0, in saved models");
}

}  // namespace treadle::passes
