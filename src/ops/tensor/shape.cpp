// Implements Shape and Size, which return extents as tensors.
#include <fmt/format.h>

#include <algorithm>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/list.h"
#include "ops/tensor/movement.h"

namespace treadle::ops {
namespace {

struct Range {
  int first, last;
};

// Returns the range of axes whose extents Shape returns. `start` and `end` count from the end if they are negative, and are clamped.
Range shape_range(const Attributes& attributes, int rank) {
  auto clamp = [rank](int64_t axis) { return static_cast<int>(std::clamp<int64_t>(axis < 0 ? axis + rank : axis, 0, rank)); };
  const int first = clamp(attributes.get_int("start", 0)), last = clamp(attributes.get_int("end", rank));
  return {first, std::max(first, last)};
}

void infer_shape(InferContext& c) {
  if (!c.has_rank(0)) return c.set_output(0, DType::int64, c.data_dependent_shape("rank", 1));
  const auto [first, last] = shape_range(c.attributes(), c.rank(0));
  c.set_output(0, DType::int64, {last - first});
  c.set_known(0, KnownValues(c.shape(0).begin() + first, c.shape(0).begin() + last));
}

void infer_size(InferContext& c) {
  c.set_output(0, DType::int64, SymbolicShape{});
  if (c.has_rank(0)) c.set_known(0, {product(c.shape(0))});
}

struct ShapeKernel {
  int64_t extents[kMaxRank];
  int count;
  static ShapeKernel bind(BindContext& c) {
    ShapeKernel k{};
    const auto [first, last] = shape_range(c.node().attributes, c.shape(0).rank());
    for (int axis = first; axis < last; ++axis) k.extents[k.count++] = c.shape(0)[axis];
    return k;
  }
  void run(RunContext& c) const { std::copy_n(extents, count, c.out<int64_t>(0)); }
};

struct SizeKernel {
  int64_t size;
  static SizeKernel bind(BindContext& c) { return {c.num_elements(0)}; }
  void run(RunContext& c) const { *c.out<int64_t>(0) = size; }
};

}  // namespace

std::vector<OpDef> shape_ops() {
  return {
      {.name = "Shape",
       .since = {1, 13, 15, 19, 21, 23, 24, 25},
       .inputs = {{"data", kAllTensors}},
       .outputs = {{"shape", kInt64}},
       .attributes = {{"start", int64_t{0}}, {"end", AttributeDef::NoDefault{}}},
       .infer = infer_shape,
       .kernels = {kernel<ShapeKernel>()},
       .channels_last = {ChannelsLast::How::shape}},
      {.name = "Size",
       .since = {1, 13, 19, 21, 23, 24, 25},
       .inputs = {{"data", kAllTensors}},
       .outputs = {{"size", kInt64}},
       .infer = infer_size,
       .kernels = {kernel<SizeKernel>()}},
  };
}

}  // namespace treadle::ops
