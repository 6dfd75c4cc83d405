// Tests predictions between training steps: parameters are packed once per version, and are never outdated.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <future>
#include <thread>

#include "tests/train/tiny_network.h"
#include "treadle/error.h"
#include "treadle/session.h"
#include "treadle/train.h"

namespace treadle::train {
namespace {

using namespace tiny;

const TrainerOptions kOptions{.learning_rate = 0.1, .momentum = 0.9};

/// Makes two layers without normalisation, so that a session computes with the unchanged weights.
Model perceptron() {
  return tiny_network(-1, [](onnx::GraphDef& graph) {
    graph.nodes.clear();
    graph.initializers.clear();
    add_tensor(graph, "first.weight", {36, 24}, -0.5F, 0.5F);
    add_tensor(graph, "first.bias", {24}, -0.1F, 0.1F);
    add_tensor(graph, "second.weight", {24, 2}, -0.5F, 0.5F);
    add_tensor(graph, "second.bias", {2}, -0.1F, 0.1F);
    graph.nodes.push_back(node("Flatten", {"image"}, "flat"));
    graph.nodes.push_back(node("Gemm", {"flat", "first.weight", "first.bias"}, "hidden"));
    graph.nodes.push_back(node("Relu", {"hidden"}, "active"));
    graph.nodes.push_back(node("Gemm", {"active", "second.weight", "second.bias"}, "scores"));
  });
}

Model reread(const Trainer& trainer) {
  const std::string bytes = trainer.to_bytes();
  return Model::from_bytes(std::as_bytes(std::span(bytes)));
}

bool same_bits(const Tensor& a, const Tensor& b) { return a.shape() == b.shape() && std::memcmp(a.raw(), b.raw(), a.size_bytes()) == 0; }

double distance(const Tensor& a, const Tensor& b) {
  double most = 0;
  for (int64_t i = 0; i < a.num_elements(); ++i) most = std::max(most, std::abs(double{a.data<float>()[i]} - double{b.data<float>()[i]}));
  return most;
}

std::vector<TrainerOptions> ways() {
  std::vector<TrainerOptions> all(4, kOptions);
  all[1].session.execution_mode = ExecutionMode::parallel;
  all[2].session.device = "sim";
  all[3].fused_update = true;
  return all;
}

TEST(Predict, AfterEachStepIsWhatTheSavedModelGives) {
  for (const TrainerOptions& options : ways())
    for (const bool normalizes : {false, true}) {
      Trainer trainer(normalizes ? tiny_network() : perceptron(), options);
      const Batch shown = make_batch(8, 99);
      for (uint32_t i = 0; i < 4; ++i) {
        const Tensor first = trainer.predict(shown.feeds)[0].tensor(), again = trainer.predict(shown.feeds)[0].tensor();
        EXPECT_TRUE(same_bits(first, again));
        const Model saved = reread(trainer);
        EXPECT_TRUE(same_bits(first, Trainer(saved, options).predict(shown.feeds)[0].tensor()));
        const Tensor in_session = Session(saved, options.session).run(shown.feeds)[0].tensor();
        if (normalizes)
          // A session folds the normalisation into the convolution, so results are not the same bits.
          EXPECT_LT(distance(first, in_session), 1e-5);
        else
          EXPECT_TRUE(same_bits(first, in_session));
        const Trainer::Evaluated both = trainer.evaluate_with_outputs(shown.feeds, shown.labels);
        EXPECT_TRUE(same_bits(both.outputs[0].tensor(), first));
        EXPECT_EQ(both.loss, trainer.evaluate(shown.feeds, shown.labels));
        const Batch batch = make_batch(8, i);
        trainer.step(batch.feeds, batch.labels);
      }
    }
}

TEST(Predict, SeesWhatItsCallerWrites) {
  Trainer trainer(perceptron(), kOptions);
  const Batch shown = make_batch(8, 99);
  auto expect_as_saved = [&](const char* when) {
    EXPECT_TRUE(same_bits(trainer.predict(shown.feeds)[0].tensor(), Session(reread(trainer)).run(shown.feeds)[0].tensor())) << when;
  };
  expect_as_saved("at first");
  {
    NamedTensors views = trainer.parameter_views();
    expect_as_saved("with views");
    views.at("first.weight").data<float>()[5] = 3;
    expect_as_saved("written through a view");
    views.at("second.weight").data<float>()[1] = -2;
  }
  expect_as_saved("the view is gone");
  float* kept = trainer.parameters().at("first.weight").data<float>();
  expect_as_saved("with a pointer");
  kept[0] = 7;
  expect_as_saved("written through the pointer");
  kept[1] = 8;
  expect_as_saved("once more");
}

TEST(Predict, SeesAveragesAndCheckpoints) {
  TrainerOptions options = kOptions;
  options.ema_decay = 0.5;
  Trainer trainer(perceptron(), options);
  const Batch batch = make_batch(8, 1);
  const std::string path = ::testing::TempDir() + "/predict_test.safetensors";
  trainer.save_checkpoint(path);
  const Tensor before = trainer.predict(batch.feeds)[0].tensor();
  for (int i = 0; i < 3; ++i) trainer.step(batch.feeds, batch.labels);
  const Tensor after = trainer.predict(batch.feeds)[0].tensor();
  trainer.use_averages(true);
  const Tensor averaged = trainer.predict(batch.feeds)[0].tensor();
  EXPECT_TRUE(same_bits(averaged, Session(reread(trainer)).run(batch.feeds)[0].tensor()));
  EXPECT_FALSE(same_bits(averaged, after));
  trainer.use_averages(false);
  EXPECT_TRUE(same_bits(trainer.predict(batch.feeds)[0].tensor(), after));
  trainer.load_checkpoint(path);
  EXPECT_TRUE(same_bits(trainer.predict(batch.feeds)[0].tensor(), before));
}

TEST(Predict, AFileIsTakenBetweenRunsOnly) {
  const std::string path = ::testing::TempDir() + "/predict_load_test.safetensors";
  for (const bool adapters : {false, true}) {
    TrainerOptions options = kOptions;
    if (adapters) options.lora.rank = 2;
    Trainer trainer(perceptron(), options);
    const Batch batch = make_batch(8, 1);
    auto load = [&] { adapters ? trainer.load_adapters(path) : static_cast<void>(trainer.load_checkpoint(path)); };
    for (int i = 0; i < 3; ++i) trainer.step(batch.feeds, batch.labels);
    const Tensor saved = trainer.predict(batch.feeds)[0].tensor();
    adapters ? trainer.save_adapters(path) : trainer.save_checkpoint(path);
    for (int i = 0; i < 3; ++i) trainer.step(batch.feeds, batch.labels);
    const Tensor later = trainer.predict(batch.feeds)[0].tensor();
    std::future<void> loading;
    std::future_status within = std::future_status::ready;
    trainer.set_monitor({.callback = [&](const MonitorEvent&) {
      if (loading.valid()) return;
      loading = std::async(std::launch::async, load);
      within = loading.wait_for(std::chrono::milliseconds(100));
    }});
    EXPECT_TRUE(same_bits(trainer.predict(batch.feeds)[0].tensor(), later));
    ASSERT_TRUE(loading.valid());
    loading.get();
    EXPECT_EQ(within, std::future_status::timeout);  // the step waits until the run has ended
    EXPECT_TRUE(same_bits(trainer.predict(batch.feeds)[0].tensor(), saved));
  }
}

TEST(Predict, BesideStepsIsAsBeforeOneOrAfterIt) {
  constexpr int kSteps = 30;
  const Batch shown = make_batch(8, 99), batch = make_batch(8, 1);
  std::vector<Tensor> all;
  {
    Trainer reference(tiny_network(), kOptions);
    for (int i = 0; i <= kSteps; ++i) {
      all.push_back(reference.predict(shown.feeds)[0].tensor());
      reference.step(batch.feeds, batch.labels);
    }
  }
  Trainer trainer(tiny_network(), kOptions);
  std::atomic<bool> over{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> readers;
  for (int t = 0; t < 2; ++t)
    readers.emplace_back([&] {
      while (!over) {
        const Tensor got = trainer.predict(shown.feeds)[0].tensor();
        wrong += std::none_of(all.begin(), all.end(), [&](const Tensor& each) { return same_bits(got, each); });
      }
    });
  for (int i = 0; i < kSteps; ++i) trainer.step(batch.feeds, batch.labels);
  over = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(same_bits(trainer.predict(shown.feeds)[0].tensor(), all.back()));
}

TEST(Predict, OfHeldTensorsFollowsThem) {
  const Model model = tiny_network();
  NamedTensors held;
  for (const auto& [name, tensor] : Trainer(model, kOptions).parameter_views()) held.emplace(name, tensor.clone());
  JointModule module(model, {.forward_only = true, .inference = true, .held = held});
  EXPECT_EQ(module.held_names().size(), held.size());
  const Batch shown = make_batch(8, 99);
  auto expected = [&](const NamedTensors& values) {
    SessionOptions options;
    for (const auto& [name, tensor] : values) options.initializers.emplace(name, tensor.clone());
    return Session(model, options).run(shown.feeds)[0].tensor();
  };
  EXPECT_LT(distance(module.forward(shown.feeds).outputs()[0], expected(held)), 1e-5);
  held.at("fc.weight").data<float>()[3] = 4;  // this write changes the module's parameters without a notification
  held.at("conv.weight").data<float>()[2] = 1;
  EXPECT_LT(distance(module.forward(shown.feeds).outputs()[0], expected(held)), 1e-5);
  NamedTensors other{{"fc.weight", Tensor(DType::float32, {36, 2})}};
  for (float& x : other.at("fc.weight").span<float>()) x = 0.25F;
  module.hold(other);
  held.at("fc.weight") = other.at("fc.weight");
  EXPECT_LT(distance(module.forward(shown.feeds).outputs()[0], expected(held)), 1e-5);
  EXPECT_THROW(module.hold({{"fc.weight", Tensor(DType::float32, {2, 36})}}), Error);
  EXPECT_THROW(module.hold({{"nothing", Tensor(DType::float32, {2})}}), Error);
  EXPECT_THROW(JointModule(model, {.held = held}), Error) << "with a backward pass";
  EXPECT_THROW(JointModule(model, {.forward_only = true, .held = {{"conv.weight", Tensor(DType::float32, {2})}}}), Error);
}

}  // namespace
}  // namespace treadle::train
