// Describes the operands of matrix products and convolutions of 8-bit integers.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "graph/kernel.h"
#include "ops/math/product.h"
#include "ops/nn/convolution.h"
#include "treadle/error.h"

namespace treadle::ops {

/// The granularity of an operand's scales or zero points: none, one for all, or one per row or column. If the operand is a stack of
/// matrices, they share these numbers or each matrix has its own.
struct QuantizationLines {
  bool present = false, per_line = false, per_matrix = false;

  /// @param axis     which axis of a matrix the numbers are for: 2 for rows, 1 for columns; 0: the operand has no matrices
  /// @param operand  shape of the matrices
  static QuantizationLines of(const Shape& shape, int64_t lines, int axis, const Shape& operand, std::string_view what) {
    // Some exporters write an empty tensor instead of an absent one.
    if (shape.num_elements() == 0) return {};
    if (shape.num_elements() == 1) return {true, false, false};
    const int rank = shape.rank();
    const bool shared = axis == 0 || rank < 3 || shape.product(0, rank - 2) == 1;
    if (shared && shape.num_elements() == lines) return {true, true, false};
    const bool own = axis > 0 && rank > 2 && rank == operand.rank() && shape[rank - axis] == lines && shape[rank - 3 + axis] == 1;
    if (!own || !std::ranges::equal(shape.dims().first(static_cast<size_t>(rank - 2)), operand.dims().first(static_cast<size_t>(rank - 2))))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} is {}; one element, {}{} are expected", what, to_string(shape), lines,
                              axis > 0 ? fmt::format(", or as many for each matrix of {}", to_string(operand)) : ""));
    return {true, true, true};
  }
  static QuantizationLines bind(const BindContext& c, int input, int64_t lines, int axis, const Shape& operand, std::string_view what) {
    return c.has_input(input) ? of(c.shape(input), lines, axis, operand, what) : QuantizationLines{};
  }
};

/// The indices of an operator's inputs, for integer products and convolutions and for their QLinear forms; -1 for an input that it lacks.
struct IntegerPlaces {
  int x = 0, x_zero = 2, w = 1, w_zero = 3;
  int x_scale = -1, w_scale = -1, y_scale = -1, y_zero = -1, bias = -1;
};
inline constexpr IntegerPlaces kInteger{};
inline constexpr IntegerPlaces kQLinear{
    .x = 0, .x_zero = 2, .w = 3, .w_zero = 5, .x_scale = 1, .w_scale = 4, .y_scale = 6, .y_zero = 7, .bias = 8};

inline constexpr ConvolutionInputs kConvInteger{0, 1, -1};
inline constexpr ConvolutionInputs kConvQLinear{0, 3, 8};

/// Scales of the operands of a product or convolution whose result is quantized or float.
struct IntegerScales {
  QuantizationLines x, w;
  /// @throws Error(invalid_argument) if operands have none, or if a quantized result does not have one
  static IntegerScales checked(const BindContext& c, const IntegerPlaces& at, const QuantizationLines& x, const QuantizationLines& w);
};

struct IntegerProductPlan {
  int64_t rows, columns;  ///< of a matrix of the result
  QuantizationLines a_zeros, b_zeros;
  Product product;

  static IntegerProductPlan bind(const BindContext& c, const IntegerPlaces& at);
  IntegerScales scales(const BindContext& c, const IntegerPlaces& at) const {
    return IntegerScales::checked(c, at, QuantizationLines::bind(c, at.x_scale, rows, 2, c.shape(at.x), "a_scale"),
                                  QuantizationLines::bind(c, at.w_scale, columns, 1, c.shape(at.w), "b_scale"));
  }
};

struct IntegerConvolutionPlan {
  kernels::ConvParams params;
  QuantizationLines x_zeros, w_zeros;

  static IntegerConvolutionPlan bind(const BindContext& c, const IntegerPlaces& at, const ConvolutionInputs& inputs);
  IntegerScales scales(const BindContext& c, const IntegerPlaces& at) const {
    return IntegerScales::checked(c, at, QuantizationLines::bind(c, at.x_scale, 1, 0, c.shape(at.x), "x_scale"),
                                  QuantizationLines::bind(c, at.w_scale, params.M, 0, c.shape(at.w), "w_scale"));
  }
};

}  // namespace treadle::ops
