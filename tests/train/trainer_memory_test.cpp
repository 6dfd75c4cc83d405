// Tests that a trainer owns copies of the values that it changes: nothing of the model's file stays in memory.
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/train/tiny_network.h"
#include "treadle/train.h"

namespace treadle::train {
namespace {

using namespace tiny;

constexpr int64_t kWidth = 2048;
constexpr size_t kMegabyte = size_t{1} << 20;

/// Makes two layers, the first of which has 16 MB of weights.
onnx::ModelDef wide_network() {
  onnx::ModelDef model;
  model.ir_version = 8;
  model.opset_imports.push_back({"", 17});
  onnx::GraphDef& graph = model.graph;
  graph.name = "wide";
  graph.inputs.push_back(tensor_info("x", {1, kWidth}));
  graph.outputs.push_back(tensor_info("scores", {1, 4}));
  add_tensor(graph, "w0", {kWidth, kWidth}, -0.02F, 0.02F);
  add_tensor(graph, "w1", {kWidth, 4}, -0.02F, 0.02F);
  graph.nodes.push_back(node("MatMul", {"x", "w0"}, "hidden"));
  graph.nodes.push_back(node("Relu", {"hidden"}, "active"));
  graph.nodes.push_back(node("MatMul", {"active", "w1"}, "scores"));
  return model;
}

/// Returns the process's resident bytes of mapped files; 0 if the system does not report them.
size_t resident_of_files() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("RssFile:")) return std::stoul(line.substr(8)) * 1024;
  return 0;
}

/// Trains one step. Also called once before measuring, so that the code is in memory.
void train(const Model& model, const TrainerOptions& options) {
  Trainer trainer(model, options);
  Tensor x(DType::float32, {1, kWidth}), labels(DType::int64, {1});
  for (float& element : x.span<float>()) element = 0.5F;
  labels.data<int64_t>()[0] = 2;
  trainer.step({{"x", x}}, labels);
}

TEST(TrainerMemory, HoldsNothingOfTheFile) {
  const std::string path = ::testing::TempDir() + "/trainer_memory_test.onnx";
  onnx::write_model_file(wide_network(), path);
  std::array<TrainerOptions, 3> kinds;
  kinds[1].dynamic_batch = true;
  kinds[2].head_classes = 3;
  for (const TrainerOptions& options : kinds) {
    SCOPED_TRACE(&options - kinds.data());
    train(Model::load(path), options);
    const size_t before = resident_of_files();
    if (before == 0) GTEST_SKIP() << "the system does not tell";
    const Trainer trainer(Model::load(path), options);
    EXPECT_LT(resident_of_files(), before + 4 * kMegabyte) << "of 16 MB of weights";
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace treadle::train
