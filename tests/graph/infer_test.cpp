#include "graph/infer.h"

#include <gtest/gtest.h>

#include "graph/op_def.h"
#include "tests/graph/graph_builder.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

std::string type_of(GraphBuilder& b, ValueId id) { return to_string(b.graph().type(id)); }

std::string known_of(GraphBuilder& b, ValueId id) {
  const auto& known = b.graph().value(id).known;
  return known ? to_string(SymbolicShape(known->begin(), known->end())) : "unknown";
}

// The page IR.md of ONNX says that the operands in a "homogeneous" list have one type.
TEST(Infer, ListsOfOperandsHaveOneType) {
  for (const char* op : {"Concat", "Max", "Min", "Sum", "Mean", "SequenceConstruct"}) {
    GraphBuilder b;
    const ValueId x = b.input("x", {2, 2}), same = b.input("same", {2, 2}), other = b.input("other", {2, 2}, DType::float64);
    Attributes attributes;
    if (std::string_view(op) == "Concat") attributes.set("axis", int64_t{0});
    EXPECT_NO_THROW(b.op("good", op, {x, same, x}, attributes)) << op;
    try {
      b.op("bad", op, {x, same, other}, attributes);
      FAIL() << op;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_model) << op;
      EXPECT_NE(std::string(error.what()).find("must have one type"), std::string::npos) << error.what();
    }
  }
}

// The number of free rows of a cache is the difference of two lengths. It counts as an extent, though it is 0 if both are equal.
TEST(Infer, ADifferenceOfSymbolsIsAnExtent) {
  GraphBuilder b;
  const ValueId first = b.op("first", "Shape", {b.input("a", {b.symbol("A")})}),
                second = b.op("second", "Shape", {b.input("b", {b.symbol("B")})});
  auto reshaped = [&](const char* name, ValueId from, ValueId taken) {
    const ValueId length = b.op(std::string(name) + "/length", "Sub", {from, taken});
    return type_of(b, b.op(name, "Reshape", {b.input(std::string(name) + "/x", {b.symbol("X")}), length}, {{"allowzero", int64_t{1}}}));
  };
  EXPECT_EQ(reshaped("a_b", first, second), "f32[A - B]");
  EXPECT_EQ(reshaped("b_a", second, first), "f32[-A + B]");
}

TEST(Infer, SymbolsPassThroughShapeGatherConcatReshape) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("batch"), b.symbol("seq"), 64});
  ValueId shape = b.op("shape", "Shape", {x});
  EXPECT_EQ(known_of(b, shape), "[batch,seq,64]");
  ValueId batch = b.op("batch", "Gather", {shape, b.graph().add_constant("zero", Tensor::scalar<int64_t>(0))});
  EXPECT_EQ(type_of(b, batch), "i64[]");
  ValueId batch1 = b.op("batch1", "Unsqueeze", {batch, b.ints("axes", {0})});
  ValueId seq = b.op("seq", "Slice", {shape, b.ints("starts", {1}), b.ints("ends", {2})});
  EXPECT_EQ(known_of(b, seq), "[seq]");
  ValueId target = b.op("target", "Concat", {batch1, seq, b.ints("heads", {4, -1})}, {{"axis", int64_t{0}}});
  EXPECT_EQ(known_of(b, target), "[batch,seq,4,-1]");
  ValueId split = b.op("split", "Reshape", {x, target});
  EXPECT_EQ(type_of(b, split), "f32[batch,seq,4,16]");
  ValueId heads = b.op("heads_first", "Transpose", {split}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
  EXPECT_EQ(type_of(b, heads), "f32[batch,4,seq,16]");
  ValueId back = b.op("back", "Reshape", {heads, b.ints("flat", {0, -1})});
  EXPECT_EQ(type_of(b, back), "f32[batch,64*seq]");
}

