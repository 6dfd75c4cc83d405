// Implements operators of the treadle domain that update the state of a trainer. AccumulateGradient adds a gradient, times a factor, to a
// sum. AverageParameter moves an exponential average toward a parameter. Assign copies a computed value into a state. UnscaleGradient
// divides a gradient by the loss's `scale`. If `report` is set, an infinite or NaN element ends the run before any update, and the
// trainer's report gets the loss.
#include <fmt/format.h>

#include <atomic>
#include <bit>

#include "core/ranks/overflow_report.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/list.h"
#include "ops/training/elements.h"
#include "ops/training/optimizers.h"
#include "treadle/error.h"

namespace treadle::ops {

int64_t bind_state_update(const BindContext& c) {
  const std::vector<Port>& inputs = c.node().op->inputs;
  if (!(c.shape(0) == c.shape(1)))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the {} {} and the {} {}", inputs[0].name, to_string(c.shape(0)), inputs[1].name, to_string(c.shape(1))));
  return c.num_elements(0);
}

int64_t bind_unscale(const BindContext& c) {
  for (const int input : {1, 2})
    if (c.num_elements(input) != 1)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} is {}; one number is expected", input == 1 ? "scale" : "loss", to_string(c.shape(input))));
  return c.num_elements(0);
}

namespace {

constexpr TypeSet kTypes = kUpdated;

template <typename T>
struct AccumulateGradient {
  int64_t n;
  float factor;

  static AccumulateGradient bind(BindContext& c) { return {bind_state_update(c), c.get_float("factor", 1)}; }
  void run(RunContext& c) const {
    const T *sum = c.in<T>(0), *g = c.in<T>(1), by = factor;
    T* to = c.out<T>(0);
    for_elements(c, n, [=](int64_t i) { to[i] = sum[i] + by * g[i]; });
  }
};

template <typename T>
struct AverageParameter {
  int64_t n;
  float decay;

  static AverageParameter bind(BindContext& c) { return {bind_state_update(c), c.get_float("decay", 0)}; }
  void run(RunContext& c) const {
    const T *average = c.in<T>(0), *x = c.in<T>(1), part = T{1} - static_cast<T>(decay);
    T* to = c.out<T>(0);
    for_elements(c, n, [=](int64_t i) { to[i] = average[i] + part * (x[i] - average[i]); });
  }
};

// Copies a computed value into a state.
template <typename T>
struct Assign {
  int64_t n;

  static Assign bind(BindContext& c) { return {bind_state_update(c)}; }
  void run(RunContext& c) const {
    const T* value = c.in<T>(1);
    T* to = c.out<T>(0);
    for_elements(c, n, [=](int64_t i) { to[i] = value[i]; });
  }
};

// The report of the trainer. Null if the node has none; then overflows are not reported.
struct ReportState final : PackedState {
  explicit ReportState(const CreateContext& c) {
    if (const int64_t id = c.attributes().get_int("report"); id != 0) report = &OverflowReport::find(id);
  }
  OverflowReport* report = nullptr;
};

struct UnscaleGradient {
  int64_t n;

  static std::unique_ptr<PackedState> create(const CreateContext& c) { return std::make_unique<ReportState>(c); }
  static UnscaleGradient bind(BindContext& c) { return {bind_unscale(c)}; }
  void run(RunContext& c) const {
    constexpr uint32_t kExponent = 0x7F800000U;  // exponent bits; all are set if a number is infinite or NaN
    const float scale = *c.in<float>(1), inverse = 1 / scale;
    const float* from = c.in<float>(0);
    float* to = c.out<float>(0);
    std::atomic<bool> overflowed = false;
    parallel_for(c.pool(), n, kElementwiseGrain, [&](int64_t begin, int64_t end) {
      uint32_t any = 0;
      TREADLE_ELEMENTWISE_LOOP
      for (int64_t i = begin; i < end; ++i) {
        any |= static_cast<uint32_t>((std::bit_cast<uint32_t>(from[i]) & kExponent) == kExponent);
        to[i] = from[i] * inverse;
      }
      if (any != 0) overflowed.store(true, std::memory_order_relaxed);
    });
    OverflowReport* report = c.packed<ReportState>().report;
    if (!report || !overflowed) return;
    report->set(*c.in<float>(2));
    throw Error(ErrorCode::invalid_argument, fmt::format("the gradient is infinite or NaN with the loss scaled by {}", scale));
  }
};

}  // namespace

std::vector<OpDef> training_state_ops() {
  return {
      {.name = "AccumulateGradient",
       .domain = "treadle",
       .since = {1},
       .inputs = {{"sum", kTypes, "T"}, {"gradient", kTypes, "T"}},
       .outputs = {{"new_sum", kTypes, "T"}},
       .attributes = {{"factor", 1.0F}},
       .infer = [](InferContext& c) { c.set_output(0, c.input(0)); },
       .cost = elementwise_cost<2>,
       .alias = {may_reuse(0, 0)},
       .kernels = typed<AccumulateGradient, float, double>(),
       .updated_input = [](const Node&, int) { return 0; }},
      {.name = "AverageParameter",
       .domain = "treadle",
       .since = {1},
       .inputs = {{"average", kTypes, "T"}, {"parameter", kTypes, "T"}},
       .outputs = {{"new_average", kTypes, "T"}},
       .attributes = {{"decay", AttributeDef::Required{}}},
       .infer = [](InferContext& c) { c.set_output(0, c.input(0)); },
       .cost = elementwise_cost<3>,
       .alias = {may_reuse(0, 0)},
       .kernels = typed<AverageParameter, float, double>(),
       .updated_input = [](const Node&, int) { return 0; }},
      {.name = "Assign",
       .domain = "treadle",
       .since = {1},
       .inputs = {{"state", kTypes, "T"}, {"value", kTypes, "T"}},
       .outputs = {{"new_state", kTypes, "T"}},
       .infer = [](InferContext& c) { c.set_output(0, c.input(0)); },
       .cost = elementwise_cost<2>,
       .alias = {may_reuse(0, 0)},
       .kernels = typed<Assign, float, double>(),
       .updated_input = [](const Node&, int) { return 0; }},
      {.name = "UnscaleGradient",
       .domain = "treadle",
       .since = {1},
       .inputs = {{"gradient", {DType::float32}}, {"scale", {DType::float32}}, {"loss", {DType::float32}}},
       .outputs = {{"unscaled", {DType::float32}}},
       .attributes = {{"report", int64_t{0}}},
       .infer = [](InferContext& c) { c.set_output(0, c.input(0)); },
       .cost = elementwise_cost<1>,
       .alias = {may_reuse(0, 0)},
       .kernels = {kernel<UnscaleGradient>("plain", DType::float32)}},
  };
}

}  // namespace treadle::ops
