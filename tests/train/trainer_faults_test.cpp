// Tests training steps with faults: no error is lost, the trainer is unchanged (or, with early updates, reports that it is not), and the
// next step gives the bits that it would have given without the fault. Part of the fault campaign (tests/session/fault_campaign_test.cpp).
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <new>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/exec/allocation_counter.h"
#include "tests/session/faults.h"
#include "treadle/train.h"

namespace treadle::train {
namespace {

using testing::FailingNew;
using testing::ModelBuilder;
using testing::set_fault;

enum class Fault { none, kernel_error, kernel_bad_alloc, kernel_foreign, operator_new, count };

onnx::AttributeDef int_attribute(const std::string& name, int64_t value) {
  onnx::AttributeDef attribute;
  attribute.name = name;
  attribute.type = onnx::AttributeType::i;
  attribute.i = value;
  return attribute;
}

std::vector<float> elements(const NamedTensors& tensors) {
  std::vector<float> all;
  for (const auto& [name, tensor] : tensors) all.insert(all.end(), tensor.span<float>().begin(), tensor.span<float>().end());
  return all;
}

class TrainerCampaign {
 public:
  explicit TrainerCampaign(uint32_t seed) : seed_(seed), random_(seed) {
    testing::register_fault_operators();
    const Model model = random_model();
    TrainerOptions options;
    options.loss = Loss::mean_squared_error;
    options.learning_rate = 0.05;
    options.momentum = random_() % 2 ? 0.9 : 0;
    options.fused_update = random_() % 2;
    options.session.intra_op_num_threads = 1 + static_cast<int>(random_() % 2);
    if (random_() % 2) {
      options.session.execution_mode = ExecutionMode::parallel;
      options.session.inter_op_num_threads = 2;
    }
    if (!options.fused_update && random_() % 2) options.accumulation_steps = 2;
    reference_.emplace(model, options);
    const bool in_order = options.session.execution_mode == ExecutionMode::sequential;
    options.early_updates = in_order && !options.fused_update && options.accumulation_steps == 1 && random_() % 2;
    early_ = options.early_updates;
    tested_.emplace(model, options);
    if (early_) path_ = (std::filesystem::temp_directory_path() / fmt::format("trainer_faults_{}_{}", ::getpid(), seed)).string();
  }
  ~TrainerCampaign() {
    set_fault(-1, {});
    if (early_) std::filesystem::remove(path_);
  }

  void run_once() {
    const auto fault = static_cast<Fault>(random_() % static_cast<unsigned>(Fault::count));
    SCOPED_TRACE("seed " + std::to_string(seed_) + ", fault " + std::to_string(static_cast<int>(fault)));
    feed();
    if (early_) reference_->save_checkpoint(path_);
    const bool trains = random_() % 4 != 0;
    const int64_t ids = 2 * num_steps_;
    // Predictions run no backward pass, so only Steps (even ids) can fail.
    const int64_t id = trains ? static_cast<int64_t>(random_()) % ids : 2 * (static_cast<int64_t>(random_()) % num_steps_);
    auto call = [&] {
      if (trains)
        tested_->step(feeds_, labels_);
      else
        tested_->evaluate(feeds_, labels_);
    };
    switch (fault) {
      case Fault::kernel_error:
        set_fault(id, [] { throw Error(ErrorCode::invalid_argument, "a kernel that fails"); });
        expect_failure(call, ErrorCode::invalid_argument);
        break;
      case Fault::kernel_bad_alloc:
        set_fault(id, [] { throw std::bad_alloc(); });
        expect_failure(call, ErrorCode::resource_exhausted);
        break;
      case Fault::kernel_foreign:
        set_fault(id, [] { throw 42; });
        EXPECT_THROW(call(), int);
        break;
      case Fault::operator_new: fail_allocations(trains); break;
      default: break;
    }
    set_fault(-1, {});
    make_whole();
    expect_the_same();
    SCOPED_TRACE("the step after it");
    EXPECT_EQ(tested_->step(feeds_, labels_), reference_->step(feeds_, labels_));
    expect_the_same();
  }

