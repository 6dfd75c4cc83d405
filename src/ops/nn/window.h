// Shared by convolutions and pools: the attributes of a window that slides over spatial axes, and the extents that it gives.
#pragma once

#include <array>
#include <span>

#include "graph/infer.h"
#include "graph/kernel.h"
#include "kernels/conv/window.h"

namespace treadle::ops {

/// Spatial extents of a convolution's or pool's output.
/// @param in      spatial extents of the input
/// @param kernel  extents of the window
/// @throws Error(invalid_argument) if attributes contradict the rank, or the window does not fit into the input
SymbolicShape infer_window(const Attributes& attributes, const SymbolicShape& in, const SymbolicShape& kernel);

/// The window of a bound node, with the pads of auto_pad computed.
/// @param in, out  spatial extents
/// @throws Error(invalid_argument) if the window does not fit into the input. Inference cannot check that for extents that are symbols.
kernels::Window bind_window(const Attributes& attributes, std::span<const int64_t> in, std::span<const int64_t> out,
                            std::span<const int64_t> kernel);

/// A decomposition: negative `pads` of a convolution or pool crop the image. A Slice before the node does this instead, as kernels accept
/// no negative pads.
void crop_negative_pads(Graph& graph, NodeId id);

/// @throws Error(invalid_argument) if kernel_shape is set and differs from the extents of the weights.
void check_kernel_shape(const Attributes& attributes, std::span<const int64_t> kernel);

/// The extents of a shape without batch and channels.
inline std::span<const int64_t> spatial(const Shape& shape) { return shape.dims().subspan(2); }
inline SymbolicShape spatial(const SymbolicShape& shape) { return {shape.begin() + 2, shape.end()}; }

/// The attribute, or `rank` times `otherwise` if it is absent. @throws Error(invalid_argument) if it has another length.
std::array<int64_t, 3> spatial_ints(const Attributes& attributes, std::string_view name, size_t rank, int64_t otherwise);

}  // namespace treadle::ops
