// Implements training of BatchNormalization with channels last, X[N, spatial..., C], in float32. NhwcBatchStatistics computes the
// statistics, with which pointwise operators normalize. NhwcBatchNormalizationGrad also applies the gradient of an activation, while it
// reads dY.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels/normalization/batch_norm_nhwc.h"
#include "kernels/scratch_slots.h"
#include "ops/checks.h"
#include "ops/list.h"
#include "ops/treadle/fused_elementwise.h"
#include "ops/treadle/nhwc.h"

namespace treadle::ops {
namespace {

constexpr TypeSet kTrainedType{DType::float32}, kChainTypes{DType::float32, DType::boolean, DType::uint8, DType::int8, DType::int32};
constexpr int kFirst = 4;  // index of the first operand of the chain that computes dY

void infer_batch_statistics(InferContext& c) {
  check_image_rank(c, 0);
  for (int i = 0; i < 5; ++i) c.set_output(i, c.input(1));
}

// Computes the statistics of the batch. Pointwise operators then normalize: (X - mean) * factor + B.
struct NhwcBatchStatistics {
  int64_t rows, C;
  float epsilon, momentum;
  bool unbiased;

  static NhwcBatchStatistics bind(BindContext& c) {
    const Shape& x = c.shape(0);
    const NhwcBatchStatistics k{x.product(0, x.rank() - 1), x[x.rank() - 1], c.get_float("epsilon", 1e-5F), c.get_float("momentum", 0.9F),
                                c.get_int("unbiased_variance") != 0};
    for (int i = 1; i <= 3; ++i) check_equal(c.num_elements(i), k.C, "a parameter and the channels of X");
    c.request_scratch(kernels::batch_norm_nhwc_scratch_bytes(k.rows, k.C) + kernels::aligned_bytes<float>(k.C));
    return k;
  }
  void run(RunContext& c) const {
    float *mean = c.out<float>(2), *variance = c.scratch<float>();
    kernels::moments_nhwc(rows, C, c.in<float>(0), mean, variance, variance + kernels::aligned_bytes<float>(C) / sizeof(float), c.pool());
    float *inverse = c.out<float>(3), *factor = c.out<float>(4);
    for (int64_t i = 0; i < C; ++i) {
      const double deviation = std::sqrt(static_cast<double>(variance[i]) + static_cast<double>(epsilon));
      inverse[i] = static_cast<float>(1 / deviation);
      factor[i] = c.in<float>(1)[i] * inverse[i];
    }
    for (int i : {0, 1}) {  // the output may share memory with the old statistics
      if (float* running = c.out<float>(i)) {
        const float *before = c.in<float>(i + 2), *batch = i == 0 ? mean : variance;
        const float count = static_cast<float>(rows), take = i == 1 && unbiased ? (1 - momentum) * count / (count - 1) : 1 - momentum;
        for (int64_t k = 0; k < C; ++k) running[k] = before[k] * momentum + batch[k] * take;
      }
    }
  }
};

void infer_batch_norm_gradient(InferContext& c) {
  c.set_output(0, c.input(0));
  c.set_output(1, c.input(1));
  c.set_output(2, c.input(1));
}

/// The chain of pointwise steps that computes dY from operands, such as the gradient of an activation. Empty if an operand itself is dY.
struct GradientChain final : PackedState {
  kernels::ChainProgram program;
  kernels::BatchNormGate gate;               // replaces a chain that only passes or blocks the gradient
  int factor = 0, bias = 0, gated = kFirst;  // indices of the operands of the gate
};

/// Recognizes chains that set dY to 0 where a Relu or Clip after the normalization is saturated, and do nothing else.
class GateFinder {
 public:
  GateFinder(const CreateContext& c, GradientChain& chain) : c_(c), chain_(chain) {
    for (const std::string& text : c.attributes().get_strings("steps")) steps_.push_back(ElementwiseStep::parse(text));
  }

