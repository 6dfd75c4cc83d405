// Symbolic extents compiled for evaluation: flat arrays, nothing of the graph or its symbol table is touched when binding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/dim.h"

namespace treadle::exec {

/// Evaluates expressions over an array with one entry per expression of the symbol table.
class ExtentCode {
 public:
  /// @param indices  of the expressions, ascending; operands included.
  void compile(const SymbolTable& table, std::span<const int32_t> indices);
  /// `values` holds the symbols' values. @throws Error(invalid_argument) naming an expression that cannot be evaluated, as SymbolTable
  /// does.
  void run(std::span<int64_t> values) const;

 private:
  struct Operand {
    int32_t index;  // -1: the constant
    int64_t constant;
    int64_t get(std::span<const int64_t> values) const { return index < 0 ? constant : values[static_cast<size_t>(index)]; }
  };
  struct Step {
    const Expr* expr;  // for messages
    Expr::Kind kind;
    int32_t target;
    Operand a, b;
    uint32_t first_term, num_terms;  // sum
  };
  struct Term {
    int64_t coefficient;
    uint32_t first_factor, num_factors;
  };
  std::vector<Step> steps_;
  std::vector<Term> terms_;
  std::vector<int32_t> factors_;
};

}  // namespace treadle::exec
