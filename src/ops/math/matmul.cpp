// Implements MatMul and Gemm.
#include <fmt/format.h>

#include <vector>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "kernels/gemm/gemm.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/math/elementwise.h"
#include "ops/math/product.h"
#include "ops/packed_parts.h"
#include "ops/tensor/movement.h"
#include "ops/widen.h"
#include "treadle/error.h"

namespace treadle::ops {

void infer_product(InferContext& c, int a_input, int b_input, DType result) {
  if (!c.has_rank(a_input) || !c.has_rank(b_input)) return c.set_output_dtype(0, result);
  SymbolicShape a = c.shape(a_input), b = c.shape(b_input);
  if (a.empty() || b.empty()) throw Error(ErrorCode::invalid_argument, "a scalar is no matrix");
  const bool a_is_vector = a.size() == 1, b_is_vector = b.size() == 1;
  if (a_is_vector) a.insert(a.begin(), 1);
  if (b_is_vector) b.push_back(1);
  unify(a.back(), b[b.size() - 2], "columns of A and rows of B");
  SymbolicShape out = broadcast(SymbolicShape(a.begin(), a.end() - 2), SymbolicShape(b.begin(), b.end() - 2));
  if (!a_is_vector) out.push_back(a[a.size() - 2]);
  if (!b_is_vector) out.push_back(b.back());
  c.set_output(0, result, std::move(out));
}

void infer_gemm(InferContext& c) {
  const bool trans_a = c.get_int("transA") != 0, trans_b = c.get_int("transB") != 0;
  for (int i : {0, 1}) {
    if (!c.has_rank(i)) return c.set_output_dtype(0, c.dtype(0));
    if (c.rank(i) != 2) throw Error(ErrorCode::invalid_argument, fmt::format("{} is of rank {}, not 2", i == 0 ? "A" : "B", c.rank(i)));
  }
  const SymbolicShape &a = c.shape(0), &b = c.shape(1);
  unify(a[trans_a ? 0 : 1], b[trans_b ? 1 : 0], "columns of A and rows of B");
  SymbolicShape out{a[trans_a ? 1 : 0], b[trans_b ? 0 : 1]};
  if (c.has_input(2) && c.has_rank(2)) {
    const SymbolicShape& bias = c.shape(2);
    if (bias.size() > 2)
      throw Error(ErrorCode::invalid_argument, fmt::format("C is of rank {}, and has to broadcast to rank 2", bias.size()));
    for (size_t i = 0; i < bias.size(); ++i) {
      const Dim &extent = bias[bias.size() - 1 - i], &wanted = out[1 - i];
      // If the extent is a symbol, it may turn out to be 1 during the run and then broadcasts. So only constant extents other than 1 are
      // compared.
      if (extent.is_const() && !extent.is_const(1)) unify(extent, wanted, "extents of C and of A B");
    }
  }
  c.set_output(0, c.dtype(0), std::move(out));
}

static Cost product_cost(const ShapeContext& c, int64_t depth) {
  const double outputs = static_cast<double>(c.output_shape(0).num_elements());
  return {2 * outputs * static_cast<double>(depth),
          c.size_bytes(0) + c.size_bytes(1) + outputs * static_cast<double>(bits_of(c.output_dtype(0))) / 8};
}
Cost matmul_cost(const ShapeContext& c) { return product_cost(c, c.shape(0).back()); }
Cost gemm_cost(const ShapeContext& c) { return product_cost(c, c.shape(0)[c.get_int("transA") != 0 ? 0 : 1]); }

namespace {

using kernels::BatchStrides;
using kernels::Epilogue;
using kernels::GemmShape;

constexpr TypeSet kProductTypes = kFloats | TypeSet{DType::int32, DType::int64, DType::uint32, DType::uint64};

void infer_matmul(InferContext& c) { infer_product(c, 0, 1, c.dtype(0)); }

/// A constant operand B in the packed layout of the matrix product kernels. It is made when the session is created.
template <typename C>
struct PackedWeights final : PackedState {
  kernels::OwnedPackedB<C> b;
  size_t size_bytes() const override { return count() * sizeof(C); }
  std::vector<PackedPart> parts() const override { return {packed_part(0, b.view.data, static_cast<int64_t>(count()), b.storage)}; }
  static std::unique_ptr<PackedState> restore(std::span<const PackedPart> parts, int64_t K, int64_t N) {
    auto state = std::make_unique<PackedWeights>();
    state->b = packed_b_of<C>(parts, 0, K, N);
    return state->b.storage ? std::move(state) : nullptr;
  }

