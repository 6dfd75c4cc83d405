#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;
using Ints = std::vector<int64_t>;

struct Spelling {
  bool neighbors = false, cos_first = true, rotated_first = false, add_swapped = false, split = false;
  int64_t size = 8, half = 4;
};

ValueId slice(GraphBuilder& b, const std::string& name, ValueId x, int64_t start, int64_t end, int64_t step = 1) {
  return b.op(
      name, "Slice",
      {x, b.ints(name + "_start", {start}), b.ints(name + "_end", {end}), b.ints(name + "_axis", {-1}), b.ints(name + "_step", {step})});
}

ValueId rotated(GraphBuilder& b, ValueId x, const Spelling& s) {
  if (s.neighbors) {
    const ValueId odd = b.op("odd", "Unsqueeze", {b.op("minus", "Neg", {slice(b, "x1", x, 1, INT64_MAX, 2)}), b.ints("last", {-1})});
    const ValueId even = b.op("even", "Unsqueeze", {slice(b, "x0", x, 0, INT64_MAX, 2), b.ints("last0", {-1})});
    const ValueId stacked = b.op("stacked", "Concat", {odd, even}, {{"axis", int64_t{-1}}});
    return b.op("rotated", "Reshape", {stacked, b.ints("flat", {0, 0, 0, s.size})});
  }
  ValueId first, second;
  if (s.split) {
    auto parts = b.node("halves", "Split", {x, b.ints("lengths", {s.half, s.size - s.half})}, {{"axis", int64_t{-1}}}, 2);
    first = parts[0], second = parts[1];
  } else {
    first = slice(b, "first", x, 0, s.half), second = slice(b, "second", x, s.half, INT64_MAX);
  }
  return b.op("rotated", "Concat", {b.op("minus", "Neg", {second}), first}, {{"axis", int64_t{3}}});
}

ValueId embedding(GraphBuilder& b, ValueId x, ValueId cos, ValueId sin, const Spelling& s = {}) {
  const ValueId r = rotated(b, x, s);
  const ValueId straight = b.op("straight", "Mul", s.cos_first ? std::vector{cos, x} : std::vector{x, cos});
  const ValueId turned = b.op("turned", "Mul", s.rotated_first ? std::vector{r, sin} : std::vector{sin, r});
  return b.op("y", "Add", s.add_swapped ? std::vector{turned, straight} : std::vector{straight, turned});
}

std::string op_types(const Graph& graph) {
  std::string names;
  for (NodeId id : graph.order()) names += graph.node(id).op_type + " ";
  return names;
}

