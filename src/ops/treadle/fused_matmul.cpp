// Implements FusedMatMul (treadle): y = activation(A B + bias + residual), where the weights B are constant. It is fused from a MatMul or
// Gemm and the pointwise operators after it, which are applied while a tile of the product is in registers or in L1.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <mutex>
#include <optional>
#include <utility>

#include "core/values/large_memory.h"
#include "graph/function_body.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_bf16.h"
#include "kernels/gemm/gemm_int8_weights.h"
#include "kernels/gemm/gemm_split.h"
#include "ops/functions.h"
#include "ops/math/product.h"
#include "ops/packed_parts.h"
#include "ops/precision.h"
#include "ops/tensor/movement.h"
#include "ops/treadle/domain.h"
#include "ops/treadle/nhwc_functions.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

using kernels::Unary;

enum Input : int { kA, kB, kBias, kResidual };

void infer(InferContext& c) {
  if (!c.has_rank(kA) || !c.has_rank(kB)) return c.set_output_dtype(0, c.dtype(kA));
  const SymbolicShape& b = c.shape(kB);
  SymbolicShape out = c.shape(kA);
  if (out.empty() || b.size() != 2) throw Error(ErrorCode::invalid_argument, "A must not be a scalar, and B must be a matrix");
  const bool transposed = c.get_int("transB") != 0;
  unify(out.back(), b[transposed ? 1 : 0], "columns of A and rows of B");
  out.back() = b[transposed ? 0 : 1];
  c.set_output(0, c.dtype(kA), std::move(out));
}

Cost cost(const ShapeContext& c) {
  const double outputs = static_cast<double>(c.output_shape(0).num_elements());
  return {2 * outputs * static_cast<double>(c.shape(kA).back()), c.size_bytes(kA) + c.size_bytes(kB) + 4 * outputs};
}

/// The extents and the epilogue (the pointwise operators after the product). All kernels of this file bind them.
struct Plan {
  static constexpr uint32_t packs = 1U << kB;
  int64_t M, K, N, bias_step;
  Unary activation;
  float a, b;

  static std::string declines(const CreateContext& c) {
    const Tensor* weights = c.stored(kB);
    if (weights == nullptr) return "B is not constant";
    if (weights->shape().rank() != 2) return "B is not a matrix";
    return {};
  }
  static Plan of(const BindContext& c) {
    const Shape& a = c.shape(kA);
    const bool transposed = c.get_int("transB") != 0;
    Plan k{a.product(0, a.rank() - 1), a.back(), c.shape(kB)[transposed ? 0 : 1], 0, activation_named(c.get_string("activation")), 0, 0};
    check_equal(k.K, c.shape(kB)[transposed ? 1 : 0], "columns of A and rows of B");
    if (c.has_input(kBias)) {
      const int64_t count = c.num_elements(kBias);
      if (count != 1) check_equal(count, k.N, "elements of the bias and columns of B");
      k.bias_step = count == 1 ? 0 : 1;
    }
    if (c.has_input(kResidual))
      check_equal(c.num_elements(kResidual), c.output_shape(0).num_elements(), "elements of the residual and of A B");
    k.a = c.get_float("activation_alpha"), k.b = c.get_float("activation_beta");
    return k;
  }
  kernels::Epilogue<float> epilogue(RunContext& c) const {
    kernels::Epilogue<float> e;
    e.bias = c.in<float>(kBias), e.bias_col = bias_step;
    e.residual = c.in<float>(kResidual), e.residual_row = N;
    e.activation = activation, e.a = a, e.b = b;
    return e;
  }
};

/// The constant weights, a K x N matrix that may be stored transposed.
struct Weights {
  Tensor tensor;
  bool transposed;
  int64_t K, N, ldb;

  /// @param bytewise  true: rows are copied as bytes, so the weights may be unaligned unless they are transposed
  static Weights of(const CreateContext& c, bool bytewise = false) {
    const bool transposed = c.attributes().get_int("transB") != 0;
    Tensor tensor = (bytewise && !transposed ? c.stored(kB) : c.constant(kB))->contiguous();
    const int64_t rows = tensor.shape()[0], columns = tensor.shape()[1];
    return {std::move(tensor), transposed, transposed ? columns : rows, transposed ? rows : columns, columns};
  }
};

Tensor large(DType dtype, int64_t count) {
  return Tensor(dtype, Shape{count}, allocate_large(static_cast<size_t>(count) * (bits_of(dtype) / 8)));
}

