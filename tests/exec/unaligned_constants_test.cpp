// In a model's file, weights can begin at any address. This test checks that every operator gets them at an address that it can read.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "graph/graph.h"
#include "onnx/model_def.h"
#include "onnx/serialize.h"
#include "session/model.h"
#include "treadle/treadle.hpp"

namespace treadle {
namespace {

constexpr int64_t kSize = 160;  // 160 x 160 floats: large enough to stay in place

onnx::ValueInfoDef info(const std::string& name) {
  onnx::ValueInfoDef value;
  value.name = name;
  value.type.kind = onnx::TypeDef::Kind::tensor;
  value.type.elem_type = DType::float32;
  onnx::DimDef dim;
  dim.kind = onnx::DimDef::Kind::value;
  dim.value = kSize;
  value.type.shape = std::vector<onnx::DimDef>{dim, dim};
  return value;
}

Tensor random_matrix(uint32_t seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  Tensor tensor(DType::float32, {kSize, kSize});
  for (float& x : tensor.span<float>()) x = uniform(generator);
  return tensor;
}

/// Makes the model ((x A) B^T + C) * A + Transpose(C): it has products with packed operands, elementwise nodes that read the same
/// constants, and a folded node. `shift` changes the length of the graph's name, and so the addresses of the constants.
std::string model(size_t shift, const Tensor& a, const Tensor& b, const Tensor& c) {
  onnx::ModelDef model;
  model.ir_version = 10;
  model.opset_imports.push_back({"", 21});
  model.graph.name = std::string(shift + 1, 'g');
  model.graph.inputs.push_back(info("x"));
  model.graph.outputs.push_back(info("y"));
  for (const auto& [name, value] : {std::pair("A", a), std::pair("B", b), std::pair("C", c)}) {
    onnx::TensorDef tensor;
    tensor.name = name;
    tensor.dtype = DType::float32;
    tensor.shape = value.shape();
    tensor.value = value;
    model.graph.initializers.push_back(std::move(tensor));
  }
  auto node = [&](const std::string& op, std::vector<std::string> inputs, const std::string& output) {
    onnx::NodeDef made;
    made.op_type = op;
    made.inputs = std::move(inputs);
    made.outputs = {output};
    if (op == "Gemm") {
      onnx::AttributeDef transposed;
      transposed.name = "transB";
      transposed.type = onnx::AttributeType::i;
      transposed.i = 1;
      made.attributes.push_back(std::move(transposed));
    }
    model.graph.nodes.push_back(std::move(made));
  };
  node("MatMul", {"x", "A"}, "xa");
  node("Gemm", {"xa", "B"}, "xab");
  node("Add", {"xab", "C"}, "sum");
  node("Mul", {"sum", "A"}, "product");
  node("Transpose", {"C"}, "Ct");
  node("Add", {"product", "Ct"}, "y");
  return onnx::serialize_model(model);
}

/// A model in a temporary file, since only weights of files are used in place.
struct ModelFile {
  explicit ModelFile(const std::string& bytes)
      : path((std::filesystem::temp_directory_path() / ("treadle_unaligned_" + std::to_string(getpid()) + ".onnx")).string()) {
    std::ofstream(path, std::ios::binary) << bytes;
  }
  ~ModelFile() { std::filesystem::remove(path); }
  ModelFile(const ModelFile&) = delete;
  ModelFile& operator=(const ModelFile&) = delete;
  std::string path;
};

float at(const Tensor& m, int64_t i, int64_t j) { return m.data<float>()[i * kSize + j]; }

std::vector<double> reference(const Tensor& x, const Tensor& a, const Tensor& b, const Tensor& c) {
  std::vector<double> xa(kSize * kSize), y(kSize * kSize);
  for (int64_t i = 0; i < kSize; ++i)
    for (int64_t j = 0; j < kSize; ++j)
      for (int64_t k = 0; k < kSize; ++k) xa[static_cast<size_t>(i * kSize + j)] += double{at(x, i, k)} * at(a, k, j);
  for (int64_t i = 0; i < kSize; ++i)
    for (int64_t j = 0; j < kSize; ++j) {
      double sum = at(c, i, j);
      for (int64_t k = 0; k < kSize; ++k) sum += xa[static_cast<size_t>(i * kSize + k)] * at(b, j, k);
      y[static_cast<size_t>(i * kSize + j)] = sum * at(a, i, j) + at(c, j, i);
    }
  return y;
}

TEST(UnalignedConstants, GiveWhatAlignedOnesGive) {
  const Tensor a = random_matrix(1), b = random_matrix(2), c = random_matrix(3), x = random_matrix(4);
  const std::vector<double> expected = reference(x, a, b, c);
  int unaligned = 0;
  for (size_t shift = 0; shift < 4; ++shift) {
    const ModelFile file(model(shift, a, b, c));
    const Model loaded = Model::load(file.path);
    const std::unique_ptr<Graph> graph = loaded.impl().import();
    unaligned += !is_aligned(*graph->stored_tensor(graph->find_value("A")));
    for (auto level : {GraphOptimizationLevel::disable_all, GraphOptimizationLevel::all}) {
      SessionOptions options;
      options.graph_optimization_level = level;
      const Session session(loaded, options);
      const Tensor y = session.run({{"x", x}})[0].tensor();
      for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(y.data<float>()[i], expected[i], 2e-3) << "shift " << shift << ", " << i;
    }
  }
  EXPECT_EQ(unaligned, 3) << "the test does not reach what it is for";
}

TEST(UnalignedConstants, AreMovedWhenTheirElementsAreAskedFor) {
  const Tensor a = random_matrix(1), b = random_matrix(2), c = random_matrix(3);
  for (size_t shift = 0; shift < 4; ++shift) {
    const ModelFile file(model(shift, a, b, c));
    const std::unique_ptr<Graph> graph = Model::load(file.path).impl().import();
    const Tensor* moved = graph->constant_tensor(graph->find_value("A"));
    ASSERT_TRUE(is_aligned(*moved));
    for (int64_t i = 0; i < a.num_elements(); ++i) ASSERT_EQ(moved->data<float>()[i], a.data<float>()[i]);
    EXPECT_EQ(moved, graph->stored_tensor(graph->find_value("A")));
  }
}

}  // namespace
}  // namespace treadle
