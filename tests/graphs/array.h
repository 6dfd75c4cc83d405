// The values that the interpreter computes with: elements as double or int64, each array in memory of its own. They are deliberately slow
// and simple.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "treadle/datum.h"

namespace treadle::graphs {

using Dims = std::vector<int64_t>;

/// Thrown if the graph breaks ONNX's rules for these operands, so that no runtime must accept it.
struct Invalid : std::runtime_error {
  using std::runtime_error::runtime_error;
};
void require(bool condition, const char* rule);

int64_t count_of(const Dims& dims);

/// Floats are stored in `f`, integers and bool in `i` (uint64 as its bits), strings in `s`.
struct Array {
  DType dtype = DType::undefined;
  Dims dims;
  std::vector<double> f;
  std::vector<int64_t> i;
  std::vector<std::string> s;
  std::vector<double> unrounded;  ///< unrounded elements of a 16-bit float array; empty if set() rounded none

  Array() = default;
  Array(DType type, Dims shape);
  static Array ints(std::vector<int64_t> values);  // makes an int64 array with the shape [n]
  static Array scalar(int64_t value);              // makes an int64 array with the shape []

  bool floats() const { return is_float(dtype); }
  bool texts() const { return dtype == DType::string; }
  size_t size() const { return floats() ? f.size() : texts() ? s.size() : i.size(); }
  int rank() const { return static_cast<int>(dims.size()); }
  double number(size_t at) const { return floats() ? f[at] : static_cast<double>(i[at]); }
  /// Rounds or wraps the value to the dtype.
  void set(size_t at, double value);
  void set(size_t at, int64_t value);
  void copy(size_t at, const Array& from, size_t source) {
    if (floats()) {
      f[at] = from.f[source];
      keep(at, from.unrounded.empty() ? f[at] : from.unrounded[source]);
    } else if (texts())
      s[at] = from.s[source];
    else
      i[at] = from.i[source];
  }
  /// Returns a copy of the array in which `unrounded` elements replace the rounded ones.
  Array as_computed() const;

 private:
  void keep(size_t at, double computed);
};

struct Value {
  bool is_sequence = false, is_optional = false, is_stored = false;
  bool has_element = false;     // for an optional: it has an element, which is a sequence if `is_sequence`
  Array array;                  // for a sequence or optional: an empty array of the elements' dtype
  std::vector<Array> elements;  // elements of a sequence; an optional tensor has one element or none

  Value() = default;
  Value(Array a) : array(std::move(a)) {}  // NOLINT(google-explicit-constructor): an array is a value
  bool is_tensor() const { return !is_sequence && !is_optional; }
};

bool is_16(DType dtype);
double round_to(DType dtype, double value);
int64_t wrap_to(DType dtype, int64_t value);
/// Returns the distance between 1 and the next larger number of the type.
double epsilon_of(DType dtype);

/// Adds random errors of the size of rounding errors. Comparing results with and without them shows how much rounding may change a result.
class Noise {
 public:
  Noise() = default;
  /// Seeds 1 and 2 make all errors upwards, or all downwards. Seeds above 4 make errors of any allowed size, so that equal numbers stay
  /// equal in some runs; with every fifth of these seeds, only few results have errors. Seeds above 60 make errors so small that nearly all
  /// results are the nearest number.
  explicit Noise(uint32_t seed)
      : on_(true),
        direction_(seed == 1   ? 1
                   : seed == 2 ? -1
                               : 0),
        least_(seed > 4 ? 0 : 0.5),
        most_(seed > 60 ? 1.0 / 64 : 1),
        keeps_precision_(seed > 4 && seed % 2 == 0),
        keeps_all_(seed % 4 == 0),
        merges_(seed > 4 && seed % 3 == 0),
        recomputes_(seed > 4 && seed % 3 == 1),
        few_(seed > 4 && seed % 5 == 0),
        random_(seed) {}
  bool on() const { return on_; }
  /// Returns true if most results are the nearest numbers, so that only unavoidable errors remain.
  bool nearest() const { return most_ < 1; }
  /// Returns `value` with a relative error of up to `ulps` units of the type, in either direction.
  double operator()(double value, DType dtype, double ulps = 1);
  /// Tells if the next operand is read before its rounding to 16 bits. In some runs this applies to some or all operands, as in an
  /// implementation that keeps float32 between two nodes.
  bool keeps_precision() { return keeps_precision_ && (keeps_all_ || random_() % 2 == 0); }
  /// Returns true if equal nodes give equal results, as in an implementation that merges them.
  bool merges() const { return merges_; }
  /// Returns true if a value may be computed again, with other errors, for each node that reads it, as in an implementation that fuses the
  /// value's node into some of these nodes.
  bool recomputes() const { return recomputes_; }
  /// Tells if the next operand is the second result of its producer.
  bool takes_second() { return random_() % 2 == 0; }
  void reorder(std::vector<double>& values);

 private:
  bool on_ = false;
  int direction_ = 0;  // positive: rounds up; negative: rounds down; 0: at random
  double least_ = 0, most_ = 1;
  bool keeps_precision_ = false, keeps_all_ = false, merges_ = false, recomputes_ = false, few_ = false;
  std::minstd_rand random_;
};

/// Sums or multiplies terms as an implementation may: in any order, with at least float32's precision. With noise, the terms or the partial
/// results have errors.
class Total {
 public:
  enum class Of : uint8_t { sum, product };
  Total(Noise& noise, DType dtype, Of of = Of::sum);
  void add(double term);
  double value();

 private:
  double join(double a, double b) const { return of_ == Of::sum ? a + b : a * b; }

  Noise& noise_;
  DType dtype_;  // dtype of the partial results
  Of of_;
  bool in_order_;
  double total_;
  std::vector<double> terms_;  // not used if terms are added in order
};

/// ONNX does not order NaN, so operators that compare may choose any result. @throws Invalid if x has a NaN
void require_ordered(const Array& x);

/// Returns row-major strides; 0 for an extent of 1 if `broadcast`.
Dims steps_of(const Dims& dims, bool broadcast = false);
/// Broadcasts shapes by ONNX's (NumPy's) rules. @throws Invalid
Dims broadcast(const Dims& a, const Dims& b);
/// Returns the index of the element of an array of shape `from` that is broadcast to element `at` of `dims`.
size_t broadcast_index(size_t at, const Dims& dims, const Dims& from);
/// Returns the coordinates of element `at`.
Dims coordinates(size_t at, const Dims& dims);
size_t place(const Dims& coordinates, const Dims& dims);
/// Returns the axis as a number from 0 on; negative axes count from the end. @throws Invalid outside of [-rank, rank)
int64_t normalize_axis(int64_t axis, int64_t rank);

Tensor to_tensor(const Array& array);
Array from_tensor(const Tensor& tensor);
Datum to_datum(const Value& value);
Value from_datum(const Datum& datum);

}  // namespace treadle::graphs
