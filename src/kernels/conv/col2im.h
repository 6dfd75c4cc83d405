// The second half of a transposed convolution: what the taps give, summed where it belongs.
#pragma once

#include "kernels/conv/window.h"

namespace treadle::kernels {

/// plane[window.in_size()] = bias + the sums of columns[kernel_size()][out_size()], each at the place in `in` that its tap of its window
/// looks at (the window is that of the convolution from the plane to an output).
void col2im(const Window& window, const float* columns, float bias, float* plane);

}  // namespace treadle::kernels
