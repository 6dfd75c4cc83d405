// Tests training in float16 with a scaled loss: steps that overflow are skipped, and the scale changes as PyTorch's GradScaler changes it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>

#include "tests/train/tiny_network.h"
#include "treadle/communicator.h"
#include "treadle/error.h"
#include "treadle/train.h"

namespace treadle::train {
namespace {

using namespace tiny;

constexpr double kTooLarge = 0x1p100;  // with this scale, gradients overflow float16

TrainerOptions in_float16(LossScaling scaling = {}) {
  TrainerOptions options{.optimizer = Optimizer::adam, .learning_rate = 0.01, .loss_scaling = scaling};
  options.session.precision = "float16";
  return options;
}

double step(Trainer& trainer, uint32_t seed) {
  const Batch batch = make_batch(8, seed);
  return trainer.step(batch.feeds, batch.labels);
}

NamedTensors everything(const Trainer& trainer) {
  NamedTensors all;
  auto add = [&](const char* prefix, const NamedTensors& tensors) {
    for (const auto& [name, tensor] : tensors) all.emplace(prefix + name, tensor.clone());
  };
  add("parameter/", trainer.parameter_views()), add("state/", trainer.state_views()), add("kept/", trainer.optimizer_state());
  return all;
}

void expect_same_bits(const NamedTensors& a, const NamedTensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_EQ(std::memcmp(tensor.raw(), b.at(name).raw(), tensor.size_bytes()), 0) << name;
}

std::vector<std::pair<std::string, TrainerOptions>> ways_to_run() {
  const TrainerOptions plain = in_float16();
  std::vector<std::pair<std::string, TrainerOptions>> ways(9, {"in order", plain});
  ways[1].first = "by readiness", ways[1].second.session.execution_mode = ExecutionMode::parallel;
  ways[1].second.session.intra_op_num_threads = 3;
  ways[2].first = "on a device", ways[2].second.session.device = "sim";
  ways[3].first = "fused", ways[3].second.fused_update = true;
  ways[4].first = "clipped", ways[4].second.clip_norm = 1;
  ways[5].first = "averaged", ways[5].second.ema_decay = 0.9, ways[5].second.ema_statistics = true;
  ways[6].first = "accumulated", ways[6].second.accumulation_steps = 2;
  ways[7].first = "first of a sum", ways[7].second.accumulation_steps = 2;
  ways[8].first = "within a limit", ways[8].second.session.memory_limit_bytes = 1 << 20;
  return ways;
}

TEST(LossScale, AStepThatOverflowsHalvesTheScaleAndChangesNothingElse) {
  for (const auto& [way, options] : ways_to_run()) {
    SCOPED_TRACE(way);
    Trainer trainer(tiny_network(), options), expected(tiny_network(), options);
    const int before = way == "first of a sum" ? 2 : 3;  // number of steps before the overflow, so that there is a state that could change
    for (int i = 0; i < before; ++i) EXPECT_EQ(step(trainer, 1), step(expected, 1));
    const NamedTensors kept = everything(trainer);
    const TrainerPosition position = trainer.position();
    trainer.set_loss_scale({.scale = kTooLarge, .growth_tracker = 2, .num_skipped = 5});
    const double loss = step(trainer, 2);
    ASSERT_TRUE(trainer.loss_scale());
    EXPECT_EQ(trainer.loss_scale()->scale, kTooLarge / 2);
    EXPECT_EQ(trainer.loss_scale()->growth_tracker, 0);
    EXPECT_EQ(trainer.loss_scale()->num_skipped, 6U);
    expect_same_bits(everything(trainer), kept);
    EXPECT_EQ(trainer.position().num_steps, position.num_steps);
    EXPECT_EQ(trainer.position().num_updates, position.num_updates);
    EXPECT_EQ(trainer.position().accumulated_steps, position.accumulated_steps);
    // Training then continues as if the step had not been tried.
    trainer.set_loss_scale(*expected.loss_scale());
    EXPECT_EQ(step(trainer, 2), loss);
    EXPECT_EQ(step(expected, 2), loss);
    expect_same_bits(everything(trainer), everything(expected));
  }
}

TEST(LossScale, ItGrowsAfterAnIntervalOfUpdatesWithoutAnOverflow) {
  Trainer trainer(tiny_network(), in_float16({.init_scale = 1024, .growth_factor = 4, .growth_interval = 3}));
  for (double scale : {1024.0, 1024.0, 4096.0, 4096.0, 4096.0, 16384.0}) {
    step(trainer, 1);
    EXPECT_EQ(trainer.loss_scale()->scale, scale);
  }
  trainer.set_loss_scale({.scale = kTooLarge, .growth_tracker = 2});
  step(trainer, 1);
  step(trainer, 1);
  EXPECT_EQ(trainer.loss_scale()->num_skipped, 2U);
  EXPECT_EQ(trainer.loss_scale()->scale, kTooLarge / 4);
  TrainerOptions accumulates = in_float16({.init_scale = 1024, .growth_interval = 2});
  accumulates.accumulation_steps = 2;
  Trainer sums(tiny_network(), accumulates);
  for (double scale : {1024.0, 1024.0, 1024.0, 2048.0}) {
    step(sums, 1);
    EXPECT_EQ(sums.loss_scale()->scale, scale);
  }
}

// Without a scale, gradients below 6e-8 are zero in float16. With a scale, they must be the gradients of the loss after division by it.
TEST(LossScale, GradientsAreThoseOfTheLossAndDoNotVanish) {
  auto small_loss = [] {
    return tiny_network(-1, [](onnx::GraphDef& graph) {
      add_tensor(graph, "small", {1}, 1e-8F, 1e-8F);
      graph.initializers.back().shape = Shape{};
      graph.initializers.back().value = Tensor::scalar(1e-8F);
      graph.nodes.push_back(node("ReduceMean", {"scores"}, "mean"));
      graph.nodes.push_back(node("Mul", {"mean", "small"}, "small_mean"));
      graph.nodes.push_back(node("ReduceSum", {"small_mean"}, "objective"));
    });
  };
  auto gradient = [&](const char* precision, std::optional<double> scale) {
    TrainerOptions options{.output = "objective", .loss = Loss::output};
    options.session.precision = precision, options.loss_scaling.init_scale = scale;
    return Trainer(small_loss(), options).gradients(make_batch(8, 3).feeds, {}).at("fc.weight");
  };
  const Tensor exact = gradient("float32", std::nullopt), scaled = gradient("float16", 0x1p24), vanished = gradient("float16", 1);
  double largest = 0;
  for (float value : exact.span<float>()) largest = std::max(largest, std::abs(static_cast<double>(value)));
  ASSERT_GT(largest, 0);
  for (int64_t i = 0; i < exact.num_elements(); ++i) {
    EXPECT_NEAR(scaled.data<float>()[i], exact.data<float>()[i], 2e-3 * largest);
    EXPECT_EQ(vanished.data<float>()[i], 0);
  }
}

TEST(LossScale, ResumedTrainingHasTheSameBits) {
  const TrainerOptions options = in_float16({.init_scale = kTooLarge, .growth_factor = 8, .backoff_factor = 0.001, .growth_interval = 4});
  const std::string path = std::filesystem::path(testing::TempDir()) / "loss_scale_checkpoint";
  Trainer first(tiny_network(), options), second(tiny_network(), options);
  for (uint32_t i = 0; i < 15; ++i) step(first, i);
  EXPECT_GT(first.loss_scale()->num_skipped, 1U);
  first.save_checkpoint(path);
  second.load_checkpoint(path);
  EXPECT_EQ(second.loss_scale()->scale, first.loss_scale()->scale);
  EXPECT_EQ(second.loss_scale()->growth_tracker, first.loss_scale()->growth_tracker);
  EXPECT_EQ(second.loss_scale()->num_skipped, first.loss_scale()->num_skipped);
  for (uint32_t i = 15; i < 30; ++i) EXPECT_EQ(step(first, i), step(second, i));
  EXPECT_EQ(second.loss_scale()->scale, first.loss_scale()->scale);
  expect_same_bits(everything(first), everything(second));
  // A trainer with other scaling settings refuses the checkpoint. With its own settings, it may continue with the saved scale or begin
  // anew.
  Trainer other(tiny_network(), in_float16({.growth_interval = 5}));
  EXPECT_THROW(other.load_checkpoint(path), Error);
  EXPECT_EQ(other.loss_scale()->scale, 65536);
  other.load_checkpoint(path, CheckpointSettings::own);
  EXPECT_NE(other.loss_scale()->scale, 65536);
  TrainerOptions exact = in_float16();
  exact.session.precision.clear();
  Trainer plain(tiny_network(), exact);
  plain.load_checkpoint(path, CheckpointSettings::own);
  EXPECT_FALSE(plain.loss_scale());
}

TEST(LossScale, RanksSkipTheSameSteps) {
  const auto communicators = make_thread_communicators(2, 60);
  std::vector<LossScale> scales(2);
  std::vector<NamedTensors> kept(2);
  std::vector<std::string> errors(2);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      try {
        TrainerOptions options = in_float16({.init_scale = kTooLarge, .backoff_factor = 0x1p-50});
        options.communicator = communicators[rank];
        Trainer trainer(tiny_network(), options);
        for (uint32_t i = 0; i < 6; ++i) {
          Batch batch = make_batch(8, 2 * i + static_cast<uint32_t>(rank));
          // The gradients of only one rank overflow. The other rank notices it in the sum.
          if (i == 4 && rank == 1)
            for (float& x : batch.feeds.at("image").tensor().span<float>()) x *= 1e7F;
          trainer.step(batch.feeds, batch.labels);
        }
        scales[rank] = *trainer.loss_scale(), kept[rank] = everything(trainer);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(errors[rank], "");
    EXPECT_GT(scales[rank].num_skipped, 0U);
    EXPECT_LT(scales[rank].num_skipped, 6U);
  }
  EXPECT_EQ(scales[0].num_skipped, scales[1].num_skipped);
  EXPECT_EQ(scales[0].scale, scales[1].scale);
  expect_same_bits(kept[0], kept[1]);
}

TEST(LossScale, WhatMakesNoSenseIsRefused) {
  auto message = [](const TrainerOptions& options) {
    try {
      Trainer(tiny_network(), options);
    } catch (const Error& error) {
      return error.message();
    }
    return std::string();
  };
  TrainerOptions unused{.loss_scaling = {.growth_interval = 7}};
  EXPECT_EQ(message(unused), "growth_interval needs precision float16: the loss is not scaled otherwise");
  EXPECT_NE(message(in_float16({.init_scale = std::nan("")})).find("the option init_scale: \"nan\" is given"), std::string::npos);
  EXPECT_NE(
      message(in_float16({.growth_factor = 0.5})).find("the option growth_factor: \"0.5\" is given, a number from 1 to 1e+37 is expected"),
      std::string::npos);
  EXPECT_NE(message(in_float16({.backoff_factor = 2})).find("the option backoff_factor: \"2\" is given"), std::string::npos);
  EXPECT_NE(
      message(in_float16({.growth_interval = 0})).find("the option growth_interval: \"0\" is given, a whole number from 1 on is expected"),
      std::string::npos);
  TrainerOptions shared = in_float16();
  shared.communicator = make_thread_communicators(2, 60)[0];
  shared.accumulation_steps = 2;
  EXPECT_NE(message(shared).find("accumulation_steps does not go with several processes"), std::string::npos);
  shared.accumulation_steps = 1, shared.shard_optimizer = true;
  EXPECT_NE(message(shared).find("shard_optimizer does not go with precision float16"), std::string::npos);
  Trainer exact(tiny_network(), {});
  EXPECT_FALSE(exact.loss_scale());
  EXPECT_THROW(exact.set_loss_scale({}), Error);
}

}  // namespace
}  // namespace treadle::train
