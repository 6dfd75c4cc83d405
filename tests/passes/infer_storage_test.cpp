// Tests storage types: which values stay sparse, which values are made dense, and that results equal those of the dense graph.
#include "passes/infer_storage.h"

#include "tests/passes/pass_test.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using passes::StorageType;
using testing::GraphBuilder;

Tensor floats(const Shape& shape, std::vector<float> values) {
  Tensor tensor(DType::float32, shape);
  std::copy(values.begin(), values.end(), tensor.data<float>());
  return tensor;
}

Tensor ints(std::vector<int64_t> values) { return Tensor::vector<int64_t>(values); }

// The elements of a tensor [3, 4], from which the tests make sparse tensors in each format.
const std::vector<float> kElements = {0, 2, 0, -3, 0, 0, 0, 0, 5, 0, 0, 7};
SparseTensor csr() { return {SparseTensor::Format::csr, Shape{3, 4}, floats({4}, {2, -3, 5, 7}), ints({1, 3, 0, 3}), ints({0, 2, 2, 4})}; }
SparseTensor row_sparse() { return {SparseTensor::Format::coo, Shape{3, 4}, floats({2, 4}, {0, 2, 0, -3, 5, 0, 0, 7}), ints({0, 2}), {}}; }
SparseTensor coo() { return {SparseTensor::Format::coo, Shape{3, 4}, floats({4}, {2, -3, 5, 7}), ints({1, 3, 8, 11}), {}}; }

struct Changed {
  std::string text;
  std::vector<std::string> fallbacks;
};

// Applies the pass with this storage for x, and compares the outputs with those of the dense graph.
Changed infer_for(Graph& graph, const std::string& storage, const SparseTensor& x, std::vector<Datum> others = {}) {
  std::vector<Datum> feeds{floats({3, 4}, kElements)};
  feeds.insert(feeds.end(), others.begin(), others.end());
  const std::vector<Datum> expected = testing::run_graph(graph, feeds);
  Changed result;
  passes::infer_storage(graph, {{"x", storage}}, [&](const std::string& text) { result.fallbacks.push_back(text); });
  verify(graph);
  result.text = print(graph);
  feeds[0] = x;
  const std::vector<Datum> found = testing::run_graph(graph, feeds);
  for (size_t i = 0; i < expected.size(); ++i)
    if (found[i].is_tensor()) {
      EXPECT_LE(testing::relative_difference(found[i], expected[i]), 1e-6) << "output " << i;
    }
  return result;
}

TEST(InferStorage, AProductTakesCsrAndFunctionsWithoutAConstantPartKeepIt) {
  GraphBuilder b;
  ValueId x = b.input("x", {3, 4}), w = b.input("w", {4, 2});
  b.output(b.op("y", "MatMul", {b.op("r", "Relu", {x}), w}));
  auto graph = b.take();
  Changed changed = infer_for(*graph, "csr", csr(), {floats({4, 2}, {1, 2, 3, 4, 5, 6, 7, 8})});
  EXPECT_TRUE(changed.fallbacks.empty());
  EXPECT_NE(changed.text.find("SparseValues"), std::string::npos) << changed.text;
  EXPECT_NE(changed.text.find("%y f32[3,2] = treadle.SparseMatMul(%r, %w)"), std::string::npos) << changed.text;
  EXPECT_EQ(changed.text.find("SparseToDense"), std::string::npos) << changed.text;
}

TEST(InferStorage, OtherNodesGetOneDenseValueAndTheFallbackIsTold) {
  GraphBuilder b;
  ValueId x = b.input("x", {3, 4});
  b.output(b.op("s", "Softmax", {x}));
  b.output(b.op("e", "Exp", {x}));
  auto graph = b.take();
  for (const auto& [storage, sparse] : {std::pair{"csr", csr()}, {"row_sparse", row_sparse()}, {"coo", coo()}}) {
    auto copy = graph->clone();
    Changed changed = infer_for(*copy, storage, sparse);
    ASSERT_EQ(changed.fallbacks.size(), 2U);
    EXPECT_NE(changed.fallbacks[0].find(std::string("\"x\" (") + storage + ") is made dense for Softmax"), std::string::npos);
    const size_t first = changed.text.find("SparseToDense");
    EXPECT_EQ(changed.text.find("SparseToDense", first + 1), std::string::npos) << changed.text;
  }
}

TEST(InferStorage, RowsAreTakenFromARowSparseTable) {
  GraphBuilder b;
  ValueId x = b.input("x", {3, 4}), i = b.input("i", {2}, DType::int64);
  b.output(b.op("y", "Gather", {x, i}));
  auto graph = b.take();
  Changed changed = infer_for(*graph, "row_sparse", row_sparse(), {ints({-1, 1})});
  EXPECT_TRUE(changed.fallbacks.empty());
  EXPECT_NE(changed.text.find("SparseGather"), std::string::npos) << changed.text;
}

TEST(InferStorage, MalformedTensorsAndImpossibleShapesAreRefused) {
  GraphBuilder b;
  ValueId x = b.input("x", {3, 4}), v = b.input("v", {4});
  b.output(b.op("y", "Exp", {x}));
  b.output(b.op("z", "Exp", {v}));
  auto graph = b.take();
  EXPECT_THROW(passes::infer_storage(*graph->clone(), {{"v", "csr"}}, {}), Error);
  EXPECT_THROW(passes::infer_storage(*graph->clone(), {{"x", "dense-ish"}}, {}), Error);
  passes::infer_storage(*graph, {{"x", "csr"}}, {});
  auto run = [&](SparseTensor sparse) { return testing::run_graph(*graph, {std::move(sparse), floats({4}, {1, 2, 3, 4})}); };
  run(csr());
  SparseTensor bad = csr();
  bad.indices = ints({1, 4, 0, 3});
  EXPECT_THROW(run(bad), Error);
  bad = csr();
  bad.row_offsets = ints({0, 2, 1, 4});
  EXPECT_THROW(run(bad), Error);
  bad = csr();
  bad.row_offsets = ints({0, 2, 2, 9});
  EXPECT_THROW(run(bad), Error);
  bad = csr();
  bad.values = Tensor(DType::float64, {4});
  EXPECT_THROW(run(bad), Error);
  bad = row_sparse();
  bad.indices = ints({2, 0});
  EXPECT_THROW(run(bad), Error);
  bad.indices = ints({0, 3});
  EXPECT_THROW(run(bad), Error);
}

}  // namespace
}  // namespace treadle
