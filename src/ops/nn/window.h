// Helpers for convolutions and pools: the attributes of a window that slides over spatial axes, and the extents that follow from them.
#pragma once

#include <array>
#include <span>

#include "graph/infer.h"
#include "graph/kernel.h"
#include "kernels/conv/window.h"

namespace treadle::ops {

/// Infers the spatial extents of a convolution's or pool's output.
/// @param in      spatial extents of the input
/// @param kernel  extents of the window @throws Error(invalid_argument) if attributes contradict the rank, or the window does not fit into
/// the input
SymbolicShape infer_window(const Attributes& attributes, const SymbolicShape& in, const SymbolicShape& kernel);

/// Returns the window of a bound node, with the pads of auto_pad computed. @param in, out  spatial extents @throws Error(invalid_argument)
/// if the window does not fit into the input. Inference cannot check that for extents that are symbols.
kernels::Window bind_window(const Attributes& attributes, std::span<const int64_t> in, std::span<const int64_t> out,
                            std::span<const int64_t> kernel);

/// A decomposition. Negative `pads` of a convolution or pool crop the image. Kernels accept no negative pads, so a Slice before the node
/// crops instead.
void crop_negative_pads(Graph& graph, NodeId id);

/// Checks kernel_shape. @throws Error(invalid_argument) if it is set and differs from the extents of the weights.
void check_kernel_shape(const Attributes& attributes, std::span<const int64_t> kernel);

/// Returns the extents of a shape without batch and channels.
inline std::span<const int64_t> spatial(const Shape& shape) { return shape.dims().subspan(2); }
inline SymbolicShape spatial(const SymbolicShape& shape) { return {shape.begin() + 2, shape.end()}; }

/// Returns the attribute, or `rank` times `otherwise` if it is absent. @throws Error(invalid_argument) if it has another length.
std::array<int64_t, 3> spatial_ints(const Attributes& attributes, std::string_view name, size_t rank, int64_t otherwise);

}  // namespace treadle::ops
