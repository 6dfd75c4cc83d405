// Tests executors from C++: they read and write bound tensors in place, and gradients equal those computed by hand.
#include "treadle/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "onnx/serialize.h"
#include "tests/train/tiny_network.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

constexpr int64_t kRows = 4, kIn = 3, kOut = 2;

Model linear() {  // computes y = x w + b
  onnx::ModelDef model;
  model.ir_version = 8;
  model.opset_imports.push_back({"", 17});
  model.graph.name = "linear";
  model.graph.inputs.push_back(tiny::tensor_info("x", {-1, kIn}));
  model.graph.outputs.push_back(tiny::tensor_info("y", {-1, kOut}));
  tiny::add_tensor(model.graph, "w", {kIn, kOut}, -1, 1);
  tiny::add_tensor(model.graph, "b", {kOut}, -1, 1);
  model.graph.nodes.push_back(tiny::node("MatMul", {"x", "w"}, "product"));
  model.graph.nodes.push_back(tiny::node("Add", {"product", "b"}, "y"));
  const std::string bytes = onnx::serialize_model(model);
  return Model::from_bytes(std::as_bytes(std::span(bytes)));
}

Tensor ramp(const Shape& shape, float first, float step) {
  Tensor made(DType::float32, shape);
  for (int64_t i = 0; i < made.num_elements(); ++i) made.data<float>()[i] = first + step * static_cast<float>(i);
  return made;
}

// Computes a[m,k] b[k,n]. With the options, a or b is transposed first.
std::vector<float> product(const Tensor& a, const Tensor& b, bool transpose_a, bool transpose_b) {
  const int64_t m = a.shape()[transpose_a ? 1 : 0], inner = a.shape()[transpose_a ? 0 : 1], n = b.shape()[transpose_b ? 0 : 1];
  std::vector<float> made(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < inner; ++k)
        sum += static_cast<double>(a.data<float>()[transpose_a ? k * m + i : i * inner + k]) *
               static_cast<double>(b.data<float>()[transpose_b ? j * inner + k : k * n + j]);
      made[static_cast<size_t>(i * n + j)] = static_cast<float>(sum);
    }
  return made;
}

