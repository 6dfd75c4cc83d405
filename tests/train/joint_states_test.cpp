// Tests running statistics of joint modules, on every schedule: they change when the pass that computes them has succeeded, or not at all.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <stdexcept>

#include "tests/session/faults.h"
#include "tests/session/schedules.h"
#include "treadle/sharing.h"
#include "treadle/train.h"

namespace treadle::testing {
namespace {

using train::JointModule;
using train::JointOptions;

constexpr Schedule kSchedules[] = {
    kInOrder,
    kByReadiness,
    kOnADevice,
    kOnStreams,
    {"within_a_limit", [](SessionOptions& o) { o.memory_limit_bytes = size_t{1} << 24; }},
    {"in_a_job", [](SessionOptions& o) { o.job = std::make_shared<Job>(JobOptions{.name = "states"}); }},
};

constexpr float kMean = 1, kVariance = 3;

// Makes y = Step(n) + Step(n), where n = batch_norm(x w) with two features. The first Step has id 0; its gradient is a Pass with id 1.
// @param reads_behind  the model also outputs z = n * mean, whose gradient reads the running mean
Model make_model(bool fed, bool reads_behind) {
  ModelBuilder b;
  b.input("x", {-1, 2}).output("y", {-1, 2});
  b.constant("w", floats({1, 2})).constant("scale", floats({1, 1})).constant("bias", floats({0, 0}));
  if (fed) {
    b.input("mean", {2}).input("var", {2});
  } else {
    b.constant("mean", floats({kMean, kMean})).constant("var", floats({kVariance, kVariance}));
  }
  b.node("Mul", {"x", "w"}, {"h"}).node("BatchNormalization", {"h", "scale", "bias", "mean", "var"}, {"n"});
  b.node("Step", {"n"}, {"one"}, "step", "test.fault").node("Step", {"n"}, {"two"}, "other", "test.fault");
  b.node("Add", {"one", "two"}, {"y"});
  if (reads_behind) b.node("Mul", {"n", "mean"}, {"z"}).output("z", {-1, 2});
  b.def().opset_imports.push_back({"test.fault", 1});
  return b.model();
}

// x is 0, 1, 2, so the features are x and 2 x.
Tensor rows() {
  Tensor x(DType::float32, {3, 2});
  for (int64_t i = 0; i < 6; ++i) x.data<float>()[i] = static_cast<float>(i / 2);
  return x;
}
void expect_updated(const Tensor& mean, const Tensor& var, int times = 1) {
  for (int64_t c = 0; c < 2; ++c) {
    const auto factor = static_cast<double>(c + 1);
    double m = kMean, v = kVariance;
    for (int i = 0; i < times; ++i) m = 0.9 * m + 0.1 * factor, v = 0.9 * v + 0.1 * factor * factor * 2 / 3;
    EXPECT_NEAR(mean.data<float>()[c], m, 1e-6);
    EXPECT_NEAR(var.data<float>()[c], v, 1e-6);
  }
}

class JointStates : public ::testing::TestWithParam<Schedule> {
 protected:
  void SetUp() override {
    register_fault_operators();
    GetParam().choose(options_.session);
  }
  void TearDown() override { set_fault(-1, {}); }
  static void fail_next() {
    set_fault(0, [] { throw std::runtime_error("a fault"); });
  }

  JointOptions options_;
};

INSTANTIATE_TEST_SUITE_P(All, JointStates, ::testing::ValuesIn(kSchedules), [](const auto& info) { return std::string(info.param.name); });

TEST_P(JointStates, AFailedForwardPassChangesNone) {
  for (const bool forward_only : {false, true}) {
    options_.forward_only = forward_only;
    JointModule module(make_model(false, false), options_);
    const Tensor mean = module.states().at("mean"), var = module.states().at("var");
    fail_next();
    EXPECT_THROW(module.forward({{"x", rows()}}), Error);
    expect_updated(mean, var, 0);
    JointModule::Run run = module.forward({{"x", rows()}});
    expect_updated(mean, var);
    if (forward_only) continue;
    Tensor ones(DType::float32, {3, 2});
    std::fill_n(ones.data<float>(), 6, 1.0F);
    set_fault(1, [] { throw std::runtime_error("a fault"); });
    EXPECT_THROW(run.backward(std::vector{ones}), Error);
    expect_updated(mean, var);
    module.forward({{"x", rows()}}).backward(std::vector{ones});
    expect_updated(mean, var, 2);
  }
}

TEST_P(JointStates, ThoseThatAreFedAreWrittenWhereTheyLie) {
  options_.states = {"mean", "var"};
  JointModule module(make_model(true, false), options_);
  const Tensor mean = floats({kMean, kMean}), var = floats({kVariance, kVariance});
  const std::map<std::string, Datum> named{{"x", rows()}, {"mean", mean}, {"var", var}};
  std::vector<Datum> feeds;
  for (const std::string& name : module.input_names())
    feeds.push_back(named.contains(name) ? named.at(name) : module.parameters().at(name));
  fail_next();
  EXPECT_THROW(module.forward_in_order(feeds), Error);
  expect_updated(mean, var, 0);
  module.forward_in_order(feeds, {.update_states = false});
  expect_updated(mean, var, 0);
  module.forward_in_order(feeds);
  expect_updated(mean, var);
}

TEST_P(JointStates, ThoseThatTheBackwardPassReadsChangeBehindIt) {
  JointModule module(make_model(false, true), options_);
  const Tensor mean = module.states().at("mean"), var = module.states().at("var");
  Tensor ones(DType::float32, {3, 2});
  std::fill_n(ones.data<float>(), 6, 1.0F);
  JointModule::Run run = module.forward({{"x", rows()}});
  EXPECT_EQ(mean.data<float>()[0], kMean);
  // The gradient of all outputs by the bias is 2 from y, and from z the mean before the update.
  EXPECT_NEAR(run.backward(std::vector{ones, ones}).at("bias").data<float>()[0], 3 * (2 + kMean), 1e-5);
  expect_updated(mean, var);
}

}  // namespace
}  // namespace treadle::testing
