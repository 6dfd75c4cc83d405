#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <set>
#include <string>

#include "tests/sharing/jobs.h"
#include "tests/train/tiny_network.h"
#include "treadle/error.h"
#include "treadle/executor.h"
#include "treadle/session.h"
#include "treadle/sharing.h"
#include "treadle/train.h"

namespace treadle::train {
namespace {

using namespace tiny;

// PyTorch's exporter writes an Identity for parameters that are equal when exported.
TEST(Trainer, RunningStatisticsBehindAnIdentityAreANodesOwn) {
  const Model copied = tiny_network(-1, [](onnx::GraphDef& graph) {
    std::erase_if(graph.initializers, [](const auto& def) { return def.name == "bn.mean"; });
    add_tensor(graph, "zeros", {4}, 0, 0);
    graph.nodes.insert(graph.nodes.begin(), node("Identity", {"zeros"}, "bn.mean"));
  });
  Trainer trainer(copied, {.learning_rate = 0.1, .momentum = 0.9}), expected(tiny_network(), {.learning_rate = 0.1, .momentum = 0.9});
  for (uint32_t i = 1; i < 4; ++i) {
    const Batch batch = make_batch(16, i);
    EXPECT_EQ(trainer.step(batch.feeds, batch.labels), expected.step(batch.feeds, batch.labels));
  }
  ASSERT_EQ(trainer.states().size(), 2U);
  for (const auto& [name, state] : expected.states())
    for (int64_t c = 0; c < 4; ++c) EXPECT_EQ(trainer.states().at(name).data<float>()[c], state.data<float>()[c]) << name;
  EXPECT_NE(trainer.states().at("bn.mean").data<float>()[0], 0.0F);
}

TEST(Trainer, RunningStatisticsThatNothingCanKeepAreAnError) {
  const Model computed = tiny_network(-1, [](onnx::GraphDef& graph) {
    graph.nodes.insert(graph.nodes.begin(), node("Abs", {"bn.mean"}, "mean"));
    for (onnx::NodeDef& def : graph.nodes)
      if (def.op_type == "BatchNormalization") def.inputs[3] = "mean";
  });
  const Model shared = tiny_network(-1, [](onnx::GraphDef& graph) {
    for (onnx::NodeDef& def : graph.nodes)
      if (def.op_type == "Relu") def.inputs[0] = "again";
    graph.nodes.insert(graph.nodes.begin() + 2,
                       node("BatchNormalization", {"normal", "bn.scale", "bn.bias", "bn.mean", "bn.var"}, "again"));
  });
  for (const Model& model : {computed, shared}) EXPECT_THROW(Trainer(model, {}), Error);
}

// The error must be the same as that of a session, wherever the option is set.
TEST(Trainer, PatternsOfPrecisionThatNoNodeHasAreErrors) {
  SessionOptions wrong, of_a_node, of_the_loss;
  wrong.precision = "normal_nod=bfloat16", of_a_node.precision = "conv*=bfloat16;scores_node=float32";
  of_the_loss.precision = "loss*=float32";
  const Model model = tiny_network();
  const std::function<void(const SessionOptions&)> makes[] = {
      [&](const SessionOptions& session) { Session(model, session); },
      [&](const SessionOptions& session) { Trainer(model, {.session = session}); },
      [&](const SessionOptions& session) { Trainer(model, {.accumulation_steps = 2, .session = session}); },
      [&](const SessionOptions& session) { JointModule(model, {.session = session}); },
      [&](const SessionOptions& session) { JointModule(model, {.forward_only = true, .session = session}); },
      [&](const SessionOptions& session) { Executor(ExecutorGraphs(model, session), make_batch(2, 1).feeds); }};
  for (const auto& make : makes) {
    try {
      make(wrong);
      ADD_FAILURE() << "a pattern that no node has was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(error.what())
                    .find("the option precision: the pattern \"normal_nod\" matches no node; is it normal_node, conv_node or flat_node?"),
                std::string::npos)
          << error.what();
    }
    EXPECT_NO_THROW(make(of_a_node));
  }
  EXPECT_NO_THROW(Trainer(model, {.session = of_the_loss}));
}

TEST(Trainer, LossFallsAndTheSavedModelClassifies) {
  Trainer trainer(tiny_network(), {.learning_rate = 0.1, .momentum = 0.9});
  EXPECT_EQ(trainer.parameters().size(), 6U);
  EXPECT_EQ(trainer.states().size(), 2U);
  const double first = trainer.step(make_batch(16, 1).feeds, make_batch(16, 1).labels);
  for (uint32_t i = 2; i < 40; ++i) {
    const Batch batch = make_batch(i % 3 == 0 ? 12 : 16, i);
    trainer.step(batch.feeds, batch.labels);
  }
  const Batch held_out = make_batch(20, 99);
  EXPECT_GT(first, 0.3);
  EXPECT_LT(trainer.evaluate(held_out.feeds, held_out.labels), 0.1 * first);

  const std::string bytes = trainer.to_bytes({{"note", "trained"}});
  const Model saved = Model::from_bytes(std::as_bytes(std::span(bytes)));
  EXPECT_EQ(saved.metadata().custom.at("note"), "trained");
  const Tensor scores = Session(saved).run(held_out.feeds)[0].tensor(), predicted = trainer.predict(held_out.feeds)[0].tensor();
  for (int64_t i = 0; i < 20; ++i) {
    const float* row = scores.data<float>() + 2 * i;
    EXPECT_EQ(row[1] > row[0] ? 1 : 0, held_out.labels.data<int64_t>()[i]);
    EXPECT_NEAR(row[0], predicted.data<float>()[2 * i], 1e-3);
  }
}

TEST(Trainer, StepFollowsItsGradientsByPyTorchsFormula) {
  constexpr float kRate = 0.05F, kMomentum = 0.9F, kDecay = 0.01F;
  Trainer trainer(tiny_network(), {.learning_rate = kRate, .momentum = kMomentum, .weight_decay = kDecay});
  NamedTensors expected, velocity;
  for (const auto& [name, tensor] : trainer.parameters()) expected.emplace(name, tensor.clone());
  for (uint32_t step = 0; step < 3; ++step) {
    const Batch batch = make_batch(8, step);
    for (const auto& [name, gradient] : trainer.gradients(batch.feeds, batch.labels)) {
      const bool first = !velocity.contains(name);
      if (first) velocity.emplace(name, Tensor(DType::float32, gradient.shape()));
      for (int64_t i = 0; i < gradient.num_elements(); ++i) {
        float &p = expected.at(name).data<float>()[i], &v = velocity.at(name).data<float>()[i];
        const float g = gradient.data<float>()[i] + kDecay * p;
        v = first ? g : kMomentum * v + g;
        p -= kRate * v;
      }
    }
    trainer.step(batch.feeds, batch.labels);
    for (const auto& [name, tensor] : trainer.parameters())
      for (int64_t i = 0; i < tensor.num_elements(); ++i)
        ASSERT_NEAR(tensor.data<float>()[i], expected.at(name).data<float>()[i], 1e-5) << name;
  }
}

TEST(Trainer, RunningStatisticsMoveByOnnxsMomentum) {
  Trainer trainer(tiny_network(), {.learning_rate = 0});
  const Batch batch = make_batch(8, 5);
  trainer.step(batch.feeds, batch.labels);
  const std::vector<float> once(trainer.states().at("bn.mean").span<float>().begin(), trainer.states().at("bn.mean").span<float>().end());
  trainer.step(batch.feeds, batch.labels);
  // The momentum begins with 0. With the batch mean b, m1 = 0.1 b and m2 = 0.9 m1 + 0.1 b = 1.9 m1.
  for (size_t i = 0; i < once.size(); ++i) {
    EXPECT_NE(once[i], 0);
    EXPECT_NEAR(trainer.states().at("bn.mean").data<float>()[i], 1.9F * once[i], 1e-5);
  }
}

TEST(Trainer, FrozenParametersStayAndUnknownNamesAreErrors) {
  Trainer trainer(tiny_network(), {.frozen = {"conv.weight", "conv.bias"}});
  EXPECT_EQ(trainer.parameters().size(), 4U);
  EXPECT_FALSE(trainer.parameters().contains("conv.weight"));
  EXPECT_THROW(Trainer(tiny_network(), {.parameters = {"nothing"}}), Error);
  EXPECT_THROW(Trainer(tiny_network(), {.output = "nothing"}), Error);
  EXPECT_THROW(trainer.step({}, make_batch(2, 1).labels), Error);
}

TEST(Trainer, MeanSquaredErrorFitsALine) {
  Trainer trainer(tiny_network(), {.loss = Loss::mean_squared_error, .learning_rate = 0.05, .momentum = 0.5});
  const Batch batch = make_batch(8, 1);
  Tensor targets(DType::float32, {8, 2});
  for (int64_t i = 0; i < 16; ++i) targets.data<float>()[i] = i % 4 == 0 ? 1.0F : 0.0F;
  const double first = trainer.step(batch.feeds, targets);
  double last = first;
  for (int i = 0; i < 60; ++i) last = trainer.step(batch.feeds, targets);
  EXPECT_LT(last, 0.1 * first);
}

// Makes six convolutions of images of 3 x 16 x 16. Most activations stay in memory for the backward pass.
Model deep_network(int64_t batch) {
  onnx::ModelDef model;
  model.ir_version = 8;
  model.opset_imports.push_back({"", 17});
  onnx::GraphDef& graph = model.graph;
  graph.name = "deep";
  graph.inputs.push_back(tensor_info("image", {batch, 3, 16, 16}));
  graph.outputs.push_back(tensor_info("scores", {batch, 8}));
  std::string last = "image";
  for (int i = 0; i < 6; ++i) {
    const std::string n = std::to_string(i);
    add_tensor(graph, ("w" + n).c_str(), {8, i == 0 ? 3 : 8, 3, 3}, -0.3F, 0.3F);
    std::vector<onnx::AttributeDef> attributes;
    attributes.push_back(ints("pads", {1, 1, 1, 1}));
    graph.nodes.push_back(node("Conv", {last, "w" + n}, ("c" + n).c_str(), std::move(attributes)));
    graph.nodes.push_back(node("Relu", {"c" + n}, ("r" + n).c_str()));
    last = "r" + n;
  }
  graph.nodes.push_back(node("GlobalAveragePool", {last}, "pooled"));
  graph.nodes.push_back(node("Flatten", {"pooled"}, "scores"));
  const std::string bytes = onnx::serialize_model(model);
  return Model::from_bytes(std::as_bytes(std::span(bytes)));
}

struct Images {
  Feeds feeds;
  Tensor labels;
};
Images random_images(int64_t n) {
  std::mt19937 generator(9);
  std::normal_distribution<float> normal;
  Tensor images(DType::float32, {n, 3, 16, 16}), labels(DType::int64, {n});
  for (float& x : images.span<float>()) x = normal(generator);
  for (int64_t i = 0; i < n; ++i) labels.data<int64_t>()[i] = i % 8;
  return {{{"image", images}}, labels};
}

void expect_same_parameters(const Trainer& a, const Trainer& b) {
  for (const auto& [name, tensor] : a.parameters())
    EXPECT_EQ(std::memcmp(tensor.raw(), b.parameters().at(name).raw(), tensor.size_bytes()), 0) << name;
}

TEST(Trainer, LimitsWhatConvolutionsMakeOfTheirWeights) {
  TrainerOptions options;
  std::set<std::string, std::less<>> passes;
  options.session.on_pass = [&](std::string_view pass, const std::string&, int64_t) { passes.emplace(pass); };
  const auto step = [&] {
    passes.clear();
    Trainer trainer(deep_network(2), options);
    const Images images = random_images(2);
    trainer.step(images.feeds, images.labels);
    return passes.contains("assign-conv-choice");
  };
  EXPECT_FALSE(step());
  options.session.max_weight_expansion = 1;
  EXPECT_TRUE(step());
  options.session.max_weight_expansion = 0.5;
  EXPECT_THROW(step(), Error);
}

// If all extents are known, nodes are reordered; updates in place must stay after all readers of the parameter.
TEST(Trainer, AFixedBatchTrainsAsAnOpenOne) {
  for (auto* make : {+[](int64_t batch) { return tiny_network(batch); }, +[](int64_t batch) { return deep_network(batch); }}) {
    Trainer fixed(make(8), {.learning_rate = 0.1, .momentum = 0.9}), open(make(-1), {.learning_rate = 0.1, .momentum = 0.9});
    const bool tiny = fixed.parameters().contains("fc.bias");
    for (uint32_t step = 0; step < 4; ++step) {
      const Batch batch = make_batch(8, step);
      const Images images = random_images(8);
      const Feeds& feeds = tiny ? batch.feeds : images.feeds;
      const Tensor& labels = tiny ? batch.labels : images.labels;
      EXPECT_EQ(fixed.step(feeds, labels), open.step(feeds, labels));
    }
    expect_same_parameters(fixed, open);
  }
}

TEST(Trainer, AFusedUpdateGivesTheSameBits) {
  for (int64_t size : {8, -1}) {
    const TrainerOptions apart{.learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true};
    TrainerOptions together = apart;
    together.fused_update = true;
    Trainer one(tiny_network(size), together), many(tiny_network(size), apart);
    for (uint32_t step = 0; step < 4; ++step) {
      const Batch batch = make_batch(8, step);
      EXPECT_EQ(one.step(batch.feeds, batch.labels), many.step(batch.feeds, batch.labels));
      EXPECT_EQ(one.evaluate(batch.feeds, batch.labels), many.evaluate(batch.feeds, batch.labels));
    }
    expect_same_parameters(one, many);
    for (const auto& [name, tensor] : many.momentum())
      EXPECT_EQ(std::memcmp(tensor.raw(), one.momentum().at(name).raw(), tensor.size_bytes()), 0) << name;
    const std::string text = one.to_text();
    size_t updates = 0;
    for (size_t at = text.find("Momentum("); at != std::string::npos; at = text.find("Momentum(", at + 1)) ++updates;
    EXPECT_LE(updates, 1U) << text;
    // The test writes parameters between steps, the same ones of both trainers.
    one.parameters().at("fc.bias").data<float>()[0] = 3;
    many.parameters().at("fc.bias").data<float>()[0] = 3;
    const Batch batch = make_batch(8, 9);
    EXPECT_EQ(one.step(batch.feeds, batch.labels), many.step(batch.feeds, batch.labels));
    EXPECT_EQ(one.to_bytes(), many.to_bytes());
  }
}

// Makes two branches, so that a parallel executor can run two nodes at the same time, and a weight of a megabyte.
Model two_branches() {
  return tiny::tiny_network(-1, [](onnx::GraphDef& graph) {
    tiny::add_tensor(graph, "wide", {36, 7282}, -0.01F, 0.01F);
    tiny::add_tensor(graph, "narrow", {7282, 2}, -0.01F, 0.01F);
    graph.nodes.back().outputs = {"first"};
    graph.nodes.push_back(tiny::node("MatMul", {"flat", "wide"}, "many"));
    graph.nodes.push_back(tiny::node("MatMul", {"many", "narrow"}, "second"));
    graph.nodes.push_back(tiny::node("Add", {"first", "second"}, "scores"));
  });
}

TEST(Trainer, ByReadinessParametersAreWrittenInPlaceWithTheSameBits) {
  const tiny::Batch batch = tiny::make_batch(2, 1);
  for (bool fused : {true, false}) {
    TrainerOptions options{.learning_rate = 0.1, .momentum = 0.9, .fused_update = fused};
    Trainer in_order(two_branches(), options);
    options.session.execution_mode = ExecutionMode::parallel;
    options.session.inter_op_num_threads = 2;
    Trainer by_readiness(two_branches(), options);
    const float* weights = by_readiness.parameters().at("wide").data<float>();
    for (int i = 0; i < 3; ++i) EXPECT_EQ(in_order.step(batch.feeds, batch.labels), by_readiness.step(batch.feeds, batch.labels));
    EXPECT_EQ(by_readiness.parameters().at("wide").data<float>(), weights);
    EXPECT_EQ(in_order.to_bytes(), by_readiness.to_bytes());
    // If parameters and momentum were copied, the copies would need two megabytes.
    EXPECT_LT(by_readiness.memory_statistics()[MemoryClass::io].peak_bytes, size_t{1} << 20);
  }
}

TEST(Trainer, KeepsToAMemoryLimitWithTheSameBits) {
  const Images images = random_images(8);
  for (int64_t batch : {8, -1}) {
    Trainer free(deep_network(batch), {.learning_rate = 0.1, .momentum = 0.9});
    for (int i = 0; i < 3; ++i) free.step(images.feeds, images.labels);
    const MemoryStatistics unlimited = free.memory_statistics();
    const size_t standing =
        unlimited[MemoryClass::weights].bytes + unlimited[MemoryClass::packed].bytes + unlimited[MemoryClass::other].bytes;
    const size_t limit = standing + 3 * unlimited[MemoryClass::activations].peak_bytes / 5 + 4096;
    Trainer limited(deep_network(batch), {.learning_rate = 0.1, .momentum = 0.9, .session = {.memory_limit_bytes = limit}});
    for (int i = 0; i < 3; ++i) limited.step(images.feeds, images.labels);
    expect_same_parameters(limited, free);
    EXPECT_LE(limited.memory_statistics().total.peak_bytes, limit);
    limited.set_memory_limit(standing + 4096);
    EXPECT_THROW(limited.step(images.feeds, images.labels), Error);
    limited.set_memory_limit(2 * unlimited.total.peak_bytes);
    limited.step(images.feeds, images.labels);
    free.step(images.feeds, images.labels);
    expect_same_parameters(limited, free);
    EXPECT_THROW(free.set_memory_limit(limit), Error);
  }
}

TEST(Trainer, KeepsToItsJobsLimitWithTheSameBits) {
  const Images images = random_images(8);
  Trainer free(deep_network(8), {.learning_rate = 0.1, .momentum = 0.9});
  for (int i = 0; i < 3; ++i) free.step(images.feeds, images.labels);
  const MemoryStatistics unlimited = free.memory_statistics();
  const size_t standing =
      unlimited[MemoryClass::weights].bytes + unlimited[MemoryClass::packed].bytes + unlimited[MemoryClass::other].bytes;
  auto job = std::make_shared<Job>(JobOptions{.name = "train"});
  {
    Trainer limited(deep_network(8), {.learning_rate = 0.1, .momentum = 0.9, .session = {.job = job}});
    limited.step(images.feeds, images.labels);
    const size_t limit = standing + 3 * unlimited[MemoryClass::activations].peak_bytes / 5 + 4096;
    job->set_memory_limit(limit);
    // Either this thread or the job's own thread frees the memory, whichever notices first.
    EXPECT_TRUE(testing::eventually([&] { return job->status().host_bytes <= limit; })) << "the idle arena is gone";
    for (int i = 1; i < 3; ++i) limited.step(images.feeds, images.labels);
    expect_same_parameters(limited, free);
    EXPECT_LE(job->status().host_bytes, limit);
    EXPECT_GT(job->status().host_bytes, 0U);
    job->set_memory_limit(standing + 4096);
    EXPECT_THROW(limited.step(images.feeds, images.labels), Error);
    job->set_memory_limit(0);
    limited.step(images.feeds, images.labels);
    free.step(images.feeds, images.labels);
    expect_same_parameters(limited, free);
  }
  EXPECT_EQ(job->status().host_bytes, 0U);
}

TEST(JointModule, GradientsOfAnOutsideLossEqualTheTrainers) {
  Trainer trainer(tiny_network());
  JointModule module(tiny_network());
  const Batch batch = make_batch(8, 3);
  JointModule::Run run = module.forward(batch.feeds);
  ASSERT_EQ(run.outputs().size(), 1U);
  // The gradient of the mean cross-entropy by the scores is (softmax - onehot) / n.
  const Tensor& scores = run.outputs()[0];
  Tensor gradient(DType::float32, scores.shape());
  for (int64_t i = 0; i < 8; ++i) {
    const float a = std::exp(scores.data<float>()[2 * i]), b = std::exp(scores.data<float>()[2 * i + 1]);
    const bool one = batch.labels.data<int64_t>()[i] == 1;
    gradient.data<float>()[2 * i] = (a / (a + b) - (one ? 0 : 1)) / 8;
    gradient.data<float>()[2 * i + 1] = (b / (a + b) - (one ? 1 : 0)) / 8;
  }
  JointModule::Run other = module.forward(make_batch(4, 4).feeds);  // a second run that is interleaved, with another shape
  const NamedTensors got = run.backward(std::vector{gradient});
  const NamedTensors expected = trainer.gradients(batch.feeds, batch.labels);
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, tensor] : expected)
    for (int64_t i = 0; i < tensor.num_elements(); ++i) ASSERT_NEAR(got.at(name).data<float>()[i], tensor.data<float>()[i], 1e-5) << name;
  EXPECT_THROW(run.backward(std::vector{gradient}), Error);
  EXPECT_THROW(other.backward(std::vector{gradient}), Error);  // the gradient has 8 rows, but the run has 4
}

}  // namespace
}  // namespace treadle::train
