#include "onnx/export.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "onnx/import.h"
#include "onnx/parse.h"
#include "onnx/serialize.h"
#include "passes/pipeline.h"
#include "tests/graph/graph_builder.h"
#include "tests/onnx/model_difference.h"
#include "treadle/error.h"

namespace treadle::onnx {
namespace {

using treadle::testing::GraphBuilder;

// Exports the graph and reads the model back.
ModelDef written(const Graph& graph, const ModelDef* original = nullptr, const ExportOptions& options = {}) {
  std::string bytes = serialize_model(export_model(graph, original, options));
  return parse_model_bytes(std::as_bytes(std::span(bytes)), nullptr, {});
}

std::unique_ptr<Graph> read(const ModelDef& model) {
  auto graph = import_graph(model);
  upgrade(*graph);
  return graph;
}

int opset_of(const ModelDef& model, const std::string& domain = "") {
  for (const OpsetImport& opset : model.opset_imports)
    if (opset.domain == domain) return static_cast<int>(opset.version);
  return 0;
}

std::unique_ptr<Graph> simple() {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("batch"), 3});
  ValueId y = b.op("y", "Clip", {x, kNoValue, b.scalar("high", 1)});
  b.output(b.op("z", "Concat", {y, b.op("w", "Mul", {x, b.floats("c", {1, 2, 3})})}, {{"axis", int64_t{1}}}), "result");
  auto graph = b.take();
  graph->rename_value(graph->outputs[0], "result");
  return graph;
}

// Makes a BatchNormalization in training mode. In files, its variance is the biased one.
std::unique_ptr<Graph> normalization(bool unbiased) {
  GraphBuilder b;
  std::vector<ValueId> inputs{b.input("x", {4, 3})};
  for (const char* name : {"scale", "shift", "mean", "variance"}) inputs.push_back(b.floats(name, {1, 2, 3}));
  Attributes attributes{{"training_mode", int64_t{1}}};
  if (unbiased) attributes.set("treadle.unbiased_variance", int64_t{1});
  b.output(b.node("y", "BatchNormalization", inputs, attributes, 3)[0]);
  return b.take();
}

TEST(Export, InternalAttributesAreNoPartOfFiles) {
  ModelDef model = written(*normalization(false));
  EXPECT_NO_THROW(import_graph(model));
  EXPECT_NE(test::error_of([&] { written(*normalization(true)); }).find("treadle.unbiased_variance"), std::string::npos);
  AttributeDef attribute;
  attribute.name = "treadle.unbiased_variance";
  attribute.type = AttributeType::i;
  attribute.i = 1;
  model.graph.nodes.at(0).attributes.push_back(std::move(attribute));
  const std::string error = test::error_of([&] { import_graph(model); });
  EXPECT_NE(error.find("the attribute \"treadle.unbiased_variance\" is not one of the operator's"), std::string::npos) << error;
  EXPECT_NE(error.find("BatchNormalization"), std::string::npos) << error;
}

TEST(Export, AGraphComesBackAsItWas) {
  auto graph = simple();
  ModelDef model = written(*graph);
  EXPECT_EQ(print(*read(model)), print(*graph));
  ASSERT_EQ(model.graph.nodes.size(), 3U);
  EXPECT_EQ(model.graph.nodes[0].name, "y_node");
  EXPECT_EQ(model.graph.nodes[0].inputs, (std::vector<std::string>{"x", "", "high"}));
  EXPECT_EQ(model.graph.inputs[0].type.shape->at(0).param, "batch");
  EXPECT_EQ(model.graph.outputs[0].name, "result");
  EXPECT_EQ(model.graph.outputs[0].type.shape->at(1).value, 6);
  ASSERT_EQ(model.graph.value_info.size(), 2U);
  EXPECT_EQ(model.graph.value_info[0].name, "y");
  EXPECT_EQ(model.producer_name, "treadle");
}

