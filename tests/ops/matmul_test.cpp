#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "core/values/float_types.h"
#include "exec/run/frame.h"
#include "graph/infer.h"
#include "tests/exec/graphs.h"
#include "tests/exec/host_program.h"
#include "tests/ops/run_op.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using testing::floats;
using testing::run_op;
using testing::tensor;
using testing::values;

Tensor random_floats(const Shape& shape, unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> number(-1, 1);
  Tensor t(DType::float32, shape);
  for (float& v : t.span<float>()) v = number(engine);
  return t;
}

// Computes one element of a matrix product by the definition.
double element(const Tensor& a, const Tensor& b, int64_t a_first, int64_t a_step, int64_t b_first, int64_t b_step, int64_t K) {
  double sum = 0;
  for (int64_t k = 0; k < K; ++k)
    sum += static_cast<double>(a.data<float>()[a_first + k * a_step]) * static_cast<double>(b.data<float>()[b_first + k * b_step]);
  return sum;
}

TEST(MatMul, BroadcastsBatchesOfBothOperands) {
  Tensor a = random_floats({3, 1, 5, 7}, 1), b = random_floats({4, 7, 6}, 2);
  Tensor y = run_op({"MatMul", 13, {a, b}})[0];
  ASSERT_EQ(y.shape(), (Shape{3, 4, 5, 6}));
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t k = 0; k < 4; ++k)
      for (int64_t m = 0; m < 5; ++m)
        for (int64_t n = 0; n < 6; ++n)
          EXPECT_NEAR(y.data<float>()[((i * 4 + k) * 5 + m) * 6 + n], element(a, b, (i * 5 + m) * 7, 1, k * 42 + n, 6, 7), 1e-5);
}

TEST(MatMul, OfVectorsDropsTheirAxis) {
  Tensor x = floats({3}, {1, 2, 3}), m = floats({2, 3, 1}, {1, 0, 1, 2, 1, 0});
  EXPECT_EQ(run_op({"MatMul", 13, {x, x}})[0].shape(), Shape{});
  EXPECT_EQ(values<float>(run_op({"MatMul", 13, {x, x}})[0]), (std::vector<float>{14}));
  EXPECT_EQ(run_op({"MatMul", 13, {x, m}})[0].shape(), (Shape{2, 1}));
  EXPECT_EQ(values<float>(run_op({"MatMul", 13, {x, m}})[0]), (std::vector<float>{4, 4}));
}

TEST(MatMul, OverNothingIsZero) {
  EXPECT_EQ(values<float>(run_op({"MatMul", 13, {floats({2, 0}, {}), floats({0, 2}, {})}})[0]), (std::vector<float>{0, 0, 0, 0}));
  EXPECT_EQ(run_op({"MatMul", 13, {floats({0, 3}, {}), floats({3, 2}, {1, 2, 3, 4, 5, 6})}})[0].shape(), (Shape{0, 2}));
}

TEST(MatMul, OfIntegersWrapsAround) {
  Tensor big = tensor<int32_t>({1, 2}, {1 << 30, 1}), b = tensor<int32_t>({2, 1}, {4, 5});
  EXPECT_EQ(values<int32_t>(run_op({"MatMul", 13, {big, b}})[0]), (std::vector<int32_t>{5}));
  Tensor u = tensor<uint64_t>({1, 1}, {uint64_t{1} << 63}), two = tensor<uint64_t>({1, 1}, {3});
  EXPECT_EQ(values<uint64_t>(run_op({"MatMul", 13, {u, two}})[0]), (std::vector<uint64_t>{uint64_t{1} << 63}));
}

TEST(MatMul, RoundsHalfPrecisionOnce) {
  // In binary16, 2048 + 1 rounds to 2048, but the sum 2048 + 1 + 1 can be represented exactly.
  Tensor a = tensor<Float16>({1, 3}, {Float16(2048.0F), Float16(1.0F), Float16(1.0F)}),
         b = tensor<Float16>({3, 1}, {Float16(1.0F), Float16(1.0F), Float16(1.0F)});
  EXPECT_EQ(static_cast<float>(run_op({"MatMul", 13, {a, b}})[0].data<Float16>()[0]), 2050);
}

