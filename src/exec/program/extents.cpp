#include "exec/program/extents.h"

#include <algorithm>

#include "core/base/checked.h"

namespace treadle::exec {

void ExtentCode::compile(const SymbolTable& table, std::span<const int32_t> indices) {
  auto operand = [](const Dim& dim) { return Operand{dim.is_const() ? -1 : dim.expr()->index, dim.value()}; };
  for (int32_t index : indices) {
    const Expr& expr = table[static_cast<size_t>(index)];
    if (expr.kind == Expr::Kind::symbol) continue;
    Step step{&expr,
              expr.kind,
              index,
              operand(expr.a),
              operand(expr.b),
              static_cast<uint32_t>(terms_.size()),
              static_cast<uint32_t>(expr.terms.size())};
    for (const Expr::Term& term : expr.terms) {
      terms_.push_back({term.coefficient, static_cast<uint32_t>(factors_.size()), static_cast<uint32_t>(term.factors.size())});
      for (const Expr* factor : term.factors) factors_.push_back(factor->index);
    }
    steps_.push_back(step);
  }
}

void ExtentCode::run(std::span<int64_t> values) const {
  for (const Step& step : steps_) {
    int64_t& target = values[static_cast<size_t>(step.target)];
    if (step.kind == Expr::Kind::sum) {
      int64_t sum = 0;
      for (uint32_t t = step.first_term; t < step.first_term + step.num_terms; ++t) {
        int64_t product = terms_[t].coefficient;
        for (uint32_t f = 0; f < terms_[t].num_factors; ++f)
          product = checked_mul(product, values[static_cast<size_t>(factors_[terms_[t].first_factor + f])]);
        sum = checked_add(sum, product);
      }
      target = sum;
      continue;
    }
    int64_t a = step.a.get(values), b = step.b.get(values);
    switch (step.kind) {
      case Expr::Kind::product: target = checked_mul(a, b); break;
      case Expr::Kind::maximum: target = std::max(a, b); break;
      case Expr::Kind::minimum: target = std::min(a, b); break;
      case Expr::Kind::floor_div:
      case Expr::Kind::modulo:
        if (b == 0) throw Error(ErrorCode::invalid_argument, "the extent " + to_string(Dim(step.expr)) + " divides by zero");
        target = step.kind == Expr::Kind::floor_div ? floor_div(Dim(a), Dim(b)).value() : modulo(Dim(a), Dim(b)).value();
        break;
      case Expr::Kind::broadcast:
        if (a != b && a != 1 && b != 1)
          throw Error(ErrorCode::invalid_argument, "extents " + to_string(step.expr->a) + " = " + std::to_string(a) + " and " +
                                                       to_string(step.expr->b) + " = " + std::to_string(b) + " do not broadcast");
        target = a == 1 ? b : a;
        break;
      default: break;
    }
  }
}

}  // namespace treadle::exec