/// float32 weights in two packed layouts: panels for vector instructions, and sums of bfloat16 parts for AMX tiles. The number of rows of a
/// product determines which one it needs. Each is made at first use. The original weights are freed, as either layout can restore them.
class PackedWeights final : public PackedState {
 public:
  explicit PackedWeights(Weights weights) : K_(weights.K), N_(weights.N), weights_(std::move(weights)) {}

  const kernels::PackedB<float>& panels() const {
    std::lock_guard lock(mutex_);
    if (!panels_.storage) make_panels();
    return panels_.view;
  }
  /// Returns the bfloat16 parts; null if a weight is outside the range that they can represent (gemm_split.h).
  const kernels::SplitB* parts_for(const kernels::GemmShape& shape) const {
    std::lock_guard lock(mutex_);
    if (!parts_.defined()) make_parts(shape);
    return has_parts() ? &split_ : nullptr;
  }
  size_t size_bytes() const override {
    std::lock_guard lock(mutex_);
    return (panels_.storage ? static_cast<size_t>(count()) * sizeof(float) : 0) + (parts_.defined() ? parts_.size_bytes() : 0);
  }
  std::vector<PackedPart> parts() const override {
    std::lock_guard lock(mutex_);
    if (!panels_.storage && !has_parts()) make_panels();  // no run has needed packed weights yet
    std::vector<PackedPart> blocks;
    if (panels_.storage) blocks.push_back(packed_part(kPanels, panels_.view.data, count(), panels_.storage));
    if (has_parts()) {
      blocks.push_back({kParts, parts_});
      blocks.push_back({kLargest, Tensor::scalar(split_.largest)});
    }
    return blocks;
  }
  /// Restores the state from blocks of a compiled file. Returns null if the blocks do not have the extents K and N.
  static std::unique_ptr<PackedState> restore(std::span<const PackedPart> blocks, int64_t K, int64_t N) {
    auto state = std::make_unique<PackedWeights>(Weights{{}, false, K, N, N});
    state->weights_.reset();
    state->panels_ = packed_b_of<float>(blocks, kPanels, K, N);
    const Tensor *parts = find_part(blocks, kParts, DType::uint16), *largest = find_part(blocks, kLargest, DType::uint32);
    if (parts && largest && parts->size_bytes() == kernels::split_b_bytes({.N = N, .K = K}) && largest->num_elements() == 1) {
      state->parts_ = *parts;
      state->split_ = {nullptr, parts->data<uint16_t>(), largest->data<uint32_t>()[0]};
    }
    return state->panels_.storage || state->parts_.defined() ? std::move(state) : nullptr;
  }
  std::string forms() const override {
    std::lock_guard lock(mutex_);
    return has_parts() ? "three bfloat16 parts" : "";
  }

 private:
  enum Block : int32_t { kPanels, kParts, kLargest };
  int64_t count() const { return kernels::packed_b_size<float>(K_, N_); }
  bool has_parts() const { return parts_.defined() && parts_.num_elements() > 0; }

  void make_panels() const {
    const Weights w = weights();
    panels_ = kernels::pack_b(w.tensor.data<float>(), w.K, w.N, w.ldb, w.transposed);
    weights_.reset();
  }
  void make_parts(const kernels::GemmShape& shape) const {
    const Weights w = weights();
    kernels::GemmShape of_weights = shape;
    of_weights.ldb = w.ldb, of_weights.b_transposed = w.transposed;
    Tensor made = large(DType::uint16, static_cast<int64_t>(kernels::split_b_bytes(shape) / sizeof(uint16_t)));
    split_ = kernels::split_b(of_weights, w.tensor.data<float>(), made.raw(), nullptr);
    split_.whole = nullptr;
    const bool fits = kernels::can_split(std::bit_cast<kernels::Magnitude>(1.0F), split_.largest);
    parts_ = fits ? std::move(made) : Tensor(DType::uint16, Shape{0});
    if (fits) weights_.reset();
  }
  // Returns the original weights. If they were freed, restores them from the panels or the bfloat16 parts.
  Weights weights() const {
    if (weights_) return *weights_;
    Weights w{Tensor(DType::float32, Shape{K_, N_}), false, K_, N_, N_};
    if (panels_.storage)
      kernels::unpack_b(panels_.view, w.tensor.data<float>());
    else
      kernels::join_b({.N = N_, .K = K_}, split_, 0, N_, w.tensor.data<float>(), N_);
    return w;
  }

