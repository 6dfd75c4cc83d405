// Symbolic extents compiled for evaluation: flat arrays, nothing of the graph or its symbol table is touched when binding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "exec/program/ids.h"
#include "graph/dim.h"

namespace treadle {
struct Node;
}

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

/// An extent of a value, or an element of a known one, that the symbols' values decide.
struct SymbolicExtent {
  SlotId slot;
  int32_t position;    ///< the axis, or the element
  int32_t expression;  ///< whose value it is; -1: the constant `dim`. Binding touches nothing of the symbol table
  Dim dim;
  int64_t value(std::span<const int64_t> values) const { return expression < 0 ? dim.value() : values[static_cast<size_t>(expression)]; }
};

/// Two extents that inference or a declaration takes to be equal, while the feeds' shapes decide: binding compares them.
struct ExtentComparison {
  const Node* node;
  SymbolicExtent a, b;
  std::string what;  ///< for the error
};

/// What binding evaluates for a program, and where the results go.
struct ProgramExtents {
  ExtentCode code;
  size_t num_expressions = 0;  ///< entries of the array that `code` runs over: of the symbol table, when the program was made
  std::vector<SymbolicExtent> of_shapes, of_known;  ///< axes of values; elements of known values
  std::vector<ExtentComparison> comparisons;
  std::vector<int32_t> symbols;  ///< expressions that are symbols: a binding depends on their values
};

}  // namespace treadle::exec
