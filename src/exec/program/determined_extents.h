// Which extents the shapes of a run's feeds determine.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"

namespace treadle::exec {

/// Calls the function for every expression that this one is directly made of.
template <typename Fn>
void for_each_operand(const Expr& expr, Fn&& fn) {
  if (!expr.a.is_const()) fn(*expr.a.expr());
  if (!expr.b.is_const()) fn(*expr.b.expr());
  for (const Expr::Term& term : expr.terms)
    for (const Expr* factor : term.factors) fn(*factor);
}

/// What a run knows when it begins: the symbols that are extents of its feeds, in a body those of the run around it, and what follows from
/// these alone.
class DeterminedExtents {
 public:
  /// @param graph  outlives the object.
  /// @param outer_symbols  of a body: indices of the symbols whose values the run around it knows.
  DeterminedExtents(const Graph& graph, std::span<const int32_t> outer_symbols);

  /// Whether a run knows the symbol when it begins.
  bool knows(int32_t symbol) const { return symbols_.contains(symbol); }
  std::vector<int32_t> symbols() const { return {symbols_.begin(), symbols_.end()}; }
  bool has(const Dim& dim);
  /// Whether the value is a tensor all of whose extents are determined.
  bool has_extents(const Type& type);
  /// Whether the elements are determined, too. Such a value needs no instruction: it is written when binding.
  bool has_elements(const Value& value);

 private:
  std::set<int32_t> symbols_;
  std::unordered_map<int32_t, bool> found_;  // by the index of an expression
};

}  // namespace treadle::exec
