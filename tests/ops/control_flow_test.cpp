#include <gtest/gtest.h>

#include <set>

#include "onnx/import.h"
#include "passes/pipeline.h"
#include "tests/exec/host_program.h"
#include "tests/graph/graph_builder.h"
#include "tests/ops/run_op.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using testing::floats;
using testing::GraphBuilder;
using testing::tensor;
using testing::values;

const Type kTrip = Type::tensor(DType::int64, SymbolicShape{});
const Type kCondition = Type::tensor(DType::boolean, SymbolicShape{});

/// Adds a node with one body. Captures are pairs: an input of the body, and the value of the graph that it gets.
NodeId add_with_body(Graph& graph, NodeSpec spec, std::string_view attribute, std::unique_ptr<Graph> body,
                     const std::vector<std::pair<ValueId, ValueId>>& captures = {}) {
  NodeId id = graph.add_node(std::move(spec));
  Body made{std::string(attribute), std::move(body), {}};
  for (auto [inside, outside] : captures) made.captures.emplace_back(inside, graph.add_capture(id, outside));
  graph.node(id).bodies.push_back(std::move(made));
  return id;
}

void give_outputs(Graph& graph, NodeId id) {
  for (ValueId output : graph.node(id).outputs) {
    graph.outputs.push_back(output);
    graph.output_names.push_back(graph.value(output).name);
  }
}

std::vector<Datum> run(std::unique_ptr<Graph> graph, const std::vector<Datum>& feeds) {
  std::shared_ptr<Graph> shared = std::move(graph);
  onnx::upgrade(*shared);
  passes::canonicalize(*shared);
  verify(*shared);
  std::vector<Datum> outputs(shared->outputs.size());
  testing::HostProgram(shared).run(feeds, outputs, {});
  return outputs;
}

// Makes the body (i, cond, list) -> (cond, Concat(list, list), list), which doubles a list in every iteration.
std::unique_ptr<Graph> doubling_body(const std::shared_ptr<SymbolTable>& symbols, Type declared_list) {
  auto body = std::make_unique<Graph>(symbols);
  body->add_input("i", kTrip);
  ValueId condition = body->add_input("cond_in", kCondition), list = body->add_input("list", std::move(declared_list));
  NodeId twice = body->add_node({.op_type = "Concat", .inputs = {list, list}, .attributes = {{"axis", int64_t{0}}}});
  NodeId sum = body->add_node({.op_type = "ReduceSum", .inputs = {list}, .attributes = {{"keepdims", int64_t{0}}}});
  body->outputs = {condition, body->node(twice).outputs[0], body->node(sum).outputs[0]};
  return body;
}

std::unique_ptr<Graph> doubling_loop(Type declared_list, NodeId& loop) {
  auto symbols = std::make_shared<SymbolTable>();
  auto graph = std::make_unique<Graph>(symbols);
  ValueId list = graph->add_input("x", Type::tensor(DType::float32, SymbolicShape{1}));
  ValueId trips = graph->add_constant("M", Tensor::scalar<int64_t>(3));
  loop = add_with_body(*graph, {.op_type = "Loop", .inputs = {trips, kNoValue, list}, .num_outputs = 2}, "body",
                       doubling_body(symbols, std::move(declared_list)));
  give_outputs(*graph, loop);
  return graph;
}

TEST(Loop, CarriedExtentsThatChangeAreDataDependent) {
  NodeId loop{};
  auto graph = doubling_loop(Type::tensor(DType::float32, SymbolicShape{1}), loop);
  infer(*graph);
  const Type& carried = graph->type(graph->outputs[0]);
  ASSERT_TRUE(carried.has_rank());
  EXPECT_TRUE((*carried.shape)[0].data_dependent());
  const Graph& body = *graph->node(loop).bodies[0].graph;
  EXPECT_TRUE((*body.type(body.inputs[2]).shape)[0].data_dependent()) << "the body declares an extent that only its first iteration has";
  EXPECT_EQ(to_string(graph->type(graph->outputs[1])), "f32[3]") << "three iterations, for the condition stays what it was";

  auto outputs = run(std::move(graph), {floats({1}, {2})});
  EXPECT_EQ(values<float>(outputs[0].tensor()), (std::vector<float>(8, 2)));
  EXPECT_EQ(values<float>(outputs[1].tensor()), (std::vector<float>{2, 4, 8}));
}

