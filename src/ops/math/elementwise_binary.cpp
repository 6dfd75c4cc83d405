// Implements Add, Sub, Mul, Div, Pow, Mod: arithmetic on two tensors with broadcasting.
#include <cmath>
#include <limits>
#include <type_traits>

#include "core/base/to_integer.h"
#include "core/values/dispatch.h"
#include "graph/op_def.h"
#include "ops/functions.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/math/elementwise.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

using kernels::Binary;
using kernels::ChainOp;

// Integers are computed in unsigned types of at least 32 bits, because unsigned overflow wraps around and is well defined.
template <typename T>
using Wrapping = std::conditional_t<sizeof(T) <= 4, uint32_t, uint64_t>;

struct AddFn {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
    else
      return a + b;
  }
};
struct SubFn {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<Wrapping<T>>(a) - static_cast<Wrapping<T>>(b));
    else
      return a - b;
  }
};
struct MulFn {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
    else
      return a * b;
  }
};

[[noreturn]] void throw_division_by_zero() { throw Error(ErrorCode::invalid_argument, "integer division by zero"); }

struct DivFn {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      if (b == 0) throw_division_by_zero();
      if constexpr (std::is_signed_v<T>)
        if (b == -1) return SubFn()(T{0}, a);  // the lowest integer has no negation in its own type; SubFn wraps around
      return static_cast<T>(a / b);
    } else {
      return a / b;
    }
  }
};

struct ModFn {
  bool truncates;  // the attribute `fmod`. true: the result has the sign of A; false: the sign of B

  static ModFn bind(BindContext& c) { return {c.get_int("fmod") != 0}; }
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      if (b == 0) throw_division_by_zero();
      if constexpr (std::is_signed_v<T>) {
        if (b == -1) return 0;
        T rest = static_cast<T>(a % b);
        return !truncates && rest != 0 && (rest < 0) != (b < 0) ? static_cast<T>(rest + b) : rest;
      }
      return static_cast<T>(a % b);
    } else {
      T rest = std::fmod(a, b);
      if (truncates) return rest;
      if (rest == 0) return std::copysign(T{0}, b);
      return (rest < 0) != (b < 0) ? rest + b : rest;
    }
  }
};

template <typename T>
T integer_power(T base, int64_t exponent) {
  if (exponent < 0) {  // the result is 1 / base^(-exponent), rounded toward zero
    if (base == 1) return 1;
    if constexpr (std::is_signed_v<T>)
      if (base == -1) return exponent % 2 == 0 ? 1 : -1;
    if (base == 0) throw_division_by_zero();
    return 0;
  }
  auto power = static_cast<Wrapping<T>>(1), factor = static_cast<Wrapping<T>>(base);
  for (; exponent != 0; exponent >>= 1, factor *= factor)
    if (exponent & 1) power *= factor;
  return static_cast<T>(power);
}

/// Computes x^exponent for common exponents without calling pow(). Returns false, and computes nothing, for all others.
template <typename T>
bool power_by_scalar(const T* x, double exponent, T* out, int64_t n) {
  using C = compute_type_t<T>;
  auto each = [&](auto fn) {
    TREADLE_ELEMENTWISE_LOOP
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(fn(static_cast<C>(x[i])));
    return true;
  };
  if (exponent == 2) return each([](C v) { return v * v; });
  if (exponent == 3) return each([](C v) { return v * v * v; });
  if (exponent == 1) return each([](C v) { return v; });
  // A square root that agrees with IEEE 754's pow() in special cases: pow(-0, 0.5) = 0 and pow(-inf, 0.5) = inf.
  auto root = [](C v) { return std::sqrt(v == -std::numeric_limits<C>::infinity() ? -v : v + C{0}); };
  if (exponent == 0.5) return each(root);
  if (exponent == -1) return each([](C v) { return C{1} / v; });
  if (exponent == -0.5) return each([root](C v) { return C{1} / root(v); });
  return false;
}