TEST(Export, TakesTheMetadataOfTheOriginal) {
  ModelDef original;
  original.domain = "org.example";
  original.model_version = 7;
  original.doc_string = "text";
  original.metadata_props = {{"key", "value"}};
  ModelDef model = written(*simple(), &original);
  EXPECT_EQ(model.domain, "org.example");
  EXPECT_EQ(model.model_version, 7);
  EXPECT_EQ(model.doc_string, "text");
  EXPECT_EQ(model.metadata_props, original.metadata_props);
  EXPECT_EQ(model.producer_name, "treadle") << "it names none";
  original.producer_name = "a maker", original.producer_version = "1.2";
  model = written(*simple(), &original);
  EXPECT_EQ(model.producer_name + " " + model.producer_version, "a maker 1.2");
}

TEST(Export, InputsConstantsAndSecondOutputsAreCopied) {
  GraphBuilder b;
  ValueId x = b.input("x", {2}), c = b.floats("c", {1, 2});
  ValueId y = b.op("y", "Relu", {x});
  b.output(y, "y");
  b.output(y, "again");
  b.output(x, "x_out");
  b.output(x, "x");
  b.output(c, "c");
  auto graph = b.take();
  ModelDef model = written(*graph);
  std::vector<std::string> names, copies;
  for (const ValueInfoDef& output : model.graph.outputs) names.push_back(output.name);
  EXPECT_EQ(names, (std::vector<std::string>{"y", "again", "x_out", "x", "c"}));
  for (const NodeDef& node : model.graph.nodes)
    if (node.op_type == "Identity") copies.push_back(node.inputs[0] + ">" + node.outputs[0]);
  EXPECT_EQ(copies, (std::vector<std::string>{"y>again", "x>x_out", "c_1>c"}));
  std::vector<Datum> feeds = treadle::testing::random_feeds(*graph);
  std::vector<Datum> before = treadle::testing::run_graph(*graph, feeds), after = treadle::testing::run_graph(*read(model), feeds);
  ASSERT_EQ(before.size(), after.size());
  for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(equal(before[i].tensor(), after[i].tensor())) << i;
}

// Makes a graph with a Loop whose body reads values of the graph around it, and has a value with the name of one of them.
std::unique_ptr<Graph> with_loop() {
  GraphBuilder b;
  ValueId x = b.input("x", {2});
  ValueId scale = b.op("scale", "Neg", {x});
  GraphBuilder inner(b.graph().symbol_table());
  inner.input("i", {}, DType::int64);
  ValueId go = inner.input("go", {}, DType::boolean);
  ValueId state = inner.input("state", {2});
  ValueId captured = inner.input("scale", {2});
  ValueId hides = inner.op("x", "Mul", {state, captured});
  inner.output(go);
  inner.output(inner.op("sum", "Add", {hides, inner.floats("offset", {1, 1})}));
  Graph& graph = b.graph();
  ValueId trips = graph.add_constant("trips", Tensor::scalar<int64_t>(3));
  NodeId id = graph.add_node({.op_type = "Loop", .inputs = {trips, kNoValue, x}, .name = "loop", .output_names = {"y"}});
  auto body = inner.take();
  body->name = "body";
  graph.node(id).bodies.push_back({"body", std::move(body), {{captured, graph.add_capture(id, scale)}}});
  infer_node(graph, id);
  b.output(graph.node(id).outputs[0]);
  return b.take();
}

TEST(Export, CapturesVanishAndNamesStayUniqueAcrossBodies) {
  auto graph = with_loop();
  ModelDef model = written(*graph);
  const NodeDef& loop = model.graph.nodes.at(1);
  EXPECT_EQ(loop.inputs, (std::vector<std::string>{"trips", "", "x"}));
  const GraphDef& body = *loop.attributes.at(0).g;
  EXPECT_EQ(body.inputs.size(), 3U);
  EXPECT_EQ(body.nodes.at(0).inputs, (std::vector<std::string>{"state", "scale"}));
  EXPECT_EQ(body.nodes.at(0).outputs[0], "x_1");
  EXPECT_EQ(body.nodes.back().op_type, "Identity");  // copies the condition, an input of the body that is also an output
  std::vector<Datum> feeds = treadle::testing::random_feeds(*graph);
  EXPECT_TRUE(equal(treadle::testing::run_graph(*graph, feeds)[0].tensor(), treadle::testing::run_graph(*read(model), feeds)[0].tensor()));
}

