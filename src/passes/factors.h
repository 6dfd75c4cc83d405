// Finds the factors of products in the forms that exporters write: x * 0.5 * y, (x / 2) * y and x * (y * 0.5) have the same factors.
#pragma once

#include <optional>
#include <vector>

#include "graph/graph.h"

namespace treadle::passes {

/// The factors of a product: constant * values[0] * values[1] ...
struct Factors {
  double constant = 1;
  std::vector<ValueId> values;  // in the order of the graph; a value may occur several times

  /// Removes one occurrence of `x` from the values. Returns false if there is none.
  bool take(ValueId x);
};

/// Returns the value of a float32 constant of one element.
std::optional<double> scalar_constant(const Graph& graph, ValueId id);

/// Returns the factors of a value. Follows Mul, division by constants, and Pow with the exponents 2 and 3, up to a few levels deep. Only
/// constants of one element count as constants.
Factors factors_of(const Graph& graph, ValueId id);

/// If `id` is an Add of a value and a constant close to `number`, returns the value; otherwise kNoValue.
ValueId added_to_constant(const Graph& graph, ValueId id, double number);

/// Returns true if the numbers are equal within the precision with which exporters write constants such as sqrt(2 / pi).
bool is_near(double a, double b);

}  // namespace treadle::passes