TEST(MatMul, TakesAConstantMatrixForBatchesOfAnyLength) {
  for (DType dtype : {DType::float32, DType::float16}) {
    auto graph = std::make_shared<Graph>(std::make_shared<SymbolTable>());
    Tensor weights = random_floats({7, 33}, 3);
    ValueId b = graph->add_constant("b", Datum(weights));
    if (dtype == DType::float16) {
      Tensor narrow(DType::float16, {7, 33});
      for (int64_t i = 0; i < 7 * 33; ++i) narrow.data<Float16>()[i] = Float16(weights.data<float>()[i]);
      b = graph->add_constant("b16", Datum(narrow));
    }
    ValueId a = graph->add_input("a", Type::tensor(dtype, SymbolicShape{graph->symbols().symbol("n"), 2, 7}));
    NodeId node = graph->add_node({.op_type = "MatMul", .inputs = {a, b}});
    graph->outputs = {graph->node(node).outputs[0]};
    graph->output_names = {"y"};
    onnx::upgrade(*graph);
    passes::canonicalize(*graph);
    testing::HostProgram program(graph);
    for (int64_t n : {1, 5, 0}) {
      Tensor x = random_floats({n, 2, 7}, 4), fed = x;
      if (dtype == DType::float16) {
        fed = Tensor(DType::float16, x.shape());
        for (int64_t i = 0; i < x.num_elements(); ++i) fed.data<Float16>()[i] = Float16(x.data<float>()[i]);
      }
      std::vector<Datum> feeds{fed}, outputs(1);
      program.run(feeds, outputs, {});
      Tensor y = outputs[0].tensor();
      ASSERT_EQ(y.shape(), (Shape{n, 2, 33}));
      for (int64_t i = 0; i < y.num_elements(); ++i) {
        double expected = element(x, weights, i / 33 * 7, 1, i % 33, 33, 7);
        if (dtype == DType::float32)
          EXPECT_NEAR(y.data<float>()[i], expected, 1e-5);
        else
          EXPECT_NEAR(static_cast<float>(y.data<Float16>()[i]), expected, 1e-2);
      }
    }
  }
}

TEST(MatMul, RefusesExtentsThatOnlyTheRunShowsToDiffer) {
  auto graph = std::make_shared<Graph>(std::make_shared<SymbolTable>());
  ValueId a = graph->add_input("a", Type::tensor(DType::float32, SymbolicShape{2, graph->symbols().symbol("k")}));
  ValueId b = graph->add_input("b", Type::tensor(DType::float32, SymbolicShape{graph->symbols().symbol("l"), 2}));
  NodeId node = graph->add_node({.op_type = "MatMul", .inputs = {a, b}});
  graph->outputs = {graph->node(node).outputs[0]};
  graph->output_names = {"y"};
  onnx::upgrade(*graph);
  testing::HostProgram program(graph);
  std::vector<Datum> feeds{floats({2, 3}, {1, 2, 3, 4, 5, 6}), floats({2, 2}, {1, 2, 3, 4})}, outputs(1);
  try {
    program.run(feeds, outputs, {});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("columns of A and rows of B: k = 3 and l = 2 differ"), std::string::npos) << error.what();
  }
}

TEST(Gemm, BroadcastsCFromEveryShape) {
  Tensor a = floats({2, 2}, {1, 2, 3, 4}), b = floats({2, 2}, {1, 0, 0, 1});
  struct {
    Tensor c;
    std::vector<float> expected;
  } cases[] = {{floats({}, {10}), {11, 12, 13, 14}},
               {floats({2}, {10, 20}), {11, 22, 13, 24}},
               {floats({2, 1}, {10, 20}), {11, 12, 23, 24}},
               {floats({1, 2}, {10, 20}), {11, 22, 13, 24}},
               {floats({2, 2}, {10, 20, 30, 40}), {11, 22, 33, 44}}};
  for (const auto& test : cases) EXPECT_EQ(values<float>(run_op({"Gemm", 13, {a, b, test.c}})[0]), test.expected);
}