TEST(Infer, ArithmeticOnExtentsIsFollowed) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("batch"), b.symbol("height")});
  ValueId shape = b.op("shape", "Shape", {x});
  ValueId twice = b.op("twice", "Mul", {shape, b.ints("two", {2, 2})});
  ValueId less = b.op("less", "Sub", {twice, b.ints("one", {0, 1})});
  EXPECT_EQ(known_of(b, less), "[2*batch,2*height - 1]");
  ValueId half = b.op("half", "Div", {shape, b.ints("two2", {1, 2})});
  EXPECT_EQ(known_of(b, half), "[batch,floor_div(height, 2)]");
  EXPECT_EQ(type_of(b, b.op("filled", "ConstantOfShape", {half})), "f32[batch,floor_div(height, 2)]");
}

TEST(Infer, AGrowingCacheIsASumOfSymbols) {
  GraphBuilder b;
  ValueId past = b.input("past", {1, 4, b.symbol("past"), 32}), now = b.input("now", {1, 4, b.symbol("seq"), 32});
  ValueId all = b.op("all", "Concat", {past, now}, {{"axis", int64_t{2}}});
  EXPECT_EQ(type_of(b, all), "f32[1,4,past + seq,32]");
  ValueId last = b.op("last", "Slice",
                      {all, b.op("start", "Shape", {past}, {{"start", int64_t{2}}, {"end", int64_t{3}}}), b.ints("ends", {INT64_MAX}),
                       b.ints("axes", {2})});
  EXPECT_EQ(type_of(b, last), "f32[1,4,seq,32]");
}

TEST(Infer, ConvolutionsOfDynamicMapsKeepTheirSymbols) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("batch"), 3, b.symbol("height"), 64});
  ValueId w = b.weights("w", Shape{8, 3, 3, 3});
  ValueId same = b.op("same", "Conv", {x, w}, {{"pads", std::vector<int64_t>{1, 1, 1, 1}}});
  EXPECT_EQ(type_of(b, same), "f32[batch,8,height,64]");
  ValueId half = b.op("half", "Conv", {x, w}, {{"pads", std::vector<int64_t>{1, 1, 1, 1}}, {"strides", std::vector<int64_t>{2, 2}}});
  EXPECT_EQ(type_of(b, half), "f32[batch,8,floor_div(height + 1, 2),32]");
}

TEST(Infer, MatricesBroadcastTheirBatches) {
  GraphBuilder b;
  ValueId q = b.input("q", {b.symbol("batch"), 4, b.symbol("seq"), 16}), k = b.input("k", {1, 4, 16, b.symbol("total")});
  EXPECT_EQ(type_of(b, b.op("scores", "MatMul", {q, k})), "f32[batch,4,seq,total]");
}

TEST(Infer, WhatOnlyTheRunCanTellIsASymbolOfItsOwn) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n")});
  ValueId where = b.op("where", "NonZero", {x});
  const Type type = b.graph().type(where);
  ASSERT_EQ(type.rank(), 2);
  EXPECT_TRUE((*type.shape)[0].is_const(1));
  EXPECT_TRUE((*type.shape)[1].data_dependent());
  // Later nodes can use this extent like any other.
  ValueId columns = b.op("columns", "Transpose", {where});
  EXPECT_EQ((*b.graph().type(columns).shape)[0], (*type.shape)[1]);
}

TEST(Infer, InferenceTwiceFindsTheSame) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n"), 6});
  b.output(b.op("y", "Reshape", {b.op("relu", "Relu", {x}), b.ints("shape", {-1, 3})}));
  std::string once = print(b.graph());
  infer(b.graph());
  EXPECT_EQ(print(b.graph()), once);
}

TEST(Infer, TheInferredTypeWinsOverADeclaredOneWithAWarning) {
  GraphBuilder b;
  ValueId x = b.input("x", {2, 3});
  NodeId id = b.graph().add_node({.op_type = "Relu", .inputs = {x}, .name = "relu", .output_names = {"y"}});
  ValueId y = b.graph().node(id).outputs[0];
  b.graph().value(y).type = Type::tensor(DType::float32, SymbolicShape{2, 4});
  std::string warning;
  infer_node(b.graph(), id, {.warn = [&](const std::string& text) { warning = text; }});
  EXPECT_EQ(type_of(b, y), "f32[2,3]");
  EXPECT_EQ(warning,
            "Relu node \"relu\" (ai.onnx, opset 14): output \"y\" is declared f32[2,4], inferred f32[2,3]; the inferred type is taken");
}

