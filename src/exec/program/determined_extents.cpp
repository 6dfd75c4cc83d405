#include "exec/program/determined_extents.h"

#include <algorithm>

namespace treadle::exec {

DeterminedExtents::DeterminedExtents(const Graph& graph, std::span<const int32_t> outer_symbols)
    : symbols_(outer_symbols.begin(), outer_symbols.end()) {
  for (ValueId input : graph.inputs) {
    const Type& type = graph.type(input);
    if (!type.is_tensor() || !type.shape) continue;
    for (const Dim& dim : *type.shape)
      if (!dim.is_const() && dim.expr()->kind == Expr::Kind::symbol && !dim.data_dependent()) symbols_.insert(dim.expr()->index);
  }
}

// Uses an explicit stack: expressions may be as deep as the graph, too deep for recursion.
bool DeterminedExtents::has(const Dim& dim) {
  if (dim.is_const()) return true;
  if (const auto found = found_.find(dim.expr()->index); found != found_.end()) return found->second;
  std::vector<const Expr*> open{dim.expr()};
  while (!open.empty()) {
    const Expr& expr = *open.back();
    const size_t before = open.size();
    bool result = !expr.data_dependent;
    if (result && expr.kind == Expr::Kind::symbol) {
      result = symbols_.contains(expr.index);
    } else if (result) {
      for_each_operand(expr, [&](const Expr& operand) {
        const auto found = found_.find(operand.index);
        if (found == found_.end()) open.push_back(&operand);
        result = result && found != found_.end() && found->second;
      });
    }
    if (open.size() > before) continue;
    found_[expr.index] = result;
    open.pop_back();
  }
  return found_[dim.expr()->index];
}

bool DeterminedExtents::has_extents(const Type& type) {
  return type.is_tensor() && type.dtype != DType::undefined && type.has_rank() &&
         std::all_of(type.shape->begin(), type.shape->end(), [&](const Dim& dim) { return has(dim); });
}

bool DeterminedExtents::has_elements(const Value& value) {
  if (value.is_constant() || value.kind == Value::Kind::parameter || !value.known || !has_extents(value.type)) return false;
  if (value.type.dtype != DType::int64 && value.type.dtype != DType::int32) return false;
  if (!value.type.is_static() || value.type.static_shape().num_elements() != static_cast<int64_t>(value.known->size())) return false;
  return std::all_of(value.known->begin(), value.known->end(), [&](const Dim& dim) { return has(dim); });
}

}  // namespace treadle::exec
