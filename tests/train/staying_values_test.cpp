// Tests values that training steps on a device update: they stay on the device, and are copied to the host when they are read.
#include "train/run/staying_values.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "core/devices/device.h"
#include "session/devices.h"
#include "session/executable.h"
#include "tests/train/tiny_network.h"
#include "treadle/hooks.h"

namespace treadle::train {
namespace {

using namespace tiny;

bool same_bits(const Tensor& a, const Tensor& b) { return a.shape() == b.shape() && std::memcmp(a.raw(), b.raw(), a.size_bytes()) == 0; }

/// A trainer on a device and one on the host, whose values must have the same bits.
struct Pair {
  Trainer on_device, on_host;
  explicit Pair(TrainerOptions options) : on_device(tiny_network(), placed(options)), on_host(tiny_network(), options) {}
  static TrainerOptions placed(TrainerOptions options) {
    options.session.device = "sim";
    return options;
  }
  void step(uint32_t seed) {
    const Batch batch = make_batch(8, seed);
    EXPECT_EQ(on_device.step(batch.feeds, batch.labels), on_host.step(batch.feeds, batch.labels)) << seed;
  }
  static void expect_same(const NamedTensors& a, const NamedTensors& b, const char* what) {
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [name, tensor] : a) EXPECT_TRUE(same_bits(tensor, b.at(name))) << what << ": " << name;
  }
  void expect_same_values() {
    expect_same(on_device.parameter_views(), on_host.parameter_views(), "parameters");
    expect_same(on_device.state_views(), on_host.state_views(), "states");
    expect_same(on_device.joint_optimizer_state(), on_host.joint_optimizer_state(), "optimizer");
  }
};

std::vector<TrainerOptions> kinds() {
  std::vector<TrainerOptions> all(4);
  for (TrainerOptions& options : all) options.learning_rate = 0.1;
  all[0].momentum = 0.9;
  all[1].optimizer = Optimizer::adam;
  all[2].momentum = 0.9, all[2].fused_update = true;
  all[3].ema_decay = 0.5, all[3].ema_statistics = true;
  return all;
}

TEST(StayingValues, AreOnTheHostWheneverSomebodyLooks) {
  const std::string path = ::testing::TempDir() + "/staying_values_test.safetensors";
  for (size_t kind = 0; kind < kinds().size(); ++kind) {
    SCOPED_TRACE(kind);
    Pair pair(kinds()[kind]);
    const Batch shown = make_batch(8, 99);
    const std::vector<std::function<void()>> looks{
        [&] { pair.expect_same_values(); },
        [&] { EXPECT_TRUE(same_bits(pair.on_device.predict(shown.feeds)[0].tensor(), pair.on_host.predict(shown.feeds)[0].tensor())); },
        [&] { EXPECT_EQ(pair.on_device.evaluate(shown.feeds, shown.labels), pair.on_host.evaluate(shown.feeds, shown.labels)); },
        [&] { EXPECT_EQ(pair.on_device.to_bytes(), pair.on_host.to_bytes()); },
        [&] {
          Pair::expect_same(pair.on_device.gradients(shown.feeds, shown.labels), pair.on_host.gradients(shown.feeds, shown.labels),
                            "grads");
        },
        [&] {
          for (Trainer* trainer : {&pair.on_device, &pair.on_host})
            trainer->parameter_views().begin()->second.data<float>()[0] += 0.25F;  // the view is released before the next step
        },
        [&] {
          pair.on_device.save_checkpoint(path);
          pair.step(77);
          pair.on_device.load_checkpoint(path);
          pair.on_host.load_checkpoint(path);
        },
        [&] {
          if (kind != 3) return;
          for (const bool use : {true, false}) {
            pair.on_device.use_averages(use), pair.on_host.use_averages(use);
            EXPECT_EQ(pair.on_device.to_bytes(), pair.on_host.to_bytes());
          }
        },
    };
    uint32_t seed = 0;
    for (int round = 0; round < 2; ++round)
      for (const auto& look : looks) {
        for (int i = 0; i < 3; ++i) pair.step(seed++);
        look();
      }
    // Views that the caller holds show the values after every step, and writing to the views changes the values.
    const NamedTensors views = pair.on_device.parameter_views(), others = pair.on_host.parameter_views();
    for (int i = 0; i < 3; ++i) {
      pair.step(seed++);
      Pair::expect_same(views, others, "held views");
      for (const NamedTensors* held : {&views, &others}) held->begin()->second.data<float>()[2] *= 0.5F;
    }
    const NamedTensors &state = pair.on_device.optimizer_state(), &other_state = pair.on_host.optimizer_state();
    pair.step(seed++);
    Pair::expect_same(state, other_state, "live state");
  }
}

TEST(StayingValues, DoNotComeToTheHostWithEveryStep) {
  Pair pair(kinds()[0]);
  pair.step(0);
  const Tensor on_host = pair.on_device.joint_optimizer_state().at("fc.weight/momentum"), before = on_host.clone();
  pair.step(1);
  EXPECT_TRUE(same_bits(on_host, before)) << "nobody has looked";
  pair.on_device.to_bytes();
  EXPECT_TRUE(same_bits(on_host, pair.on_host.joint_optimizer_state().at("fc.weight/momentum")));
}

TEST(StayingValues, AreAsBeforeAStepThatFails) {
  Pair pair(kinds()[0]);
  for (uint32_t i = 0; i < 3; ++i) pair.step(i);
  const Batch batch = make_batch(8, 50);
  const HookId hook = register_hook(HookPoint::post_run, 0, [](const HookedRun&) { throw Error(ErrorCode::internal, "behind the run"); });
  EXPECT_THROW(pair.on_device.step(batch.feeds, batch.labels), Error);  // the step fails after everything has been computed
  unregister_hook(hook);
  RunOptions cancelled;
  cancelled.terminate = true;
  EXPECT_THROW(pair.on_device.step(batch.feeds, batch.labels, &cancelled), Error);
  pair.expect_same_values();
  for (uint32_t i = 3; i < 6; ++i) pair.step(i);
  pair.expect_same_values();
}

TEST(StayingValues, AreFedFromTheDeviceThatMadeThem) {
  const std::shared_ptr<Device> device = device_named("sim");
  Executable step;
  step.input_names = {"x", "w"};
  step.output_names = {"loss", "w", "m"};
  Tensor w(DType::float32, {4}), m(DType::float32, {4});
  w.data<float>()[3] = m.data<float>()[3] = 1;
  StayingValues values(step, std::vector<Datum>{Datum(), w, m});
  for (int i = 0; i < 4; ++i) {
    std::vector<Datum> feeds{Tensor(DType::float32, {1}), w};
    const std::vector<exec::OutputMemory> memory = values.begin(feeds);
    ASSERT_EQ(memory.size(), 3U);
    EXPECT_FALSE(memory[0].stays);
    EXPECT_TRUE(memory[1].stays);
    EXPECT_EQ(feeds[1].tensor().storage()->device() != nullptr, i > 0);
    Tensor made(DType::float32, {4});
    made.data<float>()[3] = static_cast<float>(i + 2);
    Tensor on_device(DType::float32, {4}, device->allocate(16));
    on_device.copy_from(made);
    feeds.clear();
    values.take(std::vector<Datum>{Datum(), on_device, made});  // the second value is copied to the host
    EXPECT_EQ(m.data<float>()[3], static_cast<float>(i + 2));
  }
  EXPECT_EQ(w.data<float>()[3], 1);
  values.bring_to_host();
  EXPECT_EQ(w.data<float>()[3], 5);
}

}  // namespace
}  // namespace treadle::train
