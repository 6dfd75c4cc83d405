#include "graph/contract.h"

#include <gtest/gtest.h>

#include <string>

#include "onnx/import.h"
#include "tests/graph/graph_builder.h"
#include "tests/ops/run_op.h"
#include "tests/session/models.h"
#include "treadle/error.h"
#include "treadle/session.h"

namespace treadle {
namespace {

using testing::GraphBuilder;
using testing::ModelBuilder;

template <typename F>
std::string error_of(F&& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

bool says(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TEST(Contract, AnAttributeOutOfItsRangeIsNamedWithIt) {
  GraphBuilder b;
  const std::string error = error_of([&] {
    b.op("y", "Conv", {b.input("x", {1, 4, 5, 5}), b.input("w", {4, 4, 1, 1})}, {{"group", int64_t{0}}});
  });
  EXPECT_TRUE(says(error, "the attribute group is 0; 1 to 2147483647 expected")) << error;
}

TEST(Contract, AnIntegerThatNamesNoDTypeOfTheOperatorIsRefused) {
  for (const int64_t dtype : {int64_t{8}, int64_t{999}, int64_t{-1}, INT64_MIN}) {
    GraphBuilder b;
    const std::string error = error_of([&] {
      b.node("y", "FusedElementwise", {b.input("x", {5})}, {{"dtype", dtype}, {"steps", std::vector<std::string>{"Relu 0"}}}, 1, "treadle");
    });
    EXPECT_TRUE(says(error, "names no dtype among")) << error;
  }
}

TEST(Contract, ARankThatTheOperatorDoesNotHaveIsRefused) {
  GraphBuilder b;
  const std::string error = error_of([&] {
    b.node("y", "BlockedMatMul", {b.input("a", {2, 16}), b.constant<uint8_t>("b", {16}, std::vector<uint8_t>(16)), b.floats("s", {1})}, {},
           1, "treadle");
  });
  EXPECT_TRUE(says(error, "the input B is u8[16]; 2 axes expected")) << error;
}

TEST(Contract, RoundedProductsSayTheirPrecision) {
  for (const char* op : {"RoundedMatMul", "RoundedGemm"}) {
    auto made_with = [&](const Attributes& attributes) {
      return error_of([&] {
        GraphBuilder b;
        b.node("y", op, {b.input("a", {2, 16}), b.input("b", {16, 3})}, attributes, 1, "treadle");
      });
    };
    EXPECT_TRUE(says(made_with({}), "the attribute \"precision\" is required")) << op;
    EXPECT_TRUE(says(made_with({{"precision", std::string("float32")}}), "one of bfloat16|bfloat16x3|float16 expected")) << op;
    EXPECT_EQ(made_with({{"precision", std::string("float16")}}), "no error") << op;
  }
}

TEST(Contract, OperandsOfAListHaveOneType) {
  GraphBuilder b;
  const std::string error = error_of([&] { b.op("y", "Max", {b.input("a", {33}), b.input("b", {16, 33}, DType::int8)}); });
  EXPECT_TRUE(says(error, "the inputs data_0 and data_0 must have one type, they are float32 and int8")) << error;
}

TEST(Contract, AnOutputThatAnOldOperatorNeverHadIsRefused) {
  GraphBuilder b;
  const NodeId id =
      b.graph().add_node({.op_type = "Hardmax", .inputs = {b.graph().add_input("x", Type::tensor(DType::float32))}, .num_outputs = 2});
  b.graph().node(id).version = 11;
  for (const ValueId output : b.graph().node(id).outputs) b.graph().outputs.push_back(output);
  const std::string error = error_of([&] { onnx::upgrade(b.graph()); });
  EXPECT_TRUE(says(error, "the operator has no output 1")) << error;
}

// Only control-flow operators have bodies; the values that these capture follow the formal inputs. Another operator would take the captured
// values for its own operands.
TEST(Contract, ABodyOfAnOperatorThatHasNoneIsRefused) {
  GraphBuilder b;
  const ValueId x = b.input("x", {2});
  const NodeId id = b.graph().add_node({.op_type = "Relu", .inputs = {x}});
  b.graph().node(id).bodies.push_back({"body", std::make_unique<Graph>(b.graph().symbol_table()), {}});
  const std::string error = error_of([&] { check_contract(b.graph(), b.graph().node(id)); });
  EXPECT_TRUE(says(error, "the attribute \"body\" is not one of the operator's")) << error;
}

TEST(Contract, AFileMayLeaveOutRequiredOutputs) {
  ModelBuilder b;
  b.input("x", {2, 4}).output("indices", {2, 1}, DType::int64);
  b.constant("k", Tensor::vector<int64_t>(std::vector<int64_t>{1}));
  b.node("TopK", {"x", "k"}, {"", "indices"}, "top");
  const Session session(b.model());
  Tensor x(DType::float32, {2, 4});
  for (int64_t i = 0; i < 8; ++i) x.data<float>()[i] = static_cast<float>(i % 4 == 2 ? 9 : -i);
  const Datum y = session.run({{"x", x}})[0];
  EXPECT_EQ(testing::values<int64_t>(y.tensor()), (std::vector<int64_t>{2, 2}));
}

// The optimiser's own operators do not check their operands, so a file must not name them.
TEST(Contract, AFileCannotNameTheOptimizersOperators) {
  ModelBuilder b;
  b.input("x", {4, 4}).output("y", {4, 4});
  b.node("NhwcAffine", {"x", "x", "x"}, {"y"}, "inner", "treadle");
  const std::string error = error_of([&] { Session session(b.model()); });
  EXPECT_TRUE(says(error, "operator treadle.NhwcAffine (opset 1)")) << error;
}

TEST(Contract, AnOperandThatALocalFunctionsCallerLeavesOutIsAbsentInBodiesToo) {
  ModelBuilder b;
  b.input("x", {2}).input("flag", {}, DType::boolean).output("y", {2});
  auto branch = [](const std::string& name) {
    onnx::GraphDef graph;
    graph.name = name;
    onnx::NodeDef clip;
    clip.op_type = "Clip", clip.inputs = {"v", "low"}, clip.outputs = {name + "_out"};
    graph.nodes.push_back(clip);
    onnx::ValueInfoDef output;
    output.name = name + "_out";
    graph.outputs.push_back(output);
    return graph;
  };
  onnx::FunctionDef function;
  function.domain = "local", function.name = "Bounded";
  function.inputs = {"v", "c", "low"}, function.outputs = {"r"};
  function.opset_imports.push_back({"", 21});
  onnx::NodeDef choice;
  choice.op_type = "If", choice.inputs = {"c"}, choice.outputs = {"r"};
  for (const char* name : {"then_branch", "else_branch"}) {
    onnx::AttributeDef attribute;
    attribute.name = name;
    attribute.type = onnx::AttributeType::graph;
    attribute.g = std::make_unique<onnx::GraphDef>(branch(name));
    choice.attributes.push_back(attribute);
  }
  function.nodes.push_back(choice);
  b.def().functions.push_back(function);
  b.def().opset_imports.push_back({"local", 1});
  b.node("Bounded", {"x", "flag"}, {"y"}, "call", "local");
  const Session session(b.model());
  const Tensor x = testing::floats({2}, {-3, 4});
  EXPECT_EQ(testing::values<float>(session.run({{"x", x}, {"flag", Tensor::scalar(true)}})[0].tensor()), (std::vector<float>{-3, 4}));
}

TEST(Contract, AnIfGivesWhatItsBranchesGive) {
  ModelBuilder b;
  b.input("x", {2}).output("y", {2}).output("z", {2});
  b.constant("yes", Tensor::scalar(true));
  b.node("If", {"yes"}, {"y", "z"}, "choice");
  for (const char* name : {"then_branch", "else_branch"}) {
    onnx::GraphDef graph;
    graph.name = name;
    onnx::NodeDef identity;
    identity.op_type = "Identity", identity.inputs = {"x"}, identity.outputs = {"same"};
    graph.nodes.push_back(identity);
    onnx::ValueInfoDef output;
    output.name = "same";
    graph.outputs.push_back(output);
    onnx::AttributeDef attribute;
    attribute.name = name;
    attribute.type = onnx::AttributeType::graph;
    attribute.g = std::make_unique<onnx::GraphDef>(graph);
    b.last_node().attributes.push_back(attribute);
  }
  const std::string error = error_of([&] { Session session(b.model()); });
  EXPECT_TRUE(says(error, "the branches have 1 and 1 outputs, the node 2")) << error;
}

}  // namespace
}  // namespace treadle
