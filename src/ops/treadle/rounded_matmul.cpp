// Implements RoundedMatMul and RoundedGemm (treadle): MatMul and Gemm of two computed matrices, which are rounded to bfloat16 or float16
// during the run. Sums and the addend stay float32. Training uses them if a precision below float32 is requested.
#include "graph/function_body.h"
#include "graph/op_def.h"
#include "kernels/gemm/gemm_bf16.h"
#include "ops/math/product.h"
#include "ops/precision.h"
#include "ops/treadle/domain.h"

namespace treadle::ops {
namespace {

const AttributeDef kSixteenBits{kPrecision, AttributeDef::Required{}, one_of("bfloat16|bfloat16x3|float16")};

kernels::Bf16Form form_of(const BindContext& c) { return bf16_form(c.node().attributes).value(); }

struct RoundedMatMul {
  Product product;
  kernels::Bf16Form form;
  int max_threads;

  static RoundedMatMul bind(BindContext& c) {
    const RoundedMatMul k{Product::of(c.shape(0), c.shape(1)), form_of(c), c.max_threads()};
    c.request_scratch(kernels::gemm_bf16_batched_scratch_bytes(k.product.shape, k.form, k.max_threads));
    return k;
  }
  void run(RunContext& c) const {
    kernels::gemm_bf16_batched(product.shape, product.batch, c.in<float>(0), c.in<float>(1), c.out<float>(0), {}, form, c.scratch<void>(),
                               max_threads, c.pool());
  }
};

struct RoundedGemm {
  GemmPlan plan;
  kernels::Bf16Form form;
  int max_threads;

  static RoundedGemm bind(BindContext& c) {
    const RoundedGemm k{GemmPlan::of(c), form_of(c), c.max_threads()};
    c.request_scratch(kernels::gemm_bf16_batched_scratch_bytes(k.plan.shape, k.form, k.max_threads));
    return k;
  }
  void run(RunContext& c) const {
    kernels::gemm_bf16_batched(plan.shape, {}, c.in<float>(0), c.in<float>(1), c.out<float>(0),
                               plan.epilogue<float>(c.in<float>(2), c.out<float>(0)), form, c.scratch<void>(), max_threads, c.pool());
  }
};

}  // namespace

std::vector<OpDef> rounded_matmul_ops() {
  constexpr TypeSet kFloat{DType::float32};
  return {{.name = "RoundedMatMul",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"A", kFloat, "T"}, {"B", kFloat, "T"}},
           .outputs = {{"Y", kFloat, "T"}},
           .attributes = {kSixteenBits},
           .infer = [](InferContext& c) { infer_product(c, 0, 1, DType::float32); },
           .cost = matmul_cost,
           .kernels = {kernel<RoundedMatMul>("16 bits, packed in the run", DType::float32)}},
          {.name = "RoundedGemm",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"A", kFloat, "T"}, {"B", kFloat, "T"}, {"C", kFloat, "T", Presence::optional}},
           .outputs = {{"Y", kFloat, "T"}},
           .attributes = {{"alpha", 1.0F}, {"beta", 1.0F}, {"transA", int64_t{0}}, {"transB", int64_t{0}}, kSixteenBits},
           .infer = infer_gemm,
           .cost = gemm_cost,
           .alias = {may_reuse(0, 2)},
           .kernels = {kernel<RoundedGemm>("16 bits, packed in the run", DType::float32)}}};
}

}  // namespace treadle::ops
