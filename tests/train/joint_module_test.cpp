// Tests joint modules that compute with the caller's tensors, given by position, as treadle.torch uses them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "onnx/serialize.h"
#include "tests/train/tiny_network.h"
#include "treadle/error.h"
#include "treadle/profile.h"
#include "treadle/train.h"

namespace treadle::train {
namespace {

struct Operation {
  const char* type;
  std::vector<std::string> inputs;
  const char* output;
};

using Values = std::vector<std::pair<std::string, std::vector<int64_t>>>;  // names and shapes of values
Model model_of(const Values& inputs, const std::vector<Operation>& operations, const Values& outputs) {
  onnx::ModelDef model;
  model.ir_version = 8;
  model.opset_imports.push_back({"", 17});
  model.graph.name = "graph";
  for (const auto& [name, shape] : inputs) model.graph.inputs.push_back(tiny::tensor_info(name.c_str(), shape));
  for (const auto& [name, shape] : outputs) model.graph.outputs.push_back(tiny::tensor_info(name.c_str(), shape));
  for (const Operation& operation : operations) {
    onnx::NodeDef node;
    node.op_type = operation.type;
    node.name = std::string(operation.output) + "_node";
    node.inputs = operation.inputs;
    node.outputs = {operation.output};
    model.graph.nodes.push_back(std::move(node));
  }
  const std::string bytes = onnx::serialize_model(model);
  return Model::from_bytes(std::as_bytes(std::span(bytes)));
}

Tensor tensor_of(const Shape& shape, float first, float step = 0) {
  Tensor made(DType::float32, shape);
  for (int64_t i = 0; i < made.num_elements(); ++i) made.data<float>()[i] = first + step * static_cast<float>(i);
  return made;
}

// Makes a normalisation of x[2,2,3], which has two channels and the elements 0, 0.5 ... 5.5. Channel 0 has 0, 0.5, 1, 3, 3.5 and 4, whose
// mean is computed by hand.
Model normalization() {
  return model_of({{"x", {2, 2, 3}}, {"scale", {2}}, {"bias", {2}}, {"mean", {2}}, {"var", {2}}},
                  {{"BatchNormalization", {"x", "scale", "bias", "mean", "var"}, "y"}}, {{"y", {2, 2, 3}}});
}
constexpr double kMean = 2.0, kVariance = (4 + 2.25 + 1 + 1 + 2.25 + 4) / 6;  // the sum of squares divided by n

std::vector<Datum> normalization_feeds(const Tensor& mean, const Tensor& var) {
  return {tensor_of({2, 2, 3}, 0, 0.5F), tensor_of({2}, 1), tensor_of({2}, 0), mean, var};
}

TEST(JointModule, StatisticsThatAreFedAreWrittenInPlaceByTheForwardPass) {
  for (bool unbiased : {false, true}) {
    JointModule module(normalization(), {.inputs = {"x", "scale"}, .states = {"mean", "var"}, .unbiased_variance = unbiased});
    ASSERT_EQ(module.input_names(), (std::vector<std::string>{"x", "scale", "bias", "mean", "var"}));
    const Tensor mean = tensor_of({2}, 1), var = tensor_of({2}, 3);
    JointModule::Run run = module.forward_in_order(normalization_feeds(mean, var));
    EXPECT_NEAR(run.outputs()[0].data<float>()[0], (0 - kMean) / std::sqrt(kVariance + 1e-5), 1e-5);
    EXPECT_NEAR(mean.data<float>()[0], 0.9 * 1 + 0.1 * kMean, 1e-6);
    EXPECT_NEAR(var.data<float>()[0], 0.9 * 3 + 0.1 * kVariance * (unbiased ? 6.0 / 5 : 1), 1e-6);
    const float before = mean.data<float>()[0];
    module.forward_in_order(normalization_feeds(mean, var), {.update_states = false});
    run.backward_in_order(std::vector{tensor_of({2, 2, 3}, 1)});
    EXPECT_EQ(mean.data<float>()[0], before);
  }
}

TEST(JointModule, StatisticsThatAreInputsAndNoStatesNormalize) {
  JointModule module(normalization(), {.inputs = {"x"}});
  const Tensor mean = tensor_of({2}, 1), var = tensor_of({2}, 4);
  JointModule::Run run = module.forward_in_order(normalization_feeds(mean, var));
  EXPECT_NEAR(run.outputs()[0].data<float>()[0], -0.5, 1e-5);
  EXPECT_NEAR(run.backward_in_order(std::vector{tensor_of({2, 2, 3}, 1)})[0].data<float>()[0], 0.5, 1e-5);
  EXPECT_EQ(mean.data<float>()[0], 1);
  EXPECT_THROW(JointModule(normalization(), {.inputs = {"x"}, .states = {"nothing"}}), Error);
}

TEST(JointModule, GradientsAreTheCallersOwn) {
  const Model sum =
      model_of({{"a", {3}}, {"b", {3}}, {"c", {3}}}, {{"Add", {"a", "b"}, "y"}, {"Exp", {"c"}, "z"}}, {{"y", {3}}, {"z", {3}}});
  JointModule module(sum, {.outputs = {"y"}, .inputs = {"a", "b", "c"}, .plain_outputs = {"z"}, .zero_gradients = false});
  const std::vector<Datum> feeds{tensor_of({3}, 1), tensor_of({3}, 2), tensor_of({3}, 0)};
  JointModule::Run run = module.forward_in_order(feeds);
  ASSERT_EQ(run.outputs().size(), 2U);
  EXPECT_EQ(run.outputs()[1].data<float>()[0], 1);
  const Tensor head = tensor_of({3}, 5);
  const std::vector<Tensor> gradients = run.backward_in_order(std::vector{head});
  ASSERT_EQ(gradients.size(), 3U);
  EXPECT_FALSE(gradients[2].defined());
  for (int i : {0, 1}) gradients[static_cast<size_t>(i)].storage()->data()[0] = std::byte{1};
  EXPECT_NE(gradients[0].raw(), gradients[1].raw());
  EXPECT_EQ(head.data<float>()[0], 5);
  EXPECT_EQ(module.forward_in_order(feeds).backward_in_order(std::vector{Tensor()})[0].data<float>()[1], 0);
}

// Makes y = Tanh(a x) b + c + d. The gradients of c and d are the output's gradient; the gradient of b is computed before that of a.
TEST(JointModule, GradientsComeGroupByGroup) {
  JointModule module(model_of({{"x", {3}}, {"a", {3}}, {"b", {3}}, {"c", {3}}, {"d", {3}}},
                              {{"Mul", {"a", "x"}, "ax"},
                               {"Tanh", {"ax"}, "t"},
                               {"Mul", {"t", "b"}, "tb"},
                               {"Add", {"tb", "c"}, "s"},
                               {"Add", {"s", "d"}, "y"}},
                              {{"y", {3}}}),
                     {.inputs = {"a", "b", "c", "d"}});
  const std::vector<Datum> feeds{tensor_of({3}, 0.5F, 0.25F), tensor_of({3}, 1), tensor_of({3}, 2), tensor_of({3}, 0), tensor_of({3}, 0)};
  const Tensor head = tensor_of({3}, 1, 1);
  const std::vector<Tensor> expected = module.forward_in_order(feeds).backward_in_order(std::vector{head});
  std::vector<std::vector<size_t>> groups = module.gradient_groups(0);
  std::vector<size_t> order;
  for (const std::vector<size_t>& group : groups) order.insert(order.end(), group.begin(), group.end());
  EXPECT_EQ(order, (std::vector<size_t>{2, 3, 1, 0}));
  EXPECT_EQ(module.gradient_groups(1000).size(), 1U);

  JointModule::Run run = module.forward_in_order(feeds);
  EXPECT_THROW(run.advance_backward(groups[0]), Error);
  run.begin_backward(std::vector{head});
  EXPECT_THROW(run.begin_backward(std::vector{head}), Error);
  for (size_t gradient : order) {
    const std::vector<Tensor> made = run.advance_backward(std::vector{gradient});
    ASSERT_EQ(made.size(), 1U);
    for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(made[0].data<float>()[i], expected[gradient].data<float>()[i]) << gradient << " " << i;
    // The caller owns this gradient and overwrites it, and later gradients must not depend on it.
    for (float& element : Tensor(made[0]).span<float>()) element = 100;
  }
  EXPECT_THROW(run.advance_backward(groups[0]), Error);
  EXPECT_EQ(head.data<float>()[2], 3);
}

TEST(JointModule, WhatIsFedMayLieElsewhereInTheBackwardPass) {
  for (const char* device : {"", "sim"}) {
    JointModule module(model_of({{"x", {3}}, {"w", {3}}}, {{"Mul", {"x", "w"}, "y"}}, {{"y", {3}}}),
                       {.inputs = {"x"}, .session = {.device = device}});
    Tensor w = tensor_of({3}, 5);
    JointModule::Run run = module.forward_in_order({tensor_of({3}, 2), w});
    EXPECT_EQ(run.outputs()[0].data<float>()[1], 10);
    run.move_feed(1, tensor_of({3}, 7));
    EXPECT_THROW(run.move_feed(1, tensor_of({4}, 7)), Error);
    EXPECT_THROW(run.move_feed(2, w), Error);
    for (float& element : w.span<float>()) element = 100;
    const float gradient = run.backward_in_order(std::vector{tensor_of({3}, 1)})[0].data<float>()[1];
    if (*device == 0) {
      EXPECT_EQ(gradient, 7);
    }
    EXPECT_NE(gradient, 100);
  }
}

TEST(JointModule, AGroupOfGradientsIsThereBeforeTheRestIsComputed) {
  JointModule module(model_of({{"x", {3}}, {"a", {3}}, {"b", {3}}},
                              {{"Mul", {"a", "x"}, "ax"}, {"Tanh", {"ax"}, "t"}, {"Mul", {"t", "b"}, "y"}}, {{"y", {3}}}),
                     {.inputs = {"a", "b"}});
  size_t num_seen = 0;
  module.set_monitor({.callback = [&](const MonitorEvent&) { ++num_seen; }});
  JointModule::Run run = module.forward_in_order({tensor_of({3}, 0.5F), tensor_of({3}, 1), tensor_of({3}, 2)});
  run.begin_backward(std::vector{tensor_of({3}, 1)});
  const size_t forward = num_seen;
  EXPECT_NEAR(run.advance_backward(std::vector<size_t>{1})[0].data<float>()[0], std::tanh(0.5), 1e-6);
  const size_t first = num_seen;
  EXPECT_GT(first, forward);
  EXPECT_NEAR(run.advance_backward(std::vector<size_t>{0})[0].data<float>()[0], 2 * (1 - std::pow(std::tanh(0.5), 2)) * 0.5, 1e-6);
  EXPECT_GT(num_seen, first);
}

TEST(JointModule, OutputsThatTheBackwardPassReadsAreCopies) {
  JointModule module(model_of({{"x", {2}}}, {{"Sigmoid", {"x"}, "y"}}, {{"y", {2}}}), {.inputs = {"x"}});
  JointModule::Run run = module.forward_in_order({tensor_of({2}, 0)});
  Tensor y = run.outputs()[0];
  EXPECT_EQ(y.data<float>()[0], 0.5F);
  y.data<float>()[0] = 100;
  EXPECT_NEAR(run.backward_in_order(std::vector{tensor_of({2}, 1)})[0].data<float>()[0], 0.25, 1e-6);
}

// The result depends only on the extents of the first input, which are known, so the optimised graph does not need the input.
TEST(JointModule, InputsAreThoseOfTheModelWithAndWithoutAMonitor) {
  JointModule module(model_of({{"like", {3}}, {"x", {1}}}, {{"Shape", {"like"}, "shape"}, {"Expand", {"x", "shape"}, "y"}}, {{"y", {3}}}),
                     {.inputs = {"x"}});
  ASSERT_EQ(module.input_names(), (std::vector<std::string>{"like", "x"}));
  std::vector<std::string> seen;
  for (bool watched : {false, true}) {
    if (watched) module.set_monitor({.callback = [&](const MonitorEvent& event) { seen.emplace_back(event.value); }});
    JointModule::Run run = module.forward_in_order({tensor_of({3}, 0), tensor_of({1}, 7)});
    ASSERT_EQ(run.outputs()[0].shape(), (Shape{3}));
    EXPECT_EQ(run.outputs()[0].data<float>()[2], 7);
    EXPECT_EQ(run.backward_in_order(std::vector{tensor_of({3}, 1, 1)})[0].data<float>()[0], 6);
  }
  EXPECT_NE(std::find(seen.begin(), seen.end(), "shape"), seen.end());
}

TEST(JointModule, WithoutABackwardPassNothingIsTrained) {
  JointModule module(normalization(), {.states = {"mean", "var"}, .unbiased_variance = true, .forward_only = true});
  const Tensor mean = tensor_of({2}, 1), var = tensor_of({2}, 3);
  JointModule::Run run = module.forward_in_order(normalization_feeds(mean, var));
  ASSERT_EQ(run.outputs().size(), 1U);
  EXPECT_NEAR(var.data<float>()[0], 0.9 * 3 + 0.1 * kVariance * 6 / 5, 1e-6);
  try {
    run.backward_in_order(std::vector{tensor_of({2, 2, 3}, 1)});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("without a backward pass"), std::string::npos) << error.what();
  }
}

// Forward nodes are numbered in order, and each arrow in a trace has both ends in every run.
TEST(JointModule, BackwardNodesKnowTheirForwardNodes) {
  constexpr size_t kRuns = 3;
  JointModule module(tiny::tiny_network(), {.outputs = {"scores"}});
  const Profiler profiler = module.profiler({});
  for (size_t i = 0; i < kRuns; ++i) {
    JointModule::Run run = module.forward(tiny::make_batch(4, 1).feeds);
    Tensor ones(DType::float32, run.outputs()[0].shape());
    for (float& x : ones.span<float>()) x = 1;
    run.backward(std::vector<Tensor>{ones});
  }
  const Profile profile = profiler.profile();
  int64_t sequence = 0;
  size_t links = 0;
  for (const ProfiledNode& node : profile.nodes) {
    if (node.phase == "forward") {
      EXPECT_EQ(node.sequence, sequence++);
      EXPECT_TRUE(node.forward.empty());
      continue;
    }
    links += node.forward.size();
    for (int32_t forward : node.forward) {
      const ProfiledNode& of = profile.nodes[static_cast<size_t>(forward)];
      EXPECT_EQ(of.phase, "forward");
      EXPECT_TRUE(std::any_of(
          of.sources.begin(), of.sources.end(),
          [&](const std::string& source) { return std::find(node.sources.begin(), node.sources.end(), source) != node.sources.end(); }))
          << node.name << " and " << of.name << " stand for different nodes";
    }
  }
  const auto product =
      std::find_if(profile.nodes.begin(), profile.nodes.end(), [](const auto& n) { return n.name == "scores_node_grad/Gemm"; });
  ASSERT_TRUE(product != profile.nodes.end());
  ASSERT_EQ(product->forward.size(), 1U);
  EXPECT_EQ(profile.nodes[static_cast<size_t>(product->forward[0])].name, "scores_node");
  const std::string trace = profile_to_trace(profile, TraceFormat::chrome);
  for (const char* end : {"\"ph\":\"s\",\"cat\":\"fwdbwd\"", "\"ph\":\"f\",\"bp\":\"e\",\"cat\":\"fwdbwd\""}) {
    size_t count = 0;
    for (size_t at = trace.find(end); at != std::string::npos; at = trace.find(end, at + 1)) ++count;
    EXPECT_EQ(count, links * kRuns) << end;
  }
}

// Makes two products of x[1024,256]; the gradients of the weights take less memory than the activations.
Model two_products() {
  return model_of({{"x", {1024, 256}}, {"a", {256, 128}}, {"b", {128, 256}}},
                  {{"MatMul", {"x", "a"}, "h"},
                   {"Sigmoid", {"h"}, "s"},
                   {"MatMul", {"s", "b"}, "t"},
                   {"Tanh", {"t"}, "u"},
                   {"Softmax", {"u"}, "v"},
                   {"Softmax", {"v"}, "w"},
                   {"Sin", {"w"}, "sine"},
                   {"Cos", {"sine"}, "y"}},
                  {{"y", {1024, 256}}});
}

std::vector<Datum> two_products_feeds(float first) {
  return {tensor_of({1024, 256}, first, 1e-6F), tensor_of({256, 128}, 0.01F, -1e-6F), tensor_of({128, 256}, -0.02F, 1e-6F)};
}

std::vector<std::vector<float>> gradients_of(JointModule& module, float first, std::vector<Tensor>* kept = nullptr) {
  JointModule::Run run = module.forward_in_order(two_products_feeds(first));
  std::vector<Tensor> made = run.backward_in_order(std::vector<Tensor>{tensor_of({1024, 256}, 1)});
  std::vector<std::vector<float>> values;
  for (const Tensor& gradient : made) values.emplace_back(gradient.span<float>().begin(), gradient.span<float>().end());
  if (kept) kept->insert(kept->end(), made.begin(), made.end());
  return values;
}

TEST(JointModule, GradientsLieInTheArenaUntilTheyAreKept) {
  const JointOptions options{.inputs = {"a", "b"}};
  constexpr size_t kGradientBytes = size_t{2} * 256 * 128 * sizeof(float);
  // Runs at the same time have separate memory for gradients.
  JointOptions by_readiness = options;
  by_readiness.session.execution_mode = ExecutionMode::parallel;
  by_readiness.session.intra_op_num_threads = 2;
  JointModule apart(two_products(), by_readiness);
  std::vector<std::vector<std::vector<float>>> expected;
  for (float first : {0.0F, 0.5F, 1.0F, 1.5F}) expected.push_back(gradients_of(apart, first));

  JointModule module(two_products(), options);
  const auto held = [&](MemoryClass of) { return module.memory_statistics()[of].bytes; };
  EXPECT_EQ(gradients_of(module, 0), expected[0]);
  EXPECT_EQ(module.memory_statistics()[MemoryClass::gradients].peak_bytes, 0U);
  const size_t arena = held(MemoryClass::activations);
  EXPECT_GE(arena, kGradientBytes);

  // Gradients that the caller keeps do not change. The next run gets another arena, and the old one shrinks to the part with these
  // gradients.
  std::vector<Tensor> kept;
  EXPECT_EQ(gradients_of(module, 0.5F, &kept), expected[1]);
  EXPECT_EQ(gradients_of(module, 1.0F), expected[2]);
  for (size_t g = 0; g < kept.size(); ++g)
    EXPECT_TRUE(std::equal(expected[1][g].begin(), expected[1][g].end(), kept[g].span<float>().begin())) << g;
  EXPECT_LE(held(MemoryClass::activations), arena);
  // From now on gradients have memory of their own, which the module owns until the caller gets it.
  EXPECT_GE(module.memory_statistics()[MemoryClass::gradients].peak_bytes, kGradientBytes);
  kept.clear();
  EXPECT_EQ(gradients_of(module, 1.5F), expected[3]);
  EXPECT_LE(held(MemoryClass::activations), arena);
}

TEST(JointModule, GradientsOutliveTheirModule) {
  std::vector<Tensor> kept;
  std::vector<std::vector<float>> expected;
  {
    JointModule module(two_products(), {.inputs = {"a", "b"}});
    expected = gradients_of(module, 0.25F, &kept);
  }
  for (size_t g = 0; g < kept.size(); ++g)
    EXPECT_TRUE(std::equal(expected[g].begin(), expected[g].end(), kept[g].span<float>().begin())) << g;
}

}  // namespace
}  // namespace treadle::train
