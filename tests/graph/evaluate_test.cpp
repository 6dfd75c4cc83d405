#include "graph/evaluate.h"

#include <gtest/gtest.h>

#include "graph/op_def.h"
#include "tests/graph/graph_builder.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

std::vector<Datum> evaluate(Graph& graph, NodeId id, std::vector<Datum> inputs, Evaluator& evaluator) {
  const Node& node = graph.node(id);
  const KernelDef& kernel = select_kernel(graph, node);
  std::unique_ptr<PackedState> packed = kernel.create ? kernel.create(CreateContext(graph, node)) : nullptr;
  std::vector<DType> dtypes;
  for (ValueId output : node.outputs) dtypes.push_back(output == kNoValue ? DType::undefined : graph.type(output).dtype);
  return evaluate_node(node, kernel, packed.get(), inputs, dtypes, evaluator);
}

TEST(Evaluate, OutputShapesFollowFromTheElementsOfInputs) {
  GraphBuilder b;
  ValueId data = b.input("data", {b.symbol("n"), 6});
  ValueId target = b.input("target", {b.symbol("rank")}, DType::int64);
  b.op("y", "Reshape", {data, target});
  Evaluator evaluator;
  Tensor x = GraphBuilder::random_tensor(Shape{2, 6}, 1);
  std::vector<int64_t> shape{3, -1, 2};
  std::vector<Datum> outputs = evaluate(b.graph(), b.last_node(), {x, Tensor::vector<int64_t>(shape)}, evaluator);
  ASSERT_EQ(outputs.size(), 1U);
  EXPECT_EQ(outputs[0].tensor().shape(), (Shape{3, 2, 2}));
  for (int64_t i = 0; i < 12; ++i) EXPECT_EQ(outputs[0].tensor().data<float>()[i], x.data<float>()[i]);
}

TEST(Evaluate, OneEvaluatorServesNodesOfAnyArity) {
  GraphBuilder b;
  ValueId x = b.input("x", {4});
  b.op("cut", "Slice", {x, b.ints("starts", {1}), b.ints("ends", {3})});
  NodeId slice = b.last_node();
  std::vector<ValueId> parts = b.node("part", "Split", {x}, {{"num_outputs", int64_t{2}}}, 2);
  NodeId split = b.last_node();
  Evaluator evaluator;
  Tensor data = Tensor::vector<float>(std::vector<float>{1, 2, 3, 4});
  std::vector<int64_t> one{1}, three{3};
  for (int round = 0; round < 2; ++round) {
    std::vector<Datum> cut = evaluate(b.graph(), slice, {data, Tensor::vector<int64_t>(one), Tensor::vector<int64_t>(three)}, evaluator);
    EXPECT_EQ(cut[0].tensor().data<float>()[0], 2);
    std::vector<Datum> halves = evaluate(b.graph(), split, {data}, evaluator);
    ASSERT_EQ(halves.size(), 2U);
    EXPECT_EQ(halves[1].tensor().data<float>()[0], 3);
  }
}

TEST(Evaluate, AnOutputAboveTheLimitIsRefusedBeforeItIsMade) {
  GraphBuilder b;
  ValueId shape = b.ints("shape", {1 << 20, 1 << 20});
  b.op("y", "ConstantOfShape", {shape});
  Evaluator evaluator;
  evaluator.max_output_bytes = 1 << 20;
  try {
    evaluate(b.graph(), b.last_node(), {b.graph().value(shape).constant}, evaluator);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
    EXPECT_NE(std::string(error.what()).find("4398046511104 bytes"), std::string::npos) << error.what();
  }
}

TEST(Evaluate, AbsentOutputsStayUndefined) {
  GraphBuilder b;
  ValueId x = b.input("x", {3});
  b.node("top", "TopK", {x, b.ints("k", {2})}, {}, 2);
  Graph& graph = b.graph();
  Node& node = graph.node(b.last_node());
  node.outputs[1] = kNoValue;
  std::vector<int64_t> k{2};
  Evaluator evaluator;
  std::vector<Datum> outputs =
      evaluate(graph, node.id, {Tensor::vector<float>(std::vector<float>{1, 5, 3}), Tensor::vector<int64_t>(k)}, evaluator);
  ASSERT_EQ(outputs.size(), 2U);
  EXPECT_EQ(outputs[0].tensor().data<float>()[0], 5);
  EXPECT_FALSE(outputs[1].defined());
}

}  // namespace
}  // namespace treadle
