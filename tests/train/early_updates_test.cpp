// Tests TrainerOptions::early_updates: updates give the same bits as late ones with less memory, and a failed step leaves the documented
// state.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "exec/program/node_order.h"
#include "exec/program/step_phases.h"
#include "tests/exec/graphs.h"
#include "tests/session/faults.h"
#include "tests/train/tiny_network.h"
#include "treadle/error.h"
#include "treadle/train.h"

namespace treadle::train {
namespace {

using testing::ModelBuilder;

constexpr int64_t kWidth = 64, kLayers = 4, kRows = 4;

// Makes layers of matrix products with Steps between them, which tests let fail. Two layers share a weight, and a third one reads it
// transposed.
Model layers() {
  testing::register_fault_operators();
  ModelBuilder b;
  b.def().opset_imports.push_back({"test.fault", 1});
  b.input("x", {kRows, kWidth});
  std::mt19937 random(7);
  auto numbers = [&](const std::string& name, const Shape& shape) {
    Tensor made(DType::float32, shape);
    for (float& element : made.span<float>()) element = std::uniform_real_distribution<float>(-0.2F, 0.2F)(random);
    b.constant(name, std::move(made));
  };
  std::string value = "x";
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string n = std::to_string(layer);
    numbers("w" + n, {kWidth, kWidth}), numbers("b" + n, {kWidth});
    b.node("MatMul", {value, layer == 2 ? "w1" : "w" + n}, {"product" + n});
    b.node("Add", {"product" + n, "b" + n}, {"sum" + n});
    b.node("Step", {"sum" + n}, {"step" + n}, "", "test.fault");
    onnx::AttributeDef id;
    id.name = "id", id.type = onnx::AttributeType::i, id.i = 2 * layer;
    b.last_node().attributes.push_back(id);
    b.node("Tanh", {"step" + n}, {"y" + n});
    value = "y" + n;
  }
  b.node("Transpose", {"w1"}, {"turned"});
  b.node("MatMul", {value, "turned"}, {"last"});
  b.output("last", {kRows, kWidth});
  return b.model();
}

TrainerOptions usual(bool early) {
  TrainerOptions options{.loss = Loss::mean_squared_error, .learning_rate = 0.1, .momentum = 0.9, .early_updates = early};
  options.session.verify_plans = true;
  return options;
}

struct Data {
  Data() : x(DType::float32, {kRows, kWidth}), labels(DType::float32, {kRows, kWidth}) {
    std::mt19937 random(3);
    for (Tensor* tensor : {&x, &labels})
      for (float& element : tensor->span<float>()) element = std::uniform_real_distribution<float>(-1, 1)(random);
  }
  double step(Trainer& trainer, const RunOptions* options = nullptr) const { return trainer.step({{"x", x}}, labels, options); }
  Tensor x, labels;
};

size_t activations(const Trainer& trainer) { return trainer.memory_statistics()[MemoryClass::activations].bytes; }

TEST(EarlyUpdates, GiveTheSameBits) {
  struct Case {
    const char* name;
    std::function<void(TrainerOptions&)> set;
  };
  const Case cases[] = {
      {"sgd", [](TrainerOptions&) {}},
      {"adam", [](TrainerOptions& o) { o.optimizer = Optimizer::adam, o.momentum.reset(), o.learning_rate = 0.01; }},
      {"lamb", [](TrainerOptions& o) { o.optimizer = Optimizer::lamb, o.momentum.reset(), o.learning_rate = 0.01; }},
      {"average", [](TrainerOptions& o) { o.ema_decay = 0.9; }},
      {"clipped", [](TrainerOptions& o) { o.clip_value = 0.01; }},
      {"adapters", [](TrainerOptions& o) { o.lora = {.rank = 2}; }},
      {"own order", [](TrainerOptions& o) { o.session.reuse_memory = false; }},
      {"not optimised", [](TrainerOptions& o) { o.session.graph_optimization_level = GraphOptimizationLevel::disable_all; }},
      {"half the activations", [](TrainerOptions& o) { o.session.memory_fraction = 0.5; }},
      {"much computed again", [](TrainerOptions& o) { o.session.recompute_fraction = 0.5; }},
  };
  const Data data;
  for (const Case& each : cases) {
    SCOPED_TRACE(each.name);
    TrainerOptions late = usual(false), early = usual(true);
    each.set(late), each.set(early);
    Trainer one(layers(), early), other(layers(), late);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(data.step(one), data.step(other));
    EXPECT_EQ(one.to_bytes(), other.to_bytes());
    for (const auto& [name, tensor] : other.optimizer_state())
      EXPECT_TRUE(std::ranges::equal(tensor.span<float>(), one.optimizer_state().at(name).span<float>())) << name;
  }
}

TEST(EarlyUpdates, RunningStatisticsMoveAsBefore) {
  TrainerOptions options{.learning_rate = 0.1, .momentum = 0.9};
  Trainer late(tiny::tiny_network(), options);
  options.early_updates = true;
  Trainer early(tiny::tiny_network(), options);
  for (uint32_t step = 0; step < 4; ++step) {
    const tiny::Batch batch = tiny::make_batch(8 + step, step);
    EXPECT_EQ(early.step(batch.feeds, batch.labels), late.step(batch.feeds, batch.labels));
  }
  EXPECT_EQ(early.to_bytes(), late.to_bytes());
}

TEST(EarlyUpdates, KeepNoGradients) {
  const Data data;
  Trainer late(layers(), usual(false)), early(layers(), usual(true));
  data.step(late), data.step(early);
  constexpr size_t kMatrix = sizeof(float) * kWidth * kWidth;
  EXPECT_GE(activations(late), 3 * kMatrix);
  // The trainer with late updates also holds the gradients of the weight that three layers read, and of the next weight.
  EXPECT_LT(activations(early), activations(late) - kMatrix / 2);
}

TEST(EarlyUpdates, ComeWhenNobodyReadsWhatTheyWriteOver) {
  testing::GraphBuilder b;
  ValueId weight = b.input("weight", DType::float32, {4}), momentum = b.input("momentum", DType::float32, {4});
  ValueId state = b.input("state", DType::float32, {4}), x = b.input("x", DType::float32, {4});
  ValueId loss = b.node("Mul", {x, weight});
  ValueId view = b.node("Identity", {weight});
  ValueId gradient = b.node("Neg", {loss});
  ValueId updated = b.node("Assign", {weight, gradient}, {}, "update", "treadle");
  b.output(b.node("Assign", {momentum, updated}, {}, "behind it", "treadle"), "new_momentum");
  b.output(updated, "new_weight");
  b.output(b.node("Assign", {state, loss}, {}, "statistic", "treadle"), "new_state");
  ValueId read = b.node("Abs", {view});
  ValueId end = b.node("Exp", {read});
  b.output(loss, "loss");
  b.output(end, "y");
  auto graph = b.finish();
  const std::vector<std::string> outputs{"loss"};
  const auto forward = exec::forward_part(*graph, outputs);
  for (const bool saves_memory : {true, false}) {
    const std::vector<NodeId> order = exec::choose_order(*graph, saves_memory, &forward);
    auto at = [&](const std::string& name) {
      return std::ranges::find_if(order, [&](NodeId id) { return graph->node(id).name == name || graph->node(id).op_type == name; }) -
             order.begin();
    };
    EXPECT_LT(at("Abs"), at("update")) << "a view of the weight is read";
    EXPECT_LT(at("update"), at("behind it"));
    EXPECT_LT(at("Exp"), at("statistic")) << "what is no gradient comes last";
    if (!saves_memory) {
      EXPECT_LT(at("behind it"), at("Exp"));
    }
  }
}

TEST(EarlyUpdates, AStepThatFailsBehindTheFirstNeedsACheckpoint) {
  const Data data;
  Trainer trainer(layers(), usual(true)), other(layers(), usual(false));
  for (int i = 0; i < 2; ++i) data.step(trainer), data.step(other);
  const std::string path = (std::filesystem::temp_directory_path() / "early_updates_test.safetensors").string();
  trainer.save_checkpoint(path);
  auto fail_at = [&](int64_t id) {
    testing::set_fault(id, [] { throw Error(ErrorCode::invalid_argument, "a kernel that fails"); });
    EXPECT_THROW(data.step(trainer), Error);
    testing::set_fault(-1, {});
  };
  fail_at(2);  // fails in the forward pass, when nothing has changed yet
  EXPECT_EQ(data.step(trainer), data.step(other));
  EXPECT_EQ(trainer.to_bytes(), other.to_bytes());

  fail_at(1);  // fails in the gradient of the first layer, when later layers have been updated already
  auto expect_refused = [&](const std::function<void()>& call) {
    try {
      call();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("half updated: load a checkpoint"), std::string::npos) << error.what();
    }
  };
  expect_refused([&] { data.step(trainer); });
  expect_refused([&] { trainer.predict({{"x", data.x}}); });
  expect_refused([&] { trainer.evaluate({{"x", data.x}}, data.labels); });
  expect_refused([&] { trainer.gradients({{"x", data.x}}, data.labels); });
  expect_refused([&] { trainer.parameters(); });
  expect_refused([&] { trainer.to_bytes(); });
  expect_refused([&] { trainer.save_checkpoint(path); });

