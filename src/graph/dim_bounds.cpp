#include "graph/dim_bounds.h"

#include <algorithm>

#include "core/base/checked.h"
#include "graph/infer.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using Zeros = std::vector<const Expr*>;

// Expressions share operands, so traversing them as trees may take exponential time. After this many visits, no bound is found.
constexpr int kMaxVisits = 1000;

// Returns true if `dim` is 0 whenever all expressions in `zeros` are 0.
bool vanishes(const Dim& dim, const Zeros& zeros, int& visits) {
  if (dim.is_const()) return dim.is_const(0);
  if (--visits < 0) return false;
  const Expr& e = *dim.expr();
  if (std::find(zeros.begin(), zeros.end(), &e) != zeros.end()) return true;
  switch (e.kind) {
    case Expr::Kind::sum:
      return std::all_of(e.terms.begin(), e.terms.end(), [&](const Expr::Term& term) {
        return std::any_of(term.factors.begin(), term.factors.end(),
                           [&](const Expr* factor) { return vanishes(Dim(factor), zeros, visits); });
      });
    case Expr::Kind::product:
    case Expr::Kind::minimum: return vanishes(e.a, zeros, visits) || vanishes(e.b, zeros, visits);
    case Expr::Kind::broadcast: return vanishes(e.a, zeros, visits) || vanishes(e.b, zeros, visits);  // 0 broadcasts only with 0 and 1
    case Expr::Kind::maximum: return vanishes(e.a, zeros, visits) && vanishes(e.b, zeros, visits);
    case Expr::Kind::floor_div:
    case Expr::Kind::modulo: return vanishes(e.a, zeros, visits);
    case Expr::Kind::symbol: break;
  }
  return false;
}

bool vanishes(const Dim& dim, const Zeros& zeros) {
  int visits = kMaxVisits;
  return vanishes(dim, zeros, visits);
}

}  // namespace

bool is_zero_with(const Dim& dim, const Dim& other) {
  if (is_nonnegative(other - Dim(1))) return true;  // `other` is never 0
  if (other.is_const()) return dim.is_const(0);
  const Expr& e = *other.expr();
  if (e.kind != Expr::Kind::sum) return vanishes(dim, {&e});
  Zeros all{&e};
  for (const Expr::Term& term : e.terms) {
    if (term.coefficient < 0) return vanishes(dim, {&e});
    if (term.factors.size() == 1) all.push_back(term.factors[0]);
  }
  if (e.terms.size() > 1) return vanishes(dim, all);
  // A product is 0 if any of its factors is.
  return std::all_of(e.terms[0].factors.begin(), e.terms[0].factors.end(), [&](const Expr* factor) { return vanishes(dim, {factor}); });
}

// Stores the bound as operand `a` of the symbol. Symbols have no other operands, and the bound's expression is in the table already.
Dim data_dependent_dim(InferContext& context, std::string_view hint, const Dim& most) {
  const Dim plain = context.data_dependent_dim(hint);
  Expr bounded = *plain.expr();
  bounded.a = most;
  return Dim(bounded.table->intern(std::move(bounded)));
}

std::optional<int64_t> UpperBounds::of(const Dim& dim) {
  try {
    if (const auto found = interval(dim)) return found->most;
  } catch (const Error&) {  // the bound exceeds 64 bits
  }
  return std::nullopt;
}

std::optional<UpperBounds::Interval> UpperBounds::interval(const Dim& dim) {
  if (dim.is_const()) return Interval{dim.value(), dim.value()};
  if (auto found = known_.find(dim.expr()->index); found != known_.end()) return found->second;
  // Computes operands before expressions, because compute() looks them up. Not recursive, because expressions may be as deep as the graph.
  std::vector<const Expr*> open{dim.expr()};
  while (!open.empty()) {
    const Expr& expr = *open.back();
    const size_t before = open.size();
    auto want = [&](const Dim& operand) {
      if (!operand.is_const() && !known_.contains(operand.expr()->index)) open.push_back(operand.expr());
    };
    want(expr.a), want(expr.b);
    for (const Expr::Term& term : expr.terms)
      for (const Expr* factor : term.factors) want(Dim(factor));
    if (open.size() > before) continue;
    if (!known_.contains(expr.index)) known_.emplace(expr.index, compute(expr));
    open.pop_back();
  }
  return known_.at(dim.expr()->index);
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
