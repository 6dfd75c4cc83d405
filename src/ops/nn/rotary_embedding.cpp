// Implements RotaryEmbedding (ONNX, opset 23).
#include "ops/nn/rotary_embedding.h"

#include <fmt/format.h>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/checks.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/math/elementwise.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

void infer_rotary(InferContext& c) {
  c.set_output(0, c.input(0));
  if (!c.has_rank(0)) return;
  if (c.rank(0) != 3 && c.rank(0) != 4) throw Error(ErrorCode::invalid_argument, fmt::format("X is of rank {}, not 3 or 4", c.rank(0)));
}

template <typename T>
struct RotaryEmbedding : RotaryEmbeddingPlan {
  using C = compute_type_t<T>;

  static RotaryEmbedding bind(BindContext& c) { return {RotaryEmbeddingPlan::bind(c)}; }

  int64_t cache_offset(const int64_t* position_ids, int64_t b, int64_t s) const {
    if (!has_positions) return (b * length + s) * (rotated / 2);
    const int64_t position = position_ids[b * length + s];
    if (position < 0 || position >= positions)
      throw Error(ErrorCode::invalid_argument, fmt::format("position_ids contains {}; the caches hold {} positions", position, positions));
    return position * (rotated / 2);
  }

  void run(RunContext& c) const {
    const T *x = c.in<T>(0), *cos = c.in<T>(1), *sin = c.in<T>(2);
    const int64_t* ids = c.in<int64_t>(3);
    T* y = c.out<T>(0);
    const int64_t half = rotated / 2, first_step = interleaved ? 2 : 1, second = interleaved ? 1 : half;
    parallel_for(c.pool(), batch * length, std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(1, heads * size)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t token = begin; token < end; ++token) {
                     const int64_t b = token / length, s = token % length, cache = cache_offset(ids, b, s);
                     for (int64_t h = 0; h < heads; ++h) {
                       const int64_t at = b * batch_stride + h * head_stride + s * row_stride;
                       const T* from = x + at;
                       T* to = y + at;
                       for (int64_t i = 0; i < half; ++i) {
                         const C real = static_cast<C>(from[i * first_step]), imaginary = static_cast<C>(from[i * first_step + second]);
                         const C cosine = static_cast<C>(cos[cache + i]), sine = static_cast<C>(sin[cache + i]);
                         to[i * first_step] = static_cast<T>(cosine * real - sine * imaginary);
                         to[i * first_step + second] = static_cast<T>(sine * real + cosine * imaginary);
                       }
                       if (to != from) std::copy(from + rotated, from + size, to + rotated);
                     }
                   }
                 });
  }
};

// The gradient is dY, rotated back. Cosines and sines are treated as constants.
Gradients rotary_embedding_gradient(GradientContext& g) {
  std::vector<ValueId> inputs{g.grad_output(0), g.input(1), g.neg(g.input(2))};
  if (g.input(3) != kNoValue) inputs.push_back(g.input(3));
  const Attributes attributes = g.attributes();
  return {g.op("RotaryEmbedding", std::move(inputs), attributes)};
}

}  // namespace

RotaryEmbeddingPlan RotaryEmbeddingPlan::bind(const BindContext& c) {
  const Shape &x = c.shape(0), &cos = c.shape(1), &sin = c.shape(2);
  RotaryEmbeddingPlan k{};
  k.batch = x[0];
  if (x.rank() == 4) {
    k.heads = x[1], k.length = x[2], k.size = x[3];
    k.batch_stride = k.heads * k.length * k.size, k.head_stride = k.length * k.size, k.row_stride = k.size;
  } else {
    k.heads = c.get_int("num_heads"), k.length = x[1];
    if (k.heads < 1 || x[2] % k.heads != 0)
      throw Error(ErrorCode::invalid_argument, fmt::format("{} features cannot be split into {} heads", x[2], k.heads));
    k.size = x[2] / k.heads;
    k.batch_stride = k.length * x[2], k.head_stride = k.size, k.row_stride = x[2];
  }
  k.rotated = c.get_int("rotary_embedding_dim");
  if (k.rotated == 0) k.rotated = k.size;
  if (k.rotated < 0 || k.rotated > k.size || k.rotated % 2 != 0)
    throw Error(ErrorCode::invalid_argument, fmt::format("{} of {} features cannot be rotated in pairs", k.rotated, k.size));
  k.interleaved = c.get_int("interleaved") != 0;
  k.has_positions = c.has_input(3);
  if (!(cos == sin)) throw Error(ErrorCode::invalid_argument, fmt::format("cos_cache is {}, sin_cache {}", to_string(cos), to_string(sin)));
  const int rank = k.has_positions ? 2 : 3;
  if (cos.rank() != rank) throw Error(ErrorCode::invalid_argument, fmt::format("cos_cache is of rank {}, not {}", cos.rank(), rank));
  check_equal(cos.back(), k.rotated / 2, "the last extent of cos_cache, and half of the rotated features");
  if (k.has_positions) {
    k.positions = cos[0];
    check_equal(c.num_elements(3), k.batch * k.length, "elements of position_ids and tokens");
  } else {
    check_equal(cos[0], k.batch, "batches of cos_cache and X"), check_equal(cos[1], k.length, "lengths of cos_cache and X");
  }
  return k;
}

std::vector<OpDef> rotary_embedding_ops() {
  constexpr TypeSet kTypes{DType::float32, DType::float16, DType::bfloat16};
  return {{.name = "RotaryEmbedding",
           .since = {23},
           .inputs = {{"X", kTypes, "T"},
                      {"cos_cache", kTypes, "T"},
                      {"sin_cache", kTypes, "T"},
                      {"position_ids", kInt64, "M", Presence::optional}},
           .outputs = {{"Y", kTypes, "T"}},
           .attributes = {{"interleaved", int64_t{0}}, {"num_heads", int64_t{0}}, {"rotary_embedding_dim", int64_t{0}}},
           .infer = infer_rotary,
           .cost = elementwise_cost<3>,
           .alias = {may_reuse(0, 0)},
           .kernels = typed<RotaryEmbedding, float, Float16, BFloat16>(),
           .gradient = rotary_embedding_gradient}};
}

}  // namespace treadle::ops
