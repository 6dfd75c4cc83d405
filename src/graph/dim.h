// Symbolic extents: integers, or expressions of symbols such as `past + seq` or `floor((h - 1) / 2) + 1`.
#pragma once

#include <concepts>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace treadle {

class SymbolTable;
struct Expr;

/// An extent or another small integer: a constant or an interned expression. Equal expressions are the same object. So `==` is exact for
/// sums of products. For other kinds (floor division, broadcast, maximum), it may consider equal values different.
class Dim {
 public:
  template <std::integral T>
  Dim(T value) : value_(static_cast<int64_t>(value)) {}  // NOLINT(google-explicit-constructor): an integer is an extent
  Dim() = default;
  explicit Dim(const Expr* expr) : expr_(expr) {}

  bool is_const() const noexcept { return expr_ == nullptr; }
  bool is_const(int64_t value) const noexcept { return !expr_ && value_ == value; }
  int64_t value() const noexcept { return value_; }
  const Expr* expr() const noexcept { return expr_; }
  /// Returns true if the value is only known while the graph runs (e.g. the number of boxes that NonMaxSuppression keeps).
  bool data_dependent() const noexcept;

  bool operator==(const Dim& other) const noexcept { return expr_ == other.expr_ && value_ == other.value_; }

 private:
  const Expr* expr_ = nullptr;
  int64_t value_ = 0;
};

/// An interned expression. Its operands have smaller indices, so expressions can be evaluated in the order of their indices.
struct Expr {
  enum class Kind : uint8_t { symbol, sum, product, floor_div, modulo, maximum, minimum, broadcast };
  struct Term {
    int64_t coefficient;
    std::vector<const Expr*> factors;  // sorted by index; empty for the constant term
    bool operator==(const Term&) const = default;
  };

  Kind kind;
  bool data_dependent;
  int32_t index;  // index in the table
  SymbolTable* table;
  std::string symbol;       // for kind symbol: its name
  std::vector<Term> terms;  // for kind sum: a polynomial; its factors are expressions of other kinds
  Dim a, b;                 // for all other kinds: the operands
};

/// Sums and products are normalized to polynomials; for example, `(64 * s) / 64` becomes `s`. @throws Error(resource_exhausted) on overflow
Dim operator+(const Dim& a, const Dim& b);
Dim operator-(const Dim& a, const Dim& b);
Dim operator*(const Dim& a, const Dim& b);
/// Divides and rounds towards negative infinity. @throws Error(invalid_argument) if the divisor is the constant 0
Dim floor_div(const Dim& a, const Dim& b);
Dim ceil_div(const Dim& a, const Dim& b);
Dim modulo(const Dim& a, const Dim& b);
Dim maximum(const Dim& a, const Dim& b);
Dim minimum(const Dim& a, const Dim& b);
/// Returns the broadcast extent. @throws Error(invalid_argument) for two different constants other than 1
Dim broadcast(const Dim& a, const Dim& b);

/// Returns true if the value is provably nonnegative. Symbols count as nonnegative, because they are extents.
bool is_nonnegative(const Dim& dim);

std::string to_string(const Dim& dim);

/// Owns the expressions of a graph and its bodies.
class SymbolTable {
 public:
  SymbolTable() = default;
  SymbolTable(const SymbolTable&) = delete;
  SymbolTable& operator=(const SymbolTable&) = delete;

  /// Returns the symbol of this name, creating it if needed.
  Dim symbol(std::string_view name);
  /// Returns a new symbol, named `hint#N`, which is equal to no other symbol.
  Dim fresh_symbol(std::string_view hint, bool data_dependent);

  size_t size() const noexcept { return exprs_.size(); }
  const Expr& operator[](size_t index) const { return exprs_[index]; }

  /// Evaluates the expressions with these indices, which must be ascending. `values` has one element per expression of the table; it
  /// contains the values of the symbols and receives the results.
  /// @throws Error(invalid_argument) if an expression cannot be evaluated (extents that do not broadcast, or division by zero)
  void evaluate(std::span<const int32_t> indices, std::span<int64_t> values) const;

  const Expr* intern(Expr expr);

  /// Counts one unit of inference work. Each inference of a node infers its bodies again, so nested bodies multiply the work.
  /// @throws Error(resource_exhausted) beyond kMaxInferences, because a small model must not keep loading forever
  void charge_inference();

 private:
  static constexpr int64_t kMaxInferences = 20'000'000;
  int64_t num_inferences_ = 0;
  std::deque<Expr> exprs_;
  std::unordered_multimap<size_t, const Expr*> by_hash_;
  std::unordered_map<std::string, const Expr*> symbols_;
};

/// Returns the value of `dim` for values filled in by SymbolTable::evaluate().
inline int64_t evaluate(const Dim& dim, std::span<const int64_t> values) {
  return dim.is_const() ? dim.value() : values[static_cast<size_t>(dim.expr()->index)];
}

}  // namespace treadle