  int64_t K_, N_;
  mutable std::mutex mutex_;
  mutable std::optional<Weights> weights_;
  mutable kernels::OwnedPackedB<float> panels_;
  mutable Tensor parts_;  // packed bfloat16 parts; no elements if a weight is too large
  mutable kernels::SplitB split_;
};

struct FusedMatMul : Plan {
  const kernels::PackedB<float>* panels = nullptr;
  const kernels::SplitB* parts = nullptr;  // if not null, used instead of `panels`
  int max_threads = 1;

  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    auto state = std::make_unique<PackedWeights>(Weights::of(c, /*bytewise=*/true));
    if (!kernels::has_split_tiles()) state->panels();
    return state;
  }
  static std::unique_ptr<PackedState> restore(const CreateContext& c, std::span<const PackedPart> parts) {
    const bool transposed = c.attributes().get_int("transB") != 0;
    const Shape& b = c.stored(kB)->shape();
    return PackedWeights::restore(parts, b[transposed ? 1 : 0], b[transposed ? 0 : 1]);
  }
  kernels::GemmShape shape() const { return {.M = M, .N = N, .K = K, .a_row = K, .ldb = N, .ldc = N}; }
  static FusedMatMul bind(BindContext& c) {
    FusedMatMul k{Plan::of(c)};
    const auto& weights = c.packed<PackedWeights>();
    k.max_threads = c.max_threads();
    if (kernels::pays_to_split(k.shape(), /*b_is_split=*/true)) k.parts = weights.parts_for(k.shape());
    if (k.parts != nullptr)
      c.request_scratch(kernels::gemm_split_scratch_bytes(k.shape(), k.max_threads));
    else
      k.panels = &weights.panels();
    return k;
  }
  void run(RunContext& c) const {
    const float* A = c.in<float>(kA);
    if (parts != nullptr)
      return kernels::gemm_split(shape(), A, *parts, c.out<float>(0), epilogue(c), c.scratch<void>(), max_threads, c.pool());
    kernels::gemm<float>(M, {A, K, 1}, in_turn(*panels, c), c.out<float>(0), N, epilogue(c), c.pool());
  }
};

/// The extents of B, a K x N matrix.
struct Extents {
  int64_t K, N;
  static Extents of(const CreateContext& c) {
    const bool transposed = c.attributes().get_int("transB") != 0;
    const Shape& b = c.stored(kB)->shape();
    return {b[transposed ? 1 : 0], b[transposed ? 0 : 1]};
  }
};

struct PackedBf16Weights final : PackedState {
  kernels::PackedBf16 b;
  Tensor words;
  PackedBf16Weights(const Extents& extents, kernels::Bf16Form form, Tensor packed)
      : b{extents.K, extents.N, form, packed.data<uint32_t>()}, words(std::move(packed)) {}
  size_t size_bytes() const override { return words.size_bytes(); }
  std::vector<PackedPart> parts() const override { return {{0, words}}; }
};

struct FusedMatMulBf16 : Plan {
  static std::string declines(const CreateContext& c) {
    if (!bf16_form(c.attributes())) return "its precision is not one of 16 bits";
    return Plan::declines(c);
  }
  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    const Weights w = Weights::of(c);
    const kernels::Bf16Form form = *bf16_form(c.attributes());
    Tensor words = large(DType::uint32, kernels::packed_bf16_size(w.K, w.N, form));
    kernels::pack_bf16(w.tensor.data<float>(), w.K, w.N, w.ldb, w.transposed, form, words.data<uint32_t>());
    return std::make_unique<PackedBf16Weights>(Extents{w.K, w.N}, form, std::move(words));
  }
  static std::unique_ptr<PackedState> restore(const CreateContext& c, std::span<const PackedPart> parts) {
    const Extents extents = Extents::of(c);
    const kernels::Bf16Form form = *bf16_form(c.attributes());
    const Tensor* words = find_part(parts, 0, DType::uint32);
    if (!words || words->num_elements() != kernels::packed_bf16_size(extents.K, extents.N, form)) return nullptr;
    return std::make_unique<PackedBf16Weights>(extents, form, *words);
  }
  static FusedMatMulBf16 bind(BindContext& c) {
    FusedMatMulBf16 k{Plan::of(c)};
    c.request_scratch(kernels::gemm_bf16_scratch_bytes(k.M, k.K, c.packed<PackedBf16Weights>().b.form));
    return k;
  }
  void run(RunContext& c) const {
    kernels::gemm_bf16(M, c.in<float>(kA), K, c.packed<PackedBf16Weights>().b, c.out<float>(0), N, epilogue(c), c.scratch<void>(),
                       c.pool());
  }
};