 private:
  size_t count() const { return b.storage ? static_cast<size_t>(kernels::packed_b_size<C>(b.view.K, b.view.N)) : 0; }
};

/// Returns the constant tensor to pack. Plain rows are copied as bytes, so they need no alignment; transposed or 16-bit weights are read
/// element by element, so they must be aligned.
template <typename T>
const Tensor& to_pack(const CreateContext& c, int input, bool transposed) {
  return computes_in_itself<T> && !transposed ? *c.stored(input) : *c.constant(input);
}

template <typename T>
std::unique_ptr<PackedState> pack_constant(const Tensor& b, int64_t K, int64_t N, bool transposed) {
  using C = compute_type_t<T>;
  auto packed = std::make_unique<PackedWeights<C>>();
  const Tensor dense = b.contiguous();
  const int64_t ldb = transposed ? K : N;
  if constexpr (computes_in_itself<T>) {
    packed->b = kernels::pack_b(dense.data<T>(), K, N, ldb, transposed);
  } else {
    std::vector<C> wide(static_cast<size_t>(dense.num_elements()));
    convert_array(dense.data<T>(), wide.data(), dense.num_elements(), nullptr);
    packed->b = kernels::pack_b(static_cast<const C*>(wide.data()), K, N, ldb, transposed);
  }
  return packed;
}

template <typename T>
struct MatMulPacked {
  using C = compute_type_t<T>;
  static constexpr uint32_t packs = 1U << 1;
  Product product;
  Wide a, y;

  static std::string declines(const CreateContext& c) {
    const Tensor* b = c.stored(1);
    if (b == nullptr) return "B is not constant";
    if (b->shape().rank() > 2 && b->shape().product(0, b->shape().rank() - 2) != 1) return "B is a batch of matrices";
    if (b->num_elements() == 0) return "B is empty";
    return {};
  }
  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    const Tensor& b = to_pack<T>(c, 1, false);
    const int rank = b.shape().rank();
    return pack_constant<T>(b, rank == 1 ? b.shape()[0] : b.shape()[rank - 2], rank == 1 ? 1 : b.shape().back(), false);
  }
  static std::unique_ptr<PackedState> restore(const CreateContext& c, std::span<const PackedPart> parts) {
    const Shape& b = c.stored(1)->shape();
    return PackedWeights<C>::restore(parts, b.rank() == 1 ? b[0] : b[b.rank() - 2], b.rank() == 1 ? 1 : b.back());
  }
  static MatMulPacked bind(BindContext& c) {
    MatMulPacked k{Product::of(c.shape(0), c.shape(1)), {}, {}};
    ScratchLayout layout;
    k.a = reserve_wide<T>(layout, c.num_elements(0));
    k.y = reserve_wide<T>(layout, c.output_shape(0).num_elements());
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    const GemmShape& s = product.shape;
    const C* in = widen(c, c.in<T>(0), a);
    C* out = wide_output(c, c.out<T>(0), y);
    kernels::gemm<C>(s.M, {in, s.a_row, s.a_col}, in_turn(c.packed<PackedWeights<C>>().b.view, c), out, s.ldc, {}, c.pool());
    narrow(c, y, c.out<T>(0));
  }
};

template <typename T>
struct MatMul {
  using C = compute_type_t<T>;
  Product product;
  Wide a, b, y;
  int64_t work;
  int max_threads;

