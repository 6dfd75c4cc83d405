// Implements RandomNormal, RandomUniform (and Like), Bernoulli, Multinomial (ONNX, opset 22).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/values/dispatch.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/checks.h"
#include "ops/generator/random_key.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/math/elementwise.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

using kernels::RandomStream;

constexpr int64_t kBlock = 256;  // must be even, because random numbers are made in pairs

void infer_shape_attribute(InferContext& c) {
  SymbolicShape shape;
  for (int64_t extent : c.get_ints("shape")) {
    if (extent < 0) throw Error(ErrorCode::invalid_model, fmt::format("shape holds {}; extents are at least 0", extent));
    shape.emplace_back(extent);
  }
  c.set_output(0, dtype_attribute(c.attributes(), "dtype", DType::float32), std::move(shape));
}

void infer_like(InferContext& c) {
  DType dtype = dtype_attribute(c.attributes(), "dtype", c.dtype(0));
  if (!c.has_rank(0)) return c.set_output_dtype(0, dtype);
  c.set_output(0, dtype, c.shape(0));
}

void infer_multinomial(InferContext& c) {
  if (c.has_rank(0) && c.rank(0) != 2)
    throw Error(ErrorCode::invalid_argument, "input has the shape " + to_string(c.shape(0)) + "; it must be [batch, classes]");
  Dim batch = c.has_rank(0) ? c.shape(0)[0] : c.data_dependent_dim("batch");
  const DType dtype = dtype_attribute(c.attributes(), "dtype", DType::int32);
  if (dtype != DType::int32 && dtype != DType::int64)
    throw Error(ErrorCode::invalid_model, fmt::format("dtype is {}; expected int32 or int64", name_of(dtype)));
  c.set_output(0, dtype, {batch, Dim(c.get_int("sample_size", 1))});
}

template <bool kNormal>
struct Random : RandomRange {
  int64_t n;
  DType dtype;
  uint64_t key;

  static Random bind(BindContext& c) { return {RandomRange::bind(c), c.output_shape(0).num_elements(), c.output_dtype(0), random_key(c)}; }
  void run(RunContext& c) const {
    RandomStream stream{key, c.run_id};
    visit_dtype<FloatTypes>(dtype, [&]<typename T>() {
      T* out = c.out<T>(0);
      parallel_for(c.pool(), n, kElementwiseGrain, [&](int64_t begin, int64_t end) {
        double values[kBlock];
        for (int64_t first = begin; first < end; first += kBlock) {
          int64_t count = std::min(kBlock, end - first);
          if (kNormal)
            stream.fill_normal(first, values, count);
          else
            stream.fill_uniform(first, values, count);
          for (int64_t i = 0; i < count; ++i) out[first + i] = static_cast<T>(offset + scale * values[i]);
        }
      });
    });
  }
};

struct Bernoulli {
  int64_t n;
  DType in_dtype, out_dtype;
  uint64_t key;

  static Bernoulli bind(BindContext& c) { return {c.num_elements(0), c.dtype(0), c.output_dtype(0), random_key(c)}; }
  void run(RunContext& c) const {
    RandomStream stream{key, c.run_id};
    using OutTypes = concat_t<NumericTypes, TypeList<bool>>;
    visit_dtype<FloatTypes>(in_dtype, [&]<typename T>() {
      const T* probability = c.in<T>(0);
      parallel_for(c.pool(), n, kElementwiseGrain, [&](int64_t begin, int64_t end) {
        double values[kBlock];
        bool draws[kBlock];
        for (int64_t first = begin; first < end; first += kBlock) {
          int64_t count = std::min(kBlock, end - first);
          stream.fill_uniform(first, values, count);
          for (int64_t i = 0; i < count; ++i) draws[i] = values[i] < static_cast<double>(probability[first + i]);
          visit_dtype<OutTypes>(out_dtype, [&]<typename R>() {
            for (int64_t i = 0; i < count; ++i) c.out<R>(0)[first + i] = static_cast<R>(static_cast<int>(draws[i]));
          });
        }
      });
    });
  }
};

// Draws classes. The input contains unnormalized log-probabilities.
struct Multinomial : MultinomialPlan {
  DType in_dtype, out_dtype;
  uint64_t key;

