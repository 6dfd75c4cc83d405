// Implements QuantizedSoftmax and QuantizedLayerNormalization (treadle): Quantize(f(Dequantize(x))) along the last axis, for one scale
// each. A few rows at a time are dequantized, computed and quantized, so that their floats stay in the cache. Results are those of the
// separate operators, bit for bit.
#include <fmt/format.h>

#include <algorithm>

#include "graph/function_body.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "kernels/elementwise/quantize.h"
#include "kernels/normalization/norm.h"
#include "kernels/normalization/softmax.h"
#include "kernels/scratch_slots.h"
#include "ops/checks.h"
#include "ops/treadle/domain.h"
#include "ops/widen.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

enum Input : int { kX, kXScale, kXZero, kYScale, kYZero, kScale, kBias };

void infer(InferContext& c) {
  Type type = c.input(kX);
  type.kind = Type::Kind::tensor;
  type.dtype = c.dtype(kYZero);
  c.set_output(0, std::move(type));
}
Cost cost(const ShapeContext& c) { return {20 * static_cast<double>(c.num_elements(kX)), 2 * c.size_bytes(kX)}; }

/// Rows of bytes that are computed as floats, a block at a time.
struct ByteRows {
  static constexpr int64_t kBlock = 8192;  // number of floats of a block, which stays in L1
  int64_t count, length, block;
  DType from, to;
  int num_slots;

  static ByteRows bind(BindContext& c) {
    const Shape& x = c.shape(kX);
    if (x.rank() == 0) throw Error(ErrorCode::invalid_argument, "rows of a tensor without axes");
    for (const int i : {kXScale, kXZero, kYScale, kYZero}) check_equal(c.num_elements(i), 1, "scales and zero points, and one");
    if (c.dtype(kX) != c.dtype(kXZero)) throw Error(ErrorCode::invalid_argument, "X and its zero point are of different types");
    ByteRows rows{};
    rows.length = x.back(), rows.count = x.product(0, x.rank() - 1), rows.from = c.dtype(kX), rows.to = c.dtype(kYZero);
    rows.block = std::max<int64_t>(1, kBlock / std::max<int64_t>(1, rows.length));
    rows.num_slots = kernels::ScratchSlots::count(c.max_threads(), (rows.count + rows.block - 1) / rows.block);
    c.request_scratch(rows.slot_bytes() * static_cast<size_t>(rows.num_slots));
    return rows;
  }
  size_t slot_bytes() const { return kernels::aligned_bytes<float>(block * length); }

  /// Calls compute(number of rows, floats) for all blocks; it replaces the floats in place.
  template <typename Fn>
  void run(RunContext& c, const Fn& compute) const {
    if (count * length == 0) return;
    const float x_scale = *c.in<float>(kXScale), y_scale = *c.in<float>(kYScale);
    const auto x_zero = static_cast<float>(zero_of(c, kXZero, from)), y_zero = static_cast<float>(zero_of(c, kYZero, to));
    kernels::ScratchSlots slots(c.scratch<void>(), slot_bytes(), num_slots);
    const int64_t blocks = (count + block - 1) / block, grain = std::max<int64_t>(1, kBlock / (block * length));
    parallel_for(c.pool(), blocks, grain, [&](int64_t begin, int64_t end) {
      const kernels::ScratchSlots::Lease lease(slots);
      auto* floats = reinterpret_cast<float*>(lease.data());
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i * block, some = std::min(block, count - first), n = some * length;
        if (from == DType::int8)
          kernels::dequantize_bytes(c.in<int8_t>(kX) + first * length, n, x_scale, x_zero, floats);
        else
          kernels::dequantize_bytes(c.in<uint8_t>(kX) + first * length, n, x_scale, x_zero, floats);
        compute(some, floats);
        if (to == DType::int8)
          kernels::quantize_bytes(floats, n, y_scale, y_zero, c.out<int8_t>(0) + first * length);
        else
          kernels::quantize_bytes(floats, n, y_scale, y_zero, c.out<uint8_t>(0) + first * length);
      }
    });
  }

 private:
  static int32_t zero_of(const RunContext& c, int input, DType dtype) {
    return dtype == DType::int8 ? int32_t{*c.in<int8_t>(input)} : int32_t{*c.in<uint8_t>(input)};
  }
};

struct QuantizedSoftmax {
  ByteRows rows;

  static QuantizedSoftmax bind(BindContext& c) { return {ByteRows::bind(c)}; }
  void run(RunContext& c) const {
    rows.run(c, [&](int64_t count, float* x) { kernels::softmax<float>(count, rows.length, 1, x, x, nullptr); });
  }
};

struct QuantizedLayerNormalization {
  ByteRows rows;
  float epsilon;

  static QuantizedLayerNormalization bind(BindContext& c) {
    const QuantizedLayerNormalization k{ByteRows::bind(c), c.get_float("epsilon", 1e-5F)};
    for (const int i : {kScale, kBias})
      if (c.has_input(i)) check_equal(c.num_elements(i), k.rows.length, "elements of the scale or bias, and of a row");
    return k;
  }
  void run(RunContext& c) const {
    rows.run(c, [&](int64_t count, float* x) {
      kernels::layer_norm<float>(count, rows.length, x, c.in<float>(kScale), c.in<float>(kBias), epsilon, x, nullptr, nullptr, nullptr);
    });
  }
};

std::string dequantized(FunctionBody& b) { return b.op("DequantizeLinear", {b.in(kX), b.in(kXScale), b.in(kXZero)}); }
void give_quantized(FunctionBody& b, const std::string& y) { b.give(0, b.op("QuantizeLinear", {y, b.in(kYScale), b.in(kYZero)})); }
void write_softmax(FunctionBody& b) { give_quantized(b, b.op("Softmax", {dequantized(b)}, {{"axis", int64_t{-1}}})); }
void write_layer_normalization(FunctionBody& b) {
  give_quantized(b, b.op("LayerNormalization", {dequantized(b), b.in(kScale), b.in(kBias)}, b.own({"epsilon"})));
}

}  // namespace

std::vector<OpDef> quantized_rows_ops() {
  constexpr TypeSet kBytes{DType::int8, DType::uint8}, kFloat{DType::float32};
  OpDef softmax{.name = "QuantizedSoftmax",
                .domain = "treadle",
                .since = {1},
                .inputs = {{"X", kBytes}, {"x_scale", kFloat}, {"x_zero_point", kBytes}, {"y_scale", kFloat}, {"y_zero_point", kBytes}},
                .outputs = {{"Y", kBytes}},
                .infer = infer,
                .cost = cost,
                .kernels = {kernel<QuantizedSoftmax>("rows")},
                .write_function = write_softmax};
  OpDef normalization = softmax;
  normalization.name = "QuantizedLayerNormalization";
  normalization.inputs.push_back({"Scale", kFloat});
  normalization.inputs.push_back({"B", kFloat, "", Presence::optional});
  normalization.attributes = {{"epsilon", 1e-5F}};
  normalization.kernels = {kernel<QuantizedLayerNormalization>("rows")};
  normalization.write_function = write_layer_normalization;
  return {softmax, normalization};
}

}  // namespace treadle::ops