TEST(FuseRotary, EverySpelling) {
  for (int bits = 0; bits < 32; ++bits) {
    const Spelling s{(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0, (bits & 16) != 0};
    if (s.neighbors && s.split) continue;
    for (int64_t size : {8, 70}) {  // a size below that of a vector, and one of several vectors and a remainder
      Spelling sized = s;
      sized.size = size, sized.half = size / 2;
      GraphBuilder b;
      const ValueId x = b.input("x", {b.symbol("batch"), 3, b.symbol("length"), size});
      const ValueId cos = b.input("cos", {1, 1, b.symbol("length"), size}),
                    sin = b.input("sin", {b.symbol("batch"), 1, b.symbol("length"), size});
      b.output(embedding(b, x, cos, sin, sized));
      auto graph = b.take();
      testing::changed(*graph, testing::pass(passes::fuse_rotary), 1, 3e-7);
      EXPECT_EQ(op_types(*graph), "FusedRotary ");
      EXPECT_EQ(graph->node(graph->first()).attributes.get_int("interleaved"), s.neighbors ? 1 : 0);
    }
  }
}

TEST(FuseRotary, AnglesOfFewerAxes) {
  GraphBuilder b;
  const ValueId x = b.input("x", {2, 3, 5, 8});
  b.output(embedding(b, x, b.input("cos", {5, 8}), b.input("sin", {8})));
  auto graph = b.take();
  testing::changed(*graph, testing::pass(passes::fuse_rotary), 1, 3e-7);
}

TEST(FuseRotary, LeavesOtherSumsAlone) {
  auto stays = [](auto build) {
    GraphBuilder b;
    const ValueId x = b.input("x", {2, 3, 5, 8}), cos = b.input("cos", {1, 1, 5, 8}), sin = b.input("sin", {1, 1, 5, 8});
    build(b, x, cos, sin);
    auto graph = b.take();
    testing::expect_unchanged(*graph, testing::pass(passes::fuse_rotary));
  };
  // The two parts are not halves.
  stays([](GraphBuilder& b, ValueId x, ValueId cos, ValueId sin) { b.output(embedding(b, x, cos, sin, {.half = 3})); });
  // The rotated features are those of another value.
  stays([](GraphBuilder& b, ValueId x, ValueId cos, ValueId sin) {
    const ValueId other = b.input("other", {2, 3, 5, 8});
    b.output(b.op("y", "Add", {b.op("straight", "Mul", {x, cos}), b.op("turned", "Mul", {rotated(b, other, {}), sin})}));
  });
  // The rotated value is also an output of the graph.
  stays([](GraphBuilder& b, ValueId x, ValueId cos, ValueId sin) {
    b.output(embedding(b, x, cos, sin));
    b.output(b.graph().find_value("rotated"));
  });
  // Some angles broadcast x, and others are one angle for all features.
  stays([](GraphBuilder& b, ValueId, ValueId cos, ValueId sin) { b.output(embedding(b, b.input("row", {1, 1, 1, 8}), cos, sin)); });
  stays([](GraphBuilder& b, ValueId x, ValueId cos, ValueId) { b.output(embedding(b, x, cos, b.input("angle", {1, 1, 5, 1}))); });
  // There is no negation, or the halves are not swapped.
  stays([](GraphBuilder& b, ValueId x, ValueId cos, ValueId sin) {
    const ValueId first = slice(b, "first", x, 0, 4), second = slice(b, "second", x, 4, 8);
    const ValueId r = b.op("r", "Concat", {second, first}, {{"axis", int64_t{3}}});
    b.output(b.op("y", "Add", {b.op("straight", "Mul", {x, cos}), b.op("turned", "Mul", {r, sin})}));
  });
  stays([](GraphBuilder& b, ValueId x, ValueId cos, ValueId sin) {
    const ValueId first = slice(b, "first", x, 0, 4), second = slice(b, "second", x, 4, 8);
    const ValueId r = b.op("r", "Concat", {b.op("minus", "Neg", {first}), second}, {{"axis", int64_t{3}}});
    b.output(b.op("y", "Add", {b.op("straight", "Mul", {x, cos}), b.op("turned", "Mul", {r, sin})}));
  });
}

TEST(RotaryLayouts, TransposesBecomeStrides) {
  for (bool neighbors : {false, true}) {
    GraphBuilder b;
    const ValueId x = b.input("x", {b.symbol("batch"), b.symbol("length"), 3, 8});
    const ValueId heads = b.op("heads", "Transpose", {x}, {{"perm", Ints{0, 2, 1, 3}}});
    const ValueId y = embedding(b, heads, b.input("cos", {b.symbol("batch"), 1, b.symbol("length"), 8}),
                                b.input("sin", {1, 1, b.symbol("length"), 8}), {.neighbors = neighbors});
    b.output(b.op("back", "Transpose", {y}, {{"perm", Ints{0, 2, 1, 3}}}));
    auto graph = b.take();
    auto both = [](Graph& g) { return testing::pass(passes::fuse_rotary)(g) + testing::pass(passes::rotary_layouts)(g); };
    testing::changed(*graph, both, 3, 3e-7);
    EXPECT_EQ(op_types(*graph), "FusedRotary ");
  }
}

TEST(RotaryLayouts, OtherTransposesAndSharedResultsStay) {
  GraphBuilder b;
  const ValueId x = b.input("x", {2, 5, 3, 8});
  const ValueId heads = b.op("heads", "Transpose", {x}, {{"perm", Ints{0, 2, 1, 3}}});
  const ValueId y =
      b.node("y", "FusedRotary", {heads, b.input("cos", {5, 8}), b.input("sin", {5, 8})}, {{"x_layout", int64_t{0}}}, 1, "treadle")[0];
  b.output(b.op("keys", "Transpose", {y}, {{"perm", Ints{0, 1, 3, 2}}}));
  b.output(b.op("turned", "Transpose", {y}, {{"perm", Ints{0, 2, 1, 3}}}));
  auto graph = b.take();
  testing::changed(*graph, testing::pass(passes::rotary_layouts), 1, 0);
  EXPECT_EQ(op_types(*graph), "FusedRotary Transpose Transpose ");
}

}  // namespace
}  // namespace treadle
