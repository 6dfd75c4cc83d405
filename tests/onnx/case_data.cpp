#include "onnx/case_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <fstream>
#include <iterator>
#include <protozero/pbf_reader.hpp>

#include "core/values/float_types.h"
#include "onnx/parse.h"
#include "treadle/error.h"

namespace treadle::testing {
namespace {

Datum parse(std::string_view bytes, ProtoKind kind);

// Parses a sequence. Field numbers are those of SequenceProto (tensor_values 3) and OptionalProto (tensor_value 3, sequence_value 5).
Datum parse_sequence(std::string_view bytes) {
  protozero::pbf_reader reader(bytes.data(), bytes.size());
  Sequence sequence;
  while (reader.next()) {
    if (reader.tag() != 3) {
      reader.skip();
      continue;
    }
    auto view = reader.get_view();
    sequence.elements.push_back(parse({view.data(), view.size()}, ProtoKind::tensor));
    sequence.element_dtype = sequence.elements.back().tensor().dtype();
  }
  return sequence;
}

Datum parse_optional(std::string_view bytes) {
  protozero::pbf_reader reader(bytes.data(), bytes.size());
  while (reader.next()) {
    if (reader.tag() != 3 && reader.tag() != 5) {
      reader.skip();
      continue;
    }
    bool is_tensor = reader.tag() == 3;
    auto view = reader.get_view();
    return Optional{std::make_shared<Datum>(parse({view.data(), view.size()}, is_tensor ? ProtoKind::tensor : ProtoKind::sequence))};
  }
  return Optional{};
}

Datum parse(std::string_view bytes, ProtoKind kind) {
  switch (kind) {
    case ProtoKind::tensor: return onnx::parse_tensor_bytes(std::as_bytes(std::span(bytes.data(), bytes.size()))).value;
    case ProtoKind::sequence: return parse_sequence(bytes);
    case ProtoKind::optional: return parse_optional(bytes);
  }
  return {};
}

double as_double(const Tensor& t, int64_t i) {
  switch (t.dtype()) {
    case DType::float32: return t.data<float>()[i];
    case DType::float64: return t.data<double>()[i];
    case DType::float16: return static_cast<float>(t.data<Float16>()[i]);
    case DType::bfloat16: return static_cast<float>(t.data<BFloat16>()[i]);
    case DType::float8e4m3fn: return static_cast<float>(t.data<Float8E4M3FN>()[i]);
    case DType::float8e4m3fnuz: return static_cast<float>(t.data<Float8E4M3FNUZ>()[i]);
    case DType::float8e5m2: return static_cast<float>(t.data<Float8E5M2>()[i]);
    case DType::float8e5m2fnuz: return static_cast<float>(t.data<Float8E5M2FNUZ>()[i]);
    case DType::float8e8m0: return static_cast<float>(t.data<Float8E8M0>()[i]);
    case DType::uint8: return t.data<uint8_t>()[i];
    case DType::int8: return t.data<int8_t>()[i];
    case DType::uint16: return t.data<uint16_t>()[i];
    case DType::int16: return t.data<int16_t>()[i];
    case DType::uint32: return t.data<uint32_t>()[i];
    case DType::int32: return t.data<int32_t>()[i];
    case DType::uint64: return static_cast<double>(t.data<uint64_t>()[i]);
    case DType::int64: return static_cast<double>(t.data<int64_t>()[i]);
    case DType::boolean: return t.data<bool>()[i];
    default: return 0;
  }
}

std::complex<double> as_complex(const Tensor& t, int64_t i) {
  return t.dtype() == DType::complex64 ? std::complex<double>(t.data<std::complex<float>>()[i]) : t.data<std::complex<double>>()[i];
}

// Returns element i of a packed type as bits. The unused bits of the last byte have no meaning.
unsigned packed_bits(const Tensor& t, int64_t i) {
  size_t bits = bits_of(t.dtype()), bit = static_cast<size_t>(i) * bits;
  return static_cast<unsigned>(t.raw()[bit / 8]) >> (bit % 8) & ((1U << bits) - 1);
}

std::string compare_elements(const Tensor& a, const Tensor& b, int64_t i, double rtol, double atol) {
  if (is_sub_byte(a.dtype()))
    return packed_bits(a, i) == packed_bits(b, i) ? "" : fmt::format("bits {:#x} instead of {:#x}", packed_bits(a, i), packed_bits(b, i));
  if (a.dtype() == DType::string) {
    const std::string &x = a.data<std::string>()[i], &y = b.data<std::string>()[i];
    return x == y ? "" : fmt::format("\"{}\" instead of \"{}\"", x, y);
  }
  if (a.dtype() == DType::complex64 || a.dtype() == DType::complex128) {
    auto x = as_complex(a, i), y = as_complex(b, i);
    return std::abs(x - y) <= atol + rtol * std::abs(y) ? ""
                                                        : fmt::format("{}+{}i instead of {}+{}i", x.real(), x.imag(), y.real(), y.imag());
  }
  double x = as_double(a, i), y = as_double(b, i);
  bool same = x == y || (std::isnan(x) && std::isnan(y)) || std::abs(x - y) <= atol + rtol * std::abs(y);
  return same ? "" : fmt::format("{} instead of {}", x, y);
}

std::string compare_tensors(const Tensor& a, const Tensor& b, double rtol, double atol) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return fmt::format("{} instead of {}", describe(a), describe(b));
  // The reference rounds after every step. A result that is rounded once may differ by two units in the last place.
  if (a.dtype() == DType::float16) rtol = std::max(rtol, 0x1p-9);
  if (a.dtype() == DType::bfloat16) rtol = std::max(rtol, 0x1p-6);
  for (int64_t i = 0; i < a.num_elements(); ++i)
    if (std::string difference = compare_elements(a, b, i, rtol, atol); !difference.empty())
      return fmt::format("element {}: {}", i, difference);
  return {};
}

}  // namespace

Datum read_pb(const std::filesystem::path& path, ProtoKind kind) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw Error(ErrorCode::not_found, "cannot read " + path.string());
  std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  return parse(bytes, kind);
}

std::string compare(const Datum& actual, const Datum& expected, double rtol, double atol) {
  if (actual.kind() != expected.kind()) return describe(actual) + " instead of " + describe(expected);
  switch (actual.kind()) {
    case Datum::Kind::tensor: return compare_tensors(actual.tensor(), expected.tensor(), rtol, atol);
    case Datum::Kind::sequence: {
      const auto &a = actual.sequence().elements, &b = expected.sequence().elements;
      if (a.size() != b.size()) return fmt::format("{} elements instead of {}", a.size(), b.size());
      for (size_t i = 0; i < a.size(); ++i)
        if (std::string difference = compare(a[i], b[i], rtol, atol); !difference.empty()) return fmt::format("[{}] {}", i, difference);
      return {};
    }
    case Datum::Kind::optional: {
      const auto &a = actual.optional().value, &b = expected.optional().value;
      if (!a || !b) return !a == !b ? "" : "one of the optionals is empty";
      return compare(*a, *b, rtol, atol);
    }
    default: return "a kind of value that test cases do not hold";
  }
}

}  // namespace treadle::testing
