// Implements BlockedMatMul (treadle): y = A times constant 4-bit or 8-bit weights, which have a scale per block of the inner dimension. It
// replaces a MatMul of DequantizeLinear, and MatMulNBits.
#include "ops/treadle/blocked_matmul.h"

#include <fmt/format.h>

#include <vector>

#include "core/files/file.h"
#include "core/values/float_types.h"
#include "graph/function_body.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "kernels/gemm/gemm_blocked.h"
#include "kernels/gemm/gemm_blocked_bytes.h"
#include "ops/treadle/domain.h"
#include "ops/treadle/on_devices.h"
#include "ops/widen.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

int32_t code_at(const Tensor& tensor, int64_t i) {
  const std::byte* data = tensor.raw();
  switch (tensor.dtype()) {
    case DType::int4: return Int4::get_packed(data, i);
    case DType::uint4: return int32_t{UInt4::get_packed(data, i)} - 8;
    case DType::int8: return reinterpret_cast<const int8_t*>(data)[i];
    default: return int32_t{reinterpret_cast<const uint8_t*>(data)[i]} - 128;
  }
}

struct PackedBlockedState final : PackedState {
  std::vector<uint32_t> codes;
  std::vector<float> scales, zeros;
  size_t size_bytes() const override { return codes.size() * sizeof(uint32_t) + (scales.size() + zeros.size()) * sizeof(float); }
};

struct BlockedMatMul {
  kernels::BlockedShape shape;
  int64_t M;
  bool bytes;  // true: activations are quantized to 8 bits
  static constexpr uint32_t packs = 1U << kCodes | 1U << kScales | 1U << kZeros;

  static std::string declines(const CreateContext& c) {
    for (int input : {kCodes, kScales, kZeros})
      if (c.has_input(input) && !c.constant(input)) return "its weights are not constant";
    return {};
  }
  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    auto state = std::make_unique<PackedBlockedState>();
    const Tensor codes = c.constant(kCodes)->contiguous(), scales = c.constant(kScales)->contiguous();
    const BlockedGeometry g = BlockedGeometry::of(c.attributes(), codes.shape(), codes.dtype());
    const kernels::BlockedShape& s = g.shape;
    state->codes.assign(kernels::blocked_code_words(s), 0);
    state->scales.assign(kernels::blocked_scale_count(s), 0.0F);
    const int64_t k_step = g.inner_axis == 0 ? s.N : 1, n_step = g.inner_axis == 0 ? 1 : s.K;
    for (int64_t n = 0; n < s.N; ++n)
      for (int64_t k = 0; k < s.K; ++k) kernels::pack_blocked_code(s, k, n, code_at(codes, k * k_step + n * n_step), state->codes.data());
    // The scales may be a single number, one number per column, [blocks, N], or [N, blocks].
    const Tensor zeros = c.has_input(kZeros) ? c.constant(kZeros)->contiguous() : Tensor();
    const int64_t count = scales.num_elements(), blocks = s.blocks();
    auto place = [&](int64_t block, int64_t n) {
      if (count == 1) return int64_t{0};
      return g.inner_axis == 0 ? block * s.N + n : n * blocks + block;
    };
    const bool is_unsigned = codes.dtype() == DType::uint4 || codes.dtype() == DType::uint8;
    const auto no_zero = static_cast<float>(is_unsigned ? -(1 << (s.bits - 1)) : 0);
    bool any_zero = false;
    state->zeros.assign(state->scales.size(), 0.0F);
    for (int64_t n = 0; n < s.N; ++n) {
      for (int64_t b = 0; b < blocks; ++b) {
        const auto to = static_cast<size_t>(kernels::blocked_scale_place(s, b, n));
        state->scales[to] = scales.data<float>()[place(b, n)];
        state->zeros[to] = zeros.defined() ? static_cast<float>(code_at(zeros, place(b, n))) : no_zero;
        any_zero |= state->zeros[to] != 0;
      }
    }
    if (!any_zero) state->zeros = {};
    drop_mapped_pages(codes.raw(), codes.size_bytes());
    return state;
  }
  static BlockedMatMul bind(BindContext& c) {
    const auto geometry = BlockedGeometry::of(c.node().attributes, c.shape(kCodes), c.dtype(kCodes));
    BlockedMatMul k{geometry.shape, geometry.rows_of(c.shape(kActivations)), false};
    k.shape.has_zeros = !c.packed<PackedBlockedState>().zeros.empty();
    k.bytes = c.node().attributes.get_int("int8_activations", 0) != 0 && kernels::takes_blocked_bytes(k.shape);
    c.request_scratch(k.bytes ? kernels::gemm_blocked_bytes_scratch(k.M, k.shape) : kernels::gemm_blocked_scratch(k.M, k.shape));
    return k;
  }
  void run(RunContext& c) const {
    const PackedBlockedState& w = c.packed<PackedBlockedState>();
    const kernels::PackedBlocked B{shape, w.codes.data(), w.scales.data(), w.zeros.empty() ? nullptr : w.zeros.data()};
    const auto product = bytes ? kernels::gemm_blocked_bytes : kernels::gemm_blocked;
    product(M, c.in<float>(kActivations), B, c.out<float>(0), scratch_at(c, 0), c.pool());
  }
};

