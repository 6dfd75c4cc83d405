// Graphs that the fuzzer found (docs/fuzzing.md), in shrunk form. They run in every standard setting, and results must equal the
// interpreter's.
#include <gtest/gtest.h>

#include "tests/graphs/settings.h"

namespace treadle::graphs {
namespace {

void expect_right(const char* text) {
  const Case c = parse(text);
  const Judgement judgement = judge(c);
  for (const Setting& setting : standard_settings()) EXPECT_EQ(run_case(c, judgement, setting), "") << to_string(setting);
}

TEST(FoundGraphs, ConcatOfConcatsAlongAnotherAxis) {
  expect_right(R"(
opset 21
input x uint8 [1,1,1,1,1]
a = Concat(x, x) axis=1
y = Concat(a, a) axis=-1
output y uint8
feeds
feed x [1,1,1,1,1] = 4
)");
}

TEST(FoundGraphs, ConcatOfComputedConcat) {
  expect_right(R"(
opset 21
input a float32 [1,4]
input b float32 [1,4]
input c float32 [2,4]
ta = Tanh(a)
tb = Tanh(b)
tc = Tanh(c)
rows = Concat(ta, tb) axis=0
y = Concat(rows, tc) axis=1
output y float32
feeds
feed a [1,4] = 1 2 3 4
feed b [1,4] = 0.1 0.2 0.3 0.4
feed c [2,4] = -1 -2 -3 -4 0.5 0.6 0.7 0.8
)");
}

TEST(FoundGraphs, SplitOfSplitAlongAnotherAxis) {
  expect_right(R"(
opset 21
input x float32 [2,2,1,3]
constant lengths int64 [2] = 1 1
a, b, c = Split(x) axis=3 num_outputs=3
d, e = Split(c, lengths) axis=1
output e float32
feeds
feed x [2,2,1,3] = 1 2 3 4 5 6 7 8 9 10 11 12
)");
}

TEST(FoundGraphs, SplitConcatAlongAnotherAxis) {
  expect_right(R"(
opset 21
input x float32 [1,1,1,2,6]
a, b = Split(x) axis=4 num_outputs=2
y = Concat(a, b) axis=3
output y float32
feeds
feed x [1,1,1,2,6] = 1 2 3 4 5 6 7 8 9 10 11 12
)");
}

TEST(FoundGraphs, ConvScaledSplitTwice) {
  expect_right(R"(
opset 21
input x float32 [1,4,1,4]
input m float32 [1,4,1,1]
constant w float32 [4,4,1,1] = -0.25 -2.25 -1.25 0.5 -1.75 -2.25 3 0.75 -1.75 0 -1.5 0.75 0 0.75 0 -1
s = Conv(m, w)
p = Mul(x, s)
a, b, c, d = Split(p) axis=1 num_outputs=4
e, f, g = Split(c) axis=-1 num_outputs=3
output f float32
feeds
feed m [1,4,1,1] = 0.25 0.5 -0.25 1
feed x [1,4,1,4] = 3 -2 2 0 -1 0 2.25 0 -1.5 2 0 -1.75 2 1.5 -0.5 -1.75
)");
}

TEST(FoundGraphs, SplitJoinedInABody) {
  expect_right(R"(
opset 21
input x float32 [2,3]
input n int64 []
constant trips int64 [] = 2
y = Loop(trips, -, x)
  body {
    input i int64
    input go_on bool
    input state float32
    a, b = Split(state) axis=1 num_outputs=2
    t = Neg(b)
    next = Concat(t, a) axis=1
    again = Identity(go_on)
    output again bool
    output next float32
  }
output y float32
feeds
feed x [2,3] = 1 2 3 4 5 6
feed n [] = 1
)");
}

TEST(FoundGraphs, SequenceOfViewsJoined) {
  expect_right(R"(
opset 21
input x float32 [2,2]
constant shape int64 [2] = 1 4
a = Neg(x)
v = Reshape(a, shape)
s = SequenceConstruct(v, v)
b = Relu(a)
y = ConcatFromSequence(s) axis=0
output y float32
output b float32
feeds
feed x [2,2] = 1 -2 3 -4
)");
}

TEST(FoundGraphs, AttentionWithoutHeads) {
  expect_right(R"(
opset 21
input x float32 [1,M,1,2]
t = Transpose(x) perm=[0,1,3,2]
scores = MatMul(x, t)
p = Softmax(scores) axis=-1
y = MatMul(p, x)
output y float32
feeds
feed x [1,0,1,2] =
feeds
feed x [1,2,1,2] = 1 2 3 4
)");
}

TEST(FoundGraphs, AttentionOfNoRows) {
  expect_right(R"(
opset 21
input x float32 [1,1,0,1]
t = Transpose(x) perm=[0,1,3,2]
scores = MatMul(x, t)
p = Softmax(scores) axis=-1
y = MatMul(p, x)
output y float32
feeds
feed x [1,1,0,1] =
)");
}

// N is only known during the run. With channels last, the image is viewed as [N,1,-1,1], which is ambiguous if N is 0.
TEST(FoundGraphs, ConvolutionOfNoImagesBehindAnIf) {
  expect_right(R"(
opset 21
input x float32 [N,1,1,3]
input take bool []
constant w float32 [1,1,2,3] = 0.5 1 -1 2 0.25 -2
constant k int64 [1] = 2
chosen = If(take) 
  then_branch {
    output x float32
  }
  else_branch {
    t, i = TopK(x, k) axis=3 largest=0
    output t float32
  }
y = Conv(chosen, w) kernel_shape=[2,3] strides=[2,1] pads=[1,1,1,1] group=1
output y float32
feeds
feed x [0,1,1,3] =
feed take [] = 0
feeds
feed x [2,1,1,3] = 1 2 3 -1 5 -2
feed take [] = 0
)");
}

// Rounding alone decides whether y is 0 or 1, and whether z is 0 or -3e-7.
TEST(FoundGraphs, ResultsThatRoundingDecides) {
  expect_right(R"(
opset 21
input x float32 []
t = Tanh(x)
y = Cast(t) to=6
g = Neg(x)
z = Gelu(g) approximate="tanh"
output y int32
output z float32
feeds
feed x [] = 9.505440711975098
feeds
feed x [] = 5.059406280517578
)");
}

// Apart from rounding, the last element equals the mean.
TEST(FoundGraphs, RoundingDecidesWhichElementsAreZero) {
  expect_right(R"(
opset 21
input x float32 [1,3]
constant scale float32 [3] = 0.1 -0.12 0.6
constant bias float32 [3] = 0 1.36 0
y = LayerNormalization(x, scale, bias) epsilon=0.01f
places = NonZero(y)
output places int64
feeds
feed x [1,3] = -1.7326732873916626 2.2475247383117676 0.2574257552623749
)");
}

// In 16 bits the cube overflows, but if float32 is kept between nodes, it is -146,000. Then y, the only element minus its mean, is 0;
// otherwise it is NaN.
TEST(FoundGraphs, PrecisionIsKeptThroughAMinOfSeveral) {
  expect_right(R"(
opset 21
input x float16 [N]
input low float16 [1]
constant scale float16 [1] = 0
constant bias float16 [1] = 0
square = Mul(x, x)
cube = Mul(square, x)
least = Min(cube, low, x)
y = LayerNormalization(least, scale, bias) epsilon=0.01f
output cube float16
output y float16
feeds
feed low [1] = -1.048828125
feed x [1] = -52.71875
)");
}

// A piece that has no elements begins at the same byte as the next piece.
TEST(FoundGraphs, ConcatOfAnEmptyPieceAndItsNeighbor) {
  expect_right(R"(
opset 21
input x int8 [6]
constant none int64 [1] = 0
constant first int64 [1] = -7
constant last int64 [1] = 100
constant axis int64 [1] = 0
constant one int8 [1] = 1
twice = Concat(x, x) axis=-1
more = Concat(twice, twice, one) axis=0
empty = Tile(twice, none)
end = Slice(more, first, last, axis)
unused = Concat(empty, end) axis=-1
all = Concat(twice, empty, end) axis=-1
y = Neg(all)
output y int8
feeds
feed x [6] = 5 -2 -4 6 -4 5
)");
}

// v17 is computed in place over v3, which is older than v14. Under a memory budget, it must still be recomputed after v14.
TEST(FoundGraphs, ValuesThatAreMadeAnewInTheOrderOfTheirLastSteps) {
  const Case c = parse(R"(
opset 21
input x1 float32 [3]
input v45 int64 [3]
input v42 bool [1]
input v4 float32 [3]
constant c11 int64 [] = 1
constant c13 float32 [3] = -0.13861386477947235 0 2.8118813037872314
constant c20 int64 [] = -3
constant c48 int64 [] = 3
constant c49 bool [] = 1
v3 = Sigmoid(x1)
v12 = SplitToSequence(v3, c11) axis=0
v14 = Add(c13, v4)
v17 = Add(v14, v3)
v18 = Add(v17, v14)
v21 = SequenceAt(v12, c20)
v29 = Mul(v18, v18)
v34 = Sub(v17, v21)
v58, v59, v60 = Loop(c48, c49, v42)
  body {
    input b50 int64
    input b51 bool
    input b52 bool
    output b51 bool
    output b52 bool
    output v45 int64
    output b51 bool
  }
output v29 float32
output v60 bool
output v34 float32
feeds
feed v4 [3] = -0.27817773818969727 -0.20593705773353577 0
feed v42 [1] = 1
feed v45 [3] = 1 1 1
feed x1 [3] = -1.2277227640151978 -2.3366336822509766 0
)");
  const Judgement judgement = judge(c);
  for (const double budget : {0.3, 0.5, 0.7, 0.9, 1.0}) {
    Setting setting;
    setting.budget = budget;
    EXPECT_EQ(run_case(c, judgement, setting), "") << budget;
  }
}

// Depending on the run, the shape is -1 or 0.
TEST(FoundGraphs, ReshapeToAComputedNegativeExtent) {
  expect_right(R"(
opset 21
input x0 float32 [1,N]
input x int64 [M]
constant one int64 [1] = 1
constant two int64 [1] = 2
constant minus int64 [] = -1
shape = Shape(x0)
n = Gather(shape, one) axis=0
odd = Mod(n, two)
wanted = Mul(odd, minus)
flat = Reshape(x, wanted)
y = Neg(flat)
output y int64
feeds
feed x [2] = 3 6
feed x0 [1,1] = 1.5
feeds
feed x [4] = 3 6 4 5
feed x0 [1,2] = 1.5 2.5
)");
}

TEST(FoundGraphs, OutputThatIsAViewOfWhatWasWrittenOver) {
  expect_right(R"(
opset 21
input x float64 [3,1]
constant c8 int64 [1] = 0
v4 = Neg(x)
v6 = Abs(v4)
v9 = Unsqueeze(v6, c8)
v25 = Exp(v6)
output v25 float64
output v9 float64
feeds
feed x [3,1] = 2.5 3 4
)");
}

TEST(FoundGraphs, SequenceMapInABodyOverWhatAnIfGives) {
  expect_right(R"(
opset 21
input x int64 [4]
constant trips int64 [] = 2
constant truth bool [] = 1
y = Loop(trips, -)
  body {
    input i int64
    input go_on bool
    again = Identity(go_on)
    a = If(truth)
      then_branch {
        b = Neg(x)
        output b int64
      }
      else_branch {
        c = Identity(x)
        output c int64
      }
    s = SequenceConstruct(x, x)
    m = SequenceMap(s, a)
      body {
        input e int64
        input f int64
        g = Sub(e, f)
        output g int64
      }
    row = ConcatFromSequence(m) axis=0
    output again bool
    output row int64
  }
output y int64
feeds
feed x [4] = 1 2 3 4
)");
}

// Output a is bound to the memory of x, which is read after a is computed.
TEST(FoundGraphs, OutputBoundToAFeedThatIsStillToBeRead) {
  expect_right(R"(
opset 21
input x float32 [4]
a = Neg(x)
t = Tanh(a)
y = Add(t, x)
output a float32
output y float32
feeds
feed x [4] = 1 2 3 4
)");
}

// Inputs a and b are outputs too, each bound to the memory of the other.
TEST(FoundGraphs, InputsAsOutputsChangePlaces) {
  expect_right(R"(
opset 21
input a int8 [2]
input b int8 [2]
y = Neg(a)
output b int8
output a int8
output y int8
feeds
feed a [2] = 1 2
feed b [2] = 3 4
)");
}

// The If returns x itself and not a copy.
TEST(FoundGraphs, OutputBoundToAFeedThatANodeHandsOn) {
  expect_right(R"(
opset 21
input x int32 [1,2]
input c bool []
constant one int32 [1,2] = 1 2
a = If(c)
  then_branch {
    output x int32
  }
  else_branch {
    output x int32
  }
y = Add(a, one)
z = Sub(one, a)
s = SequenceConstruct(x, y)
output y int32
output z int32
output a int32
output s seq(int32)
feeds
feed c [] = 1
feed x [1,2] = 5 7
)");
}

// The shape is -1, computed as min(-1, number of elements).
TEST(FoundGraphs, ReshapeToTheLeastOfMinusOneAndASize) {
  expect_right(R"(
opset 21
input x float32 [?,?,?,?]
constant c int64 [1] = -1
size = Size(x)
shape = Min(size, c)
y = Reshape(size, shape)
output y int64
feeds
feed x [1,1,1,1] = 0.5
)");
}

// This graph is like the one above, but has so many symbols that sampled sizes exceed 64 bits.
TEST(FoundGraphs, ReshapeToTheLeastOfMinusOneAndALargeSize) {
  expect_right(R"(
opset 21
input a float32 [A,B,C,D,E,F]
constant c int64 [1] = -1
size = Size(a)
shape = Min(size, c)
y = Reshape(size, shape)
output y int64
feeds
feed a [1,1,1,1,1,1] = 0.5
)");
}

// The shape is -1, computed as ceil(k / 2) - k, where k is the extent of the second third of N.
TEST(FoundGraphs, ReshapeToTheNegativeOfASplitsExtent) {
  expect_right(R"(
opset 21
input x0 bool [N,1,4,1]
v2, v3, v4 = Split(x0) axis=0 num_outputs=3
v6, v7 = Split(v3) axis=0 num_outputs=2
v9 = Shape(v7)
v13 = Concat(v9, v9, v9) axis=0
v16, v17, v18, v19 = Split(v13) axis=0 num_outputs=4
v20, v21, v22 = Split(v16) axis=0 num_outputs=3
v23 = Neg(v20)
v27 = Reshape(v17, v23)
output v27 int64
feeds
feed x0 [4,1,4,1] = 1 0 0 0 1 1 1 1 0 1 1 0 1 0 1 0
)");
}

// The exporter had written sums of integer products as sums of floats.
TEST(FoundGraphs, AnExportedProductOfBytesWhoseSumIsZero) {
  expect_right(R"(
opset 21
input a uint8 [2,2]
input a_scale float32 []
input a_zero uint8 []
constant b uint8 [2,1] = 6 2
constant b_zero uint8 [] = 4
constant b_scale float32 [] = 0.03056439943611622
sums = MatMulInteger(a, b, a_zero, b_zero)
floats = Cast(sums) to=1
scale = Mul(a_scale, b_scale)
y = Mul(floats, scale)
output y float32
feeds
feed a [2,2] = 0 0 255 255
feed a_scale [] = 0.009823335334658623
feed a_zero [] = 221
)");
}

// min(-1, elements) and ceil(k / 2) - k are never valid extents. M - 2 is a valid extent unless M is 1.
TEST(FoundGraphs, ReshapeToADifferenceThatIsMinusOneInOneRun) {
  expect_right(R"(
opset 21
input x float32 [M]
input y bool [N]
constant c int64 [1] = -2
shape = Shape(x)
less = Add(c, shape)
z = Reshape(y, less)
w = Not(z)
output z bool
output w bool
feeds
feed x [1] = 1.5
feed y [0] =
feeds
feed x [5] = 1 2 3 4 5
feed y [3] = 0 1 1
feeds
feed x [1] = 1.5
feed y [4] = 0 1 1 0
feeds
feed x [2] = 1 2
feed y [4] = 0 1 1 0
)");
}

// The sum of a row has a larger rounding error than the elements have differences.
TEST(FoundGraphs, LayerNormalizationOfLargeElementsThatAreEqual) {
  expect_right(R"(
opset 21
input x float32 [6]
constant scale float32 [6] = -2.5 1.8 1.1 -2.6 2.3 0
constant bias float32 [6] = -2.5 -0.7 0 -1.9 -1.3 -1.8
squares = Einsum(x, x) equation="a,a->"
equal = Add(x, squares)
y = LayerNormalization(equal, scale, bias) epsilon=0.01f
output y float32
feeds
feed x [6] = 7001.1 7001.1 7001.1 7001.1 7001.1 7001.1
)");
}

// Compress selects nothing, so the symbol of the result's extent has the bound 0.
TEST(FoundGraphs, NothingThatIsCompressed) {
  expect_right(R"(
opset 21
input x uint8 [1,1,1,0]
constant c bool [0] =
y = Compress(x, c)
output y uint8
feeds
feed x [1,1,1,0] =
)");
}

// No result may exceed 1.
TEST(FoundGraphs, ATangentThatIsCutOffAtOne) {
  expect_right(R"(
opset 21
input x float32 [4]
t = Tanh(x)
y = ThresholdedRelu(t)
e = Erf(x)
z = ThresholdedRelu(e)
output y float32
output z float32
feeds
feed x [4] = 8.574168 3.833766 8.5 3.9
)");
}

}  // namespace
}  // namespace treadle::graphs