TEST(Gemm, TransposesAndScales) {
  Tensor a = floats({2, 1}, {1, 2}), b = floats({3, 2}, {1, 2, 3, 4, 5, 6}), c = floats({3}, {1, 1, 2});
  Tensor y = run_op({"Gemm", 13, {a, b, c}, {{"transA", int64_t{1}}, {"transB", int64_t{1}}, {"alpha", 2.0F}, {"beta", -1.0F}}})[0];
  EXPECT_EQ(values<float>(y), (std::vector<float>{9, 21, 32}));
  // Integer matrices are allowed as well.
  Tensor i = tensor<int64_t>({1, 2}, {3, 4}), k = tensor<int64_t>({1, 2}, {5, 6});
  EXPECT_EQ(values<int64_t>(run_op({"Gemm", 13, {i, k}, {{"transB", int64_t{1}}, {"alpha", 2.0F}}})[0]), (std::vector<int64_t>{78}));
}

// C is the result of a node and has the shape of the product, so that Y is computed in C's memory. Deep products keep partial sums in Y.
TEST(Gemm, AddsToCWhereItLies) {
  struct Case {
    DType dtype;
    int64_t M, K, N;
    float alpha, beta;
  };
  for (const Case& test :
       {Case{DType::float32, 40, 5000, 24, 1, 1}, Case{DType::float32, 40, 5000, 24, 0.5F, -2}, Case{DType::float32, 1, 300, 200, 2, 1},
        Case{DType::float32, 3, 7, 1, 1, 1}, Case{DType::float32, 9, 0, 5, 1, 1}, Case{DType::float64, 33, 70, 17, 1, -1},
        Case{DType::float16, 8, 16, 8, 1, 1}, Case{DType::int32, 5, 4, 3, 1, 1}, Case{DType::int32, 5, 4, 3, 2, 3}}) {
    auto build = [&] {
      testing::GraphBuilder b;
      const ValueId x = b.input("a", DType::float32, {test.M, test.K}), y = b.input("b", DType::float32, {test.K, test.N}),
                    z = b.input("c", DType::float32, {test.M, test.N});
      auto cast = [&](ValueId v, DType to) { return b.node("Cast", {v}, {{"to", static_cast<int64_t>(to)}}); };
      const ValueId sum = b.node("Gemm", {cast(x, test.dtype), cast(y, test.dtype), b.node("Neg", {cast(z, test.dtype)})},
                                 {{"alpha", test.alpha}, {"beta", test.beta}});
      b.output(cast(sum, DType::float64), "y");
      return b.finish();
    };
    testing::HostProgram in_place(build()), apart(build(), {.reuse_memory = false});
    int shared = 0;
    for (const exec::Instruction& instruction : in_place.instructions())
      if (instruction.node->is("Gemm")) {
        const auto operands = in_place.operands(instruction);
        const auto slots = in_place.slots();
        shared += slots[operands[3]].root == slots[operands[2]].root;
      }
    EXPECT_EQ(shared, 1);
    std::vector<Datum> feeds;
    unsigned seed = 1;
    for (const Shape& shape : {Shape{test.M, test.K}, Shape{test.K, test.N}, Shape{test.M, test.N}}) {
      feeds.emplace_back(random_floats(shape, ++seed));
      for (float& v : feeds.back().tensor().span<float>()) v = std::round(v * 3);
    }
    std::vector<Datum> ours(1), others(1);
    in_place.run(feeds, ours, {});
    apart.run(feeds, others, {});
    for (int64_t m = 0; m < test.M; ++m)
      for (int64_t n = 0; n < test.N; ++n) {
        const double expected = test.alpha * element(feeds[0].tensor(), feeds[1].tensor(), m * test.K, 1, n, test.N, test.K) -
                                test.beta * static_cast<double>(feeds[2].tensor().data<float>()[m * test.N + n]);
        EXPECT_EQ(ours[0].tensor().data<double>()[m * test.N + n], expected) << m << ", " << n << " of " << short_name_of(test.dtype);
        EXPECT_EQ(others[0].tensor().data<double>()[m * test.N + n], expected);
      }
  }
}

