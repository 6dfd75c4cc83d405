// Upper bounds of data-dependent extents.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>

#include "graph/dim.h"

namespace treadle {

class InferContext;

/// Returns a data-dependent extent with the upper bound `most` (for NonZero: the number of elements).
Dim data_dependent_dim(InferContext& context, std::string_view hint, const Dim& most);

/// Returns true if `dim` is provably 0 whenever `other` is 0. Both are extents, hence nonnegative.
bool is_zero_with(const Dim& dim, const Dim& other);

/// Computes upper bounds of extents for given values of the symbols that feeds determine.
class UpperBounds {
 public:
  /// @param values  one per expression of the symbol table; only the values of symbols are read. Negative or missing: unknown
  explicit UpperBounds(std::span<const int64_t> values) : values_(values) {}

  /// Returns the upper bound of an extent; nullopt if no bound is known, or if the bound exceeds 64 bits.
  std::optional<int64_t> of(const Dim& dim);

 private:
  struct Interval {
    int64_t least, most;
  };
  std::optional<Interval> interval(const Dim& dim);
  std::optional<Interval> compute(const Expr& expr);

  std::span<const int64_t> values_;
  std::unordered_map<int32_t, std::optional<Interval>> known_;  // by index of the expression, because operands are shared
};

}  // namespace treadle