TEST(Infer, MergingTakesWhatEachTypeKnows) {
  SymbolTable table;
  Dim n = table.symbol("n"), found = table.fresh_symbol("found", true);
  Type inferred = Type::tensor(DType::float32, SymbolicShape{found, n, 3}), declared = Type::tensor(DType::float32, SymbolicShape{n, 4, n});
  EXPECT_EQ(to_string(merge(inferred, declared)), "f32[n,n,3]");
  EXPECT_EQ(to_string(merge(Type::tensor(DType::float32), declared)), "f32[n,4,n]");
  EXPECT_EQ(to_string(merge(Type{}, declared)), "f32[n,4,n]");
  bool contradiction = false;
  EXPECT_EQ(
      to_string(merge(Type::tensor(DType::float32, SymbolicShape{2}), Type::tensor(DType::float32, SymbolicShape{3}), &contradiction)),
      "f32[2]");
  EXPECT_TRUE(contradiction);
}

// Returns the text of the error: it says where the error is, which two values disagree, and what the operands of the node are.
std::string error_of(const std::function<void(GraphBuilder&)>& build) {
  GraphBuilder b;
  try {
    build(b);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(InferErrors, AConvolutionOfOtherChannels) {
  std::string text = error_of([](GraphBuilder& b) {
    ValueId x = b.input("x", {1, 32, 56, 56});
    b.op("layer1.0/conv2", "Conv", {x, b.weights("w", Shape{64, 64, 3, 3})},
         {{"pads", std::vector<int64_t>{1, 1, 1, 1}}, {"strides", std::vector<int64_t>{2, 2}}});
  });
  EXPECT_EQ(text,
            "Conv node \"layer1.0/conv2_node\" (ai.onnx, opset 22), during shape inference:\n"
            "  W has 64 input channels, X has 32 (group=1)\n"
            "  X f32[1,32,56,56], W f32[64,64,3,3]; pads=[1,1,1,1], strides=[2,2]");
}

TEST(InferErrors, ASumOfShapesThatDoNotBroadcast) {
  std::string text = error_of([](GraphBuilder& b) { b.op("sum", "Add", {b.input("x", {2, 3}), b.input("y", {b.symbol("n"), 4})}); });
  EXPECT_EQ(text,
            "Add node \"sum_node\" (ai.onnx, opset 14), during shape inference:\n"
            "  shapes [2,3] and [n,4] do not broadcast: 3 against 4 at axis -1\n"
            "  A f32[2,3], B f32[n,4]");
}

TEST(InferErrors, OperandsOfTwoTypes) {
  std::string text = error_of([](GraphBuilder& b) { b.op("sum", "Add", {b.input("x", {2}), b.input("y", {2}, DType::int64)}); });
  EXPECT_NE(text.find("the inputs A and B must have one type, they are float32 and int64"), std::string::npos) << text;
}

TEST(InferErrors, AMissingInputAndAnUnknownAttribute) {
  EXPECT_NE(error_of([](GraphBuilder& b) { b.op("y", "Add", {b.input("x", {2})}); }).find("the input 1 (B) is missing"), std::string::npos);
  EXPECT_NE(error_of([](GraphBuilder& b) { b.op("y", "Sum", {}); }).find("the input 0 (data_0) is missing"), std::string::npos);
  EXPECT_NE(error_of([](GraphBuilder& b) {
              ValueId x = b.input("x", {2});
              b.op("y", "Concat", {x, kNoValue, x}, {{"axis", int64_t{0}}});
            }).find("the input 1 (inputs) is missing"),
            std::string::npos);
  EXPECT_NE(error_of([](GraphBuilder& b) {
              b.op("y", "Relu", {b.input("x", {2})}, {{"slope", 1.0F}});
            }).find("the attribute \"slope\" is not one of the operator's"),
            std::string::npos);
}

}  // namespace
}  // namespace treadle