TEST(Loop, InferredTwiceSaysTheSame) {
  NodeId loop{};
  auto graph = doubling_loop(Type::tensor(DType::float32), loop);
  infer(*graph);
  infer(*graph);
  EXPECT_TRUE((*graph->type(graph->outputs[0]).shape)[0].data_dependent());
}

// The body is (i, cond, x) -> (cond, Unsqueeze(x)), so the rank of x grows.
TEST(Loop, CarriedRanksThatChangeAreUnknown) {
  auto symbols = std::make_shared<SymbolTable>();
  auto body = std::make_unique<Graph>(symbols);
  body->add_input("i", kTrip);
  ValueId condition = body->add_input("cond_in", kCondition), x = body->add_input("x", {});
  ValueId axes = body->add_constant("axes", Tensor::vector<int64_t>(std::vector<int64_t>{0}));
  NodeId grown = body->add_node({.op_type = "Unsqueeze", .inputs = {x, axes}});
  body->outputs = {condition, body->node(grown).outputs[0]};
  auto graph = std::make_unique<Graph>(symbols);
  ValueId start = graph->add_input("start", Type::tensor(DType::float32, SymbolicShape{2})), trips = graph->add_input("M", kTrip);
  give_outputs(*graph, add_with_body(*graph, {.op_type = "Loop", .inputs = {trips, kNoValue, start}}, "body", std::move(body)));
  infer(*graph);
  EXPECT_EQ(to_string(graph->type(graph->outputs[0])), "f32[?]");
  auto outputs = run(std::move(graph), {floats({2}, {1, 2}), Tensor::scalar<int64_t>(2)});
  EXPECT_EQ(outputs[0].tensor().shape(), (Shape{1, 1, 2}));
}

// Later nodes are computed with the extents that inference gave the empty stack.
TEST(Loop, OfNoTripsStacksSlicesOfTheShapeThatItsFeedsTell) {
  auto symbols = std::make_shared<SymbolTable>();
  const Type rows = Type::tensor(DType::float32, SymbolicShape{symbols->symbol("n"), 3});
  auto body = std::make_unique<Graph>(symbols);
  body->add_input("i", kTrip);
  ValueId condition = body->add_input("cond_in", kCondition), x = body->add_input("x", rows);
  NodeId same = body->add_node({.op_type = "Neg", .inputs = {x}});
  body->outputs = {condition, body->node(same).outputs[0]};
  auto graph = std::make_unique<Graph>(symbols);
  ValueId outside = graph->add_input("rows", rows), trips = graph->add_input("M", kTrip);
  give_outputs(*graph, add_with_body(*graph, {.op_type = "Loop", .inputs = {trips, kNoValue}}, "body", std::move(body), {{x, outside}}));
  auto outputs = run(std::move(graph), {floats({2, 3}, std::vector<float>(6, 1)), Tensor::scalar<int64_t>(0)});
  EXPECT_EQ(outputs[0].tensor().shape(), (Shape{0, 2, 3}));
}

TEST(Loop, DrawsAnewInEachIteration) {
  auto symbols = std::make_shared<SymbolTable>();
  auto body = std::make_unique<Graph>(symbols);
  body->add_input("i", kTrip);
  ValueId condition = body->add_input("cond_in", kCondition);
  NodeId drawn = body->add_node({.op_type = "RandomUniform", .attributes = {{"shape", std::vector<int64_t>{2}}}});
  body->outputs = {condition, body->node(drawn).outputs[0]};
  auto graph = std::make_unique<Graph>(symbols);
  ValueId trips = graph->add_input("M", kTrip);
  give_outputs(*graph, add_with_body(*graph, {.op_type = "Loop", .inputs = {trips, kNoValue}}, "body", std::move(body)));
  auto outputs = run(std::move(graph), {Tensor::scalar<int64_t>(50)});
  const std::vector<float> numbers = values<float>(outputs[0].tensor());
  EXPECT_EQ(std::set<float>(numbers.begin(), numbers.end()).size(), 100U);
}

