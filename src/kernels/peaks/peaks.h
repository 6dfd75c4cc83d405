// Loops that only multiply and add, or only copy, to measure the peak performance of the machine.
#pragma once

#include <cstdint>

namespace treadle::kernels {

/// Multiplies and adds in registers. @param sink  receives a number that depends on all results
/// @return number of floating-point operations; a multiply-add counts as two
double multiply_add_loop(int64_t iterations, float* sink);

/// Multiplies float32 matrices split for AMX tiles (tile_split.h). Returns the floating-point operations of the float32
/// product, or 0 if the CPU has no AMX.
double tile_product_loop(int64_t iterations);

/// Copies n floats with plain loads and stores, as elementwise kernels do.
void copy_loop(const float* src, float* dst, int64_t n);

}  // namespace treadle::kernels
