// Implements QuantizedMatMul (treadle): y = (A - a_zero) (B - b_zero) * a_scale * b_scale in float32, for 8-bit matrices A and B. It
// replaces a MatMul of two DequantizeLinear, or a MatMulInteger followed by its scales.
#include <fmt/format.h>

#include <vector>

#include "core/files/file.h"
#include "graph/function_body.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "kernels/gemm/gemm_bytes.h"
#include "ops/math/product.h"
#include "ops/packed_parts.h"
#include "ops/treadle/domain.h"
#include "ops/widen.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

enum Input : int { kA, kAScale, kAZero, kB, kBScale, kBZero };

void infer(InferContext& c) { infer_product(c, kA, kB, DType::float32); }

Cost cost(const ShapeContext& c) {
  const double outputs = static_cast<double>(c.output_shape(0).num_elements());
  return {2 * outputs * static_cast<double>(c.shape(kA).back()), c.size_bytes(kA) + c.size_bytes(kB) + 4 * outputs};
}

int32_t byte_at(const void* data, bool is_signed, int64_t i) {
  return is_signed ? int32_t{static_cast<const int8_t*>(data)[i]} : int32_t{static_cast<const uint8_t*>(data)[i]};
}

struct QuantizedMatMul {
  Product product;
  bool a_signed, b_signed, packed, scale_per_column, has_b_zero, zero_per_column;
  int64_t work, scales, zeros, b_data, b_sums;
  static constexpr bool shares_packed = true;

  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    auto state = std::make_unique<BytesWithSums>();
    const Tensor* constant = c.constant(kB);
    if (!constant || constant->shape().rank() != 2 || constant->num_elements() == 0) return state;
    const Tensor b = constant->contiguous();
    const int64_t K = b.shape()[0], N = b.shape()[1];
    state->allocate(kernels::packed_bytes_b_size(K, N), N);
    kernels::pack_bytes_b(b.raw(), b.dtype() == DType::int8, K, N, N, state->weights.data<int8_t>(), state->sums.data<int32_t>());
    drop_mapped_pages(b.raw(), b.size_bytes());
    return state;
  }
  static std::unique_ptr<PackedState> restore(const CreateContext& c, std::span<const PackedPart> parts) {
    const Tensor* b = c.stored(kB);
    if (!b || b->shape().rank() != 2) return nullptr;
    return BytesWithSums::restore(parts, kernels::packed_bytes_b_size(b->shape()[0], b->shape()[1]), b->shape()[1]);
  }
  static QuantizedMatMul bind(BindContext& c) {
    QuantizedMatMul k{};
    k.packed = !c.packed<BytesWithSums>().empty();
    k.product = Product::of(c.shape(kA), c.shape(kB), k.packed);
    const kernels::GemmShape& s = k.product.shape;
    k.a_signed = c.dtype(kA) == DType::int8, k.b_signed = c.dtype(kB) == DType::int8;
    auto per_column = [&](int input, std::string_view what) {
      const int64_t count = c.num_elements(input);
      if (count != 1) check_equal(count, s.N, what);
      return count != 1;
    };
    check_equal(c.num_elements(kAScale), 1, "scales of A, and one");
    if (c.has_input(kAZero)) check_equal(c.num_elements(kAZero), 1, "zero points of A, and one");
    k.scale_per_column = per_column(kBScale, "scales of B and its columns");
    k.has_b_zero = c.has_input(kBZero);
    k.zero_per_column = k.has_b_zero && per_column(kBZero, "zero points of B and its columns");
    ScratchLayout layout;
    k.work = layout.take(kernels::gemm_bytes_scratch(s.M, s.K, s.N));
    k.scales = layout.take(static_cast<size_t>(s.N) * sizeof(float));
    k.zeros = layout.take(static_cast<size_t>(s.N) * sizeof(int32_t));
    if (!k.packed) {
      k.b_data = layout.take(static_cast<size_t>(kernels::packed_bytes_b_size(s.K, s.N)));
      k.b_sums = layout.take(static_cast<size_t>(s.N) * sizeof(int32_t));
    }
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    const kernels::GemmShape& s = product.shape;
    if (s.M * s.N == 0) return;
    auto* scale = reinterpret_cast<float*>(scratch_at(c, scales));
    auto* zero = reinterpret_cast<int32_t*>(scratch_at(c, zeros));
    const float a_scale = *c.in<float>(kAScale);
    for (int64_t n = 0; n < s.N; ++n) {
      scale[n] = a_scale * c.in<float>(kBScale)[scale_per_column ? n : 0];
      zero[n] = has_b_zero ? byte_at(c.in<void>(kBZero), b_signed, zero_per_column ? n : 0) : 0;
    }
    kernels::BytesProduct p;
    p.a_signed = a_signed, p.b_signed = b_signed, p.scales = scale;
    p.a_zero = c.in<void>(kAZero) ? byte_at(c.in<void>(kAZero), a_signed, 0) : 0;
    p.b_zeros = has_b_zero ? zero : nullptr;
    const auto& weights = c.packed<BytesWithSums>();
    kernels::PackedBytesB b{s.K, s.N, nullptr, nullptr};
    if (packed) b = {s.K, s.N, weights.weights.data<int8_t>(), weights.sums.data<int32_t>()};
    int64_t packed_at = -1;
    for (int64_t i = 0; i < kernels::num_products(product.batch); ++i) {
      const kernels::BatchOffsets o = kernels::offsets_of(product.batch, i);
      if (!packed && o.b != packed_at) {
        b = kernels::pack_bytes_b(c.in<uint8_t>(kB) + o.b, b_signed, s.K, s.N, s.N, reinterpret_cast<int8_t*>(scratch_at(c, b_data)),
                                  reinterpret_cast<int32_t*>(scratch_at(c, b_sums)));
        packed_at = o.b;
      }
      p.A = c.in<uint8_t>(kA) + o.a;
      kernels::gemm_bytes(s.M, p, b, c.out<float>(0) + o.c, scratch_at(c, work), c.pool());
    }
  }
};

// Sums as integers, which is exact, like the kernel. In float, a sum that is 0 could become a small other number.
void write_quantized_matmul(FunctionBody& b) {
  const std::string sums = b.op("MatMulInteger", {b.in(kA), b.in(kB), b.in(kAZero), b.in(kBZero)});
  const std::string floats = b.op("Cast", {sums}, {{"to", static_cast<int64_t>(DType::float32)}});
  b.give(0, b.op("Mul", {floats, b.op("Mul", {b.in(kAScale), b.in(kBScale)})}));
}

}  // namespace

std::vector<OpDef> quantized_matmul_ops() {
  constexpr TypeSet kBytes{DType::int8, DType::uint8}, kFloat{DType::float32};
  return {{.name = "QuantizedMatMul",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"A", kBytes, "TA"},
                      {"a_scale", kFloat},
                      {"a_zero_point", kBytes, "TA", Presence::optional},
                      {"B", kBytes, "TB"},
                      {"b_scale", kFloat},
                      {"b_zero_point", kBytes, "TB", Presence::optional}},
           .outputs = {{"Y", kFloat}},
           .infer = infer,
           .cost = cost,
           .kernels = {kernel<QuantizedMatMul>("bytes")},
           .write_function = write_quantized_matmul}};
}

}  // namespace treadle::ops