// Decompositions need ranks in bodies too, those of captured values and of results of earlier nodes.
TEST(If, BodiesAreRewrittenWithTheTypesOfWhatTheyRead) {
  auto symbols = std::make_shared<SymbolTable>();
  auto made_branch = [&](ValueId& x) {
    auto body = std::make_unique<Graph>(symbols);
    x = body->add_input("x", {});
    NodeId before = body->add_node({.op_type = "Neg", .inputs = {x}});
    NodeId product = body->add_node({.op_type = "FusedMatMul",
                                     .inputs = {body->node(before).outputs[0], x},
                                     .attributes = {{"transBatchA", int64_t{1}}},
                                     .domain = "com.microsoft"});
    body->outputs = {body->node(product).outputs[0]};
    return body;
  };
  auto graph = std::make_unique<Graph>(symbols);
  ValueId condition = graph->add_input("condition", kCondition),
          outside = graph->add_input("x", Type::tensor(DType::float32, SymbolicShape{2, 2, 2}));
  ValueId inner_then{}, inner_else{};
  auto then_branch = made_branch(inner_then), else_branch = made_branch(inner_else);
  NodeId id =
      add_with_body(*graph, {.op_type = "If", .inputs = {condition}}, "then_branch", std::move(then_branch), {{inner_then, outside}});
  Body other{"else_branch", std::move(else_branch), {}};
  other.captures.emplace_back(inner_else, 0);
  graph->node(id).bodies.push_back(std::move(other));
  give_outputs(*graph, id);
  auto outputs = run(std::move(graph), {Tensor::scalar<bool>(true), floats({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8})});
  EXPECT_EQ(outputs[0].tensor().shape(), (Shape{2, 2, 2}));
}

std::unique_ptr<Graph> branch(const std::shared_ptr<SymbolTable>& symbols, std::vector<float> content) {
  auto body = std::make_unique<Graph>(symbols);
  body->outputs = {body->add_constant("c", floats({static_cast<int64_t>(content.size())}, content))};
  return body;
}

TEST(If, ExtentsThatDifferBetweenTheBranchesAreDataDependent) {
  auto symbols = std::make_shared<SymbolTable>();
  auto graph = std::make_unique<Graph>(symbols);
  ValueId condition = graph->add_input("cond", kCondition);
  NodeId id = add_with_body(*graph, {.op_type = "If", .inputs = {condition}}, "then_branch", branch(symbols, {1, 2}));
  graph->node(id).bodies.push_back({"else_branch", branch(symbols, {3}), {}});
  give_outputs(*graph, id);
  infer(*graph);
  EXPECT_TRUE((*graph->type(graph->outputs[0]).shape)[0].data_dependent());
  auto outputs = run(std::move(graph), {Tensor::scalar<bool>(false)});
  EXPECT_EQ(values<float>(outputs[0].tensor()), (std::vector<float>{3}));
}

TEST(If, WithAKnownConditionHasTheTypeOfItsBranch) {
  auto symbols = std::make_shared<SymbolTable>();
  Graph graph(symbols);
  ValueId condition = graph.add_constant("cond", Tensor::scalar<bool>(true));
  NodeId id = add_with_body(graph, {.op_type = "If", .inputs = {condition}}, "then_branch", branch(symbols, {1, 2}));
  graph.node(id).bodies.push_back({"else_branch", branch(symbols, {3}), {}});
  infer(graph);
  EXPECT_EQ(to_string(graph.type(graph.node(id).outputs[0])), "f32[2]");
}

// Makes the body (sum, x) -> (sum + scale * x, same). `scale` is captured.
std::unique_ptr<Graph> sum_body(const std::shared_ptr<SymbolTable>& symbols, ValueId& scale) {
  auto body = std::make_unique<Graph>(symbols);
  ValueId sum = body->add_input("sum", {}), x = body->add_input("x", {});
  scale = body->add_input("scale", {});
  NodeId scaled = body->add_node({.op_type = "Mul", .inputs = {x, scale}});
  NodeId added = body->add_node({.op_type = "Add", .inputs = {sum, body->node(scaled).outputs[0]}});
  NodeId copy = body->add_node({.op_type = "Identity", .inputs = {body->node(added).outputs[0]}});
  body->outputs = {body->node(added).outputs[0], body->node(copy).outputs[0]};
  return body;
}