TEST(Export, ABodysCopyOfACapturedConstantIsWrittenOnce) {
  auto graph = with_loop();
  NodeId loop = graph->first();
  while (!graph->node(loop).is("Loop")) loop = graph->next(loop);
  // The body reads a constant of the outer graph, as bodies may do after optimisation.
  Tensor weights = GraphBuilder::random_tensor(Shape{2}, 3);
  graph->add_constant("weights", weights);
  Graph& body = *graph->node(loop).bodies[0].graph;
  body.replace_uses(body.find_value("offset"), body.add_constant("weights", weights));
  ModelDef model = written(*graph);
  std::vector<std::string> outer;
  for (const TensorDef& tensor : model.graph.initializers) outer.push_back(tensor.name);
  EXPECT_EQ(outer, (std::vector<std::string>{"trips", "weights"}));
  EXPECT_TRUE(model.graph.nodes.at(1).attributes.at(0).g->initializers.empty());
}

TEST(Export, TheLowestOpsetIsThatOfTheNodeThatNeedsMost) {
  EXPECT_EQ(opset_of(export_model(*simple())), 13);  // the versions of Clip, Concat and Mul in the graph need it
  GraphBuilder b;
  ValueId x = b.input("x", {2, 3});
  b.output(b.op("y", "LayerNormalization", {x, b.floats("scale", {1, 1, 1})}));
  EXPECT_EQ(opset_of(export_model(b.graph())), 17);
}

TEST(Export, TypesAttributesAndOperandsRaiseTheOpset) {
  auto lowest = [](std::string_view op, std::function<ValueId(GraphBuilder&)> input, Attributes attributes = {}) {
    GraphBuilder b;
    b.output(b.op("y", op, {input(b)}, std::move(attributes)));
    return opset_of(export_model(b.graph()));
  };
  auto floats = [](GraphBuilder& b) { return b.input("x", {2}); };
  EXPECT_EQ(lowest("Relu", floats), 13);
  EXPECT_EQ(lowest("Relu", [](GraphBuilder& b) { return b.input("x", {2}, DType::int32); }), 14);
  EXPECT_EQ(lowest("Shape", floats), 13);
  EXPECT_EQ(lowest("Shape", floats, {{"start", int64_t{0}}}), 15);
  EXPECT_EQ(lowest("Identity", [](GraphBuilder& b) { return b.input("x", {2}, DType::int4); }), 21);
}

TEST(Export, AChosenOpsetIsUsedOrRefused) {
  auto graph = simple();
  EXPECT_EQ(opset_of(export_model(*graph, nullptr, {.opset = 18})), 18);
  EXPECT_EQ(opset_of(export_model(*graph, nullptr, {.opset = kNewestOpset})), newest_opset(""));
  EXPECT_THROW(export_model(*graph, nullptr, {.opset = 9}), Error);
  EXPECT_THROW(export_model(*graph, nullptr, {.opset = 1000}), Error);
  GraphBuilder b;
  b.output(b.op("early", "Neg", {b.op("late", "Shape", {b.input("x", {2})}, {{"start", int64_t{0}}})}));
  try {
    export_model(b.graph(), nullptr, {.opset = 14});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("Shape node \"late_node\""), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("it needs opset 15, the chosen one is 14"), std::string::npos) << error.what();
  }
}

