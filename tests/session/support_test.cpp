#include <gtest/gtest.h>

#include "onnx/model_def.h"
#include "onnx/serialize.h"
#include "treadle/error.h"
#include "treadle/treadle.hpp"

namespace treadle {
namespace {

onnx::ValueInfoDef vector_info(const std::string& name, DType dtype) {
  onnx::ValueInfoDef info;
  info.name = name;
  info.type.kind = onnx::TypeDef::Kind::tensor;
  info.type.elem_type = dtype;
  onnx::DimDef dim;
  dim.kind = onnx::DimDef::Kind::value;
  dim.value = 4;
  info.type.shape = std::vector<onnx::DimDef>{dim};
  return info;
}

onnx::NodeDef node(const std::string& name, const std::string& op, const std::string& input, const std::string& output,
                   const std::string& attribute = "") {
  onnx::NodeDef made;
  made.name = name;
  made.op_type = op;
  made.inputs = {input};
  made.outputs = {output};
  if (!attribute.empty()) {
    onnx::AttributeDef value;
    value.name = attribute;
    value.type = onnx::AttributeType::i;
    value.i = 1;
    made.attributes.push_back(std::move(value));
  }
  return made;
}

// Makes a model with two nodes of one unknown operator, one of another, one with an unknown attribute, and one with an input of a dtype
// that its operator does not support.
Model faulty(bool good) {
  onnx::ModelDef model;
  model.ir_version = 10;
  model.opset_imports.push_back({"", 21});
  model.graph.name = "faulty";
  model.graph.inputs.push_back(vector_info("x", DType::float32));
  model.graph.inputs.push_back(vector_info("text", DType::string));
  auto add = [&](onnx::NodeDef made) { model.graph.nodes.push_back(std::move(made)); };
  add(node("first", "Relu", "x", "a"));
  if (!good) {
    add(node("one", "Frobnicate", "a", "b"));
    add(node("two", "Frobnicate", "b", "c"));
    add(node("three", "Defenestrate", "c", "d"));
    add(node("four", "Relu", "x", "e", "sharpness"));
    add(node("five", "Relu", "text", "f"));
    add(node("six", "Abs", "d", "g"));
  }
  model.graph.outputs.push_back(vector_info("a", DType::float32));
  const std::string bytes = onnx::serialize_model(model);
  return Model::from_bytes(std::as_bytes(std::span(bytes)));
}

TEST(Support, EverythingThatIsMissingIsListedAtOnce) {
  std::string all;
  const std::vector<std::string> lines = faulty(/*good=*/false).unsupported();
  for (const std::string& line : lines) all += line + "\n";
  EXPECT_EQ(lines.size(), 4) << all;
  EXPECT_NE(all.find("operator ai.onnx.Frobnicate (opset 21): 2 nodes, \"one\", \"two\""), std::string::npos) << all;
  EXPECT_NE(all.find("operator ai.onnx.Defenestrate (opset 21): 1 node, \"three\""), std::string::npos) << all;
  EXPECT_NE(all.find("the attribute \"sharpness\" is not one of the operator's"), std::string::npos) << all;
  EXPECT_NE(all.find("\"four\""), std::string::npos) << all;
  EXPECT_NE(all.find("\"five\""), std::string::npos) << all;
  EXPECT_EQ(all.find("\"six\""), std::string::npos) << "what follows an unknown operator is no fault of its own\n" << all;
}

TEST(Support, ASessionSaysTheSame) {
  try {
    Session session(faulty(/*good=*/false));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_implemented);
    for (const char* part : {"Frobnicate", "Defenestrate", "sharpness", "\"five\""})
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Support, AModelThatRunsLacksNothing) { EXPECT_TRUE(faulty(/*good=*/true).unsupported().empty()); }

// The body of the SequenceMap has two outputs, but the node has one. After the error, the node must be unchanged, so that further checks
// can run.
TEST(Support, ANodeThatCannotBeRewrittenKeepsItsBody) {
  onnx::ModelDef model;
  model.ir_version = 10;
  model.opset_imports.push_back({"", 21});
  model.graph.name = "faulty";
  model.graph.inputs.push_back(vector_info("x", DType::float32));
  model.graph.nodes.push_back(node("list", "SequenceConstruct", "x", "s"));
  onnx::NodeDef map = node("map", "SequenceMap", "s", "m");
  map.attributes.emplace_back();
  map.attributes.back().name = "body";
  map.attributes.back().type = onnx::AttributeType::graph;
  map.attributes.back().g = std::make_unique<onnx::GraphDef>();
  onnx::GraphDef& body = *map.attributes.back().g;
  body.name = "body";
  body.inputs.push_back(vector_info("e", DType::float32));
  body.nodes.push_back(node("neg", "Neg", "e", "n"));
  for (const char* output : {"n", "e"}) body.outputs.push_back(vector_info(output, DType::float32));
  model.graph.nodes.push_back(std::move(map));
  model.graph.nodes.push_back(node("first", "Frobnicate", "x", "a"));
  model.graph.outputs.push_back(vector_info("a", DType::float32));
  const std::string bytes = onnx::serialize_model(model);
  std::string all;
  for (const std::string& line : Model::from_bytes(std::as_bytes(std::span(bytes))).unsupported()) all += line + "\n";
  EXPECT_NE(all.find("the body has 1 inputs and 2 outputs, the node 1 and 1"), std::string::npos) << all;
  EXPECT_NE(all.find("Frobnicate"), std::string::npos) << all;
}

}  // namespace
}  // namespace treadle
