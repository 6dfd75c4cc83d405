// Operators whose indices, lengths or sizes come from data: a row for each such operand, which says where its bounds are and what is
// beyond.
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

/// A node, with a value under test in one of its operands.
struct BoundsCase {
  std::vector<Datum> inputs;  ///< undefined: absent
  Attributes attributes = {};
  int num_outputs = 1;
  int opset = 28;
  bool whole_rank_known = false;               ///< the operator asks for operands of known rank
  int num_compared = 8;                        ///< of the outputs, how many are held against what is expected
  std::vector<size_t> constant_operands = {};  ///< the operator asks for these as constants
};

enum class Beyond : uint8_t {
  refused,    ///< Error(invalid_argument) that names the value
  defined,    ///< results are defined for every number: what is far is clipped, left out, or means nothing
  too_large,  ///< refused in front of the bounds as above; behind them are sizes that no memory has: Error(resource_exhausted), too
};

struct BoundsRow {
  std::string domain, op;
  size_t operand;
  std::function<BoundsCase(int64_t)> make;
  int64_t lowest, highest;  ///< the valid values
  Beyond beyond = Beyond::refused;
  /// The elements of output 0, in order; of others behind them, where the case has more.
  std::function<std::vector<double>(int64_t)> expected;
  std::vector<int64_t> between = {};  ///< more values to try
  int64_t named_less = 0;             ///< an error names the value less this
  bool is_named = true;               ///< false: an error names what the value makes of a shape
  std::string name() const;
};
inline void PrintTo(const BoundsRow& row, std::ostream* out) { *out << row.name(); }

/// Every way to give the operands: the one under test as a constant and as a feed, of a declared rank and of none, as int64 and int32.
void check_bounds(const BoundsRow& row);

/// Elements of tensors, in order, as numbers. Those of sequences follow each other.
std::vector<double> numbers_of(const std::vector<Datum>& outputs);

// Rows, by where the operators come from.
std::vector<BoundsRow> indexing_rows();
std::vector<BoundsRow> movement_rows();
std::vector<BoundsRow> shape_rows();
std::vector<BoundsRow> neural_rows();
std::vector<BoundsRow> sequence_rows();
std::vector<BoundsRow> microsoft_rows();
std::vector<BoundsRow> attention_rows();
std::vector<BoundsRow> internal_rows();

// What rows are written with.

template <typename T>
Datum vector_of(std::vector<T> values) {
  return Tensor::vector<T>(std::span<const T>(values));
}
inline Datum ints(std::vector<int64_t> values) { return vector_of<int64_t>(std::move(values)); }
inline Datum ints32(std::vector<int32_t> values) { return vector_of<int32_t>(std::move(values)); }
inline Datum scalar(int64_t value) { return Tensor::scalar<int64_t>(value); }
/// 1, 2, 3 ...: no element is the zero that an operator fills with.
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
