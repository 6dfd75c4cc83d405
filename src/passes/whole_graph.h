// Passes over a whole graph, including its bodies, that are also called outside of the pipeline. Each returns the number of its changes,
// and stops after `limit` changes.
#pragma once

#include <cstdint>

#include "graph/graph.h"
#include "passes/pass.h"

namespace treadle::passes {

/// Computes nodes whose inputs are constants. Does not compute nodes that draw random numbers, have bodies or are a Yield. A node that
/// fails stays, and fails again when it runs.
int64_t fold_constants(Graph& graph, FoldLimits& limits, int64_t limit);

/// Makes constants of values whose elements inference knows as integers (results of Shape, Gather, Concat etc.).
/// @param whole_shapes  fold only outputs of Shape nodes
int64_t fold_shapes(Graph& graph, int64_t limit, bool whole_shapes = false);

/// Lets nodes of 16-bit floats compute in float32 from converted constants, with Casts where such a region begins and ends. For inference
/// only.
int64_t compute_in_float32(Graph& graph, FoldLimits& limits, int64_t limit);

/// Fuses groups of pointwise operators into FusedElementwise nodes.
/// @param keep_quantization  leave QuantizeLinear and DequantizeLinear alone
/// @param device  that computes the nodes; null: the host
int64_t fuse_elementwise(Graph& graph, int64_t limit, bool keep_quantization = false, const DeviceForms* device = nullptr);

/// Frees constants that no node reads, which would keep folded weights in memory twice.
void release_unused_constants(Graph& graph);

}  // namespace treadle::passes
