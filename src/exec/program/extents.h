// Symbolic extents compiled to flat arrays, so that making a binding reads neither the graph nor its symbol table.
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

/// Evaluates symbolic expressions. Their values are stored in an array with one entry per expression of the symbol table.
class ExtentCode {
 public:
  /// @param indices  indices of the expressions to evaluate and of all their operands, ascending.
  void compile(const SymbolTable& table, std::span<const int32_t> indices);
  /// Evaluates the expressions. @pre the caller has written the values of the symbols into `values`.
  /// @throws Error(invalid_argument) if an expression divides by zero or does not broadcast, Error(resource_exhausted) if it overflows
  void run(std::span<int64_t> values) const;

 private:
  struct Operand {
    int32_t index;  // index into the array of values; -1: the operand is `constant`
    int64_t constant;
    int64_t get(std::span<const int64_t> values) const { return index < 0 ? constant : values[static_cast<size_t>(index)]; }
  };
  struct Step {
    const Expr* expr;  // the expression, for error messages
    Expr::Kind kind;
    int32_t target;
    Operand a, b;
    uint32_t first_term, num_terms;  // range of terms, for a sum
  };
  struct Term {
    int64_t coefficient;
    uint32_t first_factor, num_factors;
  };
  std::vector<Step> steps_;
  std::vector<Term> terms_;
  std::vector<int32_t> factors_;
};

/// One extent of a slot's shape, or one element of a slot with known elements, as an expression over the symbols.
struct SymbolicExtent {
  SlotId slot;
  int32_t position;    ///< the axis, or the index of the element
  int32_t expression;  ///< index of the expression that gives the value; -1: the value is the constant `dim`
  Dim dim;
  int64_t value(std::span<const int64_t> values) const { return expression < 0 ? dim.value() : values[static_cast<size_t>(expression)]; }
};

/// Two extents that inference or a declaration assumes to be equal, although feeds may make them differ. Making a binding compares them.
struct ExtentComparison {
  const Node* node;
  SymbolicExtent a, b;
  std::string what;  ///< beginning of the error message
};

/// The expressions that a program's binding evaluates, and the slots whose shapes and elements they determine.
struct ProgramExtents {
  ExtentCode code;
  size_t num_expressions = 0;                       ///< length of the array of values that `code` needs
  std::vector<SymbolicExtent> of_shapes, of_known;  ///< extents of slots; elements of known slots
  std::vector<ExtentComparison> comparisons;
  std::vector<int32_t> symbols;  ///< the symbols whose values a binding depends on, as expression indices
};

}  // namespace treadle::exec
