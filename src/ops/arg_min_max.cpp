// ArgMax, ArgMin (ONNX, opset 13): where along an axis the largest or smallest element stands.
#include <algorithm>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/axis_rows.h"
#include "ops/elementwise.h"
#include "ops/list.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

void infer(InferContext& c) {
  if (!c.has_rank(0)) return c.set_output_dtype(0, DType::int64);
  SymbolicShape shape = c.shape(0);
  if (shape.empty()) return c.set_output(0, DType::int64, shape);
  auto axis = static_cast<size_t>(c.axis("axis", 0, c.rank(0)));
  if (shape[axis].is_const(0))
    throw Error(ErrorCode::invalid_argument,
                "the axis " + std::to_string(axis) + " of " + to_string(shape) + " is empty: there is no extremum");
  if (c.get_int("keepdims", 1) != 0)
    shape[axis] = Dim(1);
  else
    shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(axis));
  c.set_output(0, DType::int64, std::move(shape));
}

template <bool kMax, typename T>
struct ArgExtremum {
  AxisRows rows;
  bool last;

  static ArgExtremum bind(BindContext& c) {
    int rank = c.shape(0).rank();
    AxisRows rows = rank == 0 ? AxisRows{} : AxisRows::of(c.shape(0), c.axis("axis", 0, rank));
    if (rows.length == 0)
      throw Error(ErrorCode::invalid_argument, "the axis of " + to_string(c.shape(0)) + " is empty: there is no extremum");
    return {rows, c.get_int("select_last_index") != 0};
  }

  // A NaN wins over every number, as in NumPy.
  template <typename C>
  bool replaces(C candidate, C best) const {
    if constexpr (std::is_floating_point_v<C>) {
      if (best != best) return last && candidate != candidate;
      if (candidate != candidate) return true;
    }
    if (last && candidate == best) return true;
    return kMax ? candidate > best : candidate < best;
  }

  void run(RunContext& c) const {
    using C = compute_type_t<T>;
    const T* in = c.in<T>(0);
    int64_t* out = c.out<int64_t>(0);
    rows.for_each_tile(c.pool(), [&](int64_t offset, int64_t columns) {
      const T* x = in + offset;
      C best[AxisRows::kTile];
      int64_t index[AxisRows::kTile] = {};
      for (int64_t j = 0; j < columns; ++j) best[j] = static_cast<C>(x[j]);
      for (int64_t i = 1; i < rows.length; ++i)
        for (int64_t j = 0; j < columns; ++j) {
          auto candidate = static_cast<C>(x[i * rows.inner + j]);
          if (replaces(candidate, best[j])) best[j] = candidate, index[j] = i;
        }
      int64_t row = offset / (rows.length * rows.inner), column = offset % rows.inner;
      std::copy_n(index, columns, out + row * rows.inner + column);
    });
  }
};

template <typename T>
struct ArgMax : ArgExtremum<true, T> {
  static ArgMax bind(BindContext& c) { return {ArgExtremum<true, T>::bind(c)}; }
};
template <typename T>
struct ArgMin : ArgExtremum<false, T> {
  static ArgMin bind(BindContext& c) { return {ArgExtremum<false, T>::bind(c)}; }
};

Cost cost(const ShapeContext& c) { return {static_cast<double>(c.num_elements(0)), c.size_bytes(0)}; }

OpDef arg_extremum(std::string_view name, std::vector<KernelDef> kernels) {
  return {.name = name,
          .since = {1, 11, 12, 13},
          .inputs = {{"data", kNumeric, "T"}},
          .outputs = {{"reduced", kInt64}},
          .attributes = {{"axis", int64_t{0}}, {"keepdims", int64_t{1}}, {"select_last_index", int64_t{0}}},
          .infer = infer,
          .cost = cost,
          .kernels = std::move(kernels)};
}

}  // namespace

std::vector<OpDef> arg_min_max_ops() {
  return {arg_extremum(
              "ArgMax",
              typed<ArgMax, float, double, Float16, BFloat16, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t>()),
          arg_extremum(
              "ArgMin",
              typed<ArgMin, float, double, Float16, BFloat16, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t>())};
}

}  // namespace treadle::ops
