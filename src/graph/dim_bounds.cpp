#include "graph/dim_bounds.h"

#include <algorithm>

#include "core/checked.h"
#include "graph/infer.h"
#include "treadle/error.h"

namespace treadle {

// The bound is the symbol's operand: it is of the table already, and symbols have no other use for one.
Dim data_dependent_dim(InferContext& context, std::string_view hint, const Dim& most) {
  const Dim plain = context.data_dependent_dim(hint);
  Expr bounded = *plain.expr();
  bounded.a = most;
  return Dim(bounded.table->intern(std::move(bounded)));
}

std::optional<int64_t> UpperBounds::of(const Dim& dim) {
  try {
    if (const auto found = interval(dim)) return found->most;
  } catch (const Error&) {  // beyond 64 bits
  }
  return std::nullopt;
}

std::optional<UpperBounds::Interval> UpperBounds::interval(const Dim& dim) {
  if (dim.is_const()) return Interval{dim.value(), dim.value()};
  if (auto found = known_.find(dim.expr()->index); found != known_.end()) return found->second;
  const auto result = compute(*dim.expr());
  known_.emplace(dim.expr()->index, result);
  return result;
}

std::optional<UpperBounds::Interval> UpperBounds::compute(const Expr& expr) {
  auto multiplied = [](const Interval& x, const Interval& y) {
    const auto [least, most] = std::minmax(
        {checked_mul(x.least, y.least), checked_mul(x.least, y.most), checked_mul(x.most, y.least), checked_mul(x.most, y.most)});
    return Interval{least, most};
  };
  if (expr.kind == Expr::Kind::symbol) {
    if (expr.data_dependent) {
      if (expr.a.is_const(0)) return std::nullopt;
      const auto most = interval(expr.a);
      return most ? std::optional(Interval{0, std::max<int64_t>(0, most->most)}) : std::nullopt;
    }
    const auto index = static_cast<size_t>(expr.index);
    if (index >= values_.size() || values_[index] < 0) return std::nullopt;
    return Interval{values_[index], values_[index]};
  }
  if (expr.kind == Expr::Kind::sum) {
    Interval total{0, 0};
    for (const Expr::Term& term : expr.terms) {
      Interval product{term.coefficient, term.coefficient};
      for (const Expr* factor : term.factors) {
        const auto own = interval(Dim(factor));
        if (!own) return std::nullopt;
        product = multiplied(product, *own);
      }
      total = {checked_add(total.least, product.least), checked_add(total.most, product.most)};
    }
    return total;
  }
  const auto a = interval(expr.a), b = interval(expr.b);
  if (!a || !b) return std::nullopt;
  auto floor_of = [](int64_t x, int64_t y) { return x >= 0 ? x / y : -((-x + y - 1) / y); };
  switch (expr.kind) {
    case Expr::Kind::product: return multiplied(*a, *b);
    case Expr::Kind::floor_div: {
      if (b->least < 1) return std::nullopt;
      const auto [least, most] =
          std::minmax({floor_of(a->least, b->least), floor_of(a->least, b->most), floor_of(a->most, b->least), floor_of(a->most, b->most)});
      return Interval{least, most};
    }
    case Expr::Kind::modulo: return b->least < 1 ? std::nullopt : std::optional(Interval{0, b->most - 1});
    case Expr::Kind::maximum: return Interval{std::max(a->least, b->least), std::max(a->most, b->most)};
    case Expr::Kind::minimum: return Interval{std::min(a->least, b->least), std::min(a->most, b->most)};
    case Expr::Kind::broadcast: return Interval{std::min(a->least, b->least), std::max(a->most, b->most)};
    case Expr::Kind::symbol:
    case Expr::Kind::sum: break;
  }
  return std::nullopt;
}

}  // namespace treadle
