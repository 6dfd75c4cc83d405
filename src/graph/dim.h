// Symbolic extents: an integer, or an expression of symbols such as `past + seq` or `floor((h - 1) / 2) + 1`.
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

/// An extent or any other small integer: a constant, or an interned expression. Equal expressions are the same object, so that `==` is
/// exact for sums of products and conservative for the rest (floor division, broadcast, maximum).
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
  /// True if the value is known only while the graph runs (the number of boxes that NonMaxSuppression keeps).
  bool data_dependent() const noexcept;

  bool operator==(const Dim& other) const noexcept { return expr_ == other.expr_ && value_ == other.value_; }

 private:
  const Expr* expr_ = nullptr;
  int64_t value_ = 0;
};

/// An interned expression. Its operands have smaller indices, so the order of indices is an order of evaluation.
struct Expr {
  enum class Kind : uint8_t { symbol, sum, product, floor_div, modulo, maximum, minimum, broadcast };
  struct Term {
    int64_t coefficient;
    std::vector<const Expr*> factors;  // sorted by index; empty for the constant term
    bool operator==(const Term&) const = default;
  };

  Kind kind;
  bool data_dependent;
  int32_t index;  // in the table
  SymbolTable* table;
  std::string symbol;       // symbol
  std::vector<Term> terms;  // sum: a polynomial over the other kinds
  Dim a, b;                 // the rest
};

/// Sums and products are kept as polynomials, so that `(64 * s) / 64` is `s`. @throws Error(resource_exhausted) on overflow.
Dim operator+(const Dim& a, const Dim& b);
Dim operator-(const Dim& a, const Dim& b);
Dim operator*(const Dim& a, const Dim& b);
/// @throws Error(invalid_argument) for a constant divisor of zero.
Dim floor_div(const Dim& a, const Dim& b);
Dim ceil_div(const Dim& a, const Dim& b);
Dim modulo(const Dim& a, const Dim& b);
Dim maximum(const Dim& a, const Dim& b);
Dim minimum(const Dim& a, const Dim& b);
/// The extent that broadcasting gives. @throws Error(invalid_argument) for two constants that differ and are not 1.
Dim broadcast(const Dim& a, const Dim& b);

/// True if it can be told that the value is not negative; symbols are extents, which are not.
bool is_nonnegative(const Dim& dim);

std::string to_string(const Dim& dim);

/// Owns the expressions of a graph and its bodies.
class SymbolTable {
 public:
  SymbolTable() = default;
  SymbolTable(const SymbolTable&) = delete;
  SymbolTable& operator=(const SymbolTable&) = delete;

  /// The symbol of this name, made at the first call.
  Dim symbol(std::string_view name);
  /// A symbol that equals no other, named `hint#N`.
  Dim fresh_symbol(std::string_view hint, bool data_dependent);

  size_t size() const noexcept { return exprs_.size(); }
  const Expr& operator[](size_t index) const { return exprs_[index]; }

  /// Evaluates the expressions of these indices, ascending, into `values` (one per expression of the table), which holds the symbols'
  /// values.
  /// @throws Error(invalid_argument) if an expression cannot be evaluated (extents that do not broadcast, division by zero).
  void evaluate(std::span<const int32_t> indices, std::span<int64_t> values) const;

  const Expr* intern(Expr expr);

  /// Counts one unit of inference work; bodies are inferred again whenever their node is, so nesting multiplies.
  /// @throws Error(resource_exhausted) beyond kMaxInferences: a small model must not keep the loader busy for ever.
  void charge_inference();

 private:
  static constexpr int64_t kMaxInferences = 20'000'000;
  int64_t num_inferences_ = 0;
  std::deque<Expr> exprs_;
  std::unordered_multimap<size_t, const Expr*> by_hash_;
  std::unordered_map<std::string, const Expr*> symbols_;
};

/// The value of `dim` under the values that SymbolTable::evaluate filled in.
inline int64_t evaluate(const Dim& dim, std::span<const int64_t> values) {
  return dim.is_const() ? dim.value() : values[static_cast<size_t>(dim.expr()->index)];
}

}  // namespace treadle
