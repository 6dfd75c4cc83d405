// Tests models in ONNX Runtime's format: intact ones are read like the ONNX files from which they were made; damaged ones are read or
// refused.
#include <gtest/gtest.h>

#include <cstring>

#include "onnx/parse.h"
#include "onnx/serialize.h"
#include "tests/graphs/generator.h"
#include "tests/onnx/full_model.h"
#include "tests/onnx/model_difference.h"
#include "tests/onnx/ort_writer.h"

namespace treadle::onnx::test {
namespace {

using Format = ReadOptions::Format;

ModelDef parse(const std::string& bytes, Format format = Format::any) {
  ReadOptions options;
  options.format = format;
  return parse_model_bytes(bytes_of(bytes), nullptr, {}, options);
}

// Removes the parts that the format cannot hold.
void strip(GraphDef& graph);
void strip(NodeDef& node) {
  node.overload.clear(), node.metadata_props.clear(), node.device_configurations.clear();
  std::erase_if(node.attributes, [](const AttributeDef& attribute) { return attribute.type > AttributeType::graphs; });
  for (AttributeDef& attribute : node.attributes) {
    if (attribute.g) strip(*attribute.g);
    for (GraphDef& body : attribute.graphs) strip(body);
  }
}
void strip(GraphDef& graph) {
  graph.name.clear(), graph.metadata_props.clear(), graph.quantization_annotation.clear();
  for (TensorDef& tensor : graph.initializers) tensor.metadata_props.clear();
  for (auto* list : {&graph.inputs, &graph.outputs})
    for (ValueInfoDef& info : *list) info.metadata_props.clear();
  graph.value_info.clear();  // the format lists the types of all values instead
  for (NodeDef& node : graph.nodes) strip(node);
}
ModelDef stripped(ModelDef model) {
  model.training_info.clear(), model.configuration.clear(), model.functions.clear();
  strip(model.graph);
  return model;
}

ModelDef full() {
  ModelDef model = stripped(parse(full_model()));
  for (ValueInfoDef& input : model.graph.inputs)
    if (input.type.elem && input.type.elem->kind == TypeDef::Kind::optional) {
      const TypeDef within = *input.type.elem->elem;
      *input.type.elem = within;
    }
  return model;
}

constexpr const char* kNone = "no error";
std::string refusal(const std::string& bytes, Format format = Format::any) {
  return error_of([&] { parse(bytes, format); });
}

TEST(OrtFormat, SaysWhatTheOnnxFileSays) {
  const ModelDef model = full();
  EXPECT_EQ(first_difference(model, parse(OrtWriter::write(model))), "");
}

TEST(OrtFormat, OfRandomModelsReadsAsTheirOnnxFiles) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    ModelDef model = stripped(parse(serialize_model(graphs::Generator(seed).generate().model)));
    for (ValueInfoDef& output : model.graph.outputs)  // the format stores one type per name
      for (const ValueInfoDef& known : model.graph.inputs)
        if (known.name == output.name) output = known;
    ModelDef read = parse(OrtWriter::write(model));
    read.graph.value_info.clear();
    ASSERT_EQ(first_difference(model, read), "") << seed;
  }
}

TEST(OrtFormat, KeepsTypesOfValuesThatNodesMake) {
  ModelDef model = full();
  model.graph.value_info = {model.graph.inputs[0], model.graph.inputs[0]};
  model.graph.value_info[0].name = model.graph.nodes[0].outputs.emplace_back("inner");
  model.graph.value_info[1].name = "nobody";
  const ModelDef read = parse(OrtWriter::write(model));
  model.graph.value_info.pop_back();
  EXPECT_EQ(first_difference(model, read), "");
}

TEST(OrtFormat, IsKnownByTheNameOrTheFirstBytesOrIsAskedFor) {
  const TemporaryFolder folder;
  const std::string ort = OrtWriter::write(full()), onnx = full_model();
  EXPECT_NE(refusal(ort, Format::onnx), kNone);
  EXPECT_NE(refusal(onnx, Format::ort).find("ORT model verification failed"), std::string::npos);
  EXPECT_EQ(parse(ort, Format::ort).producer_name, "maker");
  for (const char* name : {"a.ort", "a.ORT", "a.onnx"}) {
    EXPECT_EQ(parse_model_file(folder.write(name, ort)).producer_name, "maker") << name;
  }
  const std::string named = folder.write("b.ort", onnx);
  EXPECT_NE(error_of([&] { parse_model_file(named); }).find("ORT model verification failed"), std::string::npos);
  ReadOptions as_onnx;
  as_onnx.format = Format::onnx;
  EXPECT_EQ(parse_model_file(named, as_onnx).producer_name, "maker");
  // Makes an ONNX file whose producer name has the letters "ORTM" at the position where the other format has them.
  ModelDef model = full();
  model.producer_name = "ORTM";
  const std::string bytes = serialize_model(model);
  ASSERT_EQ(bytes.substr(4, 4), "ORTM");
  EXPECT_EQ(parse(bytes).producer_name, "ORTM");
}

