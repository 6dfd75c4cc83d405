// Helpers for convolutions and pools: the attributes of a window that slides over spatial axes, and the extents that follow from them.
#pragma once

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "graph/infer.h"
#include "graph/kernel.h"
#include "graph/op_def.h"
#include "kernels/conv/window.h"

namespace treadle::ops {

/// Infers the spatial extents of the output of a convolution or pool.
/// @param in      spatial extents of the input
/// @param kernel  spatial extents of the window
/// @throws Error(invalid_argument) if attributes contradict the rank, or if the window does not fit into the input
SymbolicShape infer_window(const Attributes& attributes, const SymbolicShape& in, const SymbolicShape& kernel);

/// Returns the window for known extents, with pads computed from auto_pad. @param in, out  spatial extents @throws Error(invalid_argument)
/// if the window does not fit into the input, which inference cannot check for symbolic extents.
kernels::Window bind_window(const Attributes& attributes, std::span<const int64_t> in, std::span<const int64_t> out,
                            std::span<const int64_t> kernel);

/// Returns the window of a bound pool with channels before the spatial axes. @throws Error as bind_window() does
kernels::Window bind_pool(const BindContext& c);
/// Returns the window of a bound gradient. @param in, out  spatial extents of the forward node's operands  @param dy  the gradient of the
/// output  @param of  "pool" or "convolution"  @throws Error(invalid_argument) if the window does not give these extents
kernels::Window bind_gradient_window(const Attributes& attributes, std::span<const int64_t> in, std::span<const int64_t> out,
                                     std::span<const int64_t> kernel, const Shape& dy, std::string_view of);
/// Returns the window of an AveragePoolGrad. @throws Error(invalid_argument) if dY is not the gradient of such a pool over dX
kernels::Window bind_average_pool_gradient(const BindContext& c);
/// Checks a MaxPoolGrad. @throws Error(invalid_argument) if dY has other planes than dX, or another shape than the indices
void check_max_pool_gradient(const BindContext& c);
/// Returns the attribute p of LpPool and GlobalLpPool. @throws Error(invalid_argument) if it is not positive
int64_t bind_norm_order(const BindContext& c);

/// Returns the attributes of an operator whose window has the extents of weights, or of a pool, and `more`.
std::vector<AttributeDef> window_attributes(std::initializer_list<AttributeDef> more);
/// Returns the attributes of a pool of ONNX, and `more`. A pool must have kernel_shape.
std::vector<AttributeDef> pool_attributes(std::initializer_list<AttributeDef> more);
/// Returns the attributes of a convolution, and `more`.
std::vector<AttributeDef> convolution_attributes(std::initializer_list<AttributeDef> more = {});

/// Replaces negative `pads` of a convolution or pool, which crop the image, by a Slice in front of the node, because kernels accept no
/// negative pads.
void crop_negative_pads(Graph& graph, NodeId id);

/// Throws Error(invalid_argument) if the attribute kernel_shape is set and differs from the extents of the weights.
void check_kernel_shape(const Attributes& attributes, std::span<const int64_t> kernel);

/// Returns the extents of a shape without its first two, batch and channels.
inline std::span<const int64_t> spatial(const Shape& shape) { return shape.dims().subspan(2); }
inline SymbolicShape spatial(const SymbolicShape& shape) { return {shape.begin() + 2, shape.end()}; }

/// Returns an attribute with one number per spatial axis. Absent: all numbers are `otherwise`. @throws Error(invalid_argument) if its
/// length is not `rank`.
std::array<int64_t, 3> spatial_ints(const Attributes& attributes, std::string_view name, size_t rank, int64_t otherwise);

}  // namespace treadle::ops
