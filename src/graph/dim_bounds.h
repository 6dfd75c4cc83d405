// How large extents can become that only a run can tell.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>

#include "graph/dim.h"

namespace treadle {

class InferContext;

/// An extent that only the run can tell, but that is never above `most` (what NonZero finds: all elements).
Dim data_dependent_dim(InferContext& context, std::string_view hint, const Dim& most);

/// True if it can be told that `dim` is 0 wherever `other` is. Both are extents, which are not negative.
bool is_zero_with(const Dim& dim, const Dim& other);

/// The most that extents can be, for given values of the symbols that feeds determine.
class UpperBounds {
 public:
  /// @param values  one per expression of the symbol table, of which only those of symbols are read; negative, or beyond the end: not
  /// known.
  explicit UpperBounds(std::span<const int64_t> values) : values_(values) {}

  /// Nothing where no bound is known, or where it exceeds 64 bits.
  std::optional<int64_t> of(const Dim& dim);

 private:
  struct Interval {
    int64_t least, most;
  };
  std::optional<Interval> interval(const Dim& dim);
  std::optional<Interval> compute(const Expr& expr);

  std::span<const int64_t> values_;
  std::unordered_map<int32_t, std::optional<Interval>> known_;  // by index of the expression: operands are shared
};

}  // namespace treadle
