// The second half of a transposed convolution: adds the product for each tap to the output that the tap reaches.
#pragma once

#include "kernels/conv/window.h"

namespace treadle::kernels {

/// Sets each element of plane[in_size] to the bias plus all elements of columns[kernel_size][out_size] whose tap reads that position.
/// `window` describes the convolution that maps the plane to the columns.
void col2im(const Window& window, const float* columns, float bias, float* plane);

}  // namespace treadle::kernels