  static MatMul bind(BindContext& c) {
    MatMul k{Product::of(c.shape(0), c.shape(1)), {}, {}, {}, 0, c.max_threads()};
    ScratchLayout layout;
    k.a = reserve_wide<T>(layout, c.num_elements(0));
    k.b = reserve_wide<T>(layout, c.num_elements(1));
    k.y = reserve_wide<T>(layout, c.output_shape(0).num_elements());
    k.work = layout.take(kernels::gemm_scratch_bytes<C>(k.product.shape, k.max_threads));
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    if (y.count == 0) return;
    const C* lhs = widen(c, c.in<T>(0), a);
    const C* rhs = widen(c, c.in<T>(1), b);
    C* out = wide_output(c, c.out<T>(0), y);
    kernels::gemm_batched<C>(product.shape, product.batch, lhs, rhs, out, {}, scratch_at(c, work), max_threads, c.pool());
    narrow(c, y, c.out<T>(0));
  }
};

template <typename T, bool kPacked>
struct GemmKernel {
  using C = compute_type_t<T>;
  static constexpr uint32_t packs = kPacked ? 1U << 1 : 0;
  GemmPlan plan;
  Wide a, b, bias, y;
  int64_t work;
  int max_threads;

  static std::string declines(const CreateContext& c) {
    if constexpr (kPacked) {
      if (c.stored(1) == nullptr) return "B is not constant";
      if (c.stored(1)->num_elements() == 0) return "B is empty";
    }
    return {};
  }
  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    if constexpr (!kPacked) return nullptr;
    const bool transposed = c.attributes().get_int("transB") != 0;
    const Tensor& weights = to_pack<T>(c, 1, transposed);
    return pack_constant<T>(weights, weights.shape()[transposed ? 1 : 0], weights.shape()[transposed ? 0 : 1], transposed);
  }
  static std::unique_ptr<PackedState> restore(const CreateContext& c, std::span<const PackedPart> parts)
    requires kPacked
  {
    const bool transposed = c.attributes().get_int("transB") != 0;
    const Shape& b = c.stored(1)->shape();
    if (b.rank() != 2) return nullptr;
    return PackedWeights<C>::restore(parts, b[transposed ? 1 : 0], b[transposed ? 0 : 1]);
  }
  static GemmKernel bind(BindContext& c) {
    GemmKernel k{GemmPlan::of(c), {}, {}, {}, {}, 0, c.max_threads()};
    ScratchLayout layout;
    k.a = reserve_wide<T>(layout, c.num_elements(0));
    if (!kPacked) k.b = reserve_wide<T>(layout, c.num_elements(1));
    if (c.has_input(2)) k.bias = reserve_wide<T>(layout, c.num_elements(2));
    k.y = reserve_wide<T>(layout, c.output_shape(0).num_elements());
    if (!kPacked) k.work = layout.take(kernels::gemm_scratch_bytes<C>(k.plan.shape, k.max_threads));
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    if (y.count == 0) return;
    const GemmShape& s = plan.shape;
    const C* lhs = widen(c, c.in<T>(0), a);
    C* out = wide_output(c, c.out<T>(0), y);
    const Epilogue<C> epilogue = plan.epilogue<C>(widen(c, c.in<T>(2), bias), out);
    if constexpr (kPacked) {
      kernels::gemm<C>(s.M, {lhs, s.a_row, s.a_col}, in_turn(c.packed<PackedWeights<C>>().b.view, c), out, s.ldc, epilogue, c.pool());
    } else {
      const C* rhs = widen(c, c.in<T>(1), b);
      kernels::gemm_batched<C>(s, {}, lhs, rhs, out, epilogue, scratch_at(c, work), max_threads, c.pool());
    }
    narrow(c, y, c.out<T>(0));
  }
};
template <typename T>
using GemmPacked = GemmKernel<T, true>;
template <typename T>
using GemmUnpacked = GemmKernel<T, false>;

