#include "graph/dim.h"

#include <algorithm>
#include <optional>

#include "core/base/checked.h"

namespace treadle {
namespace {

using Term = Expr::Term;
using Polynomial = std::vector<Term>;

// A product of two sums with more terms than this is not expanded. Otherwise polynomials of hostile models could grow without bound.
constexpr size_t kMaxTerms = 24;
constexpr size_t kMaxFactors = 16;
// A sum with more terms is not expanded within another sum. Otherwise the partial sums of n extents would have n * n / 2 terms in total.
constexpr size_t kMaxOpenTerms = 64;
// Expressions share operands, so a traversal that treats them as trees may take exponential time. Traversals therefore stop after this many
// visits, and texts are cut.
constexpr int kMaxVisits = 1000;
constexpr size_t kMaxText = 1000;

bool factors_less(const std::vector<const Expr*>& a, const std::vector<const Expr*>& b) {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(), [](auto* x, auto* y) { return x->index < y->index; });
}

Polynomial to_polynomial(const Dim& dim) {
  if (dim.is_const()) return dim.value() == 0 ? Polynomial{} : Polynomial{{dim.value(), {}}};
  if (dim.expr()->kind == Expr::Kind::sum && dim.expr()->terms.size() <= kMaxOpenTerms) return dim.expr()->terms;
  return {{1, {dim.expr()}}};
}

void normalize(Polynomial& polynomial) {
  std::sort(polynomial.begin(), polynomial.end(), [](const Term& a, const Term& b) { return factors_less(a.factors, b.factors); });
  Polynomial merged;
  for (Term& term : polynomial) {
    if (!merged.empty() && merged.back().factors == term.factors)
      merged.back().coefficient = checked_add(merged.back().coefficient, term.coefficient);
    else
      merged.push_back(std::move(term));
  }
  std::erase_if(merged, [](const Term& term) { return term.coefficient == 0; });
  polynomial = std::move(merged);
}

SymbolTable* table_of(const Dim& a, const Dim& b) { return a.expr() ? a.expr()->table : b.expr() ? b.expr()->table : nullptr; }

Dim from_normalized(Polynomial polynomial, SymbolTable* table) {
  if (polynomial.empty()) return 0;
  if (polynomial.size() == 1) {
    const Term& term = polynomial[0];
    if (term.factors.empty()) return term.coefficient;
    if (term.coefficient == 1 && term.factors.size() == 1) return Dim(term.factors[0]);
  }
  bool data_dependent = false;
  for (const Term& term : polynomial)
    for (const Expr* factor : term.factors) data_dependent |= factor->data_dependent;
  return Dim(table->intern({Expr::Kind::sum, data_dependent, 0, table, {}, std::move(polynomial), {}, {}}));
}

Dim from_polynomial(Polynomial polynomial, SymbolTable* table) {
  normalize(polynomial);
  return from_normalized(std::move(polynomial), table);
}

// Returns dim + by. Keeps the constant term first.
Dim shifted(const Dim& dim, int64_t by) {
  if (by == 0) return dim;
  Polynomial terms = to_polynomial(dim);
  if (!terms.front().factors.empty())
    terms.insert(terms.begin(), Term{by, {}});
  else if (terms.front().coefficient = checked_add(terms.front().coefficient, by); terms.front().coefficient == 0)
    terms.erase(terms.begin());
  return from_normalized(std::move(terms), dim.expr()->table);
}

// Returns dim * by. Keeps the order of the terms.
Dim multiple(const Dim& dim, int64_t by) {
  Polynomial terms = to_polynomial(dim);
  for (Term& term : terms) term.coefficient = checked_mul(term.coefficient, by);
  const Expr& expr = *dim.expr();
  if (terms.size() == 1 && terms[0].coefficient == 1 && terms[0].factors.size() == 1) return Dim(terms[0].factors[0]);
  return Dim(expr.table->intern({Expr::Kind::sum, expr.data_dependent, 0, expr.table, {}, std::move(terms), {}, {}}));
}

Dim opaque(Expr::Kind kind, const Dim& a, const Dim& b) {
  SymbolTable* table = table_of(a, b);
  return Dim(table->intern({kind, a.data_dependent() || b.data_dependent(), 0, table, {}, {}, a, b}));
}

// For commutative operators: puts the operands in a fixed order, so that equal expressions become the same interned object.
Dim commutative(Expr::Kind kind, Dim a, Dim b) {
  auto key = [](const Dim& dim) { return dim.is_const() ? int64_t{-1} : int64_t{dim.expr()->index}; };
  if (key(b) < key(a)) std::swap(a, b);
  return opaque(kind, a, b);
}

// Returns p / divisor (a monomial) if the division leaves no remainder in any term.
std::optional<Polynomial> divide_exactly(const Polynomial& p, const Term& divisor) {
  Polynomial quotient;
  for (const Term& term : p) {
    if (term.coefficient % divisor.coefficient != 0) return std::nullopt;
    Term result{term.coefficient / divisor.coefficient, term.factors};
    for (const Expr* factor : divisor.factors) {
      auto found = std::find(result.factors.begin(), result.factors.end(), factor);
      if (found == result.factors.end()) return std::nullopt;
      result.factors.erase(found);
    }
    quotient.push_back(std::move(result));
  }
  return quotient;
}

// The hashed pointers have regular distances. Unless every bit affects every bit of the hash, hashes of long chains collide.
size_t mix(size_t seed, size_t value) {
  uint64_t hash = (uint64_t{seed} ^ uint64_t{value}) * 0x9e3779b97f4a7c15U;
  hash = (hash ^ hash >> 32U) * 0xd6e8feb86659fd93U;
  return static_cast<size_t>(hash ^ hash >> 32U);
}

size_t hash_of(const Dim& dim) { return dim.is_const() ? std::hash<int64_t>()(dim.value()) : std::hash<const void*>()(dim.expr()); }

size_t hash_of(const Expr& expr) {
  size_t hash = static_cast<size_t>(expr.kind);
  for (const Term& term : expr.terms) {
    hash = mix(hash, std::hash<int64_t>()(term.coefficient));
    for (const Expr* factor : term.factors) hash = mix(hash, std::hash<const void*>()(factor));
  }
  return mix(mix(hash, hash_of(expr.a)), hash_of(expr.b));
}

}  // namespace

