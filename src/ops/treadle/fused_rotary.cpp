// Implements FusedRotary (treadle): y = x * cos + rotated(x) * sin in float32, the rotary position embedding that exporters write as
// several nodes. Transposes around it become strides: X and Y are [batch, heads, length, size] or, in layout 1, [batch, length, heads,
// size]. cos and sin broadcast to [batch, heads, length, size]. rotated(x) is (-second half, first half) of the features, or (-x1, x0, -x3,
// x2, ...) if `interleaved`.
#include "ops/treadle/fused_rotary.h"

#include <fmt/format.h>

#include "graph/function_body.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/checks.h"
#include "ops/math/elementwise.h"
#include "ops/treadle/domain.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

template <typename S>
S turned(const S& shape, bool turn) {
  if (!turn) return shape;
  return {shape[0], shape[2], shape[1], shape[3]};
}

void infer(InferContext& c) {
  if (!c.has_rank(0)) return c.set_output_dtype(0, c.dtype(0));
  if (c.rank(0) != 4) throw Error(ErrorCode::invalid_argument, fmt::format("X is of rank {}, not 4", c.rank(0)));
  c.set_output(0, c.dtype(0), turned(c.shape(0), c.get_int("x_layout") != c.get_int("y_layout")));
}

kernels::HeadStrides strides_of(const Shape& logical, bool turned) {
  const int64_t size = logical[3], heads = logical[1], length = logical[2];
  if (turned) return {heads * length * size, size, heads * size};
  return {heads * length * size, length * size, size};
}

kernels::HeadStrides broadcast_strides(const Shape& shape, const Shape& logical) {
  if (shape.rank() < 1 || shape.rank() > 4 || shape.back() != logical[3])
    throw Error(ErrorCode::invalid_argument, fmt::format("cosines or sines {} for heads {}", to_string(shape), to_string(logical)));
  int64_t strides[3] = {0, 0, 0}, step = shape.back();
  for (int own = shape.rank() - 2, axis = 2; own >= 0; --own, --axis) {
    if (shape[own] == 1) continue;
    check_equal(shape[own], logical[axis], "extents of the cosines or sines and of X");
    strides[axis] = step;
    step *= shape[own];
  }
  return {strides[0], strides[1], strides[2]};
}

struct FusedRotary {
  kernels::RotaryParams params;

  static FusedRotary bind(BindContext& c) { return {bind_fused_rotary(c)}; }
  void run(RunContext& c) const { kernels::rotary(params, c.in<float>(0), c.in<float>(1), c.in<float>(2), c.out<float>(0), c.pool()); }
};

void write_fused_rotary(FunctionBody& b) {
  const Attributes& attributes = b.attributes();
  const std::vector<int64_t> turn{0, 2, 1, 3};
  const bool interleaved = attributes.get_int("interleaved") != 0;
  std::string x = b.in(0);
  if (attributes.get_int("x_layout") != 0) x = b.op("Transpose", {x}, {{"perm", turn}});
  const std::string pairs =
      b.op("Reshape", {x, b.ints(interleaved ? std::vector<int64_t>{0, 0, 0, -1, 2} : std::vector<int64_t>{0, 0, 0, 2, -1})});
  auto feature = [&](int64_t which) {  // returns feature 0 or 1 of every pair; the axis stays
    return b.op("Gather", {pairs, b.ints({which})}, {{"axis", int64_t{interleaved ? 4 : 3}}});
  };
  const std::string turned = b.op("Concat", {b.op("Neg", {feature(1)}), feature(0)}, {{"axis", int64_t{interleaved ? 4 : 3}}});
  const std::string rotated = b.op("Reshape", {turned, b.ints({0, 0, 0, -1})});
  std::string y = b.op("Add", {b.op("Mul", {x, b.in(1)}), b.op("Mul", {rotated, b.in(2)})});
  if (attributes.get_int("y_layout") != 0) y = b.op("Transpose", {y}, {{"perm", turn}});
  b.give(0, y);
}

}  // namespace

kernels::RotaryParams bind_fused_rotary(const BindContext& c) {
  const bool x_turned = c.get_int("x_layout") != 0, y_turned = c.get_int("y_layout") != 0;
  const Shape logical = turned(c.shape(0), x_turned);
  if (logical[3] % 2 != 0) throw Error(ErrorCode::invalid_argument, fmt::format("{} features cannot be rotated in pairs", logical[3]));
  kernels::RotaryParams p;
  p.batch = logical[0], p.heads = logical[1], p.length = logical[2], p.size = logical[3];
  p.x = strides_of(logical, x_turned), p.y = strides_of(logical, y_turned);
  p.cos = broadcast_strides(c.shape(1), logical), p.sin = broadcast_strides(c.shape(2), logical);
  p.interleaved = c.get_int("interleaved") != 0;
  return p;
}

std::vector<OpDef> fused_rotary_ops() {
  constexpr TypeSet kFloat{DType::float32};
  return {{.name = "FusedRotary",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"X", kFloat}, {"cos", kFloat}, {"sin", kFloat}},
           .outputs = {{"Y", kFloat}},
           .attributes = {{"interleaved", int64_t{0}}, {"x_layout", int64_t{0}}, {"y_layout", int64_t{0}}},
           .infer = infer,
           .cost = elementwise_cost<3>,
           .kernels = {kernel<FusedRotary>("rows", DType::float32)},
           .write_function = write_fused_rotary}};
}

}  // namespace treadle::ops
