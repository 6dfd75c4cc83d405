// Checks the contract of an operator, as declared by its OpDef: which operands a node has, their kinds, dtypes and ranks, and the allowed
// values of its attributes. Every node of every graph is checked, whether it comes from a file, a compiled model, a pass or a plugin, so
// inference and kernels need no such checks.
#pragma once

#include <span>

#include "graph/op_def.h"
#include "treadle/error.h"

namespace treadle {

/// Checks the part of the contract that is known before a run. A type that is still unknown is not an error, because the run checks it.
/// @throws Error(invalid_model), or Error(not_implemented) for an attribute that the operator does not define
void check_contract(const Graph& graph, const Node& node);

/// Checks kinds, dtypes and ranks of the formal inputs during a run; an absent input is null. Whatever is still unknown is not an error.
/// @throws Error(`code`) naming the input
void check_input_types(const Node& node, std::span<const Type* const> types, ErrorCode code);

/// Checks the type of an output after inference. @throws Error(invalid_model) naming the output
void check_output_type(const Graph& graph, const Node& node, size_t output, const Type& type);

/// Creates a value for each required output that the node lacks: files may omit unread outputs, but kernels write all of them.
void complete_outputs(Graph& graph, NodeId id);

}  // namespace treadle
