#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;
using Perm = std::vector<int64_t>;

std::string op_types(const Graph& graph) {
  std::string names;
  for (NodeId id : graph.order()) names += graph.node(id).op_type + " ";
  return names;
}

struct Heads {
  ValueId q, k, v;
};
Heads heads(GraphBuilder& b, Dim keys = 7) {
  return {b.input("q", {2, 3, 5, 8}), b.input("k", {2, 3, keys, 8}), b.input("v", {2, 3, keys, 8})};
}
ValueId scores(GraphBuilder& b, ValueId q, ValueId k) {
  return b.op("scores", "MatMul", {q, b.op("kt", "Transpose", {k}, {{"perm", Perm{0, 1, 3, 2}}})});
}
int64_t fused(Graph& graph, int64_t count = 1) {
  testing::changed(graph, testing::pass(passes::fuse_attention), count, 2e-6);
  return static_cast<int64_t>(graph.num_nodes());
}

TEST(FuseAttention, EagerBertWithAnAddedMask) {
  GraphBuilder b;
  auto [q, k, v] = heads(b, b.symbol("keys"));
  ValueId scaled = b.op("scaled", "Div", {scores(b, q, k), b.scalar("root", 2.828427F)});
  ValueId masked = b.op("masked", "Add", {scaled, b.input("mask", {2, 1, 1, b.symbol("keys")})});
  b.output(b.op("y", "MatMul", {b.op("p", "Softmax", {masked}, {{"axis", int64_t{-1}}}), v}));
  auto graph = b.take();
  fused(*graph);
  EXPECT_EQ(op_types(*graph), "FusedAttention ");
  EXPECT_NEAR(graph->node(graph->first()).attributes.get_float("scale"), 0.35355339F, 1e-6F);
}

TEST(FuseAttention, ScaleSplitBetweenQueriesAndKeysAndAChosenConstant) {
  for (bool keeps : {false, true}) {
    GraphBuilder b;
    auto [q, k, v] = heads(b);
    ValueId half = b.scalar("half", 0.5F), number = b.scalar("number", -1e9F), condition = b.input("condition", {5, 7}, DType::boolean);
    ValueId kt = b.op("kt", "Transpose", {k}, {{"perm", Perm{0, 1, 3, 2}}});
    ValueId product = b.op("product", "MatMul", {b.op("qs", "Mul", {q, half}), b.op("ks", "Mul", {kt, half})});
    ValueId masked = b.op("masked", "Where", {condition, keeps ? product : number, keeps ? number : product});
    b.output(b.op("y", "MatMul", {b.op("p", "Softmax", {masked}), v}));
    auto graph = b.take();
    fused(*graph);
    EXPECT_EQ(op_types(*graph), "FusedAttention ");
  }
}

TEST(FuseAttention, RowsOfNaNThatBecomeZeros) {
  GraphBuilder b;
  auto [q, k, v] = heads(b);
  // The mask hides all keys from the first query.
  std::vector<float> mask(35, 0);
  std::fill_n(mask.begin(), 7, -INFINITY);
  ValueId masked = b.op("masked", "Add", {scores(b, q, k), b.constant<float>("mask", Shape{5, 7}, mask)});
  ValueId p = b.op("p", "Softmax", {masked});
  ValueId clean = b.op("clean", "Where", {b.op("isnan", "IsNaN", {p}), b.scalar("zero", 0), p});
  b.output(b.op("y", "MatMul", {clean, v}));
  auto graph = b.take();
  fused(*graph);
  EXPECT_EQ(op_types(*graph), "FusedAttention ");
}

TEST(FuseAttention, NoKeysGiveZeros) {
  GraphBuilder b;
  auto [q, k, v] = heads(b, 0);
  b.output(b.op("y", "MatMul", {b.op("p", "Softmax", {scores(b, q, k)}), v}));
  auto graph = b.take();
  fused(*graph);
}

TEST(FuseAttention, HeadsOfKeysThatQueriesShare) {
  GraphBuilder b;
  ValueId q = b.input("q", {2, 6, 5, 8});
  auto repeated = [&](std::string name) {
    ValueId x = b.input(name, {2, 2, 7, 8});
    ValueId one = b.op(name + "_one", "Unsqueeze", {x, b.ints(name + "_axis", {2})});
    ValueId many = b.op(name + "_many", "Expand", {one, b.ints(name + "_shape", {2, 2, 3, 7, 8})});
    return b.op(name + "_heads", "Reshape", {many, b.ints(name + "_merged", {2, 6, 7, 8})});
  };
  ValueId k = repeated("k"), v = repeated("v");
  b.output(b.op("y", "MatMul", {b.op("p", "Softmax", {scores(b, q, k)}), v}));
  auto graph = b.take();
  fused(*graph);
  EXPECT_EQ(op_types(*graph), "FusedAttention ");
}

TEST(FuseAttention, LeavesAMaskThatStretchesTheScores) {
  GraphBuilder b;
  ValueId q = b.input("q", {1, 3, 5, 8}), k = b.input("k", {1, 3, 7, 8}), v = b.input("v", {1, 3, 7, 8});
  ValueId masked = b.op("masked", "Add", {scores(b, q, k), b.input("mask", {2, 1, 1, 7})});
  b.output(b.op("y", "MatMul", {b.op("p", "Softmax", {masked}), v}));
  auto graph = b.take();
  testing::expect_unchanged(*graph, testing::pass(passes::fuse_attention));
}

