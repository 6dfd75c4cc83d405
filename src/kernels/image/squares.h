// Bilinear samples of a plane, several points at a time, for GridSample and DeformConv. T is float or double.
#pragma once

#include <cstdint>
#include <type_traits>

namespace treadle::kernels {

/// Coordinates are clamped to at most this distance from the plane.
constexpr float kFarPlace = 1e9f;

/// The 2 x 2 squares of a plane whose elements are interpolated at some points: two adjacent elements at `offset`, and two in the next row.
template <typename T>
struct SampledSquares {
  static constexpr int64_t kPoints = 16;
  using Bits = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  int64_t offset[kPoints];
  T weight[kPoints][4];
  Bits taken[kPoints][4];  ///< for each element: all bits set, or 0 to ignore the element even if it is NaN
};

/// Finds the squares of kPoints points in a plane of at least 2 x 2 elements. Elements outside the plane are ignored; if a coordinate is
/// NaN, all elements are.
template <typename T>
void find_squares(int64_t height, int64_t width, const T* rows, const T* columns, SampledSquares<T>& squares);

/// Sets dst[i] to the weighted sum of point i's square, for all kPoints points. @param row  row stride of the plane in elements
template <typename T>
void sample_squares(const SampledSquares<T>& squares, const T* plane, int64_t row, T* dst);

}  // namespace treadle::kernels