TEST(Scan, LengthsAndAxesGiveExactExtents) {
  auto symbols = std::make_shared<SymbolTable>();
  auto graph = std::make_unique<Graph>(symbols);
  Dim length = symbols->symbol("T");
  ValueId start = graph->add_input("start", Type::tensor(DType::float32, SymbolicShape{2}));
  ValueId x = graph->add_input("x", Type::tensor(DType::float32, SymbolicShape{2, length}));
  ValueId scale = graph->add_input("scale", Type::tensor(DType::float32, SymbolicShape{})), inside{};
  auto body = sum_body(symbols, inside);
  Attributes attributes{{"num_scan_inputs", int64_t{1}},
                        {"scan_input_axes", std::vector<int64_t>{-1}},
                        {"scan_input_directions", std::vector<int64_t>{1}},
                        {"scan_output_axes", std::vector<int64_t>{1}}};
  give_outputs(*graph, add_with_body(*graph, {.op_type = "Scan", .inputs = {start, x}, .attributes = attributes, .num_outputs = 2}, "body",
                                     std::move(body), {{inside, scale}}));
  infer(*graph);
  EXPECT_EQ(to_string(graph->type(graph->outputs[0])), "f32[2]");
  EXPECT_EQ(to_string(graph->type(graph->outputs[1])), "f32[2,T]");
  auto outputs = run(std::move(graph), {floats({2}, {0, 0}), floats({2, 3}, {1, 2, 3, 4, 5, 6}), Tensor::scalar<float>(10)});
  EXPECT_EQ(values<float>(outputs[0].tensor()), (std::vector<float>{60, 150}));
  EXPECT_EQ(values<float>(outputs[1].tensor()), (std::vector<float>{30, 50, 60, 60, 110, 150}));
}

TEST(Scan, OfOpset8RunsOverABatchOfSequencesOfTheirOwnLengths) {
  for (bool reverse : {false, true}) {
    auto symbols = std::make_shared<SymbolTable>();
    auto graph = std::make_unique<Graph>(symbols);
    ValueId lengths = graph->add_input("lens", Type::tensor(DType::int64, SymbolicShape{2}));
    ValueId start = graph->add_input("start", Type::tensor(DType::float32, SymbolicShape{2, 1}));
    ValueId x = graph->add_input("x", Type::tensor(DType::float32, SymbolicShape{2, 3, 1}));
    ValueId scale = graph->add_input("scale", Type::tensor(DType::float32, SymbolicShape{})), inside{};
    auto body = sum_body(symbols, inside);
    Attributes attributes{{"num_scan_inputs", int64_t{1}}, {"directions", std::vector<int64_t>{reverse}}};
    NodeId id = add_with_body(*graph, {.op_type = "Scan", .inputs = {lengths, start, x}, .attributes = attributes, .num_outputs = 2},
                              "body", std::move(body), {{inside, scale}});
    graph->node(id).version = 8;
    give_outputs(*graph, id);
    auto outputs = run(std::move(graph), {tensor<int64_t>({2}, {3, 2}), floats({2, 1}, {100, 200}), floats({2, 3, 1}, {1, 2, 3, 4, 5, 6}),
                                          Tensor::scalar<float>(1)});
    EXPECT_EQ(values<float>(outputs[0].tensor()), (std::vector<float>{106, 209}));
    const std::vector<float> forward = {101, 103, 106, 204, 209, 0}, backward = {103, 105, 106, 205, 209, 0};
    EXPECT_EQ(outputs[1].tensor().shape(), (Shape{2, 3, 1}));
    EXPECT_EQ(values<float>(outputs[1].tensor()), reverse ? backward : forward);
  }
}

}  // namespace
}  // namespace treadle
