// Tests the writer of models: a written model reads back as the same model, and a file is either written completely or not at all.
#include "onnx/serialize.h"

#include <gtest/gtest.h>

#include <fstream>

#include "onnx/parse.h"
#include "tests/onnx/full_model.h"
#include "tests/onnx/model_difference.h"

namespace treadle::onnx::test {
namespace {

ModelDef parse(const std::string& bytes) { return parse_model_bytes(bytes_of(bytes), nullptr, {}); }

TensorDef float_tensor(const std::string& name, int64_t count, float first) {
  TensorDef def;
  def.name = name;
  def.value = Tensor(DType::float32, Shape{count});
  for (int64_t i = 0; i < count; ++i) def.value.data<float>()[i] = first + static_cast<float>(i);
  def.dtype = DType::float32;
  def.shape = def.value.shape();
  return def;
}

/// Makes a model with small and large initializers, also in a subgraph. "tied" shares the memory of "large".
ModelDef model_with_weights() {
  ModelDef model;
  model.ir_version = 8;
  model.graph.name = "g";
  model.graph.initializers.push_back(float_tensor("small", 3, 1));
  model.graph.initializers.push_back(float_tensor("medium", 1000, 2));
  model.graph.initializers.push_back(float_tensor("large", 20000, 3));
  TensorDef tied = model.graph.initializers[2];
  tied.name = "tied";
  model.graph.initializers.push_back(tied);
  TensorDef names;
  names.name = "names";
  names.value = Tensor::strings(Shape{2}, std::vector<std::string>{std::string(2000, 'a'), "b"});
  names.dtype = DType::string;
  names.shape = Shape{2};
  model.graph.initializers.push_back(names);
  NodeDef loop;
  loop.op_type = "Loop";
  AttributeDef body;
  body.name = "body";
  body.type = AttributeType::graph;
  body.g = std::make_unique<GraphDef>();
  body.g->initializers.push_back(float_tensor("inner", 500, 4));
  loop.attributes.push_back(std::move(body));
  model.graph.nodes.push_back(std::move(loop));
  return model;
}

TEST(OnnxSerialize, EveryFieldSurvivesARoundTrip) {
  ModelDef model = parse(full_model());
  std::string written = serialize_model(model);
  EXPECT_EQ(first_difference(model, parse(written)), "");
  EXPECT_EQ(serialize_model(parse(written)), written);
}

TEST(OnnxSerialize, ACopyHasEveryFieldAndSharesTheElements) {
  ModelDef model = parse(full_model());
  const std::string written = serialize_model(model);
  ModelDef copy = model;
  EXPECT_EQ(first_difference(model, copy), "");
  ASSERT_FALSE(model.graph.initializers.empty());
  for (size_t i = 0; i < model.graph.initializers.size(); ++i)
    EXPECT_EQ(copy.graph.initializers[i].value.storage(), model.graph.initializers[i].value.storage()) << i;
  size_t num_bodies = 0;
  for (NodeDef& node : copy.graph.nodes) {
    node.inputs.clear();
    for (AttributeDef& attribute : node.attributes)
      if (attribute.g) attribute.g->nodes.clear(), attribute.g->name = "another", ++num_bodies;
  }
  EXPECT_GT(num_bodies, 0U);
  copy.graph.outputs.clear();
  EXPECT_EQ(serialize_model(model), written);
}

TEST(OnnxSerialize, WritesTheBytesThatProtobufWrites) {
  // Fields are in ascending order, as protobuf writes them. No field is empty, because the writer omits empty fields.
  std::string graph = message([](Writer& g) {
    g.add_message(1, message([](Writer& n) {
                    n.add_string(1, "x");
                    n.add_string(2, "y");
                    n.add_string(4, "Op");
                    n.add_message(5, attribute_of(6));
                    n.add_message(5, attribute_of(4));
                  }));
    g.add_string(2, "main");
    g.add_message(11, value_info("x", tensor_type(1, three_dims())));
  });
  std::string expected = model_message(graph);
  EXPECT_EQ(serialize_model(parse(expected)), expected);
}

TEST(OnnxSerialize, EveryDtypeIsWrittenAsRawData) {
  for (int number = 1; number < kNumDTypes; ++number) {
    auto dtype = static_cast<DType>(number);
    if (dtype == DType::string) continue;
    TensorDef def;
    def.name = "t";
    def.value = Tensor(dtype, Shape{2, 3});
    for (size_t i = 0; i < def.value.size_bytes(); ++i)
      def.value.raw()[i] = static_cast<std::byte>(dtype == DType::boolean ? i % 2 : i * 37 + 1);
    std::string written = serialize_tensor(def);
    EXPECT_EQ(written, message([&](Writer& w) {
                w.add_int64(1, 2);
                w.add_int64(1, 3);
                w.add_int32(2, number);
                w.add_string(8, "t");
                w.add_bytes(9, raw_bytes(def.value));
              }));
    EXPECT_EQ(raw_bytes(parse_tensor_bytes(bytes_of(written)).value), raw_bytes(def.value)) << name_of(dtype);
  }
}

TEST(OnnxSerialize, AStridedTensorIsWrittenInOrder) {
  Tensor dense = Tensor::of<float>(Shape{2, 2}, std::vector<float>{1, 2, 3, 4});
  const int64_t strides[] = {1, 2};
  TensorDef def;
  def.value = Tensor(DType::float32, Shape{2, 2}, strides, dense.storage(), 0);
  EXPECT_EQ(raw_bytes(parse_tensor_bytes(bytes_of(serialize_tensor(def))).value), raw_of({1.f, 3.f, 2.f, 4.f}));
}

TEST(OnnxSerialize, ATensorWithoutValueIsAnErrorUnlessItIsExternal) {
  TensorDef def;
  def.name = "lost";
  EXPECT_NE(error_of([&] { serialize_tensor(def); }).find("\"lost\" has no value"), std::string::npos);
  def.is_external = true;
  def.dtype = DType::float32;
  def.shape = Shape{4};
  def.external = {.location = "w.bin", .offset = 4096, .length = 16, .checksum = "c", .other = {{"k", "v"}}};
  ModelDef model;
  model.ir_version = 8;
  model.graph.initializers.push_back(def);
  ModelDef again = parse_model_bytes(bytes_of(serialize_model(model)), nullptr, {}, {.load_external = false});
  EXPECT_EQ(first_difference(model, again), "");
  AttributeDef attribute;
  attribute.name = "hollow";
  attribute.type = AttributeType::graph;
  model.graph.nodes.emplace_back().attributes.push_back(std::move(attribute));
  EXPECT_NE(error_of([&] { serialize_model(model); }).find("\"hollow\" has no value"), std::string::npos);
}

TEST(OnnxSerialize, WritesAFileThatReadsBack) {
  TemporaryFolder folder;
  ModelDef model = model_with_weights();
  write_model_file(model, folder.file("m.onnx"));
  EXPECT_EQ(first_difference(model, parse_model_file(folder.file("m.onnx"))), "");
  EXPECT_EQ(folder.num_files(), 1u);
  EXPECT_EQ(folder.read("m.onnx"), serialize_model(model));
}

TEST(OnnxSerialize, WritesExternalDataThatIsAlignedAndShared) {
  TemporaryFolder folder;
  ModelDef model = model_with_weights();
  write_model_file(model, folder.file("m.onnx"), {.external_data_file = "m.data"});
  ModelDef again = parse_model_file(folder.file("m.onnx"));
  EXPECT_EQ(first_difference(model, again), "");
  const auto& initializers = again.graph.initializers;
  EXPECT_FALSE(initializers[0].is_external);
  EXPECT_TRUE(initializers[1].is_external);
  EXPECT_EQ(initializers[1].external.offset % 64, 0u);
  EXPECT_EQ(initializers[2].external.offset % 4096, 0u);
  EXPECT_EQ(initializers[2].external.length, 80000u);
  EXPECT_EQ(initializers[3].external.offset, initializers[2].external.offset);
  EXPECT_FALSE(initializers[4].is_external);  // tensors of strings stay in the model
  EXPECT_TRUE(again.graph.nodes[0].attributes[0].g->initializers[0].is_external);
  EXPECT_FALSE(initializers[2].value.storage()->writable());  // the value is mapped from the file
  EXPECT_LT(folder.read("m.data").size(), 100000u);
  EXPECT_EQ(folder.num_files(), 2u);
  // Overwrites the files from which the tensors are mapped.
  write_model_file(again, folder.file("m.onnx"), {.external_data_file = "m.data"});
  EXPECT_EQ(first_difference(model, parse_model_file(folder.file("m.onnx"))), "");
  EXPECT_EQ(first_difference(model, again), "");
}

TEST(OnnxSerialize, RefusesBadOptions) {
  TemporaryFolder folder;
  ModelDef model = model_with_weights();
  auto code = [&](WriteOptions options) { return code_of([&] { write_model_file(model, folder.file("m.onnx"), options); }); };
  for (const char* name : {"../m.data", "/tmp/m.data", "sub/m.data", "..", "m.onnx"})
    EXPECT_EQ(code({.external_data_file = name}), ErrorCode::invalid_argument) << name;
  EXPECT_EQ(code({.external_data_file = "m.data", .external_alignment = 100}), ErrorCode::invalid_argument);
  TensorDef unread;
  unread.name = "unread";
  unread.is_external = true;
  unread.external.location = "m.data";
  model.graph.initializers.push_back(unread);
  // This name would overwrite data that is still to be read.
  EXPECT_EQ(code({.external_data_file = "m.data"}), ErrorCode::invalid_argument);
  EXPECT_EQ(folder.num_files(), 0u);
}

TEST(OnnxSerialize, AFailureLeavesTheOldFile) {
  TemporaryFolder folder;
  folder.write("m.onnx", "old");
  folder.write("m.data", "old data");
  ModelDef model = model_with_weights();
  model.graph.nodes[0].attributes[0].g = nullptr;
  EXPECT_EQ(code_of([&] { write_model_file(model, folder.file("m.onnx"), {.external_data_file = "m.data"}); }), ErrorCode::invalid_model);
  EXPECT_EQ(folder.read("m.onnx") + folder.read("m.data"), "oldold data");
  EXPECT_EQ(folder.num_files(), 2u);
  EXPECT_EQ(code_of([&] { write_model_file(model_with_weights(), folder.file("none/m.onnx")); }), ErrorCode::io_error);
}

TEST(OnnxSerialize, AModelAbove2GiBNeedsExternalData) {
  // Every tensor is a view of the same 512 MiB, and no page of them is ever touched.
  auto storage = Storage::allocate(size_t{512} << 20);
  ModelDef model;
  model.ir_version = 8;
  for (int i = 0; i < 4; ++i) {
    TensorDef& def = model.graph.initializers.emplace_back();
    def.name = "w" + std::to_string(i);
    def.value = Tensor(DType::uint8, Shape{512 << 20}, storage);
  }
  std::string error = error_of([&] { serialize_model(model); });
  EXPECT_NE(error.find("at most 2147483647: put its tensors into an external data file"), std::string::npos) << error;
}

}  // namespace
}  // namespace treadle::onnx::test