  static Multinomial bind(BindContext& c) {
    const Multinomial k{MultinomialPlan::bind(c), c.dtype(0), c.output_dtype(0), random_key(c)};
    c.request_scratch(static_cast<size_t>(k.classes) * sizeof(double));
    return k;
  }
  void run(RunContext& c) const {
    RandomStream stream{key, c.run_id};
    double* cumulative = c.scratch<double>();
    for (int64_t row = 0; row < batch; ++row) {
      visit_dtype<FloatTypes>(in_dtype, [&]<typename T>() {
        const T* logits = c.in<T>(0) + row * classes;
        for (int64_t i = 0; i < classes; ++i) cumulative[i] = static_cast<double>(logits[i]);
      });
      double max = classes > 0 ? *std::max_element(cumulative, cumulative + classes) : 0, total = 0;
      for (int64_t i = 0; i < classes; ++i) cumulative[i] = total += std::exp(cumulative[i] - max);
      for (int64_t s = 0; s < samples; ++s) {
        double point = stream.uniform(static_cast<uint64_t>(row * samples + s)) * total;
        int64_t drawn = std::min<int64_t>(std::upper_bound(cumulative, cumulative + classes, point) - cumulative, classes - 1);
        if (out_dtype == DType::int64)
          c.out<int64_t>(0)[row * samples + s] = drawn;
        else
          c.out<int32_t>(0)[row * samples + s] = static_cast<int32_t>(drawn);
      }
    }
  }
};

Cost cost(const ShapeContext& c) {
  double n = static_cast<double>(c.output_shape(0).num_elements());
  return {40 * n, n * static_cast<double>(bits_of(c.output_dtype(0))) / 8};
}

template <typename K>
OpDef generator(std::string_view name, std::vector<AttributeDef> attributes) {
  attributes.push_back({"shape", AttributeDef::Required{}});
  attributes.push_back({"dtype", int64_t{1}, dtype_among(kFloats)});
  attributes.push_back({"seed"});
  return {.name = name,
          .since = {1, 22},
          .outputs = {{"output", kFloats, "T"}},
          .attributes = std::move(attributes),
          .infer = infer_shape_attribute,
          .cost = cost,
          .kernels = {kernel<K>()},
          .deterministic = false};
}

template <typename K>
OpDef generator_like(std::string_view name, std::vector<AttributeDef> attributes) {
  attributes.push_back({"dtype", AttributeDef::NoDefault{}, dtype_among(kFloats)});
  attributes.push_back({"seed"});
  return {.name = name,
          .since = {1, 22},
          .inputs = {{"input", kNumeric | kBool | kString | kComplex, "T1"}},
          .outputs = {{"output", kFloats, "T2"}},
          .attributes = std::move(attributes),
          .infer = infer_like,
          .cost = cost,
          .kernels = {kernel<K>()},
          .gradient = gradients::none,
          .deterministic = false};
}

OpDef bernoulli() {
  return {.name = "Bernoulli",
          .since = {15, 22},
          .inputs = {{"input", kFloats, "T1"}},
          .outputs = {{"output", kNumeric | kBool, "T2"}},
          .attributes = {{"dtype", AttributeDef::NoDefault{}, dtype_among(kNumeric | kBool)}, {"seed"}},
          .infer = infer_like,
          .cost = cost,
          .kernels = {kernel<Bernoulli>()},
          .gradient = gradients::none,
          .deterministic = false};
}

OpDef multinomial() {
  return {.name = "Multinomial",
          .since = {7, 22},
          .inputs = {{"input", kFloats, "T1"}},
          .outputs = {{"output", kInt32Or64, "T2"}},
          .attributes = {{"dtype", static_cast<int64_t>(DType::int32), dtype_among(kInt32Or64)}, {"sample_size", int64_t{1}}, {"seed"}},
          .infer = infer_multinomial,
          .cost = cost,
          .kernels = {kernel<Multinomial>()},
          .deterministic = false};
}

}  // namespace

std::vector<OpDef> random_ops() {
  const std::vector<AttributeDef> normal = {{"mean", 0.0F}, {"scale", 1.0F}}, uniform = {{"low", 0.0F}, {"high", 1.0F}};
  return {generator<Random<true>>("RandomNormal", normal),
          generator<Random<false>>("RandomUniform", uniform),
          generator_like<Random<true>>("RandomNormalLike", normal),
          generator_like<Random<false>>("RandomUniformLike", uniform),
          bernoulli(),
          multinomial()};
}

}  // namespace treadle::ops