// Computes Pow. The result has the dtype of the base; the exponent may have any other. Exponents are converted to double or int64 in
// blocks, so that the kernel needs a loop for each base type only, not for each pair of types.
template <typename T>
struct Pow {
  kernels::BroadcastPlan<2> plan;
  DType exponent_dtype;

  static Pow bind(BindContext& c) { return {plan_binary(c), c.dtype(1)}; }

  template <typename E>
  void run_with(RunContext& c) const {
    const T* base = c.in<T>(0);
    const E* exponents = c.in<E>(1);
    T* result = c.out<T>(0);
    int64_t step_x = plan.inner_stride(0), step_y = plan.inner_stride(1);
    parallel_runs(c.pool(), plan, [&](int64_t at, int64_t n, const int64_t* offset) {
      const T* x = base + offset[0];
      const E* y = exponents + offset[1];
      if constexpr (!std::is_integral_v<T>)
        if (step_x == 1 && step_y == 0 && power_by_scalar(x, static_cast<double>(*y), result + at, n)) return;
      if constexpr (std::is_same_v<T, float> && std::is_same_v<E, float>)
        return kernels::binary_f32(Binary::pow, x, step_x, y, step_y, result + at, n);
      if constexpr (std::is_integral_v<T> && std::is_integral_v<E>) {
        for (int64_t i = 0; i < n; ++i) result[at + i] = integer_power(x[i * step_x], static_cast<int64_t>(y[i * step_y]));
        return;
      }
      double values[kBlock];
      for (int64_t first = 0; first < n; first += kBlock) {
        int64_t count = std::min(kBlock, n - first);
        for (int64_t i = 0; i < count; ++i) values[i] = static_cast<double>(y[(first + i) * step_y]);
        power_block(x + first * step_x, step_x, values, result + at + first, count);
      }
    });
  }

  static constexpr int64_t kBlock = 128;
  [[gnu::noinline]] static void power_block(const T* x, int64_t step, const double* y, T* out, int64_t n) {
    // Exponents that float cannot represent are computed in double. In float, for example, 2^24 + 1 would become even, and 5e-324 would
    // become 0.
    auto is_float = [](double exponent) { return std::isnan(exponent) || static_cast<double>(static_cast<float>(exponent)) == exponent; };
    if (std::is_integral_v<T> || std::is_same_v<T, double> || !std::all_of(y, y + n, is_float)) {
      for (int64_t i = 0; i < n; ++i) {
        const double power = std::pow(static_cast<double>(x[i * step]), y[i]);
        if constexpr (std::is_integral_v<T>)
          out[i] = to_integer<T>(power);
        else if constexpr (std::is_same_v<T, double>)
          out[i] = power;
        else
          out[i] = static_cast<T>(static_cast<float>(power));
      }
    } else if constexpr (!std::is_integral_v<T> && !std::is_same_v<T, double>) {
      float base[kBlock] = {}, exponent[kBlock] = {};
      for (int64_t i = 0; i < n; ++i) base[i] = static_cast<float>(x[i * step]), exponent[i] = static_cast<float>(y[i]);
      kernels::binary_f32(Binary::pow, base, 1, exponent, 1, base, n);
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(base[i]);
    }
  }

  void run(RunContext& c) const {
    visit_dtype<NumericTypes>(exponent_dtype, [&]<typename E>() { run_with<E>(c); });
  }
};

void infer_arithmetic(InferContext& c, std::optional<Dim> (*fn)(const Dim& a, const Dim& b)) {
  auto shape = broadcast_inputs(c);
  if (!shape) return c.set_output_dtype(0, c.dtype(0));
  c.set_output(0, c.dtype(0), *shape);
  if (is_integer(c.dtype(0))) propagate_binary(c, *shape, fn);
}
void infer_add(InferContext& c) {
  infer_arithmetic(c, [](const Dim& a, const Dim& b) -> std::optional<Dim> { return a + b; });
}
void infer_sub(InferContext& c) {
  infer_arithmetic(c, [](const Dim& a, const Dim& b) -> std::optional<Dim> { return a - b; });
}
void infer_mul(InferContext& c) {
  infer_arithmetic(c, [](const Dim& a, const Dim& b) -> std::optional<Dim> { return a * b; });
}
void infer_div(InferContext& c) { infer_arithmetic(c, truncating_div); }
void infer_mod(InferContext& c) {
  if (c.get_int("fmod") != 0) return infer_broadcast(c);
  infer_arithmetic(c, [](const Dim& a, const Dim& b) -> std::optional<Dim> {
    if (!is_nonnegative(a) || !is_nonnegative(b) || b.is_const(0)) return std::nullopt;
    return modulo(a, b);
  });
}