void infer_blocked_matmul(InferContext& c) {
  const int64_t inner_axis = c.attributes().get_int("axis", 0);
  const Type &a = c.input(kActivations), &codes = c.input(kCodes);
  if (!codes.is_static()) throw Error(ErrorCode::invalid_argument, "the extents of the weights must be known");
  const BlockedGeometry g = BlockedGeometry::of(c.attributes(), codes.static_shape(), codes.dtype);
  if (g.shape.block_size % 8 != 0)
    throw Error(ErrorCode::invalid_argument, fmt::format("blocks of {}, no multiple of 8", g.shape.block_size));
  const int64_t wanted = g.shape.blocks() * g.shape.N;
  for (const int input : {kScales, kZeros}) {
    if (!c.has_input(input)) continue;
    const Type& type = c.input(input);
    const int64_t count = type.is_static() ? type.static_shape().num_elements() : -1;
    const int64_t other = input == kZeros && c.input(kScales).is_static() ? c.input(kScales).static_shape().num_elements() : count;
    if ((count != 1 && count != wanted) || count != other)
      throw Error(ErrorCode::invalid_argument, fmt::format("{} is {}; one element or {}, a block of a column, expected, as many as scales",
                                                           input == kZeros ? "zero_points" : "scales", to_string(type), wanted));
  }
  if (!a.has_rank()) return c.set_output(0, Type::tensor(a.dtype));
  SymbolicShape shape = *a.shape;
  shape.back() = (*codes.shape)[static_cast<size_t>(1 - inner_axis)];
  c.set_output(0, Type::tensor(a.dtype, std::move(shape)));
}

Cost blocked_matmul_cost(const ShapeContext& c) {
  const double outputs = static_cast<double>(c.output_shape(0).num_elements());
  return {
      2 * outputs * static_cast<double>(c.shape(kActivations).back()),
      c.size_bytes(kActivations) + c.size_bytes(kCodes) + c.size_bytes(kScales) + static_cast<double>(bits_of(c.dtype(0))) / 8 * outputs};
}

// ONNX has 4-bit codes and blocks since opset 21. The nodes compute the exact product, even if the kernel may quantize activations to 8
// bits.
void write_blocked_matmul(FunctionBody& b) {
  const int64_t inner = b.attributes().get_int("axis", 0), block = b.attributes().get_int("block_size", 0);
  std::string weights = b.op("DequantizeLinear", {b.in(kCodes), b.in(kScales), b.in(kZeros)},
                             {{"axis", block > 0 ? inner : 1 - inner}, {"block_size", block}});
  if (inner == 1) weights = b.op("Transpose", {weights}, {{"perm", std::vector<int64_t>{1, 0}}});
  b.give(0, b.op("MatMul", {b.in(kActivations), weights}));
}

}  // namespace

std::vector<OpDef> blocked_matmul_ops() {
  constexpr TypeSet kCodeTypes{DType::int8, DType::uint8, DType::int4, DType::uint4},
      kFloat{DType::float32, DType::float16, DType::bfloat16};  // the 16-bit types only on devices other than the CPU
  return {{.name = "BlockedMatMul",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"A", kFloat, "T", Presence::required, of_ranks(1)},
                      {"B", kCodeTypes, "TB", Presence::required, of_rank(2)},
                      {"scales", kFloat, "T"},
                      {"zero_points", kCodeTypes, "TB", Presence::optional}},
           .outputs = {{"Y", kFloat, "T"}},
           .attributes = {{"axis", int64_t{0}, zero_or_one()},
                          {"block_size", int64_t{0}, between(0, int64_t{1} << 30)},
                          {"int8_activations", int64_t{0}, zero_or_one()}},
           .infer = infer_blocked_matmul,
           .cost = blocked_matmul_cost,
           .kernels = {kernel<BlockedMatMul>("blocks", DType::float32), on_devices_only()},
           .write_function = write_blocked_matmul,
           .function_opset = [](const Node&) { return 21; }}};
}

}  // namespace treadle::ops
