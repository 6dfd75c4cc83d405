// Bilinear samples of a plane, some places at a time: GridSample, DeformConv. T is float or double.
#pragma once

#include <cstdint>
#include <type_traits>

namespace treadle::kernels {

/// Places are taken to be no farther outside.
constexpr float kFarPlace = 1e9f;

/// What some points take of a plane: two neighbours at an offset, and the two a row further.
template <typename T>
struct SampledSquares {
  static constexpr int64_t kPoints = 16;
  using Bits = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  int64_t offset[kPoints];
  T weight[kPoints][4];
  Bits taken[kPoints][4];  ///< all bits or none: what is not taken counts as 0, whatever it is
};

/// The squares at kPoints places of a plane of at least 2 x 2 elements. What lies beyond the plane is not taken, nor is anything by NaN.
template <typename T>
void find_squares(int64_t height, int64_t width, const T* rows, const T* columns, SampledSquares<T>& squares);

/// dst[i] = the weighed square of point i, for all kPoints.
/// @param row  from one row of the plane to the next, in elements
template <typename T>
void sample_squares(const SampledSquares<T>& squares, const T* plane, int64_t row, T* dst);

}  // namespace treadle::kernels
