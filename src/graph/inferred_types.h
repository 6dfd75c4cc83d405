// Inference of one node in isolation from the types declared by files or passes, and the assumptions made by inference.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace treadle {

/// Two different expressions of extents that inference assumed to be equal.
struct Assumption {
  Dim a, b;
  std::string what;
};

struct Inferred {
  std::vector<Type> outputs;
  std::vector<Assumption> assumptions;
};

/// Infers the outputs of a node without bodies, ignoring declared types. @throws Error of inference
Inferred infer_alone(const Graph& graph, const Node& node);

/// Types of the values carried by a loop's body, once they no longer change between inferences.
struct CarriedTypes {
  size_t first_input = 0;
  std::vector<Type> types;  // empty: the types are not known yet
};
/// Returns the carried types of a body in the outermost inference in progress on this thread. An outer loop infers its body again with
/// weaker types; continuing from these results, rather than from scratch, avoids exponential time for nested loops.
CarriedTypes& carried_types(const Body& body);

/// Called by operators' inference: records the assumption for the infer_alone() in progress on this thread, if any, so that a binding can
/// check it.
void assume_equal(const Dim& a, const Dim& b, std::string_view what);
/// Returns true if assumptions are recorded; otherwise they need not be computed.
bool notes_assumptions() noexcept;

}  // namespace treadle