  EXPECT_THROW(trainer.load_checkpoint(path + ".none"), Error);
  expect_refused([&] { data.step(trainer); });
  trainer.load_checkpoint(path);
  data.step(trainer);
  EXPECT_EQ(trainer.to_bytes(), other.to_bytes());
  std::filesystem::remove(path);
}

TEST(EarlyUpdates, AStepIsCancelledBeforeTheFirstOnly) {
  const Data data;
  Trainer trainer(layers(), usual(true)), other(layers(), usual(false));
  for (const int64_t id : {0, 1}) {
    RunOptions options;
    options.cancel_token.emplace();
    testing::set_fault(id, [&] { options.cancel_token->cancel(); });
    if (id == 0) {
      EXPECT_THROW(data.step(trainer, &options), Error);
    } else {
      const double loss = data.step(trainer, &options);
      EXPECT_TRUE(options.cancel_token->cancelled());
      EXPECT_EQ(loss, data.step(other));
    }
    testing::set_fault(-1, {});
    EXPECT_EQ(trainer.to_bytes(), other.to_bytes());
  }
}

TEST(EarlyUpdates, AreRefusedWhereAllGradientsComeFirst) {
  auto expect_refused = [](const std::string& words, const std::function<void(TrainerOptions&)>& set) {
    TrainerOptions options = usual(true);
    set(options);
    try {
      const Trainer trainer(layers(), options);
      ADD_FAILURE() << words;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  expect_refused("early_updates does not go with clip_norm", [](TrainerOptions& o) { o.clip_norm = 1; });
  expect_refused("early_updates does not go with accumulation_steps", [](TrainerOptions& o) { o.accumulation_steps = 2; });
  expect_refused("early_updates does not go with fused_update", [](TrainerOptions& o) { o.fused_update = true; });
  expect_refused("early_updates does not go with precision float16", [](TrainerOptions& o) { o.session.precision = "float16"; });
  expect_refused("execution on devices has no early_updates", [](TrainerOptions& o) { o.session.device = "sim"; });
  expect_refused("parallel execution has no early_updates", [](TrainerOptions& o) { o.session.execution_mode = ExecutionMode::parallel; });
}

}  // namespace
}  // namespace treadle::train
