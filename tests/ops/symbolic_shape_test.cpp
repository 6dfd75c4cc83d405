// Tests shape arithmetic with symbols as exporters write it: the inferred shapes must be exact.
#include <gtest/gtest.h>

#include "tests/graph/graph_builder.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

std::string inferred(GraphBuilder& b, ValueId value) { return to_string(b.graph().type(value)); }

TEST(SymbolicShapes, HeadsAreSplitAndMergedExactly) {
  GraphBuilder b;
  Dim n = b.symbol("N"), past = b.symbol("past"), seq = b.symbol("seq");
  ValueId x = b.input("x", {n, past + seq, 768});
  ValueId shape = b.op("shape", "Shape", {x});
  ValueId batch = b.op("batch", "Gather", {shape, b.constant<int64_t>("zero", Shape{}, {0})}, {{"axis", int64_t{0}}});
  ValueId batch1 = b.op("batch1", "Unsqueeze", {batch, b.ints("axis0", {0})});
  ValueId wanted = b.op("wanted", "Concat", {batch1, b.ints("rest", {-1, 12, 64})}, {{"axis", int64_t{0}}});
  ValueId heads = b.op("heads", "Reshape", {x, wanted});
  EXPECT_EQ(inferred(b, heads), "f32[N,past + seq,12,64]");
  ValueId turned = b.op("turned", "Transpose", {heads}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
  EXPECT_EQ(inferred(b, turned), "f32[N,12,past + seq,64]");
  EXPECT_EQ(inferred(b, b.op("flat", "Flatten", {turned}, {{"axis", int64_t{2}}})), "f32[12*N,64*past + 64*seq]");
}

// A 0 in a shape copies the extent of the data, even if the 0 is computed.
TEST(SymbolicShapes, AnExtentThatMayBeZeroInARunIsCopiedThen) {
  GraphBuilder b;
  Dim n = b.symbol("N"), a = b.symbol("a"), s = b.symbol("s");
  ValueId n_of = b.op("n_of", "Shape", {b.input("n", {n})});
  auto reshaped = [&](std::string_view name, ValueId data, std::vector<int64_t> rest) {
    ValueId wanted =
        b.op(std::string(name) + "/shape", "Concat", {n_of, b.ints(std::string(name) + "/rest", rest)}, {{"axis", int64_t{0}}});
    return inferred(b, b.op(name, "Reshape", {data, wanted}));
  };
  EXPECT_EQ(reshaped("any", b.input("x", {a, s}), {0}), "f32[N + a - a*min(1, N),s]");
  EXPECT_EQ(reshaped("zero_with_it", b.input("y", {n * Dim(12), s}), {12, -1}), "f32[N,12,s]");
  EXPECT_EQ(reshaped("empty_with_it", b.input("z", {s, n * Dim(6)}), {6, -1}), "f32[N,6,s]");
}

TEST(SymbolicShapes, ConstantsThatWrapAroundAreNotKnown) {
  GraphBuilder b;
  ValueId most = b.ints("most", {INT64_MAX}), least = b.ints("least", {INT64_MIN});
  for (const char* op : {"Add", "Sub", "Mul", "Less", "Equal", "GreaterOrEqual"}) {
    EXPECT_NO_THROW(b.op(op, op, {most, least})) << op;
    EXPECT_NO_THROW(b.op(op, op, {least, most})) << op;
  }
  EXPECT_NO_THROW(b.op("negated", "Neg", {least}));
  EXPECT_NO_THROW(b.op("size", "Abs", {least}));
  EXPECT_NO_THROW(b.op("product", "ReduceProd", {b.ints("both", {INT64_MAX, INT64_MIN})}));
  // The sum 200 + 100 wraps around to 44 in a byte.
  ValueId sum = b.op("sum", "Add", {b.constant<uint8_t>("a", Shape{1}, {200}), b.constant<uint8_t>("b", Shape{1}, {100})});
  ValueId wide = b.op("wide", "Cast", {sum}, {{"to", static_cast<int64_t>(DType::int64)}});
  EXPECT_NE(inferred(b, b.op("filled", "ConstantOfShape", {wide})), "f32[300]");
}

TEST(SymbolicShapes, SlicesOfSymbolsAreExact) {
  GraphBuilder b;
  Dim past = b.symbol("past"), seq = b.symbol("seq");
  ValueId x = b.input("x", {past + seq});
  auto slice = [&](std::string_view name, ValueId start, ValueId end, int64_t step = 1) {
    return inferred(b, b.op(name, "Slice", {x, start, end, b.ints("a", {0}), b.ints("s", {step})}));
  };
  constexpr int64_t kMax = INT64_MAX;
  EXPECT_EQ(slice("all", b.ints("i", {0}), b.ints("i", {kMax})), "f32[past + seq]");
  EXPECT_EQ(slice("second", b.ints("i", {0}), b.ints("i", {kMax}), 2), "f32[floor_div(past + seq + 1, 2)]");
  EXPECT_EQ(slice("reversed", b.ints("i", {-1}), b.ints("i", {INT64_MIN}), -1), "f32[past + seq]");
  EXPECT_EQ(slice("first", b.ints("i", {0}), b.ints("i", {5})), "f32[min(5, past + seq)]");
  EXPECT_EQ(slice("but_last", b.ints("i", {0}), b.ints("i", {-1})), "f32[max(0, past + seq - 1)]");
  EXPECT_EQ(slice("last", b.ints("i", {-1}), b.ints("i", {kMax})), "f32[min(1, past + seq)]");
  EXPECT_EQ(slice("from", b.ints("i", {2}), b.ints("i", {kMax})), "f32[max(0, past + seq - 2)]");
  ValueId seq_of = b.op("seq_of", "Shape", {b.input("y", {seq})}), past_of = b.op("past_of", "Shape", {b.input("z", {past})});
  EXPECT_EQ(slice("to_symbol", b.ints("i", {0}), seq_of), "f32[seq]");
  EXPECT_EQ(slice("from_symbol", past_of, b.ints("i", {kMax})), "f32[seq]");
  EXPECT_EQ(slice("window", past_of, b.op("total", "Shape", {x})), "f32[seq]");
}

TEST(SymbolicShapes, RangesFillsAndTilesFollowSymbols) {
  GraphBuilder b;
  Dim n = b.symbol("N");
  ValueId x = b.input("x", {n, 6});
  ValueId count = b.op("count", "Squeeze", {b.op("n1", "Shape", {x}, {{"end", int64_t{1}}})});
  ValueId zero = b.constant<int64_t>("zero", Shape{}, {0}), one = b.constant<int64_t>("one", Shape{}, {1});
  EXPECT_EQ(inferred(b, b.op("range", "Range", {zero, count, one})), "i64[N]");
  ValueId filled = b.op("filled", "ConstantOfShape", {b.op("s", "Shape", {x})});
  EXPECT_EQ(inferred(b, filled), "f32[N,6]");
  EXPECT_EQ(inferred(b, b.op("tiled", "Tile", {x, b.ints("r", {2, 1})})), "f32[2*N,6]");
}

}  // namespace
}  // namespace treadle
