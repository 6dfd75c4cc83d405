// Implements Scaler, Binarizer, Imputer (ai.onnx.ml 1): elementwise operators with parameters per column.
#include <algorithm>
#include <cmath>

#include "core/threads/thread_pool.h"
#include "ops/list.h"
#include "ops/ml/columns.h"

namespace treadle::ops {
namespace {

constexpr int64_t kGrain = 16384;

/// Divides the elements into runs that lie within one row of `columns` elements. Calls fn(first element, its column, count) for each run.
template <typename Fn>
void for_row_pieces(ThreadPool* pool, int64_t total, int64_t columns, Fn fn) {
  parallel_for(pool, total, kGrain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      int64_t column = begin % columns, count = std::min(columns - column, end - begin);
      fn(begin, column, count);
      begin += count;
    }
  });
}

template <typename X>
struct Scaler {
  int64_t total, columns, offset_step, scale_step;

  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    auto state = std::make_unique<ScalerModel>();
    state->offset = c.attributes().get_floats("offset");
    state->scale = c.attributes().get_floats("scale");
    if (state->offset.empty()) state->offset = {0};
    if (state->scale.empty()) state->scale = {1};
    return state;
  }
  static Scaler bind(BindContext& c) {
    const auto& state = c.packed<ScalerModel>();
    int64_t columns = last_extent(c.shape(0));
    check_per_column(static_cast<int64_t>(state.offset.size()), "offset", columns);
    check_per_column(static_cast<int64_t>(state.scale.size()), "scale", columns);
    return {c.num_elements(0), std::max<int64_t>(columns, 1), state.offset.size() > 1, state.scale.size() > 1};
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<ScalerModel>();
    const X* x = c.in<X>(0);
    auto* y = c.out<float>(0);
    for_row_pieces(c.pool(), total, columns, [&](int64_t first, int64_t column, int64_t count) {
      const float* offset = state.offset.data() + column * offset_step;
      const float* scale = state.scale.data() + column * scale_step;
      for (int64_t i = 0; i < count; ++i)
        y[first + i] = (static_cast<float>(x[first + i]) - offset[i * offset_step]) * scale[i * scale_step];
    });
  }
};

template <typename X>
struct Binarizer {
  int64_t total;
  float threshold;

  static Binarizer bind(BindContext& c) { return {c.num_elements(0), c.get_float("threshold", 0)}; }
  void run(RunContext& c) const {
    const X* x = c.in<X>(0);
    X* y = c.out<X>(0);
    parallel_for(c.pool(), total, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) y[i] = static_cast<double>(x[i]) > static_cast<double>(threshold) ? X{1} : X{0};
    });
  }
};

template <typename X>
struct Imputer {
  int64_t total, columns, step;

  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    auto state = std::make_unique<ImputerModel<X>>();
    const Attributes& a = c.attributes();
    if (!a.get_floats("imputed_value_floats").empty() && !a.get_ints("imputed_value_int64s").empty())
      throw Error(ErrorCode::invalid_model, "just one of imputed_value_floats and imputed_value_int64s must be given");
    if constexpr (std::is_floating_point_v<X>) {
      const auto& values = a.get_floats("imputed_value_floats");
      state->imputed.assign(values.begin(), values.end());
      state->replaced = static_cast<X>(a.get_float("replaced_value_float", 0));
    } else {
      for (int64_t value : a.get_ints("imputed_value_int64s")) state->imputed.push_back(checked_cast(value, "imputed_value_int64s"));
      int64_t replaced = a.get_int("replaced_value_int64", 0);
      state->replaced = checked_cast(replaced, "replaced_value_int64");
    }
    if (state->imputed.empty())
      throw Error(ErrorCode::invalid_model,
                  fmt::format("{} is missing, which an input of {} needs",
                              std::is_floating_point_v<X> ? "imputed_value_floats" : "imputed_value_int64s", name_of(dtype_of<X>)));
    return state;
  }
  static X checked_cast(int64_t value, std::string_view name) {
    if (static_cast<int64_t>(static_cast<X>(value)) != value)
      throw Error(ErrorCode::invalid_model, fmt::format("{} = {} does not fit in {}", name, value, name_of(dtype_of<X>)));
    return static_cast<X>(value);
  }
  static Imputer bind(BindContext& c) {
    const auto& state = c.packed<ImputerModel<X>>();
    int64_t columns = last_extent(c.shape(0));
    check_per_column(static_cast<int64_t>(state.imputed.size()), "imputed_value", columns);
    return {c.num_elements(0), std::max<int64_t>(columns, 1), state.imputed.size() > 1};
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<ImputerModel<X>>();
    const X* x = c.in<X>(0);
    X* y = c.out<X>(0);
    X replaced = state.replaced;
    bool is_nan = replaced != replaced;
    for_row_pieces(c.pool(), total, columns, [&](int64_t first, int64_t column, int64_t count) {
      const X* imputed = state.imputed.data() + column * step;
      auto replace = [&](auto hit) {
        const X one = *imputed;
        if (step == 0)
          for (int64_t i = 0; i < count; ++i) y[first + i] = hit(x[first + i]) ? one : x[first + i];
        else
          for (int64_t i = 0; i < count; ++i) y[first + i] = hit(x[first + i]) ? imputed[i] : x[first + i];
      };
      if (is_nan)
        replace([](X value) { return value != value; });
      else
        replace([replaced](X value) { return value == replaced; });
    });
  }
};

void infer_same(InferContext& c) { c.set_output(0, c.input(0)); }

void infer_float(InferContext& c) {
  if (c.has_rank(0))
    c.set_output(0, DType::float32, c.shape(0));
  else
    c.set_output_dtype(0, DType::float32);
}

Cost cost(const ShapeContext& c) { return {.flops = 2.0 * static_cast<double>(c.num_elements(0)), .bytes = 2 * c.size_bytes(0)}; }

}  // namespace

std::vector<OpDef> ml_scaler_ops() {
  return {
      {.name = "Scaler",
       .domain = kMlDomain,
       .since = {1},
       .inputs = {{"X", kMlNumbers}},
       .outputs = {{"Y", {DType::float32}}},
       .attributes = {{"offset"}, {"scale"}},
       .infer = infer_float,
       .cost = cost,
       .kernels = typed<Scaler, float, double, int32_t, int64_t>()},
      {.name = "Binarizer",
       .domain = kMlDomain,
       .since = {1},
       .inputs = {{"X", kMlNumbers, "T"}},
       .outputs = {{"Y", kMlNumbers, "T"}},
       .attributes = {{"threshold", 0.0F}},
       .infer = infer_same,
       .cost = cost,
       .alias = {may_reuse(0, 0)},
       .kernels = typed<Binarizer, float, double, int32_t, int64_t>()},
      {.name = "Imputer",
       .domain = kMlDomain,
       .since = {1},
       .inputs = {{"X", kMlNumbers, "T"}},
       .outputs = {{"Y", kMlNumbers, "T"}},
       .attributes =
           {{"imputed_value_floats"}, {"imputed_value_int64s"}, {"replaced_value_float", 0.0F}, {"replaced_value_int64", int64_t{0}}},
       .infer = infer_same,
       .cost = cost,
       .alias = {may_reuse(0, 0)},
       .kernels = typed<Imputer, float, double, int32_t, int64_t>()},
  };
}

}  // namespace treadle::ops
