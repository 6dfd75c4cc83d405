// Implements unary functions: arithmetic, rounding, roots, exponentials, trigonometry, classification.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/values/dispatch.h"
#include "graph/op_def.h"
#include "kernels/elementwise/compare.h"
#include "ops/functions.h"
#include "ops/list.h"
#include "ops/math/elementwise.h"
#include "ops/math/vectorized_unary.h"

namespace treadle::ops {
namespace {

using kernels::Unary;

// Negates in the unsigned type, where overflow is defined. The lowest integer has no positive counterpart and stays unchanged.
struct NegFn {
  template <typename T>
  T operator()(T x) const {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(uint64_t{0} - static_cast<uint64_t>(x));
    else
      return -x;
  }
};
struct AbsFn {
  template <typename T>
  T operator()(T x) const {
    if constexpr (std::is_unsigned_v<T>)
      return x;
    else if constexpr (std::is_integral_v<T>)
      return std::max(x, NegFn()(x));  // the lowest integer stays unchanged, as it has no positive counterpart
    else
      return std::fabs(x);
  }
};
struct SignFn {
  template <typename T>
  T operator()(T x) const {
    if constexpr (std::is_floating_point_v<T>) {
      T sign = (x > T{0} ? T{1} : T{0}) - (x < T{0} ? T{1} : T{0});
      return x == x ? sign : x;
    } else {
      return static_cast<T>((x > T{0} ? 1 : 0) - (x < T{0} ? 1 : 0));
    }
  }
};

// Rounds without SSE 4.1's instructions, so that plain loops are vectorized. Adding 2^23 (float) or 2^52 (double) leaves no bits for the
// fraction, so the addition itself rounds, halves to even. Larger numbers and NaN are returned unchanged.
template <typename T>
T round_half_even(T x) {
  constexpr T kNoFraction = T{1} / std::numeric_limits<T>::epsilon();
  T magnitude = std::fabs(x);
  T rounded = std::copysign((magnitude + kNoFraction) - kNoFraction, x);
  return select(magnitude < kNoFraction, rounded, x);
}
struct RoundFn {
  template <typename T>
  T operator()(T x) const {
    return round_half_even(x);
  }
};
struct FloorFn {
  template <typename T>
  T operator()(T x) const {
    T rounded = round_half_even(x);
    return rounded - select(rounded > x, T{1}, T{0});
  }
};
struct CeilFn {
  template <typename T>
  T operator()(T x) const {
    T rounded = round_half_even(x);
    return std::copysign(rounded + select(rounded < x, T{1}, T{0}), x);
  }
};

// Used only for float64, because vectorized kernels compute the narrower floats.
struct ReciprocalFn {
  double operator()(double x) const { return 1 / x; }
};
#define TREADLE_LIBRARY_FUNCTION(NAME, FUNCTION)                   \
  struct NAME {                                                    \
    double operator()(double x) const { return std::FUNCTION(x); } \
  }
TREADLE_LIBRARY_FUNCTION(SqrtFn, sqrt);
TREADLE_LIBRARY_FUNCTION(ExpFn, exp);
TREADLE_LIBRARY_FUNCTION(LogFn, log);
TREADLE_LIBRARY_FUNCTION(ErfFn, erf);
TREADLE_LIBRARY_FUNCTION(SinFn, sin);
TREADLE_LIBRARY_FUNCTION(CosFn, cos);
TREADLE_LIBRARY_FUNCTION(TanFn, tan);
TREADLE_LIBRARY_FUNCTION(AsinFn, asin);
TREADLE_LIBRARY_FUNCTION(AcosFn, acos);
TREADLE_LIBRARY_FUNCTION(AtanFn, atan);
TREADLE_LIBRARY_FUNCTION(SinhFn, sinh);
TREADLE_LIBRARY_FUNCTION(CoshFn, cosh);
TREADLE_LIBRARY_FUNCTION(AsinhFn, asinh);
TREADLE_LIBRARY_FUNCTION(AcoshFn, acosh);
TREADLE_LIBRARY_FUNCTION(AtanhFn, atanh);
#undef TREADLE_LIBRARY_FUNCTION

// Works on bytes: the compiler vectorizes a comparison of bytes with zero, but not operations on bool.
struct NotFn {
  uint8_t operator()(uint8_t x) const { return x == 0 ? 1 : 0; }
};
struct IsNaNFn {
  template <typename T>
  bool operator()(T x) const {
    return x != x;
  }
};
struct IsInfFn {
  bool negative, positive;