bool Dim::data_dependent() const noexcept { return expr_ && expr_->data_dependent; }

Dim operator+(const Dim& a, const Dim& b) {
  if (a.is_const() && b.is_const()) return checked_add(a.value(), b.value());
  if (a.is_const() || b.is_const()) return shifted(a.is_const() ? b : a, a.is_const() ? a.value() : b.value());
  Polynomial sum = to_polynomial(a);
  for (Term& term : to_polynomial(b)) sum.push_back(std::move(term));
  return from_polynomial(std::move(sum), table_of(a, b));
}

Dim operator-(const Dim& a, const Dim& b) { return a + b * Dim(int64_t{-1}); }

Dim operator*(const Dim& a, const Dim& b) {
  if (a.is_const() && b.is_const()) return checked_mul(a.value(), b.value());
  if (a.is_const(1)) return b;
  if (b.is_const(1)) return a;
  if (a.is_const(0) || b.is_const(0)) return 0;
  if (a.is_const() || b.is_const()) return multiple(a.is_const() ? b : a, a.is_const() ? a.value() : b.value());
  Polynomial left = to_polynomial(a), right = to_polynomial(b), product;
  if (left.size() * right.size() > kMaxTerms) return commutative(Expr::Kind::product, a, b);
  for (const Term& x : left) {
    for (const Term& y : right) {
      if (x.factors.size() + y.factors.size() > kMaxFactors) return commutative(Expr::Kind::product, a, b);
      Term term{checked_mul(x.coefficient, y.coefficient), x.factors};
      term.factors.insert(term.factors.end(), y.factors.begin(), y.factors.end());
      std::sort(term.factors.begin(), term.factors.end(), [](auto* p, auto* q) { return p->index < q->index; });
      product.push_back(std::move(term));
    }
  }
  return from_polynomial(std::move(product), table_of(a, b));
}

Dim floor_div(const Dim& a, const Dim& b) {
  if (b.is_const(0)) throw Error(ErrorCode::invalid_argument, "division of the extent " + to_string(a) + " by zero");
  if (a.is_const() && b.is_const()) {
    if (b.value() > 0) return floor_div(a.value(), b.value());
    return floor_div(-a.value(), -b.value());
  }
  if (b.is_const(1) || a.is_const(0)) return b.is_const(1) ? a : Dim(int64_t{0});
  if (a == b) return 1;
  Polynomial dividend = to_polynomial(a), divisor = to_polynomial(b);
  if (divisor.size() == 1)
    if (auto quotient = divide_exactly(dividend, divisor[0])) return from_polynomial(std::move(*quotient), table_of(a, b));
  if (b.is_const() && b.value() > 0) {
    // floor((b * p + r) / b) = p + floor(r / b). Splitting off the multiples of b gives equal extents equal expressions.
    Polynomial whole, rest;
    for (const Term& term : dividend) {
      int64_t quotient = treadle::floor_div(term.coefficient, b.value());
      if (quotient != 0) whole.push_back({quotient, term.factors});
      if (int64_t r = term.coefficient - quotient * b.value(); r != 0) rest.push_back({r, term.factors});
    }
    if (!whole.empty()) {
      Dim remainder = from_polynomial(std::move(rest), table_of(a, b));
      return from_polynomial(std::move(whole), table_of(a, b)) + floor_div(remainder, b);
    }
  }
  return opaque(Expr::Kind::floor_div, a, b);
}

