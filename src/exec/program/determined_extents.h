// Finds out which extents can be computed from the shapes of a run's feeds, before anything has run.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"

namespace treadle::exec {

/// Calls `fn` for every direct operand of the expression.
template <typename Fn>
void for_each_operand(const Expr& expr, Fn&& fn) {
  if (!expr.a.is_const()) fn(*expr.a.expr());
  if (!expr.b.is_const()) fn(*expr.b.expr());
  for (const Expr::Term& term : expr.terms)
    for (const Expr* factor : term.factors) fn(*factor);
}

/// Tells which extents are known when a run begins: the symbols in the shapes of its feeds, for a body also the symbols of the surrounding
/// run, and all expressions over these symbols.
class DeterminedExtents {
 public:
  /// @param graph  must outlive this object.
  /// @param outer_symbols  for the body of an If, Loop or Scan: indices of the symbols whose values the surrounding run knows.
  DeterminedExtents(const Graph& graph, std::span<const int32_t> outer_symbols);

  /// Returns true if the symbol's value is known when a run begins.
  bool knows(int32_t symbol) const { return symbols_.contains(symbol); }
  std::vector<int32_t> symbols() const { return {symbols_.begin(), symbols_.end()}; }
  bool has(const Dim& dim);
  /// Returns true if the value is a tensor whose extents are all determined.
  bool has_extents(const Type& type);
  /// Returns true if the elements are determined too. The binding computes such a value, so it needs no instruction.
  bool has_elements(const Value& value);

 private:
  std::set<int32_t> symbols_;
  std::unordered_map<int32_t, bool> found_;  // for each expression, by its index: true if it is determined
};

}  // namespace treadle::exec
