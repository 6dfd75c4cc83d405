// What the convolutions and pools share: the attributes of a window that slides over the spatial axes, and the extents it gives.
#pragma once

#include <array>
#include <span>

#include "graph/infer.h"
#include "graph/kernel.h"
#include "kernels/conv/window.h"

namespace treadle::ops {

/// Spatial extents of a convolution's or pool's output.
/// @param in      the spatial extents of the input
/// @param kernel  the extents of the window
/// @throws Error(invalid_argument) for attributes that contradict the rank, and for windows that do not fit into the input.
SymbolicShape infer_window(const Attributes& attributes, const SymbolicShape& in, const SymbolicShape& kernel);

/// The window of a bound node, pads of auto_pad worked out.
/// @param in, out  spatial extents
/// @throws Error(invalid_argument) for windows that do not fit into the input, whose extents only the run could tell.
kernels::Window bind_window(const Attributes& attributes, std::span<const int64_t> in, std::span<const int64_t> out,
                            std::span<const int64_t> kernel);

/// A decomposition: negative `pads` of a convolution or a pool cut the image, which a Slice in front of the node does. Windows and kernels
/// know no others than those from 0 on.
void crop_negative_pads(Graph& graph, NodeId id);

/// @throws Error(invalid_argument) if the attribute kernel_shape, where it is there, differs from the weights' extents.
void check_kernel_shape(const Attributes& attributes, std::span<const int64_t> kernel);

/// The extents of a shape behind the batch and the channels.
inline std::span<const int64_t> spatial(const Shape& shape) { return shape.dims().subspan(2); }
inline SymbolicShape spatial(const SymbolicShape& shape) { return {shape.begin() + 2, shape.end()}; }

/// The attribute, or `rank` times the default if it is absent. @throws Error(invalid_argument) if it has another length.
std::array<int64_t, 3> spatial_ints(const Attributes& attributes, std::string_view name, size_t rank, int64_t otherwise);

}  // namespace treadle::ops