  bool find() {
    const ElementwiseStep& last = steps_.back();
    if (last.op_type != "Where") return false;
    const ElementwiseStep* condition = step(last.operands[0]);
    if (!condition) return false;
    if (condition->op_type == "Greater") {  // a Relu passes values above 0
      const ElementwiseStep* relu = step(condition->operands[0]);
      return relu && relu->op_type == "Relu" && number(condition->operands[1]) == 0.0F && is_gradient(last.operands[1]) &&
             number(last.operands[2]) == 0.0F && is_normalized(relu->operands[0]) && gate(kernels::BatchNormGate::Passes::above, 0, 0);
    }
    if (condition->op_type != "Or" || number(last.operands[1]) != 0.0F || !is_gradient(last.operands[2])) return false;
    const ElementwiseStep *below = step(condition->operands[0]), *above = step(condition->operands[1]);
    if (!below || !above || below->op_type != "Less" || above->op_type != "Greater" || below->operands[0] != above->operands[0])
      return false;
    const std::optional<float> low = number(below->operands[1]), high = number(above->operands[1]);
    return low && high && is_normalized(below->operands[0]) && gate(kernels::BatchNormGate::Passes::within, *low, *high);
  }

 private:
  size_t num_inputs() const { return static_cast<size_t>(c_.node().num_formal_inputs - kFirst); }
  const ElementwiseStep* step(size_t operand) const { return operand < num_inputs() ? nullptr : &steps_[operand - num_inputs()]; }
  static int input(size_t operand) { return kFirst + static_cast<int>(operand); }
  std::optional<float> number(size_t operand) const {
    if (step(operand)) return std::nullopt;
    const Tensor* tensor = c_.constant(input(operand));
    if (!tensor || tensor->dtype() != DType::float32 || tensor->num_elements() != 1) return std::nullopt;
    return tensor->data<float>()[0];
  }
  bool is_image(size_t operand) const {
    const Type &type = c_.type(input(operand)), &x = c_.type(0);
    return !step(operand) && type.dtype == DType::float32 && type.has_rank() && x.has_rank() && *type.shape == *x.shape;
  }
  bool is_gradient(size_t operand) {
    chain_.gated = input(operand);
    return is_image(operand);
  }
  bool is_vector(size_t operand, int& as) const {
    as = input(operand);
    return !step(operand) && c_.type(as).dtype == DType::float32 && c_.type(as).has_rank() && c_.type(1).has_rank() &&
           *c_.type(as).shape == *c_.type(1).shape;
  }
  /// Returns true if the operand is (X - mean) * factor + bias, where X and mean are operands of the node.
  bool is_normalized(size_t operand) {
    const ElementwiseStep* sum = step(operand);
    const ElementwiseStep* product = sum && sum->op_type == "Add" ? step(sum->operands[0]) : nullptr;
    const ElementwiseStep* difference = product && product->op_type == "Mul" ? step(product->operands[0]) : nullptr;
    return difference && difference->op_type == "Sub" && is_operand(difference->operands[0], 0) && is_operand(difference->operands[1], 2) &&
           is_vector(product->operands[1], chain_.factor) && is_vector(sum->operands[1], chain_.bias);
  }
  bool is_operand(size_t operand, size_t of_node) const {
    return !step(operand) && c_.node().inputs[static_cast<size_t>(input(operand))] == c_.node().inputs[of_node];
  }
  bool gate(kernels::BatchNormGate::Passes passes, float low, float high) {
    chain_.gate.passes = passes, chain_.gate.low = low, chain_.gate.high = high;
    return true;
  }