// Computes an integer matrix product whose sums wrap around, as in NumPy. It is not optimized, since models spend no time in it.
// @param finish  called as finish(m, n, sum), returns the element to store
template <typename T, typename Finish>
void multiply_plain(const GemmShape& s, const T* a, const T* b, T* y, const Finish& finish) {
  const int64_t b_row = s.b_transposed ? 1 : s.ldb, b_col = s.b_transposed ? s.ldb : 1;
  for (int64_t m = 0; m < s.M; ++m) {
    for (int64_t n = 0; n < s.N; ++n) {
      uint64_t sum = 0;
      for (int64_t k = 0; k < s.K; ++k)
        sum += static_cast<uint64_t>(a[m * s.a_row + k * s.a_col]) * static_cast<uint64_t>(b[k * b_row + n * b_col]);
      y[m * s.ldc + n] = finish(m, n, static_cast<T>(sum));
    }
  }
}

template <typename T>
struct MatMulInt {
  Product product;
  static MatMulInt bind(BindContext& c) { return {Product::of(c.shape(0), c.shape(1))}; }
  void run(RunContext& c) const {
    const BatchStrides& batch = product.batch;
    parallel_for(c.pool(), product.shape.batch, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t rest = i, a = 0, b = 0, y = 0;
        for (int d = batch.rank - 1; d >= 0; --d) {
          const int64_t at = rest % batch.dims[d];
          rest /= batch.dims[d];
          a += at * batch.a[d], b += at * batch.b[d], y += at * batch.c[d];
        }
        multiply_plain(product.shape, c.in<T>(0) + a, c.in<T>(1) + b, c.out<T>(0) + y, [](int64_t, int64_t, T sum) { return sum; });
      }
    });
  }
};

template <typename T>
struct GemmInt {
  GemmPlan plan;
  static GemmInt bind(BindContext& c) { return {GemmPlan::of(c)}; }
  void run(RunContext& c) const {
    const T* bias = c.in<T>(2);
    const bool scales = plan.alpha != 1 || plan.beta != 1;
    // C may be in the same memory as Y: each element of C is read before the element of Y in the same place is written.
    multiply_plain(plan.shape, c.in<T>(0), c.in<T>(1), c.out<T>(0), [&](int64_t m, int64_t n, T sum) {
      const T added = bias ? bias[m * plan.bias_row + n * plan.bias_col] : T{0};
      if (!scales) return static_cast<T>(static_cast<uint64_t>(sum) + static_cast<uint64_t>(added));
      return static_cast<T>(static_cast<double>(plan.alpha) * static_cast<double>(sum) +
                            static_cast<double>(plan.beta) * static_cast<double>(added));
    });
  }
};

// Removes the attribute `broadcast` of old opsets. If it was 0, C has the product's shape, for which opset 7 needs no attribute; if it was
// 1, C broadcasts as in opset 7.
void drop_broadcast(Graph& graph, NodeId id) { graph.node(id).attributes.erase("broadcast"); }

ValueId as_matrix(GradientContext& g, ValueId x, int64_t columns) { return g.op("Reshape", {x, g.ints({-1, columns})}); }

/// Returns x with its last two axes swapped.
ValueId transposed(GradientContext& g, ValueId x) {
  std::vector<int64_t> perm;
  for (int axis = 0; axis < rank_of(g, x); ++axis) perm.push_back(axis);
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  return g.transpose(x, std::move(perm));
}

/// Returns alpha op(A) op(B), where op transposes if trans_a or trans_b is true, for the gradient of Gemm.
ValueId gemm_of(GradientContext& g, ValueId a, bool trans_a, ValueId b, bool trans_b, float alpha = 1) {
  return g.op("Gemm", {a, b}, {{"alpha", alpha}, {"transA", int64_t{trans_a}}, {"transB", int64_t{trans_b}}});
}

Gradients matmul_gradient(GradientContext& g) { return gradients::product(g, g.input(0), g.input(1), g.grad_output(0)); }

