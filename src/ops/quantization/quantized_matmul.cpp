// Implements QuantizedMatMul (treadle): y = (A - a_zero) (B - b_zero) * a_scale * b_scale in float32, for 8-bit matrices. It replaces a
// MatMul of two DequantizeLinear, or MatMulInteger with its scales. With y_scale, the result is quantized as a graph of several nodes
// would:
//   y = Quantize(product + bias)                                  by y_scale
//   y = Quantize(Dequantize(y) + addend)                          by sum_scale, if it has an addend
//   y = Quantize(Dequantize(y) + Dequantize(residual))            by total_scale, if it has a residual
//   y = table[y]                                                  if it has a table
// A number close to the middle between two codes may be rounded the other way, as factors replace the quotients of scales.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/files/file.h"
#include "graph/function_body.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "kernels/conv/byte_tile.h"
#include "kernels/gemm/gemm_bytes.h"
#include "kernels/scratch_slots.h"
#include "ops/checks.h"
#include "ops/math/product.h"
#include "ops/packed_parts.h"
#include "ops/treadle/domain.h"
#include "ops/widen.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

enum Input : int {
  kA,
  kAScale,
  kAZero,
  kB,
  kBScale,
  kBZero,
  kYScale,
  kYZero,
  kBias,
  kAddend,
  kSumScale,
  kSumZero,
  kResidual,
  kResidualScale,
  kResidualZero,
  kTotalScale,
  kTotalZero,
  kTable
};

void infer(InferContext& c) {
  DType dtype = DType::float32;
  for (const int zero : {kYZero, kSumZero, kTotalZero})
    if (c.has_input(kYScale) && c.has_input(zero)) dtype = c.dtype(zero);
  const int64_t of_table = c.get_int("dtype");
  infer_product(c, kA, kB, c.has_input(kYScale) && of_table != 0 ? static_cast<DType>(of_table) : dtype);
}

Cost cost(const ShapeContext& c) {
  const double outputs = static_cast<double>(c.output_shape(0).num_elements());
  return {2 * outputs * static_cast<double>(c.shape(kA).back()), c.size_bytes(kA) + c.size_bytes(kB) + 4 * outputs};
}

int32_t byte_at(const void* data, bool is_signed, int64_t i) {
  return is_signed ? int32_t{static_cast<const int8_t*>(data)[i]} : int32_t{static_cast<const uint8_t*>(data)[i]};
}

int32_t byte_at(const void* data, DType dtype, int64_t i) { return byte_at(data, dtype == DType::int8, i); }

/// What follows the product if its result is bytes.
struct ToBytes {
  struct Quantized {
    DType dtype = DType::undefined;  // undefined: absent
    bool present() const { return dtype != DType::undefined; }
    bool is_signed() const { return dtype == DType::int8; }
  };
  Quantized y, sum, total;
  DType residual = DType::undefined;
  bool has_bias = false, bias_per_column = false, addend_per_column = false;

