// Inference assumes that symbolic extents are equal, and a feed contradicts that. An error must then name both extents, at the latest when
// a kernel is bound: a kernel that relied on one of them would access memory beyond an operand.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "exec/run/frame.h"
#include "tests/exec/graphs.h"
#include "tests/exec/host_program.h"
#include "treadle/error.h"

namespace treadle {
namespace {

struct Operand {
  Shape good, bad;
  DType dtype = DType::float32;
};

struct Contradiction {
  std::string op;
  std::vector<Operand> operands;
  Attributes attributes = {};
  int num_outputs = 1;
};

// Builds a graph in which every extent is a separate symbol.
std::shared_ptr<Graph> graph_of(const Contradiction& node) {
  testing::GraphBuilder b;
  std::vector<ValueId> inputs;
  for (const Operand& operand : node.operands) {
    SymbolicShape shape;
    for (int axis = 0; axis < operand.good.rank(); ++axis)
      shape.push_back(b.symbol("s" + std::to_string(inputs.size()) + "_" + std::to_string(axis)));
    inputs.push_back(b.input("x" + std::to_string(inputs.size()), operand.dtype, shape));
  }
  for (ValueId output : b.nodes(node.op, inputs, node.num_outputs, node.attributes)) b.output(output);
  return b.finish();
}

Datum zeros(DType dtype, const Shape& shape) {
  Tensor tensor(dtype, shape);
  std::memset(tensor.raw(), 0, tensor.size_bytes());
  return tensor;
}

TEST(ContradictingExtents, AreErrors) {
  const Shape x4{1, 2, 5, 5}, seq{3, 2, 4};
  const std::vector<Contradiction> table{
      {"Conv", {{x4, x4}, {{3, 2, 3, 3}, {3, 3, 3, 3}}}},
      {"Conv", {{x4, x4}, {{3, 2, 3, 3}, {3, 2, 3, 2}}}, {{"kernel_shape", std::vector<int64_t>{3, 3}}}},
      {"Conv", {{x4, x4}, {{3, 2, 3, 3}, {3, 2, 3, 3}}, {{3}, {4}}}},
      {"Conv", {{x4, {1, 2, 2, 5}}, {{3, 2, 3, 3}, {3, 2, 3, 3}}}},
      {"Conv", {{x4, {0, 2, 5, 0}}, {{3, 2, 3, 3}, {3, 2, 3, 3}}}, {{"pads", std::vector<int64_t>{1, 1, 1, 1}}}},
      {"Conv", {{x4, {1, 2, 5, 2}}, {{3, 2, 3, 3}, {3, 2, 3, 3}}}, {{"auto_pad", std::string("VALID")}}},
      {"MaxPool", {{x4, {1, 2, 2, 5}}}, {{"kernel_shape", std::vector<int64_t>{3, 3}}, {"strides", std::vector<int64_t>{2, 2}}}},
      {"AveragePool", {{x4, {1, 2, 5, 1}}}, {{"kernel_shape", std::vector<int64_t>{3, 3}}}},
      {"LpPool", {{x4, {1, 2, 5, 1}}}, {{"kernel_shape", std::vector<int64_t>{3, 3}}}},
      {"ConvTranspose", {{x4, x4}, {{2, 3, 2, 2}, {3, 3, 2, 2}}}},
      {"ConvTranspose", {{x4, x4}, {{2, 3, 2, 2}, {2, 3, 3, 2}}}, {{"kernel_shape", std::vector<int64_t>{2, 2}}}},
      {"MatMul", {{{2, 3}, {2, 3}}, {{3, 4}, {4, 4}}}},
      {"Gemm", {{{2, 3}, {2, 3}}, {{3, 4}, {2, 4}}}},
      {"Add", {{{2, 3}, {2, 3}}, {{2, 3}, {2, 4}}}},
      {"Concat", {{{2, 3}, {2, 3}}, {{2, 3}, {3, 3}}}, {{"axis", int64_t{1}}}},
      {"BatchNormalization", {{x4, x4}, {{2}, {2}}, {{2}, {3}}, {{2}, {2}}, {{2}, {2}}}},
      {"LayerNormalization", {{{2, 4}, {2, 4}}, {{4}, {3}}}},
      {"InstanceNormalization", {{x4, x4}, {{2}, {3}}, {{2}, {2}}}},
      {"GRU", {{seq, seq}, {{1, 15, 4}, {1, 18, 4}}, {{1, 15, 5}, {1, 18, 6}}}, {{"hidden_size", int64_t{5}}}, 2},
      {"LSTM", {{seq, seq}, {{1, 20, 4}, {1, 20, 4}}, {{1, 20, 5}, {1, 20, 6}}}, {{"hidden_size", int64_t{5}}}, 3},
      {"RNN", {{seq, seq}, {{1, 5, 4}, {1, 5, 3}}, {{1, 5, 5}, {1, 5, 5}}}, {{"hidden_size", int64_t{5}}}, 2},
      {"ScatterElements", {{{3, 3}, {3, 3}}, {{2, 3}, {2, 3}, DType::int64}, {{2, 3}, {1, 3}}}},
      {"ScatterElements", {{{3, 3}, {3, 2}}, {{2, 3}, {2, 3}, DType::int64}, {{2, 3}, {2, 3}}}},
      {"GatherElements", {{{3, 3}, {3, 2}}, {{2, 3}, {2, 3}, DType::int64}}},
      {"TensorScatter", {{{2, 1, 4, 5}, {1, 1, 4, 5}}, {{2, 1, 1, 5}, {2, 1, 1, 5}}, {{2}, {2}, DType::int64}}},
      {"TensorScatter", {{{2, 1, 4, 5}, {2, 1, 4, 5}}, {{2, 1, 1, 5}, {2, 1, 1, 5}}, {{2}, {1}, DType::int64}}},
      {"NonMaxSuppression", {{{1, 6, 4}, {1, 6, 4}}, {{1, 2, 6}, {1, 2, 7}}}},
      {"NonMaxSuppression", {{{1, 6, 4}, {1, 6, 3}}, {{1, 2, 6}, {1, 2, 6}}}},
      {"DFT", {{{1, 8, 2}, {1, 8, 3}}}},
      {"ArgMax", {{{2, 3}, {2, 0}}}, {{"axis", int64_t{1}}}},
  };
  for (const Contradiction& node : table) {
    const testing::HostProgram program(graph_of(node));
    std::vector<Datum> good, bad, outputs(program.output_slots().size());
    for (const Operand& operand : node.operands) {
      good.push_back(zeros(operand.dtype, operand.good));
      bad.push_back(zeros(operand.dtype, operand.bad));
    }
    EXPECT_NO_THROW(program.run(good, outputs, {})) << node.op;
    try {
      program.run(bad, outputs, {});
      ADD_FAILURE() << node.op << " takes extents that contradict each other";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
      const std::string message = error.what();  // extents that several nodes use are named by both symbols
      EXPECT_TRUE(message.find(node.op) != std::string::npos || message.find("do not broadcast") != std::string::npos) << message;
    }
  }
}

// Reshapes x [10, 20, 30] to [1, 200, d], where d is an extent of another input.
TEST(ContradictingExtents, OfAViewAreErrors) {
  testing::GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {b.symbol("a"), b.symbol("b"), b.symbol("c")});
  ValueId z = b.input("z", DType::float32, {b.symbol("d")});
  ValueId shape = b.node("Concat", {b.ints("front", {1, 200}), b.node("Shape", {z})}, {{"axis", int64_t{0}}});
  b.output(b.node("Reshape", {x, shape}));
  b.output(b.node("Relu", {b.node("Reshape", {x, shape})}));
  const testing::HostProgram program(b.finish());
  std::vector<Datum> outputs(2);
  program.run(std::vector<Datum>{zeros(DType::float32, {10, 20, 30}), zeros(DType::float32, {30})}, outputs, {});
  EXPECT_EQ(outputs[0].tensor().shape(), (Shape{1, 200, 30}));
  for (int64_t d : {3000, 2})
    EXPECT_THROW(program.run(std::vector<Datum>{zeros(DType::float32, {10, 20, 30}), zeros(DType::float32, {d})}, outputs, {}), Error);
  program.run(std::vector<Datum>{zeros(DType::float32, {10, 20, 30}), zeros(DType::float32, {0})}, outputs, {});
  EXPECT_EQ(outputs[0].tensor().shape(), (Shape{1, 200, 30}));  // a 0 in a shape copies the extent
}

// The elements of small integer tensors are known during binding, but are not in memory, so a view cannot share them.
TEST(ContradictingExtents, AViewOfAKnownValueHasItsElements) {
  testing::GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {b.symbol("n"), b.symbol("m")});
  ValueId shape = b.node("Shape", {x});
  b.output(b.node("Neg", {b.node("Flatten", {shape}, {{"axis", int64_t{0}}})}));
  b.output(b.node("Expand", {b.node("Flatten", {b.node("Cast", {shape}, {{"to", int64_t{6}}})}), b.ints("twice", {2, 2})}));
  const testing::HostProgram program(b.finish());
  std::vector<Datum> outputs(2);
  for (int64_t n : {3, 4, 3}) {
    program.run(std::vector<Datum>{zeros(DType::float32, {n, 1})}, outputs, {});
    EXPECT_EQ(outputs[0].tensor().shape(), (Shape{1, 2}));
    EXPECT_EQ(outputs[0].tensor().data<int64_t>()[0], -n);
    EXPECT_EQ(outputs[0].tensor().data<int64_t>()[1], -1);
    const int32_t* expanded = outputs[1].tensor().data<int32_t>();
    EXPECT_EQ((std::vector<int32_t>(expanded, expanded + 4)),
              (std::vector<int32_t>{static_cast<int32_t>(n), static_cast<int32_t>(n), 1, 1}));
  }
}

}  // namespace
}  // namespace treadle