// Differentiates Y = alpha op(A) op(B) + beta C, where op may transpose.
Gradients gemm_gradient(GradientContext& g) {
  const ValueId a = g.input(0), b = g.input(1), c = g.input(2), dy = g.grad_output(0);
  const bool trans_a = g.attributes().get_int("transA") != 0, trans_b = g.attributes().get_int("transB") != 0;
  const float alpha = g.attributes().get_float("alpha", 1), beta = g.attributes().get_float("beta", 1);
  Gradients result{trans_a ? gemm_of(g, b, trans_b, dy, true, alpha) : gemm_of(g, dy, false, b, !trans_b, alpha),
                   trans_b ? gemm_of(g, dy, true, a, trans_a, alpha) : gemm_of(g, a, !trans_a, dy, false, alpha)};
  if (c != kNoValue) {
    const ValueId dc = g.unbroadcast(dy, c);
    result.push_back(beta == 1 ? dc : g.mul(dc, g.scalar(static_cast<double>(beta), dc)));
  }
  return result;
}

}  // namespace

namespace gradients {

// Uses dA = dY B^T and dB = A^T dY. Vectors are treated as matrices with one row or column, and gradients are summed over broadcast axes.
Gradients product(GradientContext& g, ValueId first, ValueId second, ValueId dy) {
  ValueId a = first, b = second;
  const int rank_a = rank_of(g, a), rank_b = rank_of(g, b);
  if (rank_a >= 2 && rank_b == 2) {
    // B is a single matrix, so the batch axes of A become further rows of A.
    const Dim depth = g.type(a).shape->back(), columns = g.type(b).shape->back();
    if (rank_a == 2) return {gemm_of(g, dy, false, b, true), gemm_of(g, a, true, dy, false)};
    if (depth.is_const() && columns.is_const() && depth.value() > 0 && columns.value() > 0) {
      const ValueId rows = as_matrix(g, dy, columns.value());
      return {g.reshape_like(gemm_of(g, rows, false, b, true), a), gemm_of(g, as_matrix(g, a, depth.value()), true, rows, false)};
    }
  }
  if (rank_b == 1) b = g.op("Unsqueeze", {b, g.ints({1})}), dy = g.op("Unsqueeze", {dy, g.ints({-1})});
  if (rank_a == 1) a = g.op("Unsqueeze", {a, g.ints({0})}), dy = g.op("Unsqueeze", {dy, g.ints({-2})});
  ValueId da = g.unbroadcast(g.op("MatMul", {dy, transposed(g, b)}), a), db = g.unbroadcast(g.op("MatMul", {transposed(g, a), dy}), b);
  if (rank_a == 1) da = g.reshape_like(da, first);
  if (rank_b == 1) db = g.reshape_like(db, second);
  return {da, db};
}

}  // namespace gradients

std::vector<OpDef> matmul_ops() {
  return {
      {.name = "MatMul",
       .since = {1, 9, 13},
       .inputs = {{"A", kProductTypes, "T", Presence::required, of_ranks(1)}, {"B", kProductTypes, "T", Presence::required, of_ranks(1)}},
       .outputs = {{"Y", kProductTypes, "T"}},
       .infer = infer_matmul,
       .cost = matmul_cost,
       .kernels = typed<MatMulPacked, float, double, Float16, BFloat16>("packed") + typed<MatMul, float, double, Float16, BFloat16>() +
                  typed<MatMulInt, int32_t, int64_t, uint32_t, uint64_t>(),
       .gradient = matmul_gradient,
       .half = HalfFloats::float32_by_itself},
      {.name = "Gemm",
       .since = {1, 6, 7, 9, 11, 13},
       .upgrade = {{1, drop_broadcast}, {6, drop_broadcast}},
       .inputs = {{"A", kProductTypes, "T"}, {"B", kProductTypes, "T"}, {"C", kProductTypes, "T", Presence::optional}},
       .outputs = {{"Y", kProductTypes, "T"}},
       .attributes = {{"alpha", 1.0f}, {"beta", 1.0f}, {"transA", int64_t{0}}, {"transB", int64_t{0}}},
       .infer = infer_gemm,
       .cost = gemm_cost,
       .alias = {may_reuse(0, 2)},
       .kernels = typed<GemmPacked, float, double, Float16, BFloat16>("packed") + typed<GemmUnpacked, float, double, Float16, BFloat16>() +
                  typed<GemmInt, int32_t, int64_t, uint32_t, uint64_t>(),
       .gradient = gemm_gradient,
       .half = HalfFloats::float32_by_itself}};
}

}  // namespace treadle::ops