TEST(OrtFormat, LeavesLargeWeightsInPlace) {
  ModelDef model = full();
  model.graph.initializers[0].value = Tensor(DType::float32, {256, 256});
  std::memset(model.graph.initializers[0].value.raw(), 0, size_t{4} * 256 * 256);
  model.graph.initializers[0].shape = {256, 256};
  const std::string bytes = OrtWriter::write(model);
  auto storage = Storage::allocate(bytes.size());
  std::memcpy(storage->data(), bytes.data(), bytes.size());
  const ModelDef read = parse_model_bytes({storage->data(), bytes.size()}, storage, {});
  const std::byte* place = read.graph.initializers[0].value.raw();
  EXPECT_TRUE(place > storage->data() && place < storage->data() + bytes.size());
}

TEST(OrtFormat, RefusesNewerVersions) {
  for (const char* version : {"7", "10", "", "x"})
    EXPECT_NE(refusal(OrtWriter::write(full(), version)).find("ORT format model version [" + std::string(version) + "]"),
              std::string::npos);
  EXPECT_EQ(refusal(OrtWriter::write(full(), "4")), kNone);
}

TEST(OrtFormat, IsNotWritten) {
  const TemporaryFolder folder;
  const std::string message = error_of([&] { write_model_file(full(), folder.file("model.ort")); });
  EXPECT_NE(message.find("read, not written"), std::string::npos) << message;
}

TEST(OrtFormat, CutOffIsRefused) {
  const std::string bytes = OrtWriter::write(full());
  for (size_t size = 0; size < bytes.size() - 8; ++size) EXPECT_NE(refusal(bytes.substr(0, size), Format::ort), kNone) << size;
}

// Offsets may refer to one table many times. So a small file can describe a huge graph.
TEST(OrtFormat, WithTablesThatAreUsedAgainAndAgainIsRefused) {
  flatbuffers::FlatBufferBuilder b;
  auto table = [&](std::initializer_list<std::pair<int, flatbuffers::uoffset_t>> fields) {
    const auto start = b.StartTable();
    for (const auto& [field, to] : fields) b.AddOffset(static_cast<flatbuffers::voffset_t>(4 + 2 * field), flatbuffers::Offset<void>(to));
    return b.EndTable(start);
  };
  const auto op = b.CreateString("Identity").o;
  const flatbuffers::Offset<void> node(table({{5, op}}));
  const auto nodes = b.CreateVector(std::vector(100'000, node)).o;
  const auto graph = table({{2, nodes}});
  const auto model = table({{7, graph}});
  const auto version = b.CreateString("6").o;
  b.Finish(flatbuffers::Offset<void>(table({{0, version}, {1, model}})), "ORTM");
  const std::string bytes(reinterpret_cast<const char*>(b.GetBufferPointer()), b.GetSize());
  EXPECT_NE(refusal(bytes).find("used more than once"), std::string::npos) << refusal(bytes);
}

TEST(OrtFormat, WithATextThatIsUsedAgainAndAgainIsRefused) {
  ModelDef model = full();
  model.graph.nodes[0].inputs.assign(4096, std::string(100'000, 'x'));
  const std::string bytes = OrtWriter::write(model);
  EXPECT_NE(refusal(bytes).find("more often than it has bytes"), std::string::npos) << refusal(bytes);
}

// A name of four bytes may refer to a large type many times.
TEST(OrtFormat, WithATypeThatIsUsedAgainAndAgainIsRefused) {
  ModelDef model = full();
  model.graph.inputs[0].type.shape->resize(2000);
  EXPECT_EQ(refusal(OrtWriter::write(model)), kNone);
  model.graph.inputs.assign(2000, model.graph.inputs[0]);
  const std::string bytes = OrtWriter::write(model);
  EXPECT_NE(refusal(bytes).find("more often than it has bytes"), std::string::npos) << refusal(bytes);
}

}  // namespace
}  // namespace treadle::onnx::test