// onnxruntime 1.32 keeps the imports of a model that it saves, and tools decide by these which operators they write.
TEST(Export, TheModelsOpsetsAreKeptUnlessANodeNeedsMore) {
  auto opsets = [](const Graph& graph, std::vector<OpsetImport> imports) {
    ModelDef original;
    original.opset_imports = std::move(imports);
    ModelDef model = written(graph, &original, {.opset = kModelsOpset});
    std::map<std::string, int64_t> found;
    for (const OpsetImport& import : model.opset_imports) found[import.domain] = import.version;
    return found;
  };
  using Opsets = std::map<std::string, int64_t>;
  EXPECT_EQ(opsets(*simple(), {{"", 17}, {"com.microsoft", 1}, {"ai.onnx.ml", 3}}),
            (Opsets{{"", 17}, {"com.microsoft", 1}, {"ai.onnx.ml", 3}}));
  EXPECT_EQ(opsets(*simple(), {{"ai.onnx", 21}}), (Opsets{{"", 21}}));
  EXPECT_EQ(opsets(*simple(), {{"", 12}}), (Opsets{{"", 12}}));
  EXPECT_EQ(opsets(*simple(), {{"", 9}}), (Opsets{{"", 11}}));
  GraphBuilder b;
  b.output(b.op("y", "Shape", {b.input("x", {2})}, {{"start", int64_t{0}}}));
  EXPECT_EQ(opsets(b.graph(), {{"", 13}}), (Opsets{{"", 15}}));
  EXPECT_EQ(opset_of(export_model(*simple(), nullptr, {.opset = kModelsOpset})), 13);
  ModelDef newer;
  newer.ir_version = 9;
  newer.opset_imports = {{"", 13}};
  EXPECT_EQ(export_model(*simple(), &newer, {.opset = kModelsOpset}).ir_version, 9);
}

// From ONNX's docs/Versioning.md: opset 13 came with IR 7, 18 with 8, 21 with 10, 28 with 14.
TEST(Export, TheIrVersionFitsTheOpset) {
  auto graph = simple();
  for (auto [opset, ir] : {std::pair{13, 7}, {18, 8}, {21, 10}, {28, 14}})
    EXPECT_EQ(export_model(*graph, nullptr, {.opset = opset}).ir_version, ir) << opset;
}

TEST(Export, OverridableInitializersStayInputs) {
  GraphBuilder b;
  ValueId x = b.input("x", {2}), c = b.floats("c", {1, 2});
  b.output(b.op("y", "Add", {x, c}));
  b.graph().overridable_initializers.push_back(c);
  ModelDef model = written(b.graph());
  ASSERT_EQ(model.graph.inputs.size(), 2U);
  EXPECT_EQ(model.graph.inputs[1].name, "c");
  EXPECT_EQ(read(model)->overridable_initializers.size(), 1U);
}

TEST(Export, AYieldIsALocalFunction) {
  GraphBuilder b;
  ValueId x = b.input("x", {2});
  NodeId id = b.graph().add_node({.op_type = "Yield", .inputs = {x}, .domain = "treadle", .name = "stop", .output_names = {"back"}});
  infer_node(b.graph(), id);
  b.output(b.op("y", "Neg", {b.graph().node(id).outputs[0]}));
  ModelDef model = written(b.graph());
  ASSERT_EQ(model.functions.size(), 1U);
  EXPECT_EQ(model.functions[0].nodes.at(0).op_type, "Identity");
  EXPECT_EQ(opset_of(model, "treadle"), 1);
  EXPECT_GE(model.ir_version, 8);
  EXPECT_EQ(read(model)->num_nodes(), 2U);
}

// Checks that an exported file with local functions gives the same results as the graph.
void expect_same_results(const Graph& graph, double tolerance) {
  ModelDef model = written(graph);
  std::unique_ptr<Graph> again = read(model);
  infer(*again);
  for (NodeId id : again->order()) EXPECT_EQ(again->node(id).domain, "") << "functions are taken apart when they are read";
  std::vector<Datum> feeds = testing::random_feeds(graph), a = testing::run_graph(graph, feeds), b = testing::run_graph(*again, feeds);
  const Tensor &x = a.at(0).tensor(), &y = b.at(0).tensor();
  ASSERT_EQ(x.shape(), y.shape());
  for (int64_t i = 0; i < x.num_elements(); ++i) EXPECT_NEAR(x.data<float>()[i], y.data<float>()[i], tolerance);
}