TEST(Gemm, WithABetaOfZeroDoesNotLookAtC) {
  Tensor a = floats({1, 1}, {2}), c = floats({1}, {NAN});
  EXPECT_EQ(values<float>(run_op({"Gemm", 13, {a, a, c}, {{"beta", 0.0F}}})[0]), (std::vector<float>{4}));
}

TEST(Gemm, OfOpset6HasAFlagForTheBroadcast) {
  Tensor a = floats({2, 1}, {1, 2}), b = floats({1, 2}, {3, 4}), c = floats({2}, {1, 2});
  EXPECT_EQ(values<float>(run_op({"Gemm", 6, {a, b, c}, {{"broadcast", int64_t{1}}}})[0]), (std::vector<float>{4, 6, 7, 10}));
}

// Compares results with those of numpy.einsum.
TEST(Einsum, TakesDiagonalsSumsAndProducts) {
  Tensor m = floats({2, 2}, {1, 2, 3, 4}), x = floats({2}, {10, 100});
  auto einsum = [](const char* equation, std::vector<Tensor> operands) {
    return run_op({"Einsum", 12, std::move(operands), {{"equation", std::string(equation)}}})[0];
  };
  EXPECT_EQ(values<float>(einsum("ii->i", {m})), (std::vector<float>{1, 4}));
  EXPECT_EQ(values<float>(einsum("ii", {m})), (std::vector<float>{5}));
  EXPECT_EQ(values<float>(einsum("ba", {m})), (std::vector<float>{1, 3, 2, 4}));  // without an arrow, the labels of the output are sorted
  EXPECT_EQ(values<float>(einsum("ij, j -> i", {m, x})), (std::vector<float>{210, 430}));
  EXPECT_EQ(values<float>(einsum("...i,i->...", {m, x})), (std::vector<float>{210, 430}));
  EXPECT_EQ(values<float>(einsum("ij,ij->", {m, m})), (std::vector<float>{30}));
  EXPECT_EQ(values<float>(einsum("i,j->ji", {x, x})), (std::vector<float>{100, 1000, 1000, 10000}));
  EXPECT_EQ(values<float>(einsum("ij,jk,kl->il", {m, m, m})), (std::vector<float>{37, 54, 81, 118}));
  EXPECT_EQ(values<float>(einsum("aab,b->a", {floats({2, 2, 1}, {1, 2, 3, 4}), floats({1}, {2})})), (std::vector<float>{2, 8}));
  EXPECT_EQ(values<uint8_t>(run_op(
                {"Einsum", 12, {tensor<uint8_t>({2}, {16, 20}), tensor<uint8_t>({2}, {10, 5})}, {{"equation", std::string("i,i")}}})[0]),
            (std::vector<uint8_t>{4}));  // the sum is 260, which wraps around to 4
}

TEST(Einsum, JoinsSeveralAxesIntoOneProduct) {
  Tensor a = random_floats({2, 3, 4, 5}, 5), b = random_floats({4, 5, 6}, 6);
  Tensor y = run_op({"Einsum", 12, {a, b}, {{"equation", std::string("abcd,cde->eab")}}})[0];
  ASSERT_EQ(y.shape(), (Shape{6, 2, 3}));
  for (int64_t e = 0; e < 6; ++e)
    for (int64_t ab = 0; ab < 6; ++ab) EXPECT_NEAR(y.data<float>()[e * 6 + ab], element(a, b, ab * 20, 1, e, 6, 20), 1e-5);
}

TEST(Einsum, RefusesEquationsThatDoNotFit) {
  Tensor m = floats({2, 2}, {1, 2, 3, 4});
  for (const char* equation : {"ijk->i", "ij->k", "ij,jk->ik", "i.j->i", "ij->ii", "i1->i"})
    EXPECT_THROW(run_op({"Einsum", 12, {m}, {{"equation", std::string(equation)}}}), Error) << equation;
}

}  // namespace
}  // namespace treadle
