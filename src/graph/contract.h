// The contract of an operator, as its OpDef states it: which operands a node has, of which kinds, dtypes and ranks, and what its attributes
// may be. Every node of every graph is held against it, whoever made it (a file, a compiled model, a pass, a plugin), so that inference and
// kernels need no checks of these.
#pragma once

#include <span>

#include "graph/op_def.h"
#include "treadle/error.h"

namespace treadle {

/// All of the contract that a graph can tell before a run. Types that are not known pass; the run checks them.
/// @throws Error(invalid_model), or Error(not_implemented) for an attribute that is none of the operator's.
void check_contract(const Graph& graph, const Node& node);

/// Kinds, dtypes and ranks of the formal inputs; null for an absent one, and what is unknown passes. For types that only the run tells.
/// @throws Error(`code`) naming the input.
void check_input_types(const Node& node, std::span<const Type* const> types, ErrorCode code);

/// An output as inference has found it. @throws Error(invalid_model) naming the output.
void check_output_type(const Graph& graph, const Node& node, size_t output, const Type& type);

/// Makes a value for each required output that the node lacks: a file may leave out what nobody reads, kernels write all of them.
void complete_outputs(Graph& graph, NodeId id);

}  // namespace treadle