  static ToBytes bind(const BindContext& c, int64_t N) {
    ToBytes t;
    auto quantized = [&](int scale, int zero, std::string_view what) -> Quantized {
      if (c.has_input(scale) != c.has_input(zero))
        throw Error(ErrorCode::invalid_argument, fmt::format("{} has a scale or a zero point, but not both", what));
      if (!c.has_input(scale)) return {};
      check_equal(c.num_elements(scale), 1, "scales of a result, and one");
      check_equal(c.num_elements(zero), 1, "zero points of a result, and one");
      return {c.dtype(zero)};
    };
    auto per_column = [&](int input) {
      if (c.has_input(input) && c.num_elements(input) != 1) check_equal(c.num_elements(input), N, "elements of a bias and columns");
      return c.has_input(input) && c.num_elements(input) != 1;
    };
    t.y = quantized(kYScale, kYZero, "y"), t.sum = quantized(kSumScale, kSumZero, "the sum");
    t.total = quantized(kTotalScale, kTotalZero, "the total");
    t.has_bias = c.has_input(kBias);
    t.bias_per_column = per_column(kBias), t.addend_per_column = per_column(kAddend);
    if (c.has_input(kResidual)) t.residual = c.dtype(kResidual);
    if (c.has_input(kAddend) != t.sum.present() || c.has_input(kResidual) != t.total.present() ||
        c.has_input(kResidual) != c.has_input(kResidualScale) || c.has_input(kResidual) != c.has_input(kResidualZero))
      throw Error(ErrorCode::invalid_argument, "an addend or residual and its scales belong together");
    const bool any = t.has_bias || t.sum.present() || t.total.present() || c.has_input(kTable);
    if (any && !t.y.present()) throw Error(ErrorCode::invalid_argument, "a result in float32 has a bias, an addend, a residual or a table");
    if (t.residual != DType::undefined) {
      check_equal(c.num_elements(kResidualScale), 1, "scales of the residual, and one");
      check_equal(c.num_elements(kResidualZero), 1, "zero points of the residual, and one");
      if (c.dtype(kResidualZero) != t.residual || c.shape(kResidual) != c.output_shape(0))
        throw Error(ErrorCode::invalid_argument, "the residual has not the result's shape, or not its zero point's type");
    }
    if (c.has_input(kTable)) check_equal(c.num_elements(kTable), 256, "elements of the table");
    return t;
  }
  bool present() const { return y.present(); }
};