Dim ceil_div(const Dim& a, const Dim& b) {
  if (a.is_const() && b.is_const() && b.value() > 0) return ceil_div(a.value(), b.value());
  return floor_div(a + b - Dim(int64_t{1}), b);
}

Dim modulo(const Dim& a, const Dim& b) {
  if (a.is_const() && b.is_const() && b.value() != 0) return a.value() - floor_div(a, b).value() * b.value();
  return opaque(Expr::Kind::modulo, a, b);
}

Dim maximum(const Dim& a, const Dim& b) {
  if (a.is_const() && b.is_const()) return std::max(a.value(), b.value());
  return a == b ? a : commutative(Expr::Kind::maximum, a, b);
}

Dim minimum(const Dim& a, const Dim& b) {
  if (a.is_const() && b.is_const()) return std::min(a.value(), b.value());
  return a == b ? a : commutative(Expr::Kind::minimum, a, b);
}

namespace {

// Returns true if `dim` is a broadcast of `part` with other extents. Then broadcasting `dim` with `part` again changes nothing.
bool is_broadcast_of(const Dim& dim, const Dim& part, int& visits) {
  if (dim == part) return true;
  if (dim.is_const() || dim.expr()->kind != Expr::Kind::broadcast || --visits < 0) return false;
  return is_broadcast_of(dim.expr()->a, part, visits) || is_broadcast_of(dim.expr()->b, part, visits);
}
bool is_broadcast_of(const Dim& dim, const Dim& part) {
  int visits = kMaxVisits;
  return is_broadcast_of(dim, part, visits);
}

}  // namespace

Dim broadcast(const Dim& a, const Dim& b) {
  if (b.is_const(1) || is_broadcast_of(a, b)) return a;
  if (a.is_const(1) || is_broadcast_of(b, a)) return b;
  if (a.is_const() && b.is_const())
    throw Error(ErrorCode::invalid_argument, "extents " + to_string(a) + " and " + to_string(b) + " do not broadcast");
  // A constant other than 1 is the result, because the other extent must be 1 or equal to it.
  if (a.is_const()) return a;
  if (b.is_const()) return b;
  return commutative(Expr::Kind::broadcast, a, b);
}

namespace {

bool is_nonnegative(const Dim& dim, int& visits) {
  if (dim.is_const()) return dim.value() >= 0;
  if (--visits < 0) return false;
  const Expr& e = *dim.expr();
  switch (e.kind) {
    case Expr::Kind::symbol: return true;
    case Expr::Kind::sum:
      for (const Expr::Term& term : e.terms) {
        if (term.coefficient < 0) return false;
        for (const Expr* factor : term.factors)
          if (!is_nonnegative(Dim(factor), visits)) return false;
      }
      return true;
    case Expr::Kind::product:
    case Expr::Kind::minimum:
    case Expr::Kind::broadcast: return is_nonnegative(e.a, visits) && is_nonnegative(e.b, visits);
    case Expr::Kind::maximum: return is_nonnegative(e.a, visits) || is_nonnegative(e.b, visits);
    case Expr::Kind::floor_div: return is_nonnegative(e.a, visits) && is_nonnegative(e.b, visits);
    case Expr::Kind::modulo: return is_nonnegative(e.b, visits);
  }
  return false;
}

// Formats an expression as text; long texts are cut.
class DimText {
 public:
  std::string of(const Dim& dim) {
    add(dim);
    if (is_full()) text_ += "...";
    return std::move(text_);
  }

 private:
  bool is_full() const { return text_.size() > kMaxText; }

  void add(const Dim& dim) {
    if (is_full()) return;
    if (dim.is_const()) {
      text_ += std::to_string(dim.value());
      return;
    }
    const Expr& e = *dim.expr();
    switch (e.kind) {
      case Expr::Kind::symbol: text_ += e.symbol; break;
      case Expr::Kind::product: add_operands(e, "(", ")*("); break;
      case Expr::Kind::floor_div: add_operands(e, "floor_div(", ", "); break;
      case Expr::Kind::modulo: add_operands(e, "mod(", ", "); break;
      case Expr::Kind::maximum: add_operands(e, "max(", ", "); break;
      case Expr::Kind::minimum: add_operands(e, "min(", ", "); break;
      case Expr::Kind::broadcast: add_operands(e, "broadcast(", ", "); break;
      case Expr::Kind::sum: add_sum(e); break;
    }
  }

  void add_operands(const Expr& e, std::string_view before, std::string_view between) {
    text_ += before;
    add(e.a);
    text_ += between;
    add(e.b);
    text_ += ')';
  }

