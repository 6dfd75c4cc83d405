// Values of the interpreter: elements as double or int64, each array with memory of its own. Slow and plain on purpose.
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

/// The graph breaks ONNX's rules for these operands: no runtime has to take it.
struct Invalid : std::runtime_error {
  using std::runtime_error::runtime_error;
};
void require(bool condition, const char* rule);

int64_t count_of(const Dims& dims);

/// Floats are in `f`; integers and bool in `i` (uint64 by its bits); strings in `s`.
struct Array {
  DType dtype = DType::undefined;
  Dims dims;
  std::vector<double> f;
  std::vector<int64_t> i;
  std::vector<std::string> s;
  std::vector<double> unrounded;  ///< of 16-bit floats that set() has rounded: elements as they were computed; empty if none differs

  Array() = default;
  Array(DType type, Dims shape);
  static Array ints(std::vector<int64_t> values);  // int64 [n]
  static Array scalar(int64_t value);              // int64 []

  bool floats() const { return is_float(dtype); }
  bool texts() const { return dtype == DType::string; }
  size_t size() const { return floats() ? f.size() : texts() ? s.size() : i.size(); }
  int rank() const { return static_cast<int>(dims.size()); }
  double number(size_t at) const { return floats() ? f[at] : static_cast<double>(i[at]); }
  /// Rounds or wraps to the dtype.
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
  /// With `unrounded` elements.
  Array as_computed() const;

 private:
  void keep(size_t at, double computed);
};

struct Value {
  bool is_sequence = false, is_optional = false, is_stored = false;
  bool has_element = false;     // of an optional; what it has is a sequence if `is_sequence`
  Array array;                  // of a sequence or an optional: an empty one of the elements' dtype
  std::vector<Array> elements;  // of a sequence; of an optional tensor one or none

  Value() = default;
  Value(Array a) : array(std::move(a)) {}  // NOLINT(google-explicit-constructor): an array is a value
  bool is_tensor() const { return !is_sequence && !is_optional; }
};

bool is_16(DType dtype);
double round_to(DType dtype, double value);
int64_t wrap_to(DType dtype, int64_t value);
/// Distance between 1 and the next number of the type.
double epsilon_of(DType dtype);

/// Random errors of the size of rounding. An interpretation with it beside one without shows how much rounding may change a result.
class Noise {
 public:
  Noise() = default;
  /// Seeds 1 and 2: all errors have the same direction, up or down. Beyond 4: of any size below what is allowed, so that equal numbers
  /// stay equal in some runs; of every fifth only few results have one, so that some of several equal numbers stay equal. Beyond 60: so
  /// small that nearly all results are the nearest number.
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
  /// Results are the nearest numbers, mostly: what remains are the errors that no arithmetic avoids.
  bool nearest() const { return most_ < 1; }
  /// `value` with a relative error of up to `ulps` units of the type, in either direction.
  double operator()(double value, DType dtype, double ulps = 1);
  /// Whether the next operand is read as it was before it was rounded to 16 bits: in some runs some or all are, as where an implementation
  /// has float32 between two nodes.
  bool keeps_precision() { return keeps_precision_ && (keeps_all_ || random_() % 2 == 0); }
  /// Equal nodes give equal results, as where an implementation has merged them.
  bool merges() const { return merges_; }
  /// A value may be computed again for each node that reads it, with other errors, as where an implementation has fused its producer
  /// into some of them.
  bool recomputes() const { return recomputes_; }
  /// Whether the next operand is the second result of its producer.
  bool takes_second() { return random_() % 2 == 0; }
  void reorder(std::vector<double>& values);

 private:
  bool on_ = false;
  int direction_ = 0;  // 0: either
  double least_ = 0, most_ = 1;
  bool keeps_precision_ = false, keeps_all_ = false, merges_ = false, recomputes_ = false, few_ = false;
  std::minstd_rand random_;
};

/// The sum or the product of terms as an implementation may compute it: in any order, with at least float32's precision. Of floats with
/// noise the terms have errors, or the partial results do.
class Total {
 public:
  enum class Of : uint8_t { sum, product };
  Total(Noise& noise, DType dtype, Of of = Of::sum);
  void add(double term);
  double value();

 private:
  double join(double a, double b) const { return of_ == Of::sum ? a + b : a * b; }

  Noise& noise_;
  DType dtype_;  // of the partial results
  Of of_;
  bool in_order_;
  double total_;
  std::vector<double> terms_;  // unless in order
};

/// ONNX gives NaN no place in an order: what operators that compare choose then is left to each implementation. @throws Invalid
void require_ordered(const Array& x);

/// Row-major steps; 0 for an extent of 1 if `broadcast`.
Dims steps_of(const Dims& dims, bool broadcast = false);
/// ONNX's (NumPy's) broadcasting. @throws Invalid
Dims broadcast(const Dims& a, const Dims& b);
/// Of an element of `dims`, the place in an array of shape `from` that is broadcast to it.
size_t broadcast_index(size_t at, const Dims& dims, const Dims& from);
/// Coordinates of element `at`.
Dims coordinates(size_t at, const Dims& dims);
size_t place(const Dims& coordinates, const Dims& dims);
/// Negative axes count from the end. @throws Invalid outside [-rank, rank).
int64_t normalise_axis(int64_t axis, int64_t rank);

Tensor to_tensor(const Array& array);
Array from_tensor(const Tensor& tensor);
Datum to_datum(const Value& value);
Value from_datum(const Datum& datum);

}  // namespace treadle::graphs
