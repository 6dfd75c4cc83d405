// Passes over a whole graph, including bodies, for changes that a rule cannot express as it only sees a neighbourhood. Each returns the
// number of its changes, and stops after `limit` changes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "graph/graph.h"

namespace treadle::passes {

/// Remaining budget of constant folding for all rounds and bodies: a small model must not take minutes, or all memory, to load. Strings
/// count with their contents.
struct FoldLimits {
  size_t max_bytes_each = 64U << 20U;  ///< of one constant
  double bytes = 512e6;                ///< of all constants made by folding
  double widened_bytes = 1e18;         ///< of constants converted from 16 bits
  double operations = 4e9;             ///< floating-point operations and elements, by the operators' cost functions
  bool keep_quantisation = false;      ///< do not fold DequantizeLinear

  /// Returns the limits above for a large model, and lower ones for a model whose constants have few bytes.
  static FoldLimits of(const Graph& graph);
};

/// Computes nodes whose inputs are constants, except those that draw random numbers, have bodies or yield. A node that fails is left, to
/// fail when it runs.
int64_t fold_constants(Graph& graph, FoldLimits& limits, int64_t limit);

/// Makes constants of values whose elements inference knows as integers (of chains of Shape, Gather, Concat etc.).
/// @param whole_shapes  only fold outputs of Shape itself
int64_t fold_shapes(Graph& graph, int64_t limit, bool whole_shapes = false);

/// Lets the body of a Loop capture values that it carries but never changes.
int64_t capture_loop_invariants(Graph& graph, int64_t limit);

/// Replaces each If with a constant condition by the nodes of the branch that it takes.
int64_t inline_constant_if(Graph& graph, int64_t limit);

/// Merges small constants with equal contents.
int64_t merge_constants(Graph& graph, int64_t limit);

/// Merges nodes that compute the same from the same inputs, except random numbers.
int64_t merge_common_nodes(Graph& graph, int64_t limit);

/// Makes nodes of 16-bit floats compute in float32 with converted constants; Casts remain at the borders of such regions. Inference only.
int64_t compute_in_float32(Graph& graph, FoldLimits& limits, int64_t limit);

/// Fuses groups of pointwise operators into FusedElementwise nodes.
/// @param keep_quantisation  leave QuantizeLinear and DequantizeLinear alone
int64_t fuse_elementwise(Graph& graph, int64_t limit, bool keep_quantisation = false);
/// Runs after fuse_elementwise(): operators that can compute a chain on an input absorb the FusedElementwise that only they read.
int64_t fuse_chain_into_reader(Graph& graph, int64_t limit);

/// Merges Transposes that are separated only by views.
int64_t merge_movements(Graph& graph, int64_t limit);

/// Replaces Gathers that each take one element of an input's outermost axis by a Split, whose outputs need no copies.
int64_t split_inputs(Graph& graph, int64_t limit);

/// Frees constants that nothing reads, which would keep folded weights in memory twice.
void release_unused_constants(Graph& graph);

}  // namespace treadle::passes