TEST(Export, AFusedProductIsALocalFunction) {
  GraphBuilder b;
  ValueId x = b.input("x", {3, 6}), r = b.input("r", {3, 9});
  b.output(b.node("y", "FusedMatMul", {x, b.weights("w", Shape{9, 6}), kNoValue, r},
                  {{"transB", int64_t{1}}, {"activation", std::string("LeakyRelu")}, {"activation_alpha", 0.3F}}, 1, "treadle")[0]);
  expect_same_results(b.graph(), 1e-6);
}

TEST(Export, AProductWithBlocksOfCodesIsALocalFunction) {
  struct Form {
    int64_t inner, block;
    Shape codes, scales;
    bool zeros;
  };
  for (const Form& form : {Form{0, 16, {48, 7}, {3, 7}, true}, Form{1, 16, {7, 48}, {7, 3}, true}, Form{0, 0, {48, 7}, {7}, false},
                           Form{1, 0, {7, 48}, {7}, true}, Form{0, 0, {48, 7}, {}, true}}) {
    GraphBuilder b;
    auto codes = [&](const char* name, const Shape& shape) {
      std::vector<uint8_t> values(static_cast<size_t>(shape.num_elements()));
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint8_t>(131 * i + 7);
      return b.constant<uint8_t>(name, shape, values);
    };
    std::vector<ValueId> inputs{b.input("x", {5, 48}), codes("codes", form.codes), b.weights("scales", form.scales)};
    if (form.zeros) inputs.push_back(codes("zeros", form.scales));
    b.output(b.node("y", "BlockedMatMul", inputs, {{"axis", form.inner}, {"block_size", form.block}}, 1, "treadle")[0]);
    expect_same_results(b.graph(), 2e-3);  // the sums have about 1,000 terms
  }
}

TEST(Export, FusedAttentionIsALocalFunction) {
  GraphBuilder b;
  ValueId packed = b.input("packed", {2, 5, 3, 4, 8}), q = b.input("q", {2, 8, 6, 8});
  b.output(b.node("y", "FusedAttention", {q, packed, packed, b.input("mask", {6, 5}, DType::boolean)},
                  {{"scale", 0.3F},
                   {"mask_keeps", int64_t{0}},
                   {"masked_value", -1e9F},
                   {"k_layout", int64_t{2}},
                   {"v_layout", int64_t{2}},
                   {"k_part", int64_t{1}},
                   {"v_part", int64_t{2}},
                   {"y_layout", int64_t{1}}},
                  1, "treadle")[0]);
  expect_same_results(b.graph(), 1e-6);
}

TEST(Export, AFusedChainIsALocalFunction) {
  GraphBuilder b;
  ValueId x = b.input("x", {4, 9}), zero = b.constant<uint8_t>("zero", Shape{}, {7});
  const std::vector<std::string> steps{
      "Mul 0 0",     "Clip 4 max=0.75", "QuantizeLinear 5 1 2", "DequantizeLinear 6 1 2", "Less 7 3", "LeakyRelu 7 alpha=0.3",
      "Where 8 9 0", "GeluTanh 10",     "treadle:GeluSlope 11"};
  b.output(
      b.node("y", "FusedElementwise", {x, b.scalar("scale", 0.02F), zero, b.scalar("bound", 0.4F)}, {{"steps", steps}}, 1, "treadle")[0]);
  expect_same_results(b.graph(), 1e-6);
}

// The texts of the two chains only differ beyond the length at which messages shorten such a list.
TEST(Export, ChainsThatDifferLateHaveAFunctionEach) {
  GraphBuilder b;
  ValueId x = b.input("x", {2, 5}), one = b.scalar("one", 1);
  std::vector<std::string> steps{"Add 0 1"};
  for (int i = 0; i < 20; ++i) steps.push_back("Add " + std::to_string(i + 2) + " 1");
  std::vector<std::string> other = steps;
  other.back() = "Sub 21 1";
  ValueId up = b.node("up", "FusedElementwise", {x, one}, {{"steps", steps}}, 1, "treadle")[0];
  ValueId down = b.node("down", "FusedElementwise", {up, one}, {{"steps", other}}, 1, "treadle")[0];
  ValueId low = b.node("low", "FusedElementwise", {down, one}, {{"steps", std::vector<std::string>{"Clip 0 max=1.0000001", "Add 2 1"}}}, 1,
                       "treadle")[0];
  b.output(low);
  EXPECT_EQ(written(b.graph()).functions.size(), 3U);
  expect_same_results(b.graph(), 1e-5);
}