struct QuantizedMatMul {
  Product product;
  ToBytes to_bytes;
  bool a_signed, b_signed, packed, scale_per_column, has_b_zero, zero_per_column;
  int64_t columns, scales, zeros, biases, addends, work;  // `columns`: N rounded up to 16; the others: offsets in scratch
  int64_t slot_bytes, slot_data, slot_sums;
  int num_slots;
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
    k.to_bytes = ToBytes::bind(c, s.N);
    if (k.to_bytes.present() && k.zero_per_column) throw Error(ErrorCode::invalid_argument, "a result in bytes needs one zero point of B");
    k.columns = (s.N + 15) / 16 * 16;
    // Stacks of small matrices run at once, a matrix on a thread; otherwise threads share the tiles of a matrix.
    const int64_t products = kernels::num_products(k.product.batch);
    constexpr double kManyProducts = 4e6;
    const bool side_by_side = products >= c.max_threads() && static_cast<double>(s.M) * static_cast<double>(s.K * s.N) < kManyProducts;
    k.num_slots = side_by_side ? kernels::ScratchSlots::count(c.max_threads(), products) : 1;
    ScratchLayout slot;
    slot.take(kernels::gemm_bytes_scratch(s.M, s.K, s.N));
    if (!k.packed) {
      k.slot_data = slot.take(static_cast<size_t>(kernels::packed_bytes_b_size(s.K, s.N)));
      k.slot_sums = slot.take(static_cast<size_t>(s.N) * sizeof(int32_t));
    }
    k.slot_bytes = static_cast<int64_t>(slot.total());
    ScratchLayout layout;
    const size_t column_bytes = static_cast<size_t>(k.columns) * sizeof(float);
    for (int64_t* place : {&k.scales, &k.zeros, &k.biases, &k.addends}) *place = layout.take(column_bytes);
    k.work = layout.take(slot.total() * static_cast<size_t>(k.num_slots));
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    const kernels::GemmShape& s = product.shape;
    if (s.M * s.N == 0) return;
    auto* scale = reinterpret_cast<float*>(scratch_at(c, scales));
    auto* zero = reinterpret_cast<int32_t*>(scratch_at(c, zeros));
    const float unit = *c.in<float>(kAScale) / (to_bytes.present() ? *c.in<float>(kYScale) : 1);
    for (int64_t n = 0; n < s.N; ++n) {
      scale[n] = unit * c.in<float>(kBScale)[scale_per_column ? n : 0];
      zero[n] = has_b_zero ? byte_at(c.in<void>(kBZero), b_signed, zero_per_column ? n : 0) : 0;
    }
    kernels::BytesProduct p;
    p.a_signed = a_signed, p.b_signed = b_signed, p.scales = scale;
    p.a_zero = c.in<void>(kAZero) ? byte_at(c.in<void>(kAZero), a_signed, 0) : 0;
    p.b_zeros = has_b_zero ? zero : nullptr;
    kernels::ByteAddition additions[kernels::kMaxByteAdditions];
    kernels::BytesResult result;
    if (to_bytes.present()) result = bytes_result(c, additions);
    const int64_t products = kernels::num_products(product.batch);
    if (num_slots == 1) return some_products(c, p, result, 0, products, scratch_at(c, work), c.pool());
    kernels::ScratchSlots slots(scratch_at(c, work), static_cast<size_t>(slot_bytes), num_slots);
    const int64_t macs = std::max<int64_t>(1, s.M * s.K * s.N);
    parallel_for(c.pool(), products, std::max<int64_t>(1, 400'000 / macs), [&](int64_t begin, int64_t end) {
      const kernels::ScratchSlots::Lease lease(slots);
      some_products(c, p, result, begin, end, lease.data(), nullptr);
    });
  }

 private:
  /// Describes how sums become bytes, with all factors in units of the next scale.
  kernels::BytesResult bytes_result(RunContext& c, kernels::ByteAddition* additions) const {
    kernels::BytesResult result;
    float scale = *c.in<float>(kYScale);
    auto divided = [&](int input, bool per_column, int64_t place) {
      auto* values = reinterpret_cast<float*>(scratch_at(c, place));
      const auto* from = c.in<float>(input);
      for (int64_t n = 0; n < columns; ++n) values[n] = n < product.shape.N ? from[per_column ? n : 0] / scale : 0;
      return values;
    };
    result.zero = byte_at(c.in<void>(kYZero), to_bytes.y.dtype, 0), result.is_signed = to_bytes.y.is_signed();
    if (to_bytes.has_bias) result.addends = divided(kBias, to_bytes.bias_per_column, biases);
    auto add = [&](int scale_input, int zero_input, DType dtype) -> kernels::ByteAddition& {
      kernels::ByteAddition& a = additions[result.num_additions++];
      const float before = scale;
      scale = *c.in<float>(scale_input);
      a.factor = before / scale, a.zero = byte_at(c.in<void>(zero_input), dtype, 0), a.is_signed = dtype == DType::int8;
      return a;
    };
    if (to_bytes.sum.present()) {
      kernels::ByteAddition& a = add(kSumScale, kSumZero, to_bytes.sum.dtype);
      a.addends = divided(kAddend, to_bytes.addend_per_column, addends);
    }
    if (to_bytes.total.present()) {
      kernels::ByteAddition& a = add(kTotalScale, kTotalZero, to_bytes.total.dtype);
      a.residual = c.in<uint8_t>(kResidual), a.residual_signed = to_bytes.residual == DType::int8;
      a.residual_zero = byte_at(c.in<void>(kResidualZero), to_bytes.residual, 0);
      a.residual_factor = *c.in<float>(kResidualScale) / scale;
    }
    result.additions = additions, result.table = c.in<uint8_t>(kTable);
    return result;
  }
  /// Computes products [begin, end) of the stack. @param room  the scratch of one slot
  void some_products(RunContext& c, kernels::BytesProduct p, kernels::BytesResult result, int64_t begin, int64_t end, std::byte* room,
                     ThreadPool* pool) const {
    const kernels::GemmShape& s = product.shape;
    const auto& weights = c.packed<BytesWithSums>();
    kernels::PackedBytesB b{s.K, s.N, nullptr, nullptr};
    if (packed) b = {s.K, s.N, weights.weights.data<int8_t>(), weights.sums.data<int32_t>()};
    int64_t packed_at = -1;
    for (int64_t i = begin; i < end; ++i) {
      const kernels::BatchOffsets o = kernels::offsets_of(product.batch, i);
      if (!packed && o.b != packed_at) {
        b = kernels::pack_bytes_b(c.in<uint8_t>(kB) + o.b, b_signed, s.K, s.N, s.N, reinterpret_cast<int8_t*>(room + slot_data),
                                  reinterpret_cast<int32_t*>(room + slot_sums));
        packed_at = o.b;
      }
      p.A = c.in<uint8_t>(kA) + o.a;
      if (!to_bytes.present()) {
        kernels::gemm_bytes(s.M, p, b, c.out<float>(0) + o.c, room, pool);
        continue;
      }
      result.first = o.c;
      kernels::gemm_bytes(s.M, p, b, result, c.out<uint8_t>(0) + o.c, room, pool);
    }
  }
};

