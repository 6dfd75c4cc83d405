// Queries about a graph that rules need to match their patterns.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "graph/parameters.h"

namespace treadle {
class Patch;
}

namespace treadle::passes {

/// Returns the node that computes the value; null for inputs, constants and absent operands.
const Node* producer_of(const Graph& graph, ValueId id);
/// Returns true if the value has exactly one use and is not an output of the graph.
bool is_used_once(const Graph& graph, ValueId id);
/// Returns true if passes may set this attribute on nodes of this operator: the operator is of the treadle domain, or the attribute is
/// internal. An ONNX operator may have an attribute of the same name with another meaning.
bool has_internal_attribute(const Node& node, std::string_view name);
/// Returns the index of the operand that has this name in the operator's definition; nullopt if there is none.
std::optional<size_t> input_named(const Node& node, std::string_view name);
/// Returns the elements of a constant int64 or int32 tensor; nullopt for any other value.
std::optional<std::vector<int64_t>> constant_ints(const Graph& graph, ValueId id);
/// Returns true if every element equals `number`; if that is 0, `negative_zero` tells its sign. False for empty tensors, for more than a
/// few thousand elements (examining them would read weights, and no model has a million ones), and for dtypes other than float16/32/64 and
/// integers.
bool all_elements_are(const Tensor& tensor, double number, bool negative_zero = false);
/// Returns true for a Transpose with this `perm`; false for null.
inline bool has_perm(const Node* node, const std::vector<int64_t>& perm) {
  return node && node->is("Transpose") && node->attributes.get_ints("perm") == perm;
}
/// Returns true for Reshape, Flatten, Squeeze and Unsqueeze, which keep the elements of input 0 in order.
bool is_view(const Node& node);

/// Returns a constant operand `shape` with which Reshape turns `in` into `out`: 0 for an extent equal to that of `in` at the same position,
/// and at most one -1 for another symbol, if inference would find the same extent for it. nullopt if there is no such constant, or if an
/// extent is 0, which Reshape would read as "copy".
std::optional<std::vector<int64_t>> reshape_target(const SymbolicShape& in, const SymbolicShape& out);

/// Returns a patch that makes this constant the operand `shape` of a Reshape.
Patch reshape_to(const Node& node, const std::vector<int64_t>& target);

/// Returns the node that `spec` would add in place of `replaced`, with the same id. Used to ask whether a kernel would accept it. The node
/// is not in the graph.
Node as_node(NodeSpec spec, const Node& replaced);

/// Adds a node before `before`, infers its output's type and returns the output. @param sources  model nodes for which the new node stands
ValueId add_inferred(Graph& graph, NodeSpec spec, NodeId before, const std::vector<std::string>& sources);

}  // namespace treadle::passes