template <typename F>
std::vector<KernelDef> arithmetic_kernels() {
  return binary_kernels<F, int64_t, double, int32_t, Float16, BFloat16, int8_t, int16_t, uint8_t, uint16_t, uint32_t, uint64_t>();
}

OpDef arithmetic(std::string_view name, void (*infer)(InferContext&), std::vector<KernelDef> kernels, NeutralOperand neutral,
                 ChainOp forward, ChainOp reversed) {
  return with_chain_steps({.name = name,
                           .since = {1, 6, 7, 13, 14},
                           .upgrade = {{1, drop_consumed_inputs}, {6, upgrade_broadcast_axis}},
                           .inputs = {{"A", kNumeric, "T"}, {"B", kNumeric, "T"}},
                           .outputs = {{"C", kNumeric, "T"}},
                           .infer = infer,
                           .cost = elementwise_cost<1>,
                           .alias = {may_reuse(0, 0), may_reuse(0, 1)},
                           .kernels = std::move(kernels),
                           .half = HalfFloats::float32,
                           .neutral = neutral},
                          forward, reversed);
}

/// The vectorized Mod of float32 computes only fmod = 1. ModFn computes the other nodes, which follow Python's sign rule.
struct Fmod : VectorizedBinary<Binary::fmod> {
  static std::string declines(const CreateContext& c) { return c.node().attributes.get_int("fmod") != 0 ? "" : "fmod is 0"; }
  static Fmod bind(BindContext& c) { return {{plan_binary(c)}}; }
};

OpDef mod() {
  return {.name = "Mod",
          .since = {10, 13, 28},
          .inputs = {{"A", kNumeric, "T"}, {"B", kNumeric, "T"}},
          .outputs = {{"C", kNumeric, "T"}},
          .attributes = {{"fmod", int64_t{0}}},
          .infer = infer_mod,
          .cost = elementwise_cost<10>,
          .alias = {may_reuse(0, 0), may_reuse(0, 1)},
          .kernels = std::vector{kernel<Fmod>("vectors", DType::float32)} + arithmetic_kernels<ModFn>() + binary_kernels<ModFn, float>(),
          .pointwise = true};
}

// Only the exponent 2 becomes a step of a chain, x * x. An exponent of 0.5 does not become Sqrt, because pow(-inf, 0.5) is inf and pow(-0,
// 0.5) is 0.
std::optional<PointwiseStep> power_step(const Graph& graph, const Node& node) {
  const ValueId x = node.inputs[0];
  if (dtype_of_value(graph, x) != DType::float32 || !graph.is_scalar_constant(node.inputs[1], 2) ||
      !graph.same_type_and_shape(x, node.outputs[0]))
    return std::nullopt;
  return PointwiseStep{{.op_type = "Mul", .operands = {}, .attributes = {}}, {x, x}};
}

OpDef pow() {
  constexpr TypeSet kBases = kFloats | kInt32Or64;
  return {.name = "Pow",
          .since = {1, 7, 12, 13, 15},
          .upgrade = {{1, upgrade_broadcast_axis}},
          .inputs = {{"X", kBases, "T"}, {"Y", kNumeric, "T1"}},
          .outputs = {{"Z", kBases, "T"}},
          .infer = infer_broadcast,
          .cost = elementwise_cost<20>,
          .alias = {may_reuse(0, 0)},
          .kernels = typed<Pow, float, double, int32_t, int64_t, Float16, BFloat16>(),
          .pointwise = true,
          .half = HalfFloats::float32,
          .neutral = {1, 1},
          .step = power_step};
}