  static IsInfFn bind(BindContext& c) { return {c.get_int("detect_negative", 1) != 0, c.get_int("detect_positive", 1) != 0}; }
  template <typename T>
  bool operator()(T x) const {
    constexpr T kInfinity = std::numeric_limits<T>::infinity();
    return ((x == kInfinity) & positive) | ((x == -kInfinity) & negative);  // & and | have no branches, so that this vectorizes
  }
  void rows(const float* x, bool* out, int64_t n) const { kernels::infinite(x, negative, positive, out, n); }
};

void infer_integer(InferContext& c, Dim (*fn)(const Dim&)) {
  c.set_output(0, c.input(0));
  auto values = c.known(0);
  if (!values || !(is_integer(c.dtype(0)) || c.dtype(0) == DType::boolean)) return;
  for (Dim& value : *values) {
    if (!fn && !value.is_const()) return;
    const auto result = or_unknown([&]() -> std::optional<Dim> { return fn ? fn(value) : maximum(value, Dim(0) - value); });
    if (!result) return;
    value = *result;
  }
  c.set_known(0, std::move(*values));
}
void infer_neg(InferContext& c) {
  infer_integer(c, [](const Dim& x) { return Dim(0) - x; });
}
void infer_abs(InferContext& c) { infer_integer(c, nullptr); }
void infer_not(InferContext& c) {
  infer_integer(c, [](const Dim& x) { return Dim(1) - x; });
}
void infer_bool(InferContext& c) {
  Type type = c.input(0);
  if (!type.has_rank()) return c.set_output_dtype(0, DType::boolean);
  c.set_output(0, DType::boolean, *type.shape);
}

template <int kFlops>
OpDef unary(std::string_view name, std::vector<int> since, TypeSet types, std::vector<KernelDef> kernels,
            void (*infer)(InferContext&) = infer_same_as_input) {
  // All these operators of opset 1, except Not, have the attribute `consumed_inputs`.
  std::vector<UpgradeStep> upgrade;
  if (since.front() == 1 && since.size() > 1) upgrade.push_back({1, drop_consumed_inputs});
  return with_function_facts({.name = name,
                              .since = std::move(since),
                              .upgrade = std::move(upgrade),
                              .inputs = {{"X", types, "T"}},
                              .outputs = {{"Y", types, "T"}},
                              .infer = infer,
                              .cost = elementwise_cost<kFlops>,
                              .alias = {may_reuse(0, 0)},
                              .kernels = std::move(kernels)});
}

template <typename F>
std::vector<KernelDef> float_kernels() {
  return unary_kernels<F, float, double, Float16, BFloat16>();
}

OpDef classification(std::string_view name, std::vector<int> since, std::vector<KernelDef> kernels) {
  constexpr TypeSet kTypes = kFloats | TypeSet{DType::float8e4m3fn, DType::float8e4m3fnuz, DType::float8e5m2, DType::float8e5m2fnuz};
  return with_function_facts({.name = name,
                              .since = std::move(since),
                              .inputs = {{"X", kTypes, "T1"}},
                              .outputs = {{"Y", kBool, "T2"}},
                              .infer = infer_bool,
                              .cost = elementwise_cost<1>,
                              .kernels = std::move(kernels)});
}

template <typename F, typename... Ts>
std::vector<KernelDef> to_bool_kernels() {
  return kernels_of<Ts...>([]<typename T>() { return kernel<UnaryKernel<F, T, bool>>("plain", dtype_of<T>); });
}
template <typename F>
std::vector<KernelDef> classification_kernels() {
  return to_bool_kernels<F, float, double, Float16, BFloat16, Float8E4M3FN, Float8E4M3FNUZ, Float8E5M2, Float8E5M2FNUZ>();
}

OpDef is_inf() {
  OpDef op = classification("IsInf", {10, 20}, classification_kernels<IsInfFn>());
  op.attributes = {{"detect_negative", int64_t{1}}, {"detect_positive", int64_t{1}}};
  return op;
}

}  // namespace

std::vector<OpDef> elementwise_unary_ops() {
  constexpr TypeSet kSigned = kFloats | kSignedIntegers;
  auto signed_integers = []<typename F>(F) { return unary_kernels<F, int64_t, int32_t, int8_t, int16_t>(); };
  auto unsigned_integers = []<typename F>(F) { return unary_kernels<F, uint8_t, uint16_t, uint32_t, uint64_t>(); };
  std::vector<OpDef> ops = {
      unary<1>("Abs", {1, 6, 13}, kNumeric, vectorized_kernels<Unary::abs, AbsFn>() + signed_integers(AbsFn()) + unsigned_integers(AbsFn()),
               infer_abs),
      unary<1>("Neg", {1, 6, 13}, kSigned, vectorized_kernels<Unary::neg, NegFn>() + signed_integers(NegFn()), infer_neg),
      unary<1>("Sign", {9, 13}, kNumeric, float_kernels<SignFn>() + signed_integers(SignFn()) + unsigned_integers(SignFn())),
      unary<1>("Ceil", {1, 6, 13}, kFloats, float_kernels<CeilFn>()),
      unary<1>("Floor", {1, 6, 13}, kFloats, float_kernels<FloorFn>()),
      unary<1>("Round", {11, 22}, kFloats, float_kernels<RoundFn>()),
      unary<4>("Sqrt", {1, 6, 13}, kFloats, vectorized_kernels<Unary::sqrt, SqrtFn>()),
      unary<4>("Reciprocal", {1, 6, 13}, kFloats, vectorized_kernels<Unary::reciprocal, ReciprocalFn>()),
      unary<15>("Exp", {1, 6, 13}, kFloats, vectorized_kernels<Unary::exp, ExpFn>()),
      unary<15>("Log", {1, 6, 13}, kFloats, vectorized_kernels<Unary::log, LogFn>()),
      unary<20>("Erf", {9, 13}, kFloats, vectorized_kernels<Unary::erf, ErfFn>()),
      unary<20>("Sin", {7, 22}, kFloats, vectorized_kernels<Unary::sin, SinFn>()),
      unary<20>("Cos", {7, 22}, kFloats, vectorized_kernels<Unary::cos, CosFn>()),
      unary<20>("Tan", {7, 22}, kFloats, vectorized_kernels<Unary::tan, TanFn>()),
      unary<20>("Asin", {7, 22}, kFloats, vectorized_kernels<Unary::asin, AsinFn>()),
      unary<20>("Acos", {7, 22}, kFloats, vectorized_kernels<Unary::acos, AcosFn>()),
      unary<20>("Atan", {7, 22}, kFloats, vectorized_kernels<Unary::atan, AtanFn>()),
      unary<20>("Sinh", {9, 22}, kFloats, vectorized_kernels<Unary::sinh, SinhFn>()),
      unary<20>("Cosh", {9, 22}, kFloats, vectorized_kernels<Unary::cosh, CoshFn>()),
      unary<20>("Asinh", {9, 22}, kFloats, vectorized_kernels<Unary::asinh, AsinhFn>()),
      unary<20>("Acosh", {9, 22}, kFloats, vectorized_kernels<Unary::acosh, AcoshFn>()),
      unary<20>("Atanh", {9, 22}, kFloats, vectorized_kernels<Unary::atanh, AtanhFn>()),
      unary<1>("Not", {1}, kBool, {kernel<UnaryKernel<NotFn, uint8_t, uint8_t>>("plain", DType::boolean)}, infer_not),
      classification("IsNaN", {9, 13, 20}, classification_kernels<IsNaNFn>()),
      is_inf(),
  };
  return ops;
}

}  // namespace treadle::ops
