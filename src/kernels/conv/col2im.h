// Second half of a transposed convolution: adds the products of each tap to the outputs that it reaches.
#pragma once

#include "kernels/conv/window.h"

namespace treadle::kernels {

/// plane[in_size] = bias + the sums of columns[kernel_size][out_size], each added at the input position of its tap. `window` describes the
/// convolution from the plane to the columns.
void col2im(const Window& window, const float* columns, float bias, float* plane);

}  // namespace treadle::kernels
