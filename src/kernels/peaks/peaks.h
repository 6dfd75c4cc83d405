// Loops that do nothing but multiply and add, or copy: what the machine reaches at best.
#pragma once

#include <cstdint>

namespace treadle::kernels {

/// Multiplies and adds in registers. @param sink  gets a number that depends on all of them
/// @return floating-point operations done, a multiply-add counted as two
double multiply_add_loop(int64_t iterations, float* sink);

/// The same by tiles of AMX, as exact as float32 (tile_split.h): floating-point operations of the product, or 0 where the processor has
/// none.
double tile_product_loop(int64_t iterations);

/// Copies n floats with plain loads and stores, as elementwise kernels do.
void copy_loop(const float* src, float* dst, int64_t n);

}  // namespace treadle::kernels
