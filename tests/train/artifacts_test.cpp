// Tests artifacts: a trainer that is opened from them gives the same bits as the one that wrote them, and refuses files that do not belong
// together.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "graph/op_def.h"
#include "onnx/parse.h"
#include "onnx/serialize.h"
#include "session/model.h"
#include "tests/train/tiny_network.h"
#include "treadle/error.h"
#include "treadle/session.h"
#include "treadle/train.h"

namespace treadle::train {
namespace {

using namespace tiny;
namespace fs = std::filesystem;

struct Folder {
  explicit Folder(const std::string& name) : path(fs::temp_directory_path() / ("treadle-artifacts-" + name + std::to_string(getpid()))) {
    fs::remove_all(path);
  }
  ~Folder() { fs::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const char* file) const { return (path / file).string(); }
  const fs::path path;
};

bool same_bits(const NamedTensors& a, const NamedTensors& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [name, tensor] : a) {
    const auto found = b.find(name);
    if (found == b.end() || found->second.shape() != tensor.shape()) return false;
    if (std::memcmp(tensor.raw(), found->second.raw(), tensor.size_bytes()) != 0) return false;
  }
  return true;
}

// Makes tiny_network with a Dropout after its pools.
Model with_dropout() {
  return tiny_network(-1, [](onnx::GraphDef& graph) {
    for (onnx::NodeDef& def : graph.nodes)
      if (def.op_type == "Flatten") def.inputs[0] = "dropped";
    graph.nodes.insert(graph.nodes.end() - 2, node("Dropout", {"pooled"}, "dropped"));
  });
}

void expect_the_same_training(Trainer& written, Trainer& opened, int num_steps = 20) {
  for (int i = 0; i < num_steps; ++i) {
    const Batch batch = make_batch(i % 5 == 4 ? 12 : 16, static_cast<uint32_t>(100 + i));
    EXPECT_EQ(written.step(batch.feeds, batch.labels), opened.step(batch.feeds, batch.labels)) << "step " << i;
    if (i % 7 != 3) continue;
    EXPECT_EQ(written.evaluate(batch.feeds, batch.labels), opened.evaluate(batch.feeds, batch.labels)) << "after step " << i;
    const auto with_outputs = opened.evaluate_with_outputs(batch.feeds, batch.labels);
    EXPECT_EQ(written.evaluate_with_outputs(batch.feeds, batch.labels).loss, with_outputs.loss);
    const Tensor a = written.predict(batch.feeds)[0].tensor(), b = opened.predict(batch.feeds)[0].tensor();
    ASSERT_EQ(a.shape(), b.shape());
    EXPECT_EQ(std::memcmp(a.raw(), b.raw(), a.size_bytes()), 0);
  }
  EXPECT_TRUE(same_bits(written.parameters(), opened.parameters()));
  EXPECT_TRUE(same_bits(written.states(), opened.states()));
  EXPECT_TRUE(same_bits(written.optimizer_state(), opened.optimizer_state()));
  EXPECT_TRUE(written.to_bytes() == opened.to_bytes());
}

struct Case {
  const char* name;
  TrainerOptions options;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  all.push_back({"sgd", {.learning_rate = 0.1, .momentum = 0.9, .nesterov = true}});
  all.push_back({"adamw",
                 {.optimizer = Optimizer::adamw,
                  .learning_rate = 1e-2,
                  .schedule = {.kind = Schedule::Kind::cosine, .warmup_steps = 3, .total_steps = 15},
                  .clip_norm = 0.5,
                  .groups = {{.parameters = {"*.bias"}, .rate_factor = 0.5, .weight_decay = 0.0}}}});
  all.push_back({"accumulation", {.optimizer = Optimizer::adam, .learning_rate = 1e-2, .accumulation_steps = 3}});
  all.push_back({"average", {.learning_rate = 0.1, .ema_decay = 0.9, .ema_statistics = true}});
  all.push_back({"early", {.learning_rate = 0.1, .momentum = 0.9, .early_updates = true}});
  all.push_back({"fused", {.optimizer = Optimizer::adam, .learning_rate = 1e-2, .fused_update = true}});
  all.push_back({"frozen", {.label_smoothing = 0.1, .optimizer = Optimizer::rmsprop, .learning_rate = 1e-3, .frozen = {"conv.*"}}});
  all.push_back({"adapters", {.optimizer = Optimizer::lion, .learning_rate = 1e-2, .lora = {.rank = 2, .alpha = 3.0, .dropout = 0.25}}});
  all.push_back({"head", {.optimizer = Optimizer::lamb, .learning_rate = 1e-2, .head_classes = 3}});
  all.push_back({"float16", {.learning_rate = 0.05, .session = {.precision = "float16"}}});
  return all;
}

TEST(Artifacts, TrainWithTheBitsOfTheTrainerThatWroteThem) {
  for (const Case& each : cases()) {
    SCOPED_TRACE(each.name);
    const Folder folder(each.name);
    Trainer written(with_dropout(), each.options);
    for (uint32_t i = 1; i < 5; ++i) written.step(make_batch(16, i).feeds, make_batch(16, i).labels);
    written.write_artifacts(folder.path.string());
    Trainer opened = Trainer::open_artifacts(folder.path.string());
    EXPECT_EQ(opened.position().num_steps, 4U);
    EXPECT_EQ(opened.output_names(), written.output_names());
    expect_the_same_training(written, opened);
    EXPECT_TRUE(fs::exists(folder / "required_operators.config"));
    EXPECT_EQ(fs::exists(folder / "optimizer_model.onnx"), each.options.accumulation_steps > 1);
  }
}

TEST(Artifacts, AreTheSameWhenWrittenByTheTrainerThatOpenedThem) {
  const Folder first("first"), second("second");
  Trainer written(with_dropout(), {.learning_rate = 0.1, .momentum = 0.9});
  written.write_artifacts(first.path.string());
  Trainer::open_artifacts(first.path.string()).write_artifacts(second.path.string());
  Trainer opened = Trainer::open_artifacts(second.path.string());
  expect_the_same_training(written, opened, 5);
}

TEST(Artifacts, TakeCheckpointsOfTheTrainerThatWroteThemAndGiveIt) {
  const Folder folder("checkpoints");
  const TrainerOptions options{.optimizer = Optimizer::adamw, .learning_rate = 1e-2};
  Trainer written(with_dropout(), options);
  written.write_artifacts(folder.path.string());
  Trainer opened = Trainer::open_artifacts(folder.path.string());
  for (uint32_t i = 1; i < 6; ++i) opened.step(make_batch(16, i).feeds, make_batch(16, i).labels);
  opened.set_learning_rate(5e-3);
  opened.save_checkpoint(folder / "later.safetensors", {{"epoch", "3"}});
  EXPECT_EQ(written.load_checkpoint(folder / "later.safetensors"), (Metadata{{"epoch", "3"}}));
  EXPECT_EQ(written.learning_rate(), 5e-3);
  Trainer again = Trainer::open_artifacts(folder.path.string());
  again.load_checkpoint(folder / "later.safetensors");
  expect_the_same_training(written, again, 6);
}

TEST(Artifacts, RunUnderTheOptionsOfASession) {
  const Folder folder("session");
  Trainer written(tiny_network(), {.learning_rate = 0.1, .momentum = 0.9});
  written.write_artifacts(folder.path.string());
  SessionOptions options;
  options.intra_op_num_threads = 2, options.memory_limit_bytes = 1 << 20;
  Trainer opened = Trainer::open_artifacts(folder.path.string(), options);
  EXPECT_GT(opened.memory_statistics()[MemoryClass::parameters].bytes, 0U);
  std::vector<std::string> seen;
  opened.set_monitor({.callback = [&](const MonitorEvent& event) { seen.emplace_back(event.value); }, .pattern = "*loss*"});
  const Batch batch = make_batch(16, 1);
  EXPECT_EQ(written.step(batch.feeds, batch.labels), opened.step(batch.feeds, batch.labels));
  EXPECT_FALSE(seen.empty());
  EXPECT_FALSE(opened.to_text().empty());
}

std::string message_of(const std::function<void()>& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

void edit(const std::string& path, const std::function<void(onnx::ModelDef&)>& change) {
  onnx::ModelDef def = onnx::parse_model_file(path);
  change(def);
  onnx::write_model_file(def, path);
}

TEST(Artifacts, OthersAreRefused) {
  const Folder folder("one"), other("other");
  Trainer one(tiny_network(), {.learning_rate = 0.1}), two(tiny_network(), {.learning_rate = 0.1, .momentum = 0.9});
  auto open = [&](SessionOptions session = {}) { Trainer::open_artifacts(folder.path.string(), session); };
  auto says = [&](const std::string& text, ErrorCode code) {
    const std::string message = message_of([&] { open(); }, code);
    EXPECT_NE(message.find(text), std::string::npos) << message;
  };
  says("there is no such folder", ErrorCode::not_found);
  one.write_artifacts(folder.path.string()), two.write_artifacts(other.path.string());

  for (const char* file : {"eval_model.onnx", "inference_model.onnx"}) {
    fs::copy_file(other / file, folder / file, fs::copy_options::overwrite_existing);
    says("of other artifacts than", ErrorCode::invalid_model);
    one.write_artifacts(folder.path.string());
  }
  fs::copy_file(other / "checkpoint.safetensors", folder / "checkpoint.safetensors", fs::copy_options::overwrite_existing);
  says("the checkpoint is not of this trainer: momentum is 0.9 there, 0 here", ErrorCode::invalid_argument);
  one.write_artifacts(folder.path.string());

  for (const char* file : {"training_model.onnx", "eval_model.onnx", "inference_model.onnx", "checkpoint.safetensors"}) {
    fs::remove(folder / file);
    says(file, ErrorCode::not_found);
    one.write_artifacts(folder.path.string());
    fs::resize_file(folder / file, fs::file_size(folder / file) / 2);
    says(file, ErrorCode::invalid_model);
    one.write_artifacts(folder.path.string());
  }

  const std::string training = folder / "training_model.onnx";
  tiny_network().save(training);
  says("no training artifact of Treadle", ErrorCode::invalid_model);
  auto set = [&](const char* key, const std::string& value) {
    one.write_artifacts(folder.path.string());
    edit(training, [&](onnx::ModelDef& def) {
      erase_if(def.metadata_props, [&](const auto& entry) { return entry.first == key; });
      def.metadata_props.emplace_back(key, value);
    });
  };
  set("treadle.artifacts.version", "0.0.9");
  says("artifacts of Treadle 0.0.9", ErrorCode::not_implemented);
  set("treadle.artifacts.trainer", "{}");
  says("its description of the trainer", ErrorCode::invalid_model);
  one.write_artifacts(folder.path.string());
  edit(training, [](onnx::ModelDef& def) { def.graph.outputs.pop_back(); });
  says("its outputs are not those of its description", ErrorCode::invalid_model);
  one.write_artifacts(folder.path.string());
  edit(training, [](onnx::ModelDef& def) {
    for (auto& input : def.graph.inputs)
      if (input.name == "fc.bias") input.type.shape->at(0).value = 3;
  });
  message_of([&] { open(); }, ErrorCode::invalid_model);
  one.write_artifacts(folder.path.string());
  edit(training, [](onnx::ModelDef& def) { def.graph.nodes[0].op_type = "Nothing", def.graph.nodes[0].domain = "treadle"; });
  says("this build lacks", ErrorCode::not_implemented);
}

TEST(Artifacts, WhatTheyCannotTakeIsRefused) {
  const Folder folder("options");
  Trainer written(tiny_network(), {.ema_decay = 0.9});
  written.use_averages(true);
  EXPECT_NE(message_of([&] { written.write_artifacts(folder.path.string()); }, ErrorCode::invalid_argument).find("use_averages(false)"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(folder.path));
  written.use_averages(false);
  written.write_artifacts(folder.path.string());
  SessionOptions precision, passes, level, patches, storage;
  precision.precision = "bfloat16", passes.disabled_passes = {"merge-casts"}, patches.max_patches = 3;
  level.graph_optimization_level = GraphOptimizationLevel::basic, storage.config["treadle.storage"] = "image=csr";
  for (const SessionOptions& options : {precision, passes, level, patches, storage})
    EXPECT_NE(message_of([&] { Trainer::open_artifacts(folder.path.string(), options); }, ErrorCode::invalid_argument)
                  .find("training from artifacts has no"),
              std::string::npos);
  Trainer opened = Trainer::open_artifacts(folder.path.string());
  const Batch batch = make_batch(8, 1);
  message_of([&] { opened.gradients(batch.feeds, batch.labels); }, ErrorCode::invalid_argument);
}

TEST(Artifacts, AreModelsThatASessionRuns) {
  const Folder folder("models");
  Trainer written(tiny_network(), {.learning_rate = 0.1});
  written.write_artifacts(folder.path.string());
  for (const char* file : {"training_model.onnx", "eval_model.onnx", "inference_model.onnx"}) {
    const Model model = Model::load(folder / file);
    EXPECT_TRUE(model.unsupported().empty()) << file;
    Session session(model);
  }
  // Trained weights are in the checkpoint and in the inference model, but not in this file.
  EXPECT_LT(fs::file_size(folder / "eval_model.onnx"), fs::file_size(folder / "inference_model.onnx") + 8192);
}

}  // namespace
}  // namespace treadle::train