// Sums as integers, which is exact, like the kernel. In float, a sum that is 0 could become a small other number.
void write_quantized_matmul(FunctionBody& b) {
  const std::string sums = b.op("MatMulInteger", {b.in(kA), b.in(kB), b.in(kAZero), b.in(kBZero)});
  const std::string floats = b.op("Cast", {sums}, {{"to", static_cast<int64_t>(DType::float32)}});
  std::string y = b.op("Mul", {floats, b.op("Mul", {b.in(kAScale), b.in(kBScale)})});
  if (b.has(kYScale)) {
    if (b.has(kTable)) throw Error(ErrorCode::not_implemented, "ONNX has no operator that looks up bytes in a table");
    if (b.has(kBias)) y = b.op("Add", {y, b.in(kBias)});
    y = b.op("QuantizeLinear", {y, b.in(kYScale), b.in(kYZero)});
    int scale = kYScale, zero = kYZero;
    if (b.has(kAddend)) {
      y = b.op("Add", {b.op("DequantizeLinear", {y, b.in(scale), b.in(zero)}), b.in(kAddend)});
      y = b.op("QuantizeLinear", {y, b.in(scale = kSumScale), b.in(zero = kSumZero)});
    }
    if (b.has(kResidual)) {
      const std::string residual = b.op("DequantizeLinear", {b.in(kResidual), b.in(kResidualScale), b.in(kResidualZero)});
      y = b.op("Add", {b.op("DequantizeLinear", {y, b.in(scale), b.in(zero)}), residual});
      y = b.op("QuantizeLinear", {y, b.in(kTotalScale), b.in(kTotalZero)});
    }
  }
  b.give(0, y);
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
                      {"b_zero_point", kBytes, "TB", Presence::optional},
                      {"y_scale", kFloat, "", Presence::optional},
                      {"y_zero_point", kBytes, "", Presence::optional},
                      {"bias", kFloat, "", Presence::optional},
                      {"addend", kFloat, "", Presence::optional},
                      {"sum_scale", kFloat, "", Presence::optional},
                      {"sum_zero_point", kBytes, "", Presence::optional},
                      {"residual", kBytes, "", Presence::optional},
                      {"residual_scale", kFloat, "", Presence::optional},
                      {"residual_zero_point", kBytes, "", Presence::optional},
                      {"total_scale", kFloat, "", Presence::optional},
                      {"total_zero_point", kBytes, "", Presence::optional},
                      {"table", TypeSet{DType::uint8}, "", Presence::optional}},
           .outputs = {{"Y", kFloat | kBytes}},
           .attributes = {{"dtype", int64_t{0}, dtype_among(kBytes | TypeSet{DType::undefined})}},
           .infer = infer,
           .cost = cost,
           .kernels = {kernel<QuantizedMatMul>("bytes")},
           .write_function = write_quantized_matmul}};
}

}  // namespace treadle::ops
