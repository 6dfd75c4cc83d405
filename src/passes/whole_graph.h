// Passes over a whole graph (its bodies included) that are also called with limits of their own. Each returns how often it changed
// something, and stops after `limit` changes.
#pragma once

#include <cstdint>

#include "graph/graph.h"
#include "passes/pass.h"

namespace treadle::passes {

/// Computes nodes whose inputs are constants. Never nodes that draw random numbers, have bodies or yield; a node that fails is left to fail
/// when it runs.
int64_t fold_constants(Graph& graph, FoldLimits& limits, int64_t limit);

/// Makes constants of values whose elements inference knows as integers (of chains of Shape, Gather, Concat etc.).
/// @param whole_shapes  only fold outputs of Shape itself
int64_t fold_shapes(Graph& graph, int64_t limit, bool whole_shapes = false);

/// Nodes of 16-bit floats compute in float32 from converted constants; Casts stand where such a region begins and ends. Inference only.
int64_t compute_in_float32(Graph& graph, FoldLimits& limits, int64_t limit);

/// Fuses groups of pointwise operators into FusedElementwise nodes.
/// @param keep_quantization  leave QuantizeLinear and DequantizeLinear alone
/// @param device  that computes the nodes; null: the host
int64_t fuse_elementwise(Graph& graph, int64_t limit, bool keep_quantization = false, const DeviceForms* device = nullptr);

/// Frees constants that nothing reads, which would keep folded weights in memory twice.
void release_unused_constants(Graph& graph);

}  // namespace treadle::passes