 private:
  // Makes layers of products, normalisations and steps that can fail.
  Model random_model() {
    ModelBuilder b;
    b.def().opset_imports.push_back({"test.fault", 1});
    b.input("x", {-1, kWidth});
    std::string value = "x";
    auto numbers = [&](const std::string& name, Shape shape, float low, float high) {
      Tensor made(DType::float32, shape);
      for (float& element : made.span<float>()) element = std::uniform_real_distribution<float>(low, high)(random_);
      b.constant(name, std::move(made));
    };
    for (unsigned layer = 0; layer <= random_() % 4 || num_steps_ == 0; ++layer) {
      const std::string n = std::to_string(layer);
      numbers("w" + n, {kWidth, kWidth}, -0.4F, 0.4F);
      b.node("MatMul", {value, "w" + n}, {"product" + n});
      value = "product" + n;
      if (random_() % 2) {
        numbers("scale" + n, {kWidth}, 0.9F, 1.1F);
        numbers("bias" + n, {kWidth}, -0.1F, 0.1F);
        numbers("mean" + n, {kWidth}, 0, 0);
        numbers("var" + n, {kWidth}, 1, 1);
        b.node("BatchNormalization", {value, "scale" + n, "bias" + n, "mean" + n, "var" + n}, {"normal" + n});
        value = "normal" + n;
      }
      b.node(random_() % 2 ? "Step" : "WideStep", {value}, {"step" + n}, "", "test.fault");
      b.last_node().attributes.push_back(int_attribute("id", 2 * num_steps_++));
      b.node("Tanh", {"step" + n}, {"y" + n});
      value = "y" + n;
    }
    b.output(value, {-1, kWidth});
    return b.model();
  }

  void feed() {
    const auto batch = static_cast<int64_t>(2 + random_() % 6);
    Tensor x(DType::float32, {batch, kWidth});
    labels_ = Tensor(DType::float32, {batch, kWidth});
    for (Tensor tensor : {x, labels_})
      for (float& element : tensor.span<float>()) element = std::uniform_real_distribution<float>(-1, 1)(random_);
    feeds_["x"] = x;
  }

  template <typename Call>
  ErrorCode code_of(Call&& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.code();
    } catch (const std::bad_alloc&) {
      return ErrorCode::resource_exhausted;
    }
    return ErrorCode::ok;
  }
  template <typename Call>
  void expect_failure(Call&& call, ErrorCode code) {
    EXPECT_EQ(code_of(call), code);
  }

  // Fails each allocation in turn, until the call needs no more allocations.
  void fail_allocations(bool trains) {
    const bool all = random_() % 2;
    for (int64_t at = 0; at < 400; ++at) {
      SCOPED_TRACE("allocation " + std::to_string(at));
      double loss = 0;
      ErrorCode code;
      {
        FailingNew failing(at, all);
        code = code_of([&] { loss = trains ? tested_->step(feeds_, labels_) : tested_->evaluate(feeds_, labels_); });
      }
      if (code == ErrorCode::ok) {
        EXPECT_EQ(loss, trains ? reference_->step(feeds_, labels_) : reference_->evaluate(feeds_, labels_));
        if (early_) reference_->save_checkpoint(path_);
        if (at > 60) break;
      } else {
        EXPECT_EQ(code, ErrorCode::resource_exhausted);
        make_whole();
      }
      expect_the_same();
      if (::testing::Test::HasFailure()) return;
    }
  }

  // After an early update, a failure leaves the trainer unusable until a checkpoint is loaded. This function loads one.
  void make_whole() {
    if (!early_) return;
    try {
      tested_->parameters();
    } catch (const Error& error) {
      EXPECT_NE(error.message().find("half updated"), std::string::npos) << error.what();
      EXPECT_THROW(tested_->step(feeds_, labels_), Error);
      tested_->load_checkpoint(path_, CheckpointSettings::own);
    }
  }

  void expect_the_same() {
    EXPECT_EQ(elements(tested_->parameters()), elements(reference_->parameters()));
    EXPECT_EQ(elements(tested_->momentum()), elements(reference_->momentum()));
    EXPECT_EQ(elements(tested_->states()), elements(reference_->states()));
  }