  void add_sum(const Expr& e) {
    // The constant term is stored first, but reads better last.
    std::vector<const Term*> terms;
    for (const Term& term : e.terms) terms.push_back(&term);
    std::stable_partition(terms.begin(), terms.end(), [](const Term* term) { return !term->factors.empty(); });
    bool first = true;
    for (const Term* term : terms) {
      if (is_full()) return;
      const int64_t c = term->coefficient;
      text_ += first ? (c < 0 ? "-" : "") : (c < 0 ? " - " : " + ");
      first = false;
      const bool is_plain = (c == 1 || c == -1) && !term->factors.empty();
      if (!is_plain) text_ += std::to_string(c < 0 ? 0 - static_cast<uint64_t>(c) : static_cast<uint64_t>(c));
      add_factors(*term, is_plain);
    }
  }

  void add_factors(const Term& term, bool is_first) {
    for (const Expr* factor : term.factors) {
      if (!is_first) text_ += '*';
      is_first = false;
      const bool is_sum = factor->kind == Expr::Kind::sum;  // a sum that was too long to expand
      if (is_sum) text_ += '(';
      add(Dim(factor));
      if (is_sum) text_ += ')';
    }
  }

  std::string text_;
};

}  // namespace

bool is_nonnegative(const Dim& dim) {
  int visits = kMaxVisits;
  return is_nonnegative(dim, visits);
}

std::string to_string(const Dim& dim) { return DimText().of(dim); }

// Named symbols are looked up in a separate map, because a model may use a name that inference has generated for a fresh symbol.
Dim SymbolTable::symbol(std::string_view name) {
  auto [found, inserted] = symbols_.try_emplace(std::string(name), nullptr);
  if (inserted) {
    exprs_.push_back({Expr::Kind::symbol, false, static_cast<int32_t>(exprs_.size()), this, std::string(name), {}, {}, {}});
    found->second = &exprs_.back();
  }
  return Dim(found->second);
}

Dim SymbolTable::fresh_symbol(std::string_view hint, bool data_dependent) {
  std::string name = std::string(hint) + "#" + std::to_string(exprs_.size());
  exprs_.push_back({Expr::Kind::symbol, data_dependent, static_cast<int32_t>(exprs_.size()), this, std::move(name), {}, {}, {}});
  return Dim(&exprs_.back());
}

const Expr* SymbolTable::intern(Expr expr) {
  auto add = [&] {
    expr.index = static_cast<int32_t>(exprs_.size());
    exprs_.push_back(std::move(expr));
    return &exprs_.back();
  };
  if (expr.kind == Expr::Kind::symbol) return add();
  const size_t hash = hash_of(expr);
  auto [first, last] = by_hash_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    const Expr& other = *it->second;
    if (other.kind == expr.kind && other.a == expr.a && other.b == expr.b && other.terms == expr.terms) return &other;
  }
  return by_hash_.emplace(hash, add())->second;
}

void SymbolTable::charge_inference() {
  if (++num_inferences_ > kMaxInferences)
    throw Error(ErrorCode::resource_exhausted,
                "shape inference of the nested bodies takes more than " + std::to_string(kMaxInferences) + " steps");
}

void SymbolTable::evaluate(std::span<const int32_t> indices, std::span<int64_t> values) const {
  for (int32_t index : indices) {
    auto i = static_cast<size_t>(index);
    const Expr& e = exprs_[i];
    if (e.kind == Expr::Kind::symbol) continue;
    if (e.kind == Expr::Kind::sum) {
      int64_t sum = 0;
      for (const Term& term : e.terms) {
        int64_t product = term.coefficient;
        for (const Expr* factor : term.factors) product = checked_mul(product, values[static_cast<size_t>(factor->index)]);
        sum = checked_add(sum, product);
      }
      values[i] = sum;
      continue;
    }
    int64_t a = treadle::evaluate(e.a, values), b = treadle::evaluate(e.b, values);
    switch (e.kind) {
      case Expr::Kind::product: values[i] = checked_mul(a, b); break;
      case Expr::Kind::floor_div:
      case Expr::Kind::modulo:
        if (b == 0) throw Error(ErrorCode::invalid_argument, "the extent " + to_string(Dim(&e)) + " divides by zero");
        values[i] = e.kind == Expr::Kind::floor_div ? floor_div(Dim(a), Dim(b)).value() : modulo(Dim(a), Dim(b)).value();
        break;
      case Expr::Kind::maximum: values[i] = std::max(a, b); break;
      case Expr::Kind::minimum: values[i] = std::min(a, b); break;
      case Expr::Kind::broadcast:
        if (a != b && a != 1 && b != 1)
          throw Error(ErrorCode::invalid_argument, "extents " + to_string(e.a) + " = " + std::to_string(a) + " and " + to_string(e.b) +
                                                       " = " + std::to_string(b) + " do not broadcast");
        values[i] = a == 1 ? b : a;
        break;
      default: break;
    }
  }
}

}  // namespace treadle