void expect_near(const Tensor& have, const std::vector<float>& want, float offset = 0, float factor = 1) {
  ASSERT_EQ(have.num_elements(), static_cast<int64_t>(want.size()));
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(have.data<float>()[i], offset + factor * want[i], 2e-5) << i;
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(Executor, PassesReadAndWriteWhatIsBound) {
  const Tensor x = ramp({kRows, kIn}, -1, 0.3F), w = ramp({kIn, kOut}, 0.5F, -0.2F), b = ramp({kOut}, 0, 0);
  const Tensor to_w = ramp({kIn, kOut}, 9, 0), head = ramp({kRows, kOut}, 1, 0.5F);
  Executor executor(linear(), {{"x", x}, {"w", w}, {"b", b}}, {.gradients = {{"w", to_w}}});
  expect_near(executor.forward()[0].tensor(), product(x, w, false, false));
  w.data<float>()[0] = 7;  // this write is not notified
  expect_near(executor.forward()[0].tensor(), product(x, w, false, false));
  for (int pass = 0; pass < 2; ++pass) {
    expect_near(executor.forward(ForwardMode::train)[0].tensor(), product(x, w, false, false));
    executor.backward(std::span(&head, 1));
    EXPECT_EQ(executor.gradients().at("w").tensor().raw(), to_w.raw());
    expect_near(to_w, product(x, head, true, false));
    expect_near(executor.gradients().at("x").tensor(), product(head, w, false, true));
    x.data<float>()[2] += 1, w.data<float>()[3] -= 2;
  }
  EXPECT_EQ(executor.graphs().training(executor.requests()).parameters().at("w").raw(), w.raw());
  EXPECT_NE(error_of([&] { executor.backward(); }).find("for training"), std::string::npos);
}

TEST(Executor, GradientsAreAddedWithinTheGraphInTheirMemory) {
  const Tensor x = ramp({kRows, kIn}, -1, 0.3F), head = ramp({kRows, kOut}, 1, 0.5F);
  BindOptions options{.request = GradientRequest::null, .requests = {{"w", GradientRequest::add}, {"b", GradientRequest::write}}};
  const Tensor to_w = ramp({kIn, kOut}, 1, 0);
  options.gradients.emplace("w", to_w);
  Executor executor(linear(), {{"x", x}}, options);
  const std::vector<float> once = product(x, head, true, false);
  for (int pass = 1; pass <= 3; ++pass) {
    executor.forward(ForwardMode::train);
    executor.backward(std::span(&head, 1));
    expect_near(to_w, once, 1, static_cast<float>(pass));
    EXPECT_NEAR(executor.gradients().at("b").tensor().data<float>()[0], 1 + 2 + 3 + 4, 1e-5);
  }
  EXPECT_FALSE(executor.gradients().contains("x"));
  // Nodes of the graph add the gradients in place, so a pass needs no memory for gradients.
  JointModule& module = executor.graphs().training(executor.requests());
  EXPECT_EQ(module.gradient_names(), (std::vector<std::string>{"w", "b"}));
  const auto gradients_now = [&] { return module.memory_statistics()[MemoryClass::gradients].bytes; };
  executor.forward(ForwardMode::train);
  EXPECT_EQ(gradients_now(), 0U);
  executor.backward();  // the gradient of the output is 1
  EXPECT_EQ(executor.gradients().at("b").tensor().data<float>()[1], static_cast<float>(kRows));
}

TEST(Executor, NullGradientsLeaveParametersWhereTheyAreBound) {
  const Tensor x = ramp({kRows, kIn}, -1, 0.3F), w = ramp({kIn, kOut}, 0.5F, -0.2F), head = ramp({kRows, kOut}, 1, 0.5F);
  Executor executor(linear(), {{"x", x}, {"w", w}, {"b", ramp({kOut}, 0, 0)}}, {.requests = {{"w", GradientRequest::null}}});
  w.data<float>()[1] = 4;
  expect_near(executor.forward(ForwardMode::train)[0].tensor(), product(x, w, false, false));
  executor.backward(std::span(&head, 1));
  expect_near(executor.gradients().at("x").tensor(), product(head, w, false, true));
  EXPECT_FALSE(executor.gradients().contains("w"));
}

TEST(Executor, RunningStatisticsAreWrittenWhereTheyAreBound) {
  const tiny::Batch batch = tiny::make_batch(8, 3);
  const Tensor mean = ramp({4}, 0, 0), variance = ramp({4}, 1, 0);
  Executor executor(tiny::tiny_network(), batch.feeds, {.states = {{"bn.mean", mean}, {"bn.var", variance}}});
  const float before = executor.forward()[0].tensor().data<float>()[0];
  executor.forward(ForwardMode::train);
  // ONNX defines new = 0.9 old + 0.1 batch. The test computes the batch mean of one channel of the convolution by its definition.
  const Tensor image = batch.feeds.at("image").tensor(), weight = executor.arguments().at("conv.weight").tensor(),
               bias = executor.arguments().at("conv.bias").tensor();
  for (int64_t channel = 0; channel < 4; ++channel) {
    double sum = 0;
    for (int64_t n = 0; n < 8; ++n)
      for (int64_t y = 0; y < 6; ++y)
        for (int64_t x = 0; x < 6; ++x) {
          sum += static_cast<double>(bias.data<float>()[channel]);
          for (int64_t v = -1; v <= 1; ++v)
            for (int64_t u = -1; u <= 1; ++u)
              if (y + v >= 0 && y + v < 6 && x + u >= 0 && x + u < 6)
                sum += static_cast<double>(image.data<float>()[n * 36 + (y + v) * 6 + x + u]) *
                       static_cast<double>(weight.data<float>()[channel * 9 + (v + 1) * 3 + u + 1]);
        }
    EXPECT_NEAR(mean.data<float>()[channel], 0.1 * sum / (8 * 36), 1e-5);
  }
  executor.backward();
  EXPECT_NE(variance.data<float>()[0], 1);
  EXPECT_NE(executor.forward()[0].tensor().data<float>()[0], before);  // this output is computed with the new statistics
}

TEST(Executor, ShapesAreMadeAndFollowBySymbols) {
  NamedTensors buffer;
  SimpleBindOptions options;
  options.shared_buffer = &buffer;
  const Model model = linear();
  Executor executor = Executor::simple_bind(model, {{"x", {kRows, kIn}}}, options);
  EXPECT_EQ(buffer.size(), 2U);  // the buffer has x and the gradient of x
  EXPECT_EQ(executor.arguments().at("x").tensor().raw(), buffer.at("x").raw());
  EXPECT_EQ(executor.gradients().at("x").tensor().raw(), buffer.at("grad of x").raw());
  const Executor smaller = executor.reshape({{"x", {2, kIn}}});
  EXPECT_EQ(smaller.arguments().at("x").tensor().raw(), buffer.at("x").raw());
  EXPECT_EQ(smaller.arguments().at("w").tensor().raw(), executor.arguments().at("w").tensor().raw());
  EXPECT_EQ(smaller.graphs(), executor.graphs());
  EXPECT_NE(error_of([&] { executor.reshape({{"x", {8, kIn}}}); }).find("allow_up_sizing"), std::string::npos);
  EXPECT_NE(error_of([&] { executor.reshape({}); }).find("partial_shaping"), std::string::npos);
  Executor larger = executor.reshape({{"x", {8, kIn}}}, {.allow_up_sizing = true});
  EXPECT_EQ(larger.forward()[0].tensor().shape(), (Shape{8, kOut}));
  EXPECT_NE(error_of([&] { Executor::simple_bind(model, {}); }).find("the shape of \"x\" is [batch,3]"), std::string::npos);
  EXPECT_NE(error_of([&] { Executor::simple_bind(model, {{"z", {1}}}); }).find("is it x?"), std::string::npos);
}

TEST(Executor, ParametersAreSharedByName) {
  const Tensor x = ramp({kRows, kIn}, -1, 0.3F);
  Executor first(linear(), {{"x", x}});
  // The executor has another model, with a parameter of the same name.
  Executor second(linear(), {{"x", x}}, {.shared = &first, .shared_names = {{"w"}}});
  EXPECT_EQ(second.arguments().at("w").tensor().raw(), first.arguments().at("w").tensor().raw());
  EXPECT_NE(second.arguments().at("b").tensor().raw(), first.arguments().at("b").tensor().raw());
  first.copy_from({{"w", ramp({kIn, kOut}, 1, 1)}, {"b", ramp({kOut}, 0, 0)}});
  second.set_argument("b", ramp({kOut}, 0, 0));
  expect_near(second.forward()[0].tensor(), product(x, first.arguments().at("w").tensor(), false, false));
  EXPECT_NE(error_of([&] {
              Executor(tiny::tiny_network(), tiny::make_batch(2, 1).feeds, {.shared = &first});
            }).find("no parameter of this model"),
            std::string::npos);
  EXPECT_NE(error_of([&] { first.copy_from({{"v", x}}); }).find("\"v\""), std::string::npos);
  EXPECT_EQ(error_of([&] { first.copy_from({{"v", x}}, ExtraNames::ignore); }), "");
}

TEST(Executor, AForwardPassGoesStepByStep) {
  for (const ForwardMode mode : {ForwardMode::predict, ForwardMode::train}) {
    const Tensor x = ramp({kRows, kIn}, -1, 0.3F);
    Executor executor(linear(), {{"x", x}, {"b", ramp({kOut}, 0, 0)}});
    size_t step = 0, left = executor.partial_forward(step, mode);
    const size_t all = left + 1;
    while (left > 0) EXPECT_EQ(executor.partial_forward(++step, mode), --left);
    expect_near(executor.outputs()[0].tensor(), product(x, executor.arguments().at("w").tensor(), false, false));
    EXPECT_EQ(executor.partial_forward(all), 0U);
    if (mode == ForwardMode::predict) continue;  // the whole graph is one node, so no step is left after the first one
    executor.partial_forward(0, mode);
    EXPECT_NE(error_of([&] { executor.partial_forward(9); }).find("step 9 does not follow"), std::string::npos);
  }
}

TEST(Executor, AMonitorSeesAllPasses) {
  const Tensor x = ramp({kRows, kIn}, -1, 0.3F);
  Executor executor(linear(), {{"x", x}, {"b", ramp({kOut}, 0, 0)}});
  std::map<std::string, int> seen;
  executor.graphs().set_monitor({.callback = [&](const MonitorEvent& event) { ++seen[std::string(event.value)]; }});
  executor.forward();
  EXPECT_EQ(seen["product"], 1);
  executor.forward(ForwardMode::train);
  EXPECT_EQ(seen["product"], 2);
  const size_t forward = seen.size();
  executor.backward();
  EXPECT_GT(seen.size(), forward);
  executor.graphs().set_monitor({});
  executor.forward(ForwardMode::train);
  EXPECT_EQ(seen["product"], 2);
}

TEST(Executor, WhatCannotBeBoundIsNamed) {
  const Tensor x = ramp({kRows, kIn}, -1, 0.3F);
  const std::pair<std::string, std::function<void()>> wrong[] = {
      {"nothing is given for x", [&] { Executor(linear(), {}); }},
      {"an argument is given for \"y\"",
       [&] {
         Executor(linear(), {{"x", x}, {"y", x}});
       }},
      {"the parameter \"w\" is bound to f32[4,3]",
       [&] {
         Executor(linear(), {{"x", x}, {"w", x}});
       }},
      {"the memory for the gradient of \"w\" is f32[4,3]",
       [&] {
         Executor(linear(), {{"x", x}}, {.gradients = {{"w", x}}});
       }},
      {"whose request is null",
       [&] {
         Executor(linear(), {{"x", x}}, {.request = GradientRequest::null, .gradients = {{"x", x}}});
       }},
      {"a gradient is requested for \"q\"",
       [&] {
         Executor(linear(), {{"x", x}}, {.requests = {{"q", GradientRequest::add}}});
       }},
      {"a state is given for \"mean\"",
       [&] {
         Executor(linear(), {{"x", x}}, {.states = {{"mean", x}}});
       }},
      {"shared_names needs",
       [&] {
         Executor(linear(), {{"x", x}}, {.shared_names = {{"w"}}});
       }},
      {"no gradient request \"sometimes\"", [] { gradient_request_named("sometimes"); }},
  };
  for (const auto& [message, call] : wrong)
    EXPECT_NE(error_of(call).find(message), std::string::npos) << message << " / " << error_of(call);
  Executor executor(linear(), {{"x", x}});
  EXPECT_NE(error_of([&] { executor.set_argument("x", ramp({1, kIn}, 0, 0)); }).find("reshape()"), std::string::npos);
  executor.forward(ForwardMode::train);
  const Tensor narrow = ramp({kRows, 1}, 0, 0);
  EXPECT_NE(error_of([&] { executor.backward(std::span(&narrow, 1)); }).find("the gradient of \"y\" is f32[4,1]"), std::string::npos);
}

TEST(JointModule, AsksForMemoryOfTheGradientsThatItAdds) {
  JointModule module(linear(), {.gradient_requests = {{"w", GradientRequest::add}, {"b", GradientRequest::null}}});
  const Tensor x = ramp({kRows, kIn}, -1, 0.3F), sum = ramp({kIn, kOut}, 2, 0), head = ramp({kRows, kOut}, 1, 0.5F);
  EXPECT_NE(error_of([&] { module.forward({{"x", x}}); }).find("begin_with_memory"), std::string::npos);
  EXPECT_NE(error_of([&] { module.begin_with_memory({{"x", x}}, {}); }).find("the gradient of \"w\" has no memory"), std::string::npos);
  EXPECT_NE(error_of([&] { module.begin_with_memory({{"x", x}}, {{"w", x}}); }).find("contiguous memory of f32[3,2]"), std::string::npos);
  JointModule::Run run = module.begin_with_memory({{"x", x}}, {{"w", sum}});
  run.advance_steps(SIZE_MAX);
  EXPECT_TRUE(run.backward_to_memory(std::span(&head, 1)).empty());
  expect_near(sum, product(x, head, true, false), 2);
  EXPECT_NE(error_of([] {
              JointModule(linear(), {.gradient_requests = {{"q", GradientRequest::null}}});
            }).find("is it"),
            std::string::npos);
}

}  // namespace
}  // namespace treadle::train
