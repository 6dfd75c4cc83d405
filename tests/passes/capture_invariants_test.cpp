#include "passes/captured_constants.h"
#include "passes/pipeline.h"
#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

const Type kTrip = Type::tensor(DType::int64, SymbolicShape{});
const Type kCondition = Type::tensor(DType::boolean, SymbolicShape{});

// Makes a Loop that computes x = x W. W is carried through unchanged or, if `changes`, becomes -W. The last W is an output of the graph.
std::unique_ptr<Graph> power(bool changes, int64_t trips) {
  auto symbols = std::make_shared<SymbolTable>();
  GraphBuilder b(symbols);
  const ValueId x = b.input("x", {b.symbol("n"), 3}), w = b.weights("W", {3, 3});
  const ValueId limit = b.graph().add_constant("trips", Tensor::scalar<int64_t>(trips));

  auto body = std::make_unique<Graph>(symbols);
  body->name = "body";
  body->add_input("i", kTrip);
  const ValueId condition = body->add_input("condition", kCondition);
  const ValueId weights = body->add_input("weights", Type::tensor(DType::float32));
  const ValueId state = body->add_input("state", Type::tensor(DType::float32));
  const NodeId product = body->add_node({.op_type = "MatMul", .inputs = {state, weights}, .name = "product", .output_names = {"next"}});
  ValueId passed = weights;
  if (changes) passed = body->node(body->add_node({.op_type = "Neg", .inputs = {weights}})).outputs[0];
  body->outputs = {condition, passed, body->node(product).outputs[0]};

  const NodeId loop = b.graph().add_node(
      {.op_type = "Loop", .inputs = {limit, kNoValue, w, x}, .name = "loop", .num_outputs = 2, .output_names = {"last_weights", "last"}});
  b.graph().node(loop).bodies.push_back({"body", std::move(body), {}});
  infer_node(b.graph(), loop);
  b.output(b.graph().node(loop).outputs[0]);
  b.output(b.graph().node(loop).outputs[1]);
  return b.take();
}

int64_t run_pass(Graph& graph) { return testing::pass(passes::capture_loop_invariants)(graph); }

TEST(CaptureLoopInvariants, WhatIsCarriedUnchangedComesFromOutside) {
  auto graph = power(/*changes=*/false, 3);
  auto change = [](Graph& g) {
    int64_t count = run_pass(g);
    infer(g);
    return count;
  };
  EXPECT_EQ(testing::changed(*graph, change, 1), R"(graph g(%x f32[n,3]) {
  %W = constant f32[3,3] {...}
  %trips = constant i64[] {3}
  %last f32[n,3] = Loop(%trips, -, %x, capture %W)
    body:
      graph body(%i i64[], %condition bool[], %state f32[n,3], %weights f32[3,3]) {
        %next f32[n,3] = MatMul(%state, %weights)
        return %condition, %next
      }
  return %W, %last
}
)");
}

TEST(CaptureLoopInvariants, ALoopThatNeverRunsGivesBackWhatItWasGiven) {
  auto graph = power(/*changes=*/false, 0);
  testing::changed(
      *graph,
      [](Graph& g) {
        int64_t count = run_pass(g);
        infer(g);
        return count;
      },
      1);
}

TEST(CaptureLoopInvariants, WhatChangesStays) {
  auto graph = power(/*changes=*/true, 3);
  testing::expect_unchanged(*graph, run_pass);
}

TEST(CaptureLoopInvariants, ACarriedWeightBecomesAConstantOfTheBody) {
  auto graph = power(/*changes=*/false, 3);
  passes::optimize(*graph, {.verify = true});
  const std::string text = print(*graph);
  EXPECT_NE(text.find("graph body(%i i64[], %condition bool[], %state f32[n,3])"), std::string::npos) << text;
  EXPECT_NE(text.find("%weights = constant f32[3,3]"), std::string::npos) << text;
}

}  // namespace
}  // namespace treadle
