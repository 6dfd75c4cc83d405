// Passes over a whole graph (its bodies included): what a rule, which sees one neighbourhood, cannot say. Each returns how often it changed
// something, and stops after `limit` changes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "graph/graph.h"

namespace treadle::passes {

/// What folding may still spend, over all rounds and bodies: a small model must not take minutes, or all memory, to load. Strings count
/// with their texts.
struct FoldLimits {
  size_t max_bytes_each = 64U << 20U;  ///< of one constant
  double bytes = 512e6;                ///< of all constants that folding makes
  double widened_bytes = 1e18;         ///< of constants that are converted from 16 bits
  double operations = 4e9;             ///< floating-point operations and elements, by the operators' cost
  bool keep_quantisation = false;      ///< DequantizeLinear stays

  /// The limits above for a large model; less for one whose constants are few bytes.
  static FoldLimits of(const Graph& graph);
};

/// Computes nodes whose inputs are constants. Never nodes that draw random numbers, have bodies or yield; a node that fails is left to fail
/// when it runs.
int64_t fold_constants(Graph& graph, FoldLimits& limits, int64_t limit);

/// Values whose elements inference knows as integers (of Shape, Gather, Concat … chains) become constants.
/// @param whole_shapes  only where the first of such a chain is known: it is an output of Shape
int64_t fold_shapes(Graph& graph, int64_t limit, bool whole_shapes = false);

/// Values that a Loop carries without ever changing them become captures of its body.
int64_t capture_loop_invariants(Graph& graph, int64_t limit);

/// An If whose condition is a constant is replaced by the nodes of the branch that it takes.
int64_t inline_constant_if(Graph& graph, int64_t limit);

/// Small constants of equal contents become one.
int64_t merge_constants(Graph& graph, int64_t limit);

/// Nodes that compute the same thing from the same inputs become one. Never random numbers.
int64_t merge_common_nodes(Graph& graph, int64_t limit);

/// Nodes of 16-bit floats compute in float32 from converted constants; Casts stand where such a region begins and ends. Inference only.
int64_t compute_in_float32(Graph& graph, FoldLimits& limits, int64_t limit);

/// Groups of pointwise operators become FusedElementwise nodes. Inference only.
/// @param keep_quantisation  QuantizeLinear and DequantizeLinear stay
int64_t fuse_elementwise(Graph& graph, int64_t limit, bool keep_quantisation = false);
/// Behind it: operators that compute a chain on its way in take over the one that only they read.
int64_t fuse_chain_into_reader(Graph& graph, int64_t limit);

/// Transposes with nothing but views between them become one.
int64_t merge_movements(Graph& graph, int64_t limit);

/// Gathers that take an input apart, one element of its outermost axis each, become a Split, whose outputs need no copies.
int64_t split_inputs(Graph& graph, int64_t limit);

/// Lets go of constants that nothing reads: folded weights would be in memory twice.
void release_unused_constants(Graph& graph);

}  // namespace treadle::passes
