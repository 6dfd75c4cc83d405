// Implements ArgMax and ArgMin (ONNX, opset 13): the index of the largest or smallest element along an axis.
#include "graph/infer.h"
#include "graph/op_def.h"
#include "kernels/reduce/reduce.h"
#include "ops/list.h"
#include "ops/math/axis_rows.h"
#include "ops/math/elementwise.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

[[noreturn]] void throw_empty(size_t axis, const std::string& shape) {
  throw Error(ErrorCode::invalid_argument, "the axis " + std::to_string(axis) + " of " + shape + " is empty: there is no extremum");
}

void infer(InferContext& c) {
  if (!c.has_rank(0)) return c.set_output_dtype(0, DType::int64);
  SymbolicShape shape = c.shape(0);
  if (shape.empty()) {
    normalize_axis(c.get_int("axis", 0), 1);  // a scalar is treated as a vector of one element
    return c.set_output(0, DType::int64, shape);
  }
  auto axis = static_cast<size_t>(c.axis("axis", 0, c.rank(0)));
  const bool is_empty = shape[axis].is_const(0);
  const std::string whole = to_string(shape);
  if (c.get_int("keepdims", 1) != 0)
    shape[axis] = Dim(1);
  else
    shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(axis));
  if (is_empty && product(shape).is_const() && !product(shape).is_const(0)) throw_empty(axis, whole);
  c.set_output(0, DType::int64, std::move(shape));
}

}  // namespace

AxisRows arg_extreme_rows(const BindContext& c) {
  const int rank = c.shape(0).rank();
  const AxisRows rows = rank == 0 ? AxisRows{} : AxisRows::of(c.shape(0), c.axis("axis", 0, rank));
  if (rows.length == 0 && rows.outer * rows.inner > 0) throw_empty(static_cast<size_t>(c.axis("axis", 0, rank)), to_string(c.shape(0)));
  return rows;
}

namespace {

template <bool kMax>
struct ArgExtremum {
  template <typename T>
  struct Kernel {
    AxisRows rows;
    bool last;

    static Kernel bind(BindContext& c) { return {arg_extreme_rows(c), c.get_int("select_last_index") != 0}; }
    void run(RunContext& c) const {
      kernels::arg_extreme<T>(kMax, last, rows.outer, rows.length, rows.inner, c.in<T>(0), c.out<int64_t>(0), c.pool());
    }
  };
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
  return {arg_extremum("ArgMax", typed<ArgExtremum<true>::Kernel, float, double, Float16, BFloat16, int8_t, int16_t, int32_t, int64_t,
                                       uint8_t, uint16_t, uint32_t, uint64_t>()),
          arg_extremum("ArgMin", typed<ArgExtremum<false>::Kernel, float, double, Float16, BFloat16, int8_t, int16_t, int32_t, int64_t,
                                       uint8_t, uint16_t, uint32_t, uint64_t>())};
}

}  // namespace treadle::ops
