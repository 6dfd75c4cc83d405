#include "tests/graphs/array.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/values/float_types.h"

namespace treadle::graphs {

void require(bool condition, const char* rule) {
  if (!condition) throw Invalid(rule);
}

int64_t count_of(const Dims& dims) {
  int64_t count = 1;
  for (int64_t d : dims) {
    require(d >= 0 && d < 100'000, "extent out of range");
    count *= d;
    require(count < 1'000'000, "too many elements");
  }
  return count;
}

Array::Array(DType type, Dims shape) : dtype(type), dims(std::move(shape)) {
  const auto count = static_cast<size_t>(count_of(dims));
  if (floats())
    f.assign(count, 0);
  else if (texts())
    s.assign(count, {});
  else
    i.assign(count, 0);
}

void require_ordered(const Array& x) {
  require(std::none_of(x.f.begin(), x.f.end(), [](double number) { return std::isnan(number); }), "NaN has no place in an order");
}

Array Array::ints(std::vector<int64_t> values) {
  Array result(DType::int64, {static_cast<int64_t>(values.size())});
  result.i = std::move(values);
  return result;
}

Array Array::scalar(int64_t value) {
  Array result(DType::int64, {});
  result.i[0] = value;
  return result;
}

void Array::set(size_t at, double value) {
  if (floats()) {
    f[at] = round_to(dtype, value);
    keep(at, value);
  } else if (dtype == DType::boolean)
    i[at] = value != 0;
  else
    i[at] = wrap_to(dtype, static_cast<int64_t>(value));
}

void Array::set(size_t at, int64_t value) {
  if (floats())
    f[at] = round_to(dtype, static_cast<double>(value));
  else
    i[at] = wrap_to(dtype, value);
}

void Array::keep(size_t at, double computed) {
  if (!is_16(dtype) || (unrounded.empty() && f[at] == computed)) return;
  if (unrounded.empty()) unrounded = f;
  unrounded[at] = static_cast<float>(computed);
}

Array Array::as_computed() const {
  Array result = *this;
  for (size_t k = 0; k < result.f.size(); ++k)
    if (round_to(dtype, unrounded[k]) == f[k]) result.f[k] = unrounded[k];  // true if set() has written this element last
  return result;
}

bool is_16(DType dtype) { return dtype == DType::float16 || dtype == DType::bfloat16; }

double round_to(DType dtype, double value) {
  switch (dtype) {
    case DType::float32: return static_cast<float>(value);
    case DType::float16: return detail::half_bits_to_float(detail::float_to_half_bits(detail::round_to_odd(value)));
    case DType::bfloat16:
      return std::bit_cast<float>(static_cast<uint32_t>(detail::float_to_bfloat16_bits(detail::round_to_odd(value))) << 16U);
    default: return value;
  }
}

int64_t wrap_to(DType dtype, int64_t value) {
  switch (dtype) {
    case DType::int8: return static_cast<int8_t>(value);
    case DType::int16: return static_cast<int16_t>(value);
    case DType::int32: return static_cast<int32_t>(value);
    case DType::uint8: return static_cast<uint8_t>(value);
    case DType::uint16: return static_cast<uint16_t>(value);
    case DType::uint32: return static_cast<uint32_t>(value);
    case DType::boolean: return value != 0;
    default: return value;
  }
}

double epsilon_of(DType dtype) {
  switch (dtype) {
    case DType::float16: return 0x1p-10;
    case DType::bfloat16: return 0x1p-7;
    case DType::float64: return 0x1p-52;
    default: return 0x1p-23;
  }
}

namespace {

double smallest_normal(DType dtype) { return dtype == DType::float64 ? 0x1p-1022 : dtype == DType::float16 ? 0x1p-14 : 0x1p-125; }

}  // namespace

double Noise::operator()(double value, DType dtype, double ulps) {
  if (!on_) return value;
  // An implementation may flush subnormal numbers to zero.
  if (std::fabs(value) < smallest_normal(dtype) && random_() % 2 == 0) return 0;
  if (few_ && random_() % 16 != 0) return value;
  const double size = least_ + (most_ - least_) * static_cast<double>(random_() % 1024) / 1024;
  const bool up = direction_ == 0 ? random_() % 2 == 0 : direction_ > 0;
  const double noisy = value + std::fabs(value) * (up ? size : -size) * ulps * epsilon_of(dtype);
  return is_16(dtype) ? noisy : round_to(dtype, noisy);  // rounds so that 1 + x may be 0
}

void Noise::reorder(std::vector<double>& values) {
  if (random_() % 2 == 0)
    std::shuffle(values.begin(), values.end(), random_);
  else  // the order that is most likely to overflow; NaN may be anywhere
    std::sort(values.begin(), values.end(),
              [](double a, double b) { return std::fabs(a) > std::fabs(b) || (std::isnan(a) && !std::isnan(b)); });
}

Total::Total(Noise& noise, DType dtype, Of of)
    : noise_(noise),
      dtype_(is_16(dtype) ? DType::float32 : dtype),
      of_(of),
      in_order_(!noise.on() || !is_float(dtype)),
      total_(of == Of::sum ? 0 : 1) {}

void Total::add(double term) {
  if (in_order_)
    total_ = join(total_, term);
  else
    terms_.push_back(noise_.nearest() ? round_to(dtype_, term) : noise_(term, dtype_, 4));
}

double Total::value() {
  if (in_order_) return total_;
  noise_.reorder(terms_);
  double total = total_;
  for (double term : terms_) {
    total = join(total, term);
    total = round_to(dtype_, total);
  }
  return total;
}

Dims steps_of(const Dims& dims, bool broadcast) {
  Dims steps(dims.size());
  int64_t step = 1;
  for (size_t d = dims.size(); d-- > 0;) {
    steps[d] = broadcast && dims[d] == 1 ? 0 : step;
    step *= dims[d];
  }
  return steps;
}

Dims broadcast(const Dims& a, const Dims& b) {
  Dims result(std::max(a.size(), b.size()));
  for (size_t d = 0; d < result.size(); ++d) {
    const int64_t x = d < a.size() ? a[a.size() - 1 - d] : 1, y = d < b.size() ? b[b.size() - 1 - d] : 1;
    require(x == y || x == 1 || y == 1, "shapes do not broadcast");
    result[result.size() - 1 - d] = x == 1 ? y : x;
  }
  return result;
}

size_t broadcast_index(size_t at, const Dims& dims, const Dims& from) {
  const Dims steps = steps_of(from, true);
  size_t result = 0;
  for (size_t d = dims.size(); d-- > 0;) {
    const auto extent = static_cast<size_t>(dims[d]);
    const size_t behind = dims.size() - 1 - d;
    if (behind < from.size()) result += (at % extent) * static_cast<size_t>(steps[from.size() - 1 - behind]);
    at /= extent;
  }
  return result;
}

Dims coordinates(size_t at, const Dims& dims) {
  Dims result(dims.size());
  for (size_t d = dims.size(); d-- > 0;) {
    result[d] = static_cast<int64_t>(at) % dims[d];
    at /= static_cast<size_t>(dims[d]);
  }
  return result;
}

size_t place(const Dims& coordinates, const Dims& dims) {
  int64_t at = 0;
  for (size_t d = 0; d < dims.size(); ++d) at = at * dims[d] + coordinates[d];
  return static_cast<size_t>(at);
}

int64_t normalize_axis(int64_t axis, int64_t rank) {
  require(axis >= -rank && axis < rank, "axis out of range");
  return axis < 0 ? axis + rank : axis;
}

namespace {

// Calls f with a null pointer of the C++ type that holds an element of the dtype; for 16-bit floats that is uint16_t.
template <typename F>
void with_type(DType dtype, F f) {
  switch (dtype) {
    case DType::float32: return f(static_cast<float*>(nullptr));
    case DType::float64: return f(static_cast<double*>(nullptr));
    case DType::float16:
    case DType::bfloat16:
    case DType::uint16: return f(static_cast<uint16_t*>(nullptr));
    case DType::int8: return f(static_cast<int8_t*>(nullptr));
    case DType::int16: return f(static_cast<int16_t*>(nullptr));
    case DType::int32: return f(static_cast<int32_t*>(nullptr));
    case DType::int64: return f(static_cast<int64_t*>(nullptr));
    case DType::uint8: return f(static_cast<uint8_t*>(nullptr));
    case DType::uint32: return f(static_cast<uint32_t*>(nullptr));
    case DType::uint64: return f(static_cast<uint64_t*>(nullptr));
    case DType::boolean: return f(static_cast<bool*>(nullptr));
    default: throw Invalid("a dtype that the interpreter does not know");
  }
}

uint16_t bits_of_16(DType dtype, double value) {
  const float odd = detail::round_to_odd(value);
  return dtype == DType::float16 ? detail::float_to_half_bits(odd) : detail::float_to_bfloat16_bits(odd);
}

double value_of_16(DType dtype, uint16_t bits) {
  return dtype == DType::float16 ? detail::half_bits_to_float(bits) : std::bit_cast<float>(static_cast<uint32_t>(bits) << 16U);
}

}  // namespace

Tensor to_tensor(const Array& array) {
  Tensor result(array.dtype, Shape(std::span<const int64_t>(array.dims)));
  if (array.texts()) {
    std::copy(array.s.begin(), array.s.end(), result.data<std::string>());
    return result;
  }
  with_type(array.dtype, [&]<typename T>(T*) {
    auto* data = reinterpret_cast<T*>(result.raw());
    for (size_t k = 0; k < array.size(); ++k) {
      if (is_16(array.dtype))
        data[k] = static_cast<T>(bits_of_16(array.dtype, array.f[k]));
      else
        data[k] = array.floats() ? static_cast<T>(array.f[k]) : static_cast<T>(array.i[k]);
    }
  });
  return result;
}

Array from_tensor(const Tensor& tensor) {
  Array result(tensor.dtype(), Dims(tensor.shape().begin(), tensor.shape().end()));
  const Tensor dense = tensor.contiguous();
  if (result.texts()) {
    std::copy_n(dense.data<std::string>(), result.size(), result.s.begin());
    return result;
  }
  with_type(result.dtype, [&]<typename T>(T*) {
    for (size_t k = 0; k < result.size(); ++k) {
      T element;
      std::memcpy(&element, dense.raw() + k * sizeof(T), sizeof(T));
      if (is_16(result.dtype))
        result.f[k] = value_of_16(result.dtype, static_cast<uint16_t>(element));
      else if (result.floats())
        result.f[k] = static_cast<double>(element);
      else
        result.i[k] = static_cast<int64_t>(element);
    }
  });
  return result;
}

Datum to_datum(const Value& value) {
  if (!value.is_sequence) return to_tensor(value.array);
  Sequence sequence;
  sequence.element_dtype = value.array.dtype;
  for (const Array& element : value.elements) sequence.elements.emplace_back(to_tensor(element));
  return sequence;
}

Value from_datum(const Datum& datum) {
  if (datum.is_tensor()) return from_tensor(datum.tensor());
  Value result;
  result.is_sequence = true;
  result.array = Array(datum.sequence().element_dtype, {0});
  for (const Datum& element : datum.sequence().elements) result.elements.push_back(from_tensor(element.tensor()));
  return result;
}

}  // namespace treadle::graphs