  static constexpr int64_t kWidth = 5;
  const uint32_t seed_;
  bool early_ = false;  // true if tested_ updates early; the other trainer never does
  std::string path_;    // path of a checkpoint of the other trainer, with the state of both before a call
  std::mt19937 random_;
  int64_t num_steps_ = 0;  // number of Steps, whose ids are even; the nodes of their gradients have odd ids
  Feeds feeds_;
  Tensor labels_;
  std::optional<Trainer> tested_, reference_;
};

// A parameter and a node that calls the fault number 0.
ModelBuilder stepping_model() {
  ModelBuilder b;
  b.def().opset_imports.push_back({"test.fault", 1});
  b.input("x", {-1, 2});
  b.constant("w", Tensor::of<float>({2}, std::vector<float>{2, 3}));
  b.node("Mul", {"x", "w"}, {"product"});
  b.node("Step", {"product"}, {"y"}, "", "test.fault");
  b.last_node().attributes.push_back(int_attribute("id", 0));
  b.output("y", {-1, 2});
  return b;
}

// The abandoned step still reads the parameters, so the next step must wait for it before it writes them.
TEST(TrainerFaults, AStepWaitsForOneThatWasLeftBehind) {
  testing::register_fault_operators();
  ModelBuilder b = stepping_model();
  TrainerOptions trainer_options;
  trainer_options.loss = Loss::mean_squared_error;
  trainer_options.learning_rate = 0.05;
  Trainer trainer(b.model(), trainer_options);
  const Tensor x = Tensor::of<float>({1, 2}, std::vector<float>{1, 1}), labels = Tensor::of<float>({1, 2}, std::vector<float>{0, 0});
  trainer.step({{"x", x}}, labels);  // this step allocates everything that the first step allocates
  const NamedTensors& parameters = trainer.parameters();
  const std::vector<float> before = elements(parameters);
  std::vector<float> behind;
  auto gate = std::make_shared<testing::Gate>();
  testing::set_fault(0, [&, gate] {
    gate->wait();
    behind = elements(parameters);
  });
  RunOptions run;
  run.deadline_ms = 300;
  EXPECT_THROW(trainer.step({{"x", x}}, labels, &run), Error);
  testing::set_fault(-1, {});
  std::future<double> next = std::async(std::launch::async, [&] { return trainer.step({{"x", x}}, labels); });
  next.wait_for(std::chrono::milliseconds(200));  // in this time the step would write parameters if it did not wait
  gate->open();
  next.get();
  EXPECT_EQ(behind, before);
  EXPECT_NE(elements(parameters), before);
}

// The step that waits in a node is cancelled, has changed nothing, and later steps are refused.
TEST(TrainerControl, ClosingCancelsStepsAndRefusesLaterOnes) {
  testing::register_fault_operators();
  ModelBuilder b = stepping_model();
  TrainerOptions trainer_options;
  trainer_options.loss = Loss::mean_squared_error;
  Trainer trainer(b.model(), trainer_options);
  const Tensor x = Tensor::of<float>({1, 2}, std::vector<float>{1, 1}), labels = Tensor::of<float>({1, 2}, std::vector<float>{0, 0});
  trainer.step({{"x", x}}, labels);
  const std::vector<float> before = elements(trainer.parameters());
  std::atomic<bool> inside{false};
  testing::set_fault(0, [&] {
    inside = true;
    while (!trainer.closed()) std::this_thread::yield();
  });
  std::future<double> running = std::async(std::launch::async, [&] { return trainer.step({{"x", x}}, labels); });
  while (!inside) std::this_thread::yield();
  EXPECT_TRUE(trainer.close().empty());
  testing::set_fault(-1, {});
  const auto message_of = [](const std::function<void()>& work) {
    try {
      work();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::cancelled);
      return error.message();
    }
    return std::string("no error");
  };
  message_of([&] { running.get(); });
  EXPECT_EQ(elements(trainer.parameters()), before);
  EXPECT_EQ(message_of([&] { trainer.step({{"x", x}}, labels); }), "the trainer is closed");
}

TEST(FaultCampaign, ATrainingStepThatFailsHasChangedNothing) {
  const char *runs_text = std::getenv("TREADLE_FAULT_RUNS"), *seed_text = std::getenv("TREADLE_FAULT_SEED");
  const int64_t runs = runs_text ? std::atoll(runs_text) / 4 : 60, first = seed_text ? std::atoll(seed_text) : 1;
  constexpr int64_t kRunsPerModel = 12;
  for (int64_t m = 0; m * kRunsPerModel < runs; ++m) {
    TrainerCampaign campaign(static_cast<uint32_t>(first + m));
    for (int64_t i = 0; i < kRunsPerModel; ++i) {
      campaign.run_once();
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace treadle::train
