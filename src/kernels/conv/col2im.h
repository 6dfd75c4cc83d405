// The second half of a transposed convolution: adds the product for each tap to the output that the tap reaches.
#pragma once

#include "kernels/conv/window.h"

namespace treadle::kernels {

/// Sets plane[in_size] to the bias plus the sums of columns[kernel_size][out_size], each added at the input position of its tap. `window`
/// describes the convolution from the plane to the columns.
void col2im(const Window& window, const float* columns, float bias, float* plane);

}  // namespace treadle::kernels