  const CreateContext& c_;
  GradientChain& chain_;
  std::vector<ElementwiseStep> steps_;
};

struct NhwcBatchNormalizationGrad {
  int64_t rows, C;
  kernels::ChainPlan plan;

  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    auto state = std::make_unique<GradientChain>();
    const std::vector<std::string>& steps = c.attributes().get_strings("steps");
    if (steps.empty() || GateFinder(c, *state).find()) return state;
    std::vector<DType> inputs;
    for (int i = kFirst; i < c.node().num_formal_inputs; ++i) inputs.push_back(c.dtype(i));
    state->program = compile_chain(steps, std::move(inputs), DType::float32);
    return state;
  }
  static NhwcBatchNormalizationGrad bind(BindContext& c) {
    const Shape& x = c.shape(0);
    const bool has_steps = !c.node().attributes.get_strings("steps").empty();
    if (x.rank() < 3 || (!has_steps && !(c.shape(kFirst) == x)))
      throw Error(ErrorCode::invalid_argument, fmt::format("dY {} and X {} are of no batch normalisation with channels innermost",
                                                           to_string(c.shape(kFirst)), to_string(x)));
    NhwcBatchNormalizationGrad k{x.product(0, x.rank() - 1), x[x.rank() - 1], {}};
    for (int i = 1; i < kFirst; ++i) check_equal(c.num_elements(i), k.C, "a parameter and the channels of X");
    k.plan.size = x.num_elements();
    for (int i = kFirst; has_steps && i < c.num_inputs(); ++i)
      k.plan.inputs[i - kFirst] = kernels::plan_chain_input(x.dims(), c.shape(i).dims());
    const bool is_computed = !c.packed<GradientChain>().program.steps.empty();
    c.request_scratch(kernels::batch_norm_gradient_nhwc_scratch_bytes(k.rows, k.C, is_computed));
    return k;
  }
  void run(RunContext& c) const {
    const auto& chain = c.packed<GradientChain>();
    struct Rows final : kernels::GradientRows {
      const kernels::ChainProgram* program;
      const kernels::ChainPlan* plan;
      const void* inputs[kernels::kMaxChainInputs];
      const float* lying;
      int64_t C;
      const float* rows(int64_t first, int64_t count, float* buffer) const override {
        if (program->steps.empty()) return lying + first * C;
        kernels::run_chain(*program, *plan, inputs, first * C, (first + count) * C, buffer);
        return buffer;
      }
    } dy;
    dy.program = &chain.program, dy.plan = &plan, dy.lying = c.in<float>(chain.gated), dy.C = C;
    for (size_t i = 0; i < chain.program.inputs.size(); ++i) dy.inputs[i] = c.in<void>(kFirst + static_cast<int>(i));
    kernels::BatchNormGate gate = chain.gate;
    if (gate.passes != kernels::BatchNormGate::Passes::always) gate.factor = c.in<float>(chain.factor), gate.bias = c.in<float>(chain.bias);
    kernels::batch_norm_gradient_nhwc(rows, C, dy, !chain.program.steps.empty(), gate, c.in<float>(0), c.in<float>(1), c.in<float>(2),
                                      c.in<float>(3), c.out<float>(0), c.out<float>(1), c.out<float>(2), c.scratch<void>(), c.pool());
  }
};

}  // namespace

std::vector<OpDef> nhwc_batch_norm_ops() {
  return {
      {.name = "NhwcBatchStatistics",
       .domain = "treadle",
       .since = {1},
       .inputs = {{"X", kTrainedType}, {"scale", kTrainedType}, {"input_mean", kTrainedType}, {"input_var", kTrainedType}},
       .outputs = {{"running_mean", kTrainedType, "", Presence::optional},
                   {"running_var", kTrainedType, "", Presence::optional},
                   {"mean", kTrainedType},
                   {"inverse_deviation", kTrainedType},
                   {"factor", kTrainedType}},
       .attributes = {{"epsilon", 1e-5F}, {"momentum", 0.9F}, {"unbiased_variance", int64_t{0}}},
       .infer = infer_batch_statistics,
       .cost =
           [](const ShapeContext& c) {
             return Cost{4 * static_cast<double>(c.num_elements(0)), c.size_bytes(0)};
           },
       .alias = {updates_statistic(0, 2), updates_statistic(1, 3)},
       .kernels = {kernel<NhwcBatchStatistics>("nhwc", DType::float32)}},
      {.name = "NhwcBatchNormalizationGrad",
       .domain = "treadle",
       .since = {1},
       .inputs = {{"X", kTrainedType},
                  {"scale", kTrainedType},
                  {"mean", kTrainedType},
                  {"inverse_deviation", kTrainedType},
                  {"dY", kChainTypes, "", Presence::variadic}},
       .outputs = {{"dX", kTrainedType}, {"dscale", kTrainedType, "", Presence::optional}, {"dB", kTrainedType, "", Presence::optional}},
       .attributes = {{"steps"}},
       .infer = infer_batch_norm_gradient,
       .cost = stream_cost,
       .alias = over_chain_inputs(kFirst, /*beside=*/0),
       .kernels = {kernel<NhwcBatchNormalizationGrad>("nhwc", DType::float32)},
       .chain_input = kFirst}};
}

}  // namespace treadle::ops
