#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

const char* const kGelu = "graph g(%x f32[n,40]) {\n  %y f32[n,40] = Gelu(%x)\n  return %y\n}\n";
const char* const kGeluTanh = "graph g(%x f32[n,40]) {\n  %y f32[n,40] = Gelu(%x) {approximate=\"tanh\"}\n  return %y\n}\n";

std::string fused(GraphBuilder& b, ValueId y) {
  b.output(y);
  auto graph = b.take();
  return testing::changed(*graph, testing::pass(passes::fuse_gelu), 1, 1e-6);
}

TEST(FuseGelu, ErfByDivisionAndHalfLast) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n"), 40});
  ValueId erf = b.op("erf", "Erf", {b.op("d", "Div", {x, b.scalar("root", 1.41421354F)})});
  ValueId gate = b.op("gate", "Add", {erf, b.scalar("one", 1)});
  EXPECT_EQ(fused(b, b.op("y", "Mul", {b.op("p", "Mul", {x, gate}), b.scalar("half", 0.5F)})), kGelu);
}

TEST(FuseGelu, ErfByProductAndHalfAtTheGate) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n"), 40});
  ValueId erf = b.op("erf", "Erf", {b.op("d", "Mul", {b.scalar("root", 0.70710678F), x})});
  ValueId gate = b.op("gate", "Mul", {b.scalar("half", 0.5F), b.op("sum", "Add", {b.scalar("one", 1), erf})});
  EXPECT_EQ(fused(b, b.op("y", "Mul", {x, gate})), kGelu);
}

TEST(FuseGelu, TanhWithPow) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n"), 40});
  ValueId cubic = b.op("cubic", "Mul", {b.op("cube", "Pow", {x, b.scalar("three", 3)}), b.scalar("c", 0.044715F)});
  ValueId argument = b.op("argument", "Mul", {b.op("sum", "Add", {x, cubic}), b.scalar("root", 0.797884583F)});
  ValueId gate = b.op("gate", "Add", {b.op("tanh", "Tanh", {argument}), b.scalar("one", 1)});
  EXPECT_EQ(fused(b, b.op("y", "Mul", {b.op("h", "Mul", {x, b.scalar("half", 0.5F)}), gate})), kGeluTanh);
}

TEST(FuseGelu, TanhWithXTakenOut) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n"), 40});
  ValueId square = b.op("square", "Mul", {b.op("cx", "Mul", {b.scalar("c", 0.044715F), x}), x});
  ValueId inner = b.op("inner", "Add", {b.scalar("one", 1), square});
  ValueId argument = b.op("argument", "Mul", {b.op("rx", "Mul", {x, b.scalar("root", 0.797884583F)}), inner});
  ValueId gate = b.op("gate", "Add", {b.scalar("one2", 1), b.op("tanh", "Tanh", {argument})});
  EXPECT_EQ(fused(b, b.op("y", "Mul", {b.op("p", "Mul", {x, gate}), b.scalar("half", 0.5F)})), kGeluTanh);
}

TEST(FuseGelu, HardSwishWithTheSixthLastOrAtTheGate) {
  const char* const swish = "graph g(%x f32[n,40]) {\n  %y f32[n,40] = HardSwish(%x)\n  return %y\n}\n";
  for (bool last : {true, false}) {
    GraphBuilder b;
    ValueId x = b.input("x", {b.symbol("n"), 40}), six = b.scalar("six", 6);
    ValueId clip = b.op("clip", "Clip", {b.op("sum", "Add", {x, b.scalar("three", 3)}), b.scalar("zero", 0), six});
    EXPECT_EQ(fused(b, last ? b.op("y", "Div", {b.op("p", "Mul", {x, clip}), six}) : b.op("y", "Mul", {x, b.op("g", "Div", {clip, six})})),
              swish);
  }
}

TEST(FuseGelu, LeavesOtherBoundsAndSums) {
  for (const auto& [shift, high] : {std::pair{3.0F, 5.0F}, std::pair{2.0F, 6.0F}}) {
    GraphBuilder b;
    ValueId x = b.input("x", {2, 40});
    ValueId clip = b.op("clip", "Clip", {b.op("sum", "Add", {x, b.scalar("shift", shift)}), b.scalar("zero", 0), b.scalar("high", high)});
    b.output(b.op("y", "Div", {b.op("p", "Mul", {x, clip}), b.scalar("six", 6)}));
    auto graph = b.take();
    testing::expect_unchanged(*graph, testing::pass(passes::fuse_gelu));
  }
}

TEST(FuseGelu, SigmoidOfXAndOfAMultiple) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n"), 40});
  EXPECT_EQ(fused(b, b.op("y", "Mul", {b.op("s", "Sigmoid", {x}), x})),
            "graph g(%x f32[n,40]) {\n  %y f32[n,40] = Swish(%x)\n  return %y\n}\n");
  GraphBuilder c;
  x = c.input("x", {c.symbol("n"), 40});
  ValueId scaled = c.op("scaled", "Mul", {x, c.scalar("alpha", 1.5F)});
  EXPECT_EQ(fused(c, c.op("y", "Mul", {x, c.op("s", "Sigmoid", {scaled})})),
            "graph g(%x f32[n,40]) {\n  %y f32[n,40] = Swish(%x) {alpha=1.5}\n  return %y\n}\n");
}

TEST(FuseGelu, LeavesOtherConstantsAndOtherArguments) {
  GraphBuilder b;
  ValueId x = b.input("x", {4, 4}), z = b.input("z", {4, 4});
  auto gelu = [&](std::string name, ValueId argument, float root, float half) {
    ValueId erf = b.op(name + "erf", "Erf", {b.op(name + "d", "Div", {argument, b.scalar(name + "root", root)})});
    ValueId gate = b.op(name + "gate", "Add", {erf, b.scalar(name + "one", 1)});
    b.output(b.op(name, "Mul", {b.op(name + "p", "Mul", {x, gate}), b.scalar(name + "half", half)}));
  };
  gelu("a", x, 1.5F, 0.5F);
  gelu("b", x, 1.41421354F, 1);
  gelu("c", z, 1.41421354F, 0.5F);
  auto graph = b.take();
  testing::expect_unchanged(*graph, testing::pass(passes::fuse_gelu));
}

}  // namespace
}  // namespace treadle
