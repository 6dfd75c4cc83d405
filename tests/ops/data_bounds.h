// A table of operators whose indices, lengths or sizes come from data. Each row describes one operand: which values of it are valid, and
// what the operator does with others. data_bounds_test.cpp tests all rows.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "tests/ops/run_op.h"
#include "treadle/datum.h"

namespace treadle::testing {

/// A node of which one operand contains the value under test.
struct BoundsCase {
  std::vector<Datum> inputs;  ///< an undefined value stands for an absent operand
  Attributes attributes = {};
  int num_outputs = 1;
  int opset = 28;
  bool whole_rank_known = false;               ///< true if the operator requires operands of known rank
  int num_compared = 8;                        ///< number of outputs that are compared
  std::vector<size_t> constant_operands = {};  ///< operands that the operator requires to be constants
};

enum class Beyond : uint8_t {
  refused,    ///< the operator throws Error(invalid_argument), which names the value
  defined,    ///< every number has a defined result: values beyond the bounds are clipped, omitted or ignored
  too_large,  ///< values below the bounds are refused; above them, the size exceeds any memory, so Error(resource_exhausted) is allowed too
};

struct BoundsRow {
  std::string domain, op;
  size_t operand;
  std::function<BoundsCase(int64_t)> make;
  int64_t lowest, highest;  ///< the range of valid values
  Beyond beyond = Beyond::refused;
  /// Returns the expected elements of output 0, in order, followed by the elements of further outputs.
  std::function<std::vector<double>(int64_t)> expected;
  std::vector<int64_t> between = {};  ///< further values to test
  int64_t named_less = 0;             ///< the error names the value minus this number
  bool is_named = true;               ///< false: the error names the shape that results from the value
  std::string name() const;
};
inline void PrintTo(const BoundsRow& row, std::ostream* out) { *out << row.name(); }

/// Passes the operand under test in every way: as a constant and as a feed, with and without a declared rank, as int64 and int32.
void check_bounds(const BoundsRow& row);

/// Returns the elements of tensors as numbers, in order. The tensors of a sequence follow each other.
std::vector<double> numbers_of(const std::vector<Datum>& outputs);

// Each of these functions returns the rows for a group of operators.
std::vector<BoundsRow> indexing_rows();
std::vector<BoundsRow> movement_rows();
std::vector<BoundsRow> shape_rows();
std::vector<BoundsRow> neural_rows();
std::vector<BoundsRow> sequence_rows();
std::vector<BoundsRow> microsoft_rows();
std::vector<BoundsRow> attention_rows();
std::vector<BoundsRow> internal_rows();

// Helper functions for rows of the table.

template <typename T>
Datum vector_of(std::vector<T> values) {
  return Tensor::vector<T>(std::span<const T>(values));
}
inline Datum ints(std::vector<int64_t> values) { return vector_of<int64_t>(std::move(values)); }
inline Datum ints32(std::vector<int32_t> values) { return vector_of<int32_t>(std::move(values)); }
inline Datum scalar(int64_t value) { return Tensor::scalar<int64_t>(value); }
/// Returns 1, 2, 3 ..., so that no element equals the zero that operators fill with.
inline Datum counting(const Shape& shape) {
  Tensor result(DType::float32, shape);
  for (int64_t i = 0; i < result.num_elements(); ++i) result.data<float>()[i] = static_cast<float>(i + 1);
  return result;
}
inline Datum filled(const Shape& shape, float value) {
  Tensor result(DType::float32, shape);
  for (float& element : result.span<float>()) element = value;
  return result;
}

}  // namespace treadle::testing