// The extent n of the scores may be 1 in a run. The mask would then broadcast them.
TEST(FuseAttention, LeavesAMaskThatMayStretchTheScores) {
  GraphBuilder b;
  const Dim n = b.symbol("n");
  ValueId q = b.input("q", {2, 3, n, 8}), k = b.input("k", {2, 3, n, 8}), v = b.input("v", {2, 3, n, 8});
  ValueId masked = b.op("masked", "Add", {scores(b, q, k), b.input("mask", {2, 1})});
  b.output(b.op("y", "MatMul", {b.op("p", "Softmax", {masked}), v}));
  auto graph = b.take();
  EXPECT_EQ(testing::pass(passes::fuse_attention)(*graph), 0);
}

TEST(FuseAttention, LeavesAnotherAxisAndProbabilitiesThatAreRead) {
  GraphBuilder b;
  auto [q, k, v] = heads(b, 5);
  ValueId product = scores(b, q, k);
  b.output(b.op("y", "MatMul", {b.op("p", "Softmax", {product}, {{"axis", int64_t{2}}}), v}));
  ValueId read = b.op("read", "Softmax", {b.op("scores2", "MatMul", {q, b.op("kt2", "Transpose", {k}, {{"perm", Perm{0, 1, 3, 2}}})})});
  b.output(b.op("z", "MatMul", {read, v}));
  b.output(read);
  auto graph = b.take();
  testing::expect_unchanged(*graph, testing::pass(passes::fuse_attention));
}

// Tests of transposes before and after attention.

std::string layouts(Graph& graph, int64_t count) {
  testing::changed(graph, testing::pass(passes::attention_layouts), count);
  return op_types(graph);
}
ValueId attention(GraphBuilder& b, ValueId q, ValueId k, ValueId v) {
  return b.node("attention", "FusedAttention", {q, k, v}, {{"scale", 0.3F}}, 1, "treadle")[0];
}

TEST(AttentionLayouts, TransposesOfEveryOperandAndOfTheResult) {
  GraphBuilder b;
  auto turned = [&](std::string name) {
    return b.op(name + "_t", "Transpose", {b.input(name, {2, 5, 3, 8})}, {{"perm", Perm{0, 2, 1, 3}}});
  };
  ValueId q = turned("q"), k = turned("k"), v = turned("v");
  b.output(b.op("y", "Transpose", {attention(b, q, k, v)}, {{"perm", Perm{0, 2, 1, 3}}}));
  auto graph = b.take();
  EXPECT_EQ(layouts(*graph, 4), "FusedAttention ");
}

TEST(AttentionLayouts, PartsOfOneProduct) {
  GraphBuilder b;
  ValueId packed = b.op("packed", "Transpose", {b.input("x", {2, 5, 3, 4, 8})}, {{"perm", Perm{2, 0, 3, 1, 4}}});
  std::vector<ValueId> parts = b.node("parts", "Split", {packed}, {{"axis", int64_t{0}}, {"num_outputs", int64_t{3}}}, 3);
  ValueId zero = b.ints("zero", {0});
  ValueId q = b.op("q", "Squeeze", {parts[0], zero});
  ValueId k = b.op("k", "Squeeze", {b.op("slice", "Slice", {packed, b.ints("one", {1}), b.ints("two", {2}), zero}), zero});
  ValueId v = b.op("v", "Gather", {packed, b.constant<int64_t>("index", Shape{}, {2})});
  b.output(attention(b, q, k, v));
  auto graph = b.take();
  EXPECT_EQ(layouts(*graph, 3), "FusedAttention ");
}

TEST(AttentionLayouts, PartsThatASplitCopies) {
  GraphBuilder b;
  std::vector<ValueId> parts =
      b.node("parts", "Split", {b.input("x", {b.symbol("n"), 5, 96})}, {{"axis", int64_t{2}}, {"num_outputs", int64_t{3}}}, 3);
  auto seen = [&](std::string name, ValueId part) {
    ValueId view = b.op(name + "_view", "Reshape", {part, b.ints(name + "_shape", {0, 0, 4, 8})});
    return b.op(name, "Transpose", {view}, {{"perm", Perm{0, 2, 1, 3}}});
  };
  ValueId q = seen("q", parts[0]), k = seen("k", parts[1]), v = seen("v", parts[2]);
  b.output(attention(b, q, k, v));
  auto graph = b.take();
  EXPECT_EQ(layouts(*graph, 6), "Reshape Reshape Reshape FusedAttention ");
}

TEST(AttentionLayouts, LeavesOtherPermutations) {
  GraphBuilder b;
  ValueId q = b.op("qt", "Transpose", {b.input("q", {3, 2, 5, 8})}, {{"perm", Perm{1, 0, 2, 3}}});
  b.output(b.op("y", "Transpose", {attention(b, q, b.input("k", {2, 3, 5, 8}), b.input("v", {2, 3, 5, 8}))}, {{"perm", Perm{1, 0, 2, 3}}}));
  auto graph = b.take();
  testing::expect_unchanged(*graph, testing::pass(passes::attention_layouts));
}

}  // namespace
}  // namespace treadle
