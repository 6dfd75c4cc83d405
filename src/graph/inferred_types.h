// Inference of one node, apart from what a file or a pass declares, and what inference takes for granted.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace treadle {

/// Extents that differ as expressions, and that inference took to be equal.
struct Assumption {
  Dim a, b;
  std::string what;
};

struct Inferred {
  std::vector<Type> outputs;
  std::vector<Assumption> assumptions;
};

/// What inference alone says of the outputs of a node without bodies. @throws Error of inference.
Inferred infer_alone(const Graph& graph, const Node& node);

/// What the values that a loop's body carries have settled to.
struct CarriedTypes {
  size_t first_input = 0;
  std::vector<Type> types;  // empty: not yet
};
/// Of a body in the outermost inference under way in this thread. A loop around it asks again with weaker types: going on from here, and
/// not from the start, nests of loops take no exponential time.
CarriedTypes& carried_types(const Body& body);

/// For operators' inference: noted for the infer_alone() under way in this thread, if there is one, so that a binding can compare.
void assume_equal(const Dim& a, const Dim& b, std::string_view what);
/// Whether there is one: else nobody need compute what is assumed.
bool notes_assumptions() noexcept;

}  // namespace treadle