TEST(Export, AChainOverIntegersCastsThemFirst) {
  GraphBuilder b;
  ValueId tokens = b.input("tokens", {2, 5}, DType::int32), x = b.input("x", {2, 5}), keep = b.input("keep", {2, 5}, DType::boolean);
  const std::vector<std::string> steps{"ToFloat 0", "Equal 4 3", "And 5 2", "Not 6", "ToFloat 7", "Mul 8 1", "Where 6 9 1"};
  b.output(b.node("y", "FusedElementwise", {tokens, x, keep, b.scalar("pad", 3)}, {{"steps", steps}}, 1, "treadle")[0]);
  expect_same_results(b.graph(), 1e-6);
}

TEST(Export, OperatorsWithChannelsInnermostAreLocalFunctions) {
  using Ints = std::vector<int64_t>;
  auto check = [](std::string_view op, Attributes attributes, std::function<std::vector<ValueId>(GraphBuilder&)> operands) {
    GraphBuilder b;
    b.output(b.node("y", op, operands(b), std::move(attributes), 1, "treadle")[0]);
    SCOPED_TRACE(op);
    expect_same_results(b.graph(), 2e-5);
  };
  const Attributes window{{"kernel_shape", Ints{3, 2}}, {"strides", Ints{2, 1}}, {"pads", Ints{1, 0, 0, 1}}};
  auto image = [](GraphBuilder& b) { return std::vector<ValueId>{b.input("x", {2, 9, 8, 4})}; };
  for (std::string activation :
       {"none", "relu", "clip", "leaky_relu", "sigmoid", "hard_sigmoid", "tanh", "elu", "gelu", "silu", "hard_swish", "mish", "softplus"}) {
    Attributes attributes{{"pads", Ints{1, 1, 1, 1}}, {"group", int64_t{2}}, {"activation", activation}, {"alpha", 0.3F}, {"beta", 0.6F}};
    check("NhwcConv", attributes, [](GraphBuilder& b) {
      return std::vector<ValueId>{b.input("x", {2, 9, 8, 4}), b.weights("w", Shape{6, 2, 3, 3}), b.floats("b", {1, 2, 3, 4, 5, 6}),
                                  b.input("r", {2, 9, 8, 6})};
    });
  }
  check("NhwcConv", {{"dilations", Ints{2}}}, [](GraphBuilder& b) {
    return std::vector<ValueId>{b.input("x", {2, 9, 4}), b.weights("w", Shape{6, 4, 3})};
  });
  check("NhwcConvTranspose", {{"activation", std::string("relu")}}, [](GraphBuilder& b) {
    return std::vector<ValueId>{b.input("x", {2, 3, 5, 4}), b.weights("w", Shape{4, 6, 2, 3}), b.floats("b", {1, 2, 3, 4, 5, 6})};
  });
  check("NhwcMaxPool", window, image);
  check("NhwcAveragePool", window, image);
  check("NhwcGlobalAveragePool", {{"keepdims", int64_t{1}}}, image);
  check("NhwcGlobalAveragePool", {{"keepdims", int64_t{0}}}, image);
  check("NhwcAffine", {{"relu", int64_t{1}}}, [](GraphBuilder& b) {
    return std::vector<ValueId>{b.input("x", {2, 3, 5, 4}), b.floats("scale", {1, 2, -3, 4}), b.floats("shift", {1, -2, 3, 4})};
  });
}

TEST(Export, AConstantThatIsNoTensorIsRefused) {
  GraphBuilder b;
  ValueId c = b.graph().add_constant("c", Sequence{DType::float32, {}});
  b.output(b.op("y", "SequenceLength", {c}));
  EXPECT_THROW(export_model(b.graph()), Error);
}

}  // namespace
}  // namespace treadle::onnx
