// Implements CumSum and CumProd (ONNX, opsets 14 and 26): running sums and products along an axis.
#include <algorithm>

#include "graph/function_body.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/checks.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/math/axis_rows.h"
#include "ops/math/elementwise.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

void infer(InferContext& c) {
  if (c.has_rank(1) && c.rank(1) > 1)
    throw Error(ErrorCode::invalid_argument, "axis is " + to_string(c.input(1)) + "; it must be a scalar");
  auto axis = c.known_ints(1);
  if (axis && axis->size() == 1 && c.has_rank(0) && c.rank(0) > 0) normalize_axis((*axis)[0], c.rank(0));
  c.set_output(0, c.input(0));
}

template <bool kProduct, typename T>
struct Cumulative {
  AxisRows rows;
  bool exclusive, reverse;

  static Cumulative bind(BindContext& c) { return {cumulative_rows(c), c.get_int("exclusive") != 0, c.get_int("reverse") != 0}; }

  // Integers are computed in uint64, because unsigned overflow wraps around and is well defined.
  using C = std::conditional_t<std::is_integral_v<T>, uint64_t, compute_type_t<T>>;

  void accumulate_row(const T* in, T* out) const {
    C total{kProduct ? 1 : 0};
    const int64_t first = reverse ? rows.length - 1 : 0, step = reverse ? -1 : 1;
    for (int64_t i = 0, at = first; i < rows.length; ++i, at += step) {
      const C before = total;
      const auto x = static_cast<C>(in[at]);
      total = kProduct ? before * x : before + x;
      out[at] = static_cast<T>(exclusive ? before : total);
    }
  }
  void run(RunContext& c) const {
    const T* in = c.in<T>(0);
    T* out = c.out<T>(0);
    rows.for_each_tile(c.pool(), [&](int64_t offset, int64_t columns) {
      if (rows.inner == 1) return accumulate_row(in + offset, out + offset);
      C total[AxisRows::kTile];
      std::fill_n(total, columns, static_cast<C>(kProduct ? 1 : 0));
      for (int64_t i = 0; i < rows.length; ++i) {
        int64_t at = offset + (reverse ? rows.length - 1 - i : i) * rows.inner;
        const auto add = [&](int64_t j) {
          const auto x = static_cast<C>(in[at + j]);
          total[j] = kProduct ? total[j] * x : total[j] + x;
        };
        if (exclusive)
          for (int64_t j = 0; j < columns; ++j) {
            const C before = total[j];
            add(j);
            out[at + j] = static_cast<T>(before);
          }
        else
          for (int64_t j = 0; j < columns; ++j) add(j), out[at + j] = static_cast<T>(total[j]);
      }
    });
  }
};

template <typename T>
struct CumSum : Cumulative<false, T> {
  static CumSum bind(BindContext& c) { return {Cumulative<false, T>::bind(c)}; }
};
template <typename T>
struct CumProd : Cumulative<true, T> {
  static CumProd bind(BindContext& c) { return {Cumulative<true, T>::bind(c)}; }
};

// Computes the gradient of the running product y_j = prod_{k <= j} x_k: dx_i = (prod_{k < i} x_k) s_i with s_i = dy_i + x_{i + 1} s_{i +
// 1}; if `exclusive`, s_i = dy_{i + 1} + x_{i + 1} s_{i + 1}. As nothing is divided, zeros in x need no special case.
template <typename T>
struct CumProdGrad {
  AxisRows rows;
  bool exclusive, reverse;

  static CumProdGrad bind(BindContext& c) {
    check_same_shape(c);
    const int rank = c.shape(1).rank();
    AxisRows rows = rank == 0 ? AxisRows{} : AxisRows::of(c.shape(1), normalize_axis(c.value_at(2, 0), rank));
    return {rows, c.get_int("exclusive") != 0, c.get_int("reverse") != 0};
  }
  static void check_same_shape(const BindContext& c) {
    if (!(c.shape(0) == c.shape(1)))
      throw Error(ErrorCode::invalid_argument, "a gradient " + to_string(c.shape(0)) + " of products over " + to_string(c.shape(1)));
  }
  void run(RunContext& c) const {
    const T *dy = c.in<T>(0), *x = c.in<T>(1);
    T* dx = c.out<T>(0);
    rows.for_each_tile(c.pool(), [&](int64_t offset, int64_t columns) {
      auto place = [&](int64_t i) { return offset + (reverse ? rows.length - 1 - i : i) * rows.inner; };
      T total[AxisRows::kTile];
      std::fill_n(total, columns, T{1});
      for (int64_t i = 0; i < rows.length; ++i) {
        for (int64_t at = place(i), j = 0; j < columns; ++j) dx[at + j] = total[j], total[j] *= x[at + j];
      }
      std::fill_n(total, columns, T{0});
      for (int64_t i = rows.length - 1; i >= 0; --i) {
        const int64_t at = place(i), next = place(i + 1);
        for (int64_t j = 0; j < columns; ++j) {
          if (i + 1 < rows.length) total[j] *= x[next + j];
          if (!exclusive)
            total[j] += dy[at + j];
          else if (i + 1 < rows.length)
            total[j] += dy[next + j];
          dx[at + j] *= total[j];
        }
      }
    });
  }
};

void infer_cum_prod_grad(InferContext& c) { c.set_output(0, c.input(1)); }

