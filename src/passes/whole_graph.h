// Passes over a whole graph and its bodies that are also called outside of the pipeline. Each returns the number of its changes, and stops
// after `limit` changes.
#pragma once

#include <cstdint>

#include "graph/graph.h"
#include "passes/pass.h"

namespace treadle::passes {

/// Computes nodes whose inputs are constants. Skips nodes that use random numbers, have bodies or are a Yield. A node whose computation
/// fails stays, and fails again when it runs.
int64_t fold_constants(Graph& graph, FoldLimits& limits, int64_t limit);

/// If inference knows all elements of a value as integers (results of Shape, Gather, Concat etc.), replaces the value by a constant.
/// @param whole_shapes  fold only outputs of Shape nodes
int64_t fold_shapes(Graph& graph, int64_t limit, bool whole_shapes = false);

/// Makes nodes of 16-bit floats compute in float32, from converted constants, with Casts where a region of such nodes begins and ends. For
/// inference only.
int64_t compute_in_float32(Graph& graph, FoldLimits& limits, int64_t limit);

/// Fuses groups of pointwise operators into FusedElementwise nodes.
/// @param keep_quantization  leave QuantizeLinear and DequantizeLinear alone
/// @param device  the device that computes the nodes; null: the host
int64_t fuse_elementwise(Graph& graph, int64_t limit, bool keep_quantization = false, const DeviceForms* device = nullptr);

/// Frees constants that no node reads. Otherwise folded weights would be in memory twice.
void release_unused_constants(Graph& graph);

}  // namespace treadle::passes