Gradients add_gradient(GradientContext& g) {
  const ValueId dy = g.grad_output(0);
  return {g.unbroadcast(dy, g.input(0)), g.unbroadcast(dy, g.input(1))};
}

Gradients sub_gradient(GradientContext& g) {
  const ValueId dy = g.grad_output(0);
  return {g.unbroadcast(dy, g.input(0)), g.unbroadcast(g.neg(dy), g.input(1))};
}

Gradients mul_gradient(GradientContext& g) {
  const ValueId a = g.input(0), b = g.input(1), dy = g.grad_output(0);
  return {g.unbroadcast(g.mul(dy, b), a), g.unbroadcast(g.mul(dy, a), b)};
}

// Uses d(a / b)/db = -a / b^2 = -y / b.
Gradients div_gradient(GradientContext& g) {
  const ValueId a = g.input(0), b = g.input(1);
  const ValueId da = g.div(g.grad_output(0), b);
  return {g.unbroadcast(da, a), g.unbroadcast(g.neg(g.mul(da, g.output(0))), b)};
}

// Differentiates y = a - q b, where the integer q = (a - y) / b is constant almost everywhere.
Gradients mod_gradient(GradientContext& g) {
  const ValueId a = g.input(0), b = g.input(1), dy = g.grad_output(0);
  const ValueId times = g.op("Round", {g.div(g.sub(a, g.output(0)), b)});
  return {g.unbroadcast(dy, a), g.unbroadcast(g.neg(g.mul(dy, times)), b)};
}

// Uses dx = dy * e * x^(e - 1). The gradient of the exponent is de = dy * y * log x where x > 0, and 0 elsewhere.
Gradients pow_gradient(GradientContext& g) {
  const ValueId x = g.input(0), dy = g.grad_output(0);
  ValueId exponent = g.input(1);
  if (g.type(exponent).dtype != g.type(x).dtype) exponent = g.op("Cast", {exponent}, {{"to", static_cast<int64_t>(g.type(x).dtype)}});
  const ValueId power = g.graph().is_scalar_constant(g.input(1), 2) ? x : g.op("Pow", {x, g.sub(exponent, g.scalar(1, x))});
  Gradients result{g.unbroadcast(g.mul(dy, g.mul(exponent, power)), x)};
  if (!g.graph().value(g.input(1)).is_constant() && g.type(g.input(1)).dtype == g.type(x).dtype) {
    const ValueId one = g.scalar(1, x);
    const ValueId logarithm = g.op("Log", {g.op("Where", {g.op("Greater", {x, g.scalar(0, x)}), x, one})});
    result.push_back(g.unbroadcast(g.mul(dy, g.mul(g.output(0), logarithm)), g.input(1)));
  }
  return result;
}

}  // namespace

std::vector<OpDef> elementwise_binary_ops() {
  std::vector<OpDef> ops = {
      arithmetic("Add", infer_add, vectorized_binary<Binary::add>() + arithmetic_kernels<AddFn>(), {0, 0, true}, ChainOp::add,
                 ChainOp::add),
      arithmetic("Sub", infer_sub, vectorized_binary<Binary::sub>() + arithmetic_kernels<SubFn>(), {1, 0}, ChainOp::sub,
                 ChainOp::reverse_sub),
      arithmetic("Mul", infer_mul, vectorized_binary<Binary::mul>() + arithmetic_kernels<MulFn>(), {0, 1}, ChainOp::mul, ChainOp::mul),
      arithmetic("Div", infer_div, vectorized_binary<Binary::div>() + arithmetic_kernels<DivFn>(), {1, 1}, ChainOp::div,
                 ChainOp::reverse_div),
      mod(),
      pow()};
  ops[2].keeps_zeros = ops[3].keeps_zeros = true;  // Mul and Div
  return with_gradients(std::move(ops), {{"Add", add_gradient},
                                         {"Sub", sub_gradient},
                                         {"Mul", mul_gradient},
                                         {"Div", div_gradient},
                                         {"Mod", mod_gradient},
                                         {"Pow", pow_gradient}});
}

}  // namespace treadle::ops