struct PackedInt8 final : PackedState {
  kernels::PackedInt8Weights b;
  Tensor data, scales;
  PackedInt8(const Extents& extents, Tensor bytes, Tensor factors)
      : b{extents.K, extents.N, bytes.data<int8_t>(), factors.data<float>()}, data(std::move(bytes)), scales(std::move(factors)) {}
  size_t size_bytes() const override { return data.size_bytes() + scales.size_bytes(); }
  std::vector<PackedPart> parts() const override { return {{0, data}, {1, scales}}; }
};

struct FusedMatMulInt8 : Plan {
  static std::string declines(const CreateContext& c) {
    if (c.attributes().get_string(kPrecision) != name_of(Precision::int8_weights)) return "its precision is not int8_weights";
    return Plan::declines(c);
  }
  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    const Weights w = Weights::of(c);
    Tensor data = large(DType::int8, kernels::packed_int8_size(w.K, w.N)), scales = large(DType::float32, kernels::packed_int8_scales(w.N));
    kernels::pack_int8_weights(w.tensor.data<float>(), w.K, w.N, w.ldb, w.transposed, data.data<int8_t>(), scales.data<float>());
    return std::make_unique<PackedInt8>(Extents{w.K, w.N}, std::move(data), std::move(scales));
  }
  static std::unique_ptr<PackedState> restore(const CreateContext& c, std::span<const PackedPart> parts) {
    const Extents extents = Extents::of(c);
    const Tensor *data = find_part(parts, 0, DType::int8), *scales = find_part(parts, 1, DType::float32);
    if (!data || !scales || data->num_elements() != kernels::packed_int8_size(extents.K, extents.N) ||
        scales->num_elements() != kernels::packed_int8_scales(extents.N))
      return nullptr;
    return std::make_unique<PackedInt8>(extents, *data, *scales);
  }
  static FusedMatMulInt8 bind(BindContext& c) { return {Plan::of(c)}; }
  void run(RunContext& c) const {
    kernels::gemm_int8_weights(M, c.in<float>(kA), K, c.packed<PackedInt8>().b, c.out<float>(0), N, epilogue(c), c.pool());
  }
};

void write_fused_matmul(FunctionBody& b) {
  std::string weights = b.in(1);
  if (b.attributes().get_int("transB") != 0) weights = b.op("Transpose", {weights}, {{"perm", std::vector<int64_t>{1, 0}}});
  std::string y = b.op("MatMul", {b.in(0), weights});
  for (size_t i : {2U, 3U})
    if (b.has(i)) y = b.op("Add", {y, b.in(i)});
  if (const ScalarFunction* function = find_function(b.attributes().get_string("activation")))
    y = b.function(*function, y, b.attributes().get_float("activation_alpha"), b.attributes().get_float("activation_beta"));
  b.give(0, y);
}

}  // namespace

std::vector<OpDef> fused_matmul_ops() {
  constexpr TypeSet kFloat{DType::float32};
  return {{.name = "FusedMatMul",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"A", kFloat, "T"},
                      {"B", kFloat, "T"},
                      {"bias", kFloat, "T", Presence::optional},
                      {"residual", kFloat, "T", Presence::optional}},
           .outputs = {{"Y", kFloat, "T"}},
           .attributes = {{"transB", int64_t{0}},
                          {"activation", std::string_view("")},
                          {"activation_alpha", 0.0F},
                          {"activation_beta", 0.0F},
                          {kPrecision, std::string_view("")}},
           .infer = infer,
           .cost = cost,
           // The output may share the memory of the residual: each element is read before the result is written over it.
           .alias = {may_reuse(0, kResidual)},
           .kernels = {kernel<FusedMatMulBf16>("packed in 16 bits", DType::float32), kernel<FusedMatMulInt8>("packed int8", DType::float32),
                       kernel<FusedMatMul>("packed", DType::float32)},
           .write_function = write_fused_matmul,
           .function_opset = activation_opset}};
}

}  // namespace treadle::ops
