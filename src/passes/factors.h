// Products as exporters spell them, taken apart: x * 0.5 * y, (x / 2) * y and x * (y * 0.5) have the same factors.
#pragma once

#include <optional>
#include <vector>

#include "graph/graph.h"

namespace treadle::passes {

/// constant * values[0] * values[1] ...
struct Factors {
  double constant = 1;
  std::vector<ValueId> values;  // in the order of the graph; a value may come twice

  /// True if `x` is a factor; takes it out, once.
  bool take(ValueId x);
};

/// The number of a float32 constant of one element.
std::optional<double> scalar_constant(const Graph& graph, ValueId id);

/// The factors of a value: through Mul, division by constants, and Pow with the exponents 2 and 3, for a few levels. Constants are those of
/// one element.
Factors factors_of(const Graph& graph, ValueId id);

/// The other addend of `id` = Add(addend, other) where one is a constant near `number`; kNoValue if it is none.
ValueId added_to_constant(const Graph& graph, ValueId id, double number);

/// Equal to about the precision with which exporters write constants such as sqrt(2 / pi).
bool is_near(double a, double b);

}  // namespace treadle::passes
