// Reshape(x, Concat(extents of x at their own positions, constants)) -> Reshape(x, constant with 0 for these), as 0 means "as in x". One
// other computed extent becomes -1 if all the rest are positive constants.
#include <algorithm>

#include "passes/list.h"
#include "passes/matching.h"

namespace treadle::passes {
namespace {

// Returns true if the value is a vector of one element: the extent of `data` at `place`.
bool is_extent_of(const Graph& graph, ValueId id, ValueId data, size_t place) {
  const Node* node = producer_of(graph, id);
  const bool is_row = node && node->is("Unsqueeze") && constant_ints(graph, node->inputs[1]) == std::vector<int64_t>{0};
  if (is_row) node = producer_of(graph, node->inputs[0]);
  if (!node || !node->is("Gather") || node->attributes.get_int("axis") != 0) return false;
  const Type& index = graph.type(node->inputs[1]);
  const Node* shape = producer_of(graph, node->inputs[0]);
  if (!index.has_rank() || index.rank() != (is_row ? 0 : 1) || !shape || !shape->is("Shape") || shape->inputs[0] != data) return false;
  return shape->attributes.get_int("start") == 0 && !shape->attributes.find("end") &&
         constant_ints(graph, node->inputs[1]) == std::vector<int64_t>{static_cast<int64_t>(place)};
}

bool is_one_element(const Type& type) {
  return type.has_rank() && type.rank() == 1 && (*type.shape)[0].is_const() && (*type.shape)[0].value() == 1;
}

std::optional<std::vector<int64_t>> target_of(const Graph& graph, const Node& concat, ValueId data) {
  std::vector<int64_t> target;
  int num_computed = 0;
  for (ValueId input : concat.inputs) {
    if (const auto constant = constant_ints(graph, input)) {
      target.insert(target.end(), constant->begin(), constant->end());
    } else if (is_extent_of(graph, input, data, target.size())) {
      target.push_back(0);
    } else {
      target.push_back(-1);
      if (++num_computed > 1 || !is_one_element(graph.type(input))) return std::nullopt;
    }
  }
  // With another extent that is 0 or -1, this one could not be inferred.
  if (num_computed > 0 && std::count_if(target.begin(), target.end(), [](int64_t extent) { return extent < 1; }) > 1) return std::nullopt;
  return target;
}

class OwnExtents final : public Rule {
 public:
  std::string_view name() const override { return "own-extents"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    if (!node.is("Reshape") || node.attributes.get_int("allowzero") != 0) return std::nullopt;
    const Node* concat = producer_of(graph, node.inputs[1]);
    if (!concat || !concat->is("Concat")) return std::nullopt;
    const std::optional<std::vector<int64_t>> target = target_of(graph, *concat, node.inputs[0]);
    if (!target) return std::nullopt;
    return reshape_to(node, *target);
  }
};

}  // namespace

Pass own_extents() {
  return rule_pass<OwnExtents>(kBasic, kForPatterns,
                               "Reshape to extents of its own input -> Reshape to a constant with 0, in saved models");
}

}  // namespace treadle::passes
