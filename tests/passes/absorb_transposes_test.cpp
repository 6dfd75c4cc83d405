#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;
using Perm = std::vector<int64_t>;

TEST(AbsorbTransposes, ALinearLayerBecomesGemm) {
  GraphBuilder b;
  const ValueId x = b.input("x", {b.symbol("n"), 5, 3}), w = b.input("w", {4, 3});
  b.output(b.op("y", "MatMul", {x, b.op("wt", "Transpose", {w}, {{"perm", Perm{1, 0}}})}));
  auto graph = b.take();
  const std::string text = testing::changed(*graph, testing::pass(passes::absorb_transposes), 1);
  EXPECT_NE(text.find("= Gemm("), std::string::npos) << text;
  EXPECT_NE(text.find("transB=1"), std::string::npos) << text;
  EXPECT_EQ(text.find("Transpose"), std::string::npos) << text;
}

TEST(AbsorbTransposes, BothOperandsOfGemmTurn) {
  GraphBuilder b;
  const ValueId x = b.input("x", {3, 5}), w = b.input("w", {3, 4}), c = b.input("c", {4});
  const ValueId turned = b.op("xt", "Transpose", {x}), same = b.op("wt", "Transpose", {w}, {{"perm", Perm{1, 0}}});
  b.output(b.op("y", "Gemm", {turned, same, c}, {{"transB", int64_t{1}}, {"beta", 0.5F}}));
  auto graph = b.take();
  const std::string text = testing::changed(*graph, testing::pass(passes::absorb_transposes), 1);
  EXPECT_EQ(text.find("Transpose"), std::string::npos) << text;
  EXPECT_NE(text.find("{transB=0, beta=0.5, transA=1}"), std::string::npos) << text;
}

TEST(AbsorbTransposes, ATransposedGemmIsTheGemmOfTheOthers) {
  GraphBuilder b;
  const ValueId x = b.input("x", {5, 3}), dy = b.input("dy", {5, 4});
  b.output(b.op("y", "Transpose", {b.op("dw", "Gemm", {x, dy}, {{"transA", int64_t{1}}, {"alpha", 2.0F}})}));
  auto graph = b.take();
  const std::string text = testing::changed(*graph, testing::pass(passes::absorb_transposes), 1);
  EXPECT_EQ(text.find("Transpose"), std::string::npos) << text;
}

TEST(AbsorbTransposes, LeavesWhatItCannotTakeOver) {
  GraphBuilder b;
  const ValueId x = b.input("x", {2, 5, 3}), w = b.input("w", {2, 4, 3});
  b.output(b.op("batched", "MatMul", {x, b.op("wt", "Transpose", {w}, {{"perm", Perm{0, 2, 1}}})}));
  const ValueId a = b.input("a", {3, 4}), c = b.input("c", {5});
  const ValueId product = b.op("product", "Gemm", {a, b.input("d", {4, 5}), c});
  b.output(b.op("turned", "Transpose", {product}));
  const ValueId ints = b.input("ints", {3, 4}, DType::int32);
  b.output(b.op("whole", "MatMul", {ints, b.op("it", "Transpose", {b.input("more", {5, 4}, DType::int32)})}));
  auto graph = b.take();
  testing::expect_unchanged(*graph, testing::pass(passes::absorb_transposes));
}

}  // namespace
}  // namespace treadle
