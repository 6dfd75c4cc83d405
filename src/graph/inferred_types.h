// Inference of a single node without using declared types, and the assumptions that inference makes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace treadle {

/// Two different expressions for extents, which inference has assumed to be equal.
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

/// Types of the values that a loop carries from iteration to iteration, once further inferences of the body no longer change them.
struct CarriedTypes {
  size_t first_input = 0;
  std::vector<Type> types;  // empty: the types are not known yet
};
/// Returns the carried types of a body, found earlier in the outermost inference in progress on this thread. An outer loop infers its body
/// again with weaker types. Starting from these results, rather than from scratch, avoids exponential time for nested loops.
CarriedTypes& carried_types(const Body& body);

/// Called by inference of operators. If infer_alone() is in progress on this thread, records the assumption, so that a binding can check
/// it.
void assume_equal(const Dim& a, const Dim& b, std::string_view what);
/// Returns true if assumptions are being recorded. If not, they need not be computed.
bool notes_assumptions() noexcept;

}  // namespace treadle