// Writes the gradient of CumProd as ONNX nodes: dx_i = prod_{k < i} x_k sum_{j >= i} dy_j prod_{i < k <= j} x_k; if `exclusive`, the sum is
// over j > i and the last product over i < k < j. Index i becomes a new last axis. The last product, for all i and j, is a running product
// over x with ones up to position i.
void write_cum_prod_grad(FunctionBody& b) {
  const bool exclusive = b.attributes().get_int("exclusive") != 0;
  const Attributes order{{"reverse", b.attributes().get_int("reverse")}};
  auto product = [&](const std::string& x, bool without_own) {
    Attributes attributes = order;
    attributes.set("exclusive", int64_t{without_own});
    return b.op("CumProd", {x, b.in(2)}, attributes);
  };
  auto with_last_axis = [&](const std::string& x) { return b.op("Unsqueeze", {x, b.ints({-1})}); };
  const std::string x = b.in(1), axis = b.op("Reshape", {b.in(2), b.ints({1})}),
                    wide_axis = b.op("Cast", {axis}, {{"to", static_cast<int64_t>(DType::int64)}});
  const std::string shape = b.op("Shape", {x}), one = b.op("CastLike", {b.number(1), x}), zero = b.op("CastLike", {b.number(0), x});
  const std::string places = with_last_axis(
      b.op("CumSum", {b.op("ConstantOfShape", {shape}, {{"value", Tensor::vector<int64_t>(std::vector<int64_t>{1})}}), b.in(2)}, order));
  const std::string extent = b.op("Squeeze", {b.op("Gather", {shape, wide_axis})}), first = b.constant(Tensor::scalar<int64_t>(1));
  const std::string i = b.op("Range", {first, b.op("Add", {extent, first}), first});
  const std::string later = b.op("Greater", {places, i}), between = product(b.op("Where", {later, with_last_axis(x), one}), exclusive);
  const std::string counts = exclusive ? later : b.op("GreaterOrEqual", {places, i});
  const std::string terms = b.op("Where", {counts, b.op("Mul", {with_last_axis(b.in(0)), between}), zero});
  const std::string sums = b.op("ReduceSum", {terms, wide_axis}), own = b.op("Where", {b.op("Equal", {places, i}), sums, zero});
  const std::string chosen = b.op("ReduceSum", {own, b.ints({-1})}, {{"keepdims", int64_t{0}}});
  b.give(0, b.op("Mul", {product(x, true), chosen}));
}

OpDef cum_prod_grad() {
  constexpr TypeSet kTypes{DType::float32, DType::float64};
  return {.name = "CumProdGrad",
          .domain = "treadle",
          .since = {1},
          .inputs = {{"dY", kTypes, "T"}, {"X", kTypes, "T"}, {"axis", kInt32Or64}},
          .outputs = {{"dX", kTypes, "T"}},
          .attributes = {{"exclusive", int64_t{0}}, {"reverse", int64_t{0}}},
          .infer = infer_cum_prod_grad,
          .cost = elementwise_cost<4>,
          .kernels = typed<CumProdGrad, float, double>(),
          .value_inputs = {2},
          .write_function = write_cum_prod_grad,
          .function_opset = [](const Node&) { return 26; }};
}

OpDef cumulative(std::string_view name, std::vector<int> since, std::vector<KernelDef> kernels) {
  constexpr TypeSet kTypes = kFloats | TypeSet{DType::int32, DType::int64, DType::uint32, DType::uint64};
  return {.name = name,
          .since = std::move(since),
          .inputs = {{"x", kTypes, "T"}, {"axis", kInt32Or64, "T2"}},
          .outputs = {{"y", kTypes, "T"}},
          .attributes = {{"exclusive", int64_t{0}}, {"reverse", int64_t{0}}},
          .infer = infer,
          .cost = elementwise_cost<1>,
          .alias = {may_reuse(0, 0)},
          .kernels = std::move(kernels),
          .value_inputs = {1}};
}

Gradients cum_sum_gradient(GradientContext& g) {
  const Attributes& attributes = g.attributes();
  return {g.op("CumSum", {g.grad_output(0), g.input(1)},
               {{"exclusive", attributes.get_int("exclusive", 0)}, {"reverse", int64_t{attributes.get_int("reverse", 0) == 0}}})};
}

Gradients cum_prod_gradient(GradientContext& g) {
  const Attributes attributes = g.attributes();
  return {g.op("CumProdGrad", {g.grad_output(0), g.input(0), g.input(1)}, attributes, "treadle")};
}

}  // namespace

AxisRows cumulative_rows(const BindContext& c) {
  const int rank = c.shape(0).rank();
  check_equal(c.num_elements(1), 1, "elements of axis");
  return rank == 0 ? AxisRows{} : AxisRows::of(c.shape(0), normalize_axis(c.value_at(1, 0), rank));
}

std::vector<OpDef> cumulative_ops() {
  std::vector<OpDef> ops = {
      cumulative("CumSum", {11, 14}, typed<CumSum, float, double, Float16, BFloat16, int32_t, int64_t, uint32_t, uint64_t>()),
      cumulative("CumProd", {26}, typed<CumProd, float, double, Float16, BFloat16, int32_t, int64_t, uint32_t, uint64_t>()),
      cum_prod_grad()};
  return with_gradients(std::move(ops), {{"CumSum", cum_sum_gradient}, {"CumProd", cum_prod_gradient}});
}

}  // namespace treadle::ops
