// What rules ask of a graph.
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

/// The node that makes the value; null for inputs, constants and absent operands.
const Node* producer_of(const Graph& graph, ValueId id);
/// True if one operand reads the value, and no output is it.
bool is_used_once(const Graph& graph, ValueId id);
/// True if passes may give the operator's nodes this attribute: it is one of an operator of ours, or an internal one. ONNX's operators may
/// have one of the same name and another meaning.
bool has_internal_attribute(const Node& node, std::string_view name);
/// The place of the operand that the operator calls so; nothing if it has none.
std::optional<size_t> input_named(const Node& node, std::string_view name);
/// Elements of a constant int64 or int32 tensor.
std::optional<std::vector<int64_t>> constant_ints(const Graph& graph, ValueId id);
/// True if every element equals `number`, and the sign of a zero is `negative_zero`'s. False for no elements, for more than a few thousand
/// (nobody writes a million ones, and looking would read the weights), and for dtypes other than float16/32/64 and the integers.
bool all_elements_are(const Tensor& tensor, double number, bool negative_zero = false);
/// True for a Transpose with this `perm`; false for null.
inline bool has_perm(const Node* node, const std::vector<int64_t>& perm) {
  return node && node->is("Transpose") && node->attributes.get_ints("perm") == perm;
}
/// Reshape, Flatten, Squeeze, Unsqueeze: the elements of input 0, in their order, under another shape.
bool is_view(const Node& node);

/// What to write as Reshape's `shape` to make `out` of `in`: 0 where `in` has the same extent at the same place, at most one -1 for another
/// symbol, and that only if inference finds this very extent again. Nothing if it cannot be written so, or if an extent is 0, which Reshape
/// would read as "copy".
std::optional<std::vector<int64_t>> reshape_target(const SymbolicShape& in, const SymbolicShape& out);

/// A patch that has a Reshape take this constant for its shape.
Patch reshape_to(const Node& node, const std::vector<int64_t>& target);

/// The output of a new node in front of `before`, its type inferred. `sources`: the nodes of the model that it stands for.
ValueId add_inferred(Graph& graph, NodeSpec spec, NodeId before, const std::vector<std::string>& sources);

}  // namespace treadle::passes
