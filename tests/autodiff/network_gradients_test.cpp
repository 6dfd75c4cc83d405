#include "tests/autodiff/gradient_check.h"
#include "tests/exec/host_program.h"
#include "treadle/error.h"

namespace treadle::testing {
namespace {

using Ints = std::vector<int64_t>;

TEST(NetworkGradients, ConvolutionsFollowFiniteDifferencesInOneToThreeDimensions) {
  check_gradients({.op_type = "Conv", .inputs = {doubles({2, 2, 7}, 1), doubles({3, 2, 3}, 2), doubles({3}, 3)}});
  check_gradients({.op_type = "Conv",
                   .inputs = {doubles({2, 2, 5, 4}, 1), doubles({3, 2, 3, 2}, 2), doubles({3}, 3)},
                   .attributes = {{"pads", Ints{1, 0, 1, 1}}}});
  check_gradients({.op_type = "Conv",
                   .inputs = {doubles({1, 2, 3, 4, 3}, 1), doubles({2, 2, 2, 2, 2}, 2)},
                   .attributes = {{"pads", Ints{0, 1, 0, 1, 0, 1}}}});
}

TEST(NetworkGradients, TransposedConvolutionsFollowFiniteDifferences) {
  const std::vector<int64_t> twos{2, 2};
  check_gradients({.op_type = "ConvTranspose",
                   .inputs = {doubles({2, 3, 3, 4}, 1), doubles({3, 2, 2, 2}, 2), doubles({2}, 3)},
                   .attributes = {{"strides", twos}}});
  check_gradients({.op_type = "ConvTranspose",
                   .inputs = {doubles({1, 4, 3, 3}, 1), doubles({4, 1, 3, 3}, 2)},
                   .attributes = {{"strides", twos},
                                  {"pads", std::vector<int64_t>{1, 0, 1, 1}},
                                  {"group", int64_t{2}},
                                  {"output_padding", std::vector<int64_t>{1, 0}}}});
  check_gradients({.op_type = "ConvTranspose",
                   .inputs = {doubles({2, 2, 5}, 1), doubles({2, 3, 3}, 2)},
                   .attributes = {{"dilations", std::vector<int64_t>{2}}},
                   .symbolic_batch = true});
}

TEST(NetworkGradients, ConvolutionsWithGroupsStridesAndDilationsFollowFiniteDifferences) {
  check_gradients({.op_type = "Conv",
                   .inputs = {doubles({2, 4, 6, 5}, 1), doubles({6, 2, 3, 3}, 2), doubles({6}, 3)},
                   .attributes = {{"group", int64_t{2}}, {"strides", Ints{2, 1}}, {"pads", Ints{1, 1, 1, 1}}}});
  check_gradients(
      {.op_type = "Conv", .inputs = {doubles({1, 3, 6, 6}, 1), doubles({3, 1, 3, 3}, 2)}, .attributes = {{"group", int64_t{3}}}});
  check_gradients({.op_type = "Conv",
                   .inputs = {doubles({1, 2, 8, 7}, 1), doubles({2, 2, 2, 3}, 2)},
                   .attributes = {{"dilations", Ints{2, 2}}, {"strides", Ints{3, 2}}, {"pads", Ints{2, 1, 0, 1}}}});
  check_gradients({.op_type = "Conv",
                   .inputs = {doubles({1, 1, 6, 5}, 1), doubles({2, 1, 3, 3}, 2)},
                   .attributes = {{"auto_pad", std::string("SAME_UPPER")}, {"strides", Ints{2, 2}}}});
  check_gradients({.op_type = "Conv", .inputs = {doubles({2, 1, 4, 4}, 1), doubles({2, 1, 3, 3}, 2)}, .symbolic_batch = true});
}

TEST(NetworkGradients, PoolsFollowFiniteDifferences) {
  const Attributes plain{{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}};
  const Attributes padded{{"kernel_shape", Ints{3, 2}}, {"strides", Ints{2, 1}}, {"pads", Ints{1, 0, 1, 1}}};
  const Attributes ceiled{{"kernel_shape", Ints{3, 3}},
                          {"strides", Ints{2, 2}},
                          {"pads", Ints{1, 1, 1, 1}},
                          {"ceil_mode", int64_t{1}},
                          {"count_include_pad", int64_t{1}}};
  for (const Attributes& attributes : {plain, padded, ceiled})
    check_gradients({.op_type = "AveragePool", .inputs = {doubles({2, 2, 6, 5}, 1)}, .attributes = attributes});
  for (const Attributes& attributes : {plain, padded})
    check_gradients({.op_type = "MaxPool", .inputs = {doubles({2, 2, 6, 5}, 1)}, .attributes = attributes});
  check_gradients(
      {.op_type = "MaxPool", .inputs = {doubles({1, 2, 7}, 1)}, .attributes = {{"kernel_shape", Ints{3}}, {"dilations", Ints{2}}}});
  check_gradients({.op_type = "GlobalAveragePool", .inputs = {doubles({2, 3, 3, 2}, 1)}});
  check_gradients({.op_type = "GlobalAveragePool", .inputs = {doubles({2, 3, 3, 2}, 1)}, .symbolic_batch = true});
}

TEST(NetworkGradients, BatchNormalizationFollowsFiniteDifferencesInTrainingAndInference) {
  const std::vector<Tensor> inputs{doubles({4, 3, 2, 2}, 1), doubles({3}, 2, 0.5, 2), doubles({3}, 3), doubles({3}, 4),
                                   doubles({3}, 5, 0.5, 2)};
  check_gradients({.op_type = "BatchNormalization",
                   .inputs = inputs,
                   .attributes = {{"training_mode", int64_t{1}}, {"epsilon", 1e-3F}},
                   .constants = {3, 4}},
                  1e-6);
  check_gradients({.op_type = "BatchNormalization", .inputs = inputs, .constants = {3, 4}});
  check_gradients({.op_type = "BatchNormalization",
                   .inputs = {doubles({6, 3}, 1), doubles({3}, 2), doubles({3}, 3), doubles({3}, 4), doubles({3}, 5, 0.5, 2)},
                   .attributes = {{"training_mode", int64_t{1}}},
                   .constants = {3, 4}},
                  1e-6);
}

TEST(NetworkGradients, LayerNormalizationFollowsFiniteDifferences) {
  // The inputs are float64, but the operator computes its statistics in its stash type, float32. A larger step hides that rounding.
  check_gradients({.op_type = "LayerNormalization", .inputs = {doubles({3, 6}, 1), doubles({6}, 2, 0.5, 2), doubles({6}, 3)}}, 1e-3, 1e-2);
  check_gradients(
      {.op_type = "LayerNormalization", .inputs = {doubles({2, 3, 4}, 1), doubles({3, 4}, 2)}, .attributes = {{"axis", int64_t{1}}}}, 1e-3,
      1e-2);
}

TEST(NetworkGradients, LossesFollowFiniteDifferencesForEveryReduction) {
  for (const char* reduction : {"mean", "sum", "none"}) {
    const Attributes attributes{{"reduction", std::string(reduction)}};
    const Attributes ignoring{{"reduction", std::string(reduction)}, {"ignore_index", int64_t{1}}};
    for (const char* op : {"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"}) {
      check_gradients({.op_type = op, .inputs = {doubles({4, 5}, 1), indices({4}, {0, 4, 1, 2})}, .attributes = attributes});
      check_gradients({.op_type = op, .inputs = {doubles({2, 3, 2}, 1), indices({2, 2}, {0, 2, 1, 1})}, .attributes = ignoring});
      check_gradients({.op_type = op,
                       .inputs = {doubles({3, 3}, 1), indices({3}, {0, 2, 1}), doubles({3}, 7, 0.5, 2)},
                       .attributes = attributes,
                       .constants = {2}});
      check_gradients(
          {.op_type = op, .inputs = {doubles({4, 5}, 1), indices({4}, {0, 4, 1, 2})}, .attributes = attributes, .symbolic_batch = true});
    }
  }
}

TEST(Autodiff, SeveralUsesOfAValueAreSummed) {
  auto graph = std::make_unique<Graph>(std::make_shared<SymbolTable>());
  const ValueId x = graph->add_input("x", Type::tensor(DType::float64, Shape{2}));
  auto op = [&](const char* type, std::vector<ValueId> inputs) {
    NodeId id = graph->add_node({.op_type = type, .inputs = std::move(inputs)});
    infer_node(*graph, id);
    return graph->node(id).outputs[0];
  };
  // y = x^2 + x^3, so the gradient is 2x + 3x^2.
  const ValueId square = op("Mul", {x, x}), y = op("Add", {square, op("Mul", {square, x})});
  const ValueId ones = graph->add_constant("ones", Tensor::vector<double>(std::vector<double>{1, 1}));
  const std::vector<ValueId> grads = autodiff::add_gradients(*graph, std::vector{y}, std::vector{ones}, std::vector{x});
  graph->outputs = grads;
  graph->output_names = {"dx"};
  std::vector<Datum> outputs(1);
  const std::vector<Datum> feeds{Tensor::vector<double>(std::vector<double>{2, -0.5})};
  testing::HostProgram(std::shared_ptr<const Graph>(std::move(graph))).run(feeds, outputs, {});
  EXPECT_DOUBLE_EQ(outputs[0].tensor().data<double>()[0], 16);
  EXPECT_DOUBLE_EQ(outputs[0].tensor().data<double>()[1], -0.25);
}

// y = (x w) w. The gradient of w (or, in the other graph, of x) is a sum of products. The kernel of each product adds it to the sum of
// those before.
TEST(Autodiff, ProductsAddTheirGradientsToWhatIsThere) {
  for (const bool batched : {false, true}) {
    for (const bool of_weights : {false, true}) {
      auto graph = std::make_unique<Graph>(std::make_shared<SymbolTable>());
      const Shape shape = batched ? Shape{2, 3, 4} : Shape{6, 4};
      const ValueId x = graph->add_input("x", Type::tensor(DType::float32, shape));
      const ValueId dy = graph->add_input("dy", Type::tensor(DType::float32, shape));
      std::vector<ValueId> weights;
      auto op = [&](const char* type, std::vector<ValueId> inputs) {
        NodeId id = graph->add_node({.op_type = type, .inputs = std::move(inputs)});
        infer_node(*graph, id);
        return graph->node(id).outputs[0];
      };
      // Elements are small integers, so sums are exact in any order.
      auto filled = [](const Shape& of, int64_t factor) {
        Tensor t(DType::float32, of);
        for (int64_t i = 0; i < t.num_elements(); ++i) t.data<float>()[i] = static_cast<float>((i * factor) % 7 - 3);
        return t;
      };
      for (int i = 0; i < 3; ++i) weights.push_back(graph->add_constant("w" + std::to_string(i), filled({4, 4}, 3 + i)));
      std::vector<ValueId> ys;
      for (int i = 0; i < 3; ++i)
        ys.push_back(op("MatMul", {of_weights && i > 0 ? ys.back() : x, weights[of_weights ? 0 : static_cast<size_t>(i)]}));
      const ValueId y = of_weights ? ys.back() : op("Add", {op("Add", {ys[0], ys[1]}), ys[2]});
      const size_t first = static_cast<size_t>(graph->order().size());
      const ValueId wanted = of_weights ? weights[0] : x;
      graph->outputs = autodiff::add_gradients(*graph, std::vector{y}, std::vector{dy}, std::vector{wanted});
      graph->output_names = {"gradient"};
      const std::vector<NodeId> order = graph->order();
      int sums = 0, products = 0;
      for (size_t k = first; k < order.size(); ++k) {
        sums += graph->node(order[k]).is("Add");
        products += graph->node(order[k]).is("Gemm") && graph->node(order[k]).has_input(2);
      }
      EXPECT_EQ(sums, 0);
      EXPECT_EQ(products, 2);

      // Computes the expected gradients by the definition: one product for each use of w or x, and then the sum.
      const Tensor dys = filled(shape, 5), xs = filled(shape, 2);
      auto value_of = [&](size_t i) { return filled({4, 4}, 3 + static_cast<int64_t>(i)); };
      auto multiply = [](const std::vector<double>& a, bool ta, const std::vector<double>& b, bool tb, int64_t M, int64_t K, int64_t N) {
        std::vector<double> c(static_cast<size_t>(M * N), 0.0);
        for (int64_t m = 0; m < M; ++m)
          for (int64_t n = 0; n < N; ++n)
            for (int64_t k = 0; k < K; ++k)
              c[static_cast<size_t>(m * N + n)] +=
                  a[static_cast<size_t>(ta ? k * M + m : m * K + k)] * b[static_cast<size_t>(tb ? n * K + k : k * N + n)];
        return c;
      };
      auto doubled = [](const Tensor& t) { return std::vector<double>(t.data<float>(), t.data<float>() + t.num_elements()); };
      std::vector<double> expected(of_weights ? 16 : 24, 0.0);
      auto add = [&](const std::vector<double>& more) {
        for (size_t k = 0; k < expected.size(); ++k) expected[k] += more[k];
      };
      if (of_weights) {
        const std::vector<double> w = doubled(value_of(0));
        std::vector<double> before = doubled(xs), after = doubled(dys);
        std::vector<std::vector<double>> inputs{before};
        for (int i = 0; i < 2; ++i) inputs.push_back(multiply(inputs.back(), false, w, false, 6, 4, 4));
        for (size_t i = 3; i-- > 0; after = multiply(after, false, w, true, 6, 4, 4)) add(multiply(inputs[i], true, after, false, 4, 6, 4));
      } else {
        for (size_t i = 0; i < 3; ++i) add(multiply(doubled(dys), false, doubled(value_of(i)), true, 6, 4, 4));
      }
      std::vector<Datum> outputs(1);
      const std::vector<Datum> feeds{xs, dys};
      testing::HostProgram(std::shared_ptr<const Graph>(std::move(graph))).run(feeds, outputs, {});
      for (size_t k = 0; k < expected.size(); ++k) EXPECT_EQ(outputs[0].tensor().data<float>()[k], expected[k]) << k;
    }
  }
}

TEST(NetworkGradients, NormalizationsFollowFiniteDifferences) {
  const Tensor x = doubles({2, 4, 3}, 1, -2, 2), scale = doubles({4}, 2, 0.5, 2), bias = doubles({4}, 3);
  check_gradients({.op_type = "InstanceNormalization", .inputs = {x, scale, bias}});
  check_gradients({.op_type = "GroupNormalization", .inputs = {x, scale, bias}, .attributes = {{"num_groups", int64_t{2}}}});
  check_gradients({.op_type = "RMSNormalization", .inputs = {x, doubles({3}, 2)}});
  check_gradients({.op_type = "LRN", .inputs = {x}, .attributes = {{"size", int64_t{2}}, {"alpha", 0.5F}}});
  for (int64_t p : {1, 2}) check_gradients({.op_type = "LpNormalization", .inputs = {x}, .attributes = {{"p", p}, {"axis", int64_t{1}}}});
  check_gradients({.op_type = "MeanVarianceNormalization", .inputs = {x}, .attributes = {{"axes", Ints{0, 2}}}});
}

TEST(NetworkGradients, OtherPoolsFollowFiniteDifferences) {
  const Tensor x = doubles({2, 2, 6, 5}, 1, -2, 2);
  for (int64_t p : {1, 2, 3}) {
    check_gradients({.op_type = "LpPool",
                     .inputs = {x},
                     .attributes = {{"kernel_shape", Ints{3, 2}}, {"p", p}, {"pads", Ints{1, 0, 1, 1}}, {"strides", Ints{2, 1}}}});
    check_gradients({.op_type = "GlobalLpPool", .inputs = {x}, .attributes = {{"p", p}}});
  }
  check_gradients({.op_type = "GlobalMaxPool", .inputs = {x}});
}

TEST(NetworkGradients, SamplersFollowFiniteDifferences) {
  const Tensor x = doubles({2, 2, 5, 4}, 1);
  for (const char* mode : {"linear", "cubic"})
    for (const char* padding : {"zeros", "border", "reflection"})
      for (int64_t corners : {0, 1})
        check_gradients({.op_type = "GridSample",
                         .inputs = {x, doubles({2, 2, 3, 2}, 2, -1.4, 1.4)},
                         .attributes = {{"mode", std::string(mode)}, {"padding_mode", std::string(padding)}, {"align_corners", corners}}},
                        2e-6);
  check_gradients({.op_type = "AffineGrid", .inputs = {doubles({2, 2, 3}, 1), indices({4}, {2, 1, 3, 2})}});
  const Tensor rois = Tensor::of<double>(Shape{2, 4}, std::vector<double>{0.3, 0.2, 3.1, 4.2, 1.1, 0.4, 2.9, 3.3});
  for (const char* mode : {"avg", "max"})
    check_gradients({.op_type = "RoiAlign",
                     .inputs = {x, rois, indices({2}, {1, 0})},
                     .attributes = {{"mode", std::string(mode)}, {"output_height", int64_t{2}}, {"output_width", int64_t{3}}},
                     .constants = {1}});
  check_gradients({.op_type = "Col2Im",
                   .inputs = {doubles({1, 8, 6}, 1), indices({2}, {4, 3}), indices({2}, {2, 2})},
                   .attributes = {{"pads", Ints{0, 0, 0, 0}}}});
}

TEST(NetworkGradients, DeformableConvolutionsFollowFiniteDifferences) {
  check_gradients({.op_type = "DeformConv",
                   .inputs = {doubles({2, 4, 4, 5}, 1), doubles({2, 2, 2, 2}, 2), doubles({2, 16, 3, 4}, 3, -0.8, 0.8), doubles({2}, 4),
                              doubles({2, 8, 3, 4}, 5, 0.2, 1)},
                   .attributes = {{"group", int64_t{2}}, {"offset_group", int64_t{2}}}},
                  2e-6);
}

TEST(NetworkGradients, AttentionFollowsFiniteDifferences) {
  const Tensor q = doubles({2, 4, 3, 2}, 1), k = doubles({2, 2, 3, 2}, 2), v = doubles({2, 2, 3, 5}, 3);
  check_gradients({.op_type = "Attention", .inputs = {q, k, v}, .attributes = {{"is_causal", int64_t{1}}}});
  check_gradients({.op_type = "Attention", .inputs = {q, k, v, doubles({3, 3}, 4)}, .attributes = {{"softcap", 2.0F}}});
  check_gradients({.op_type = "Attention",
                   .inputs = {doubles({2, 3, 8}, 1), doubles({2, 3, 4}, 2), doubles({2, 3, 4}, 3), Tensor(), doubles({2, 2, 2, 2}, 4),
                              doubles({2, 2, 2, 2}, 5)},
                   .attributes = {{"q_num_heads", int64_t{4}}, {"kv_num_heads", int64_t{2}}},
                   .num_outputs = 3});
}

TEST(NetworkGradients, FourierTransformsFollowFiniteDifferences) {
  const Tensor axis = Tensor::scalar<int64_t>(1);
  for (int64_t length : {4, 6, 9})
    for (int64_t onesided : {0, 1})
      check_gradients({.op_type = "DFT",
                       .inputs = {doubles({2, 6, 1}, 1), Tensor::scalar<int64_t>(length), axis},
                       .attributes = {{"onesided", onesided}}});
  check_gradients({.op_type = "DFT", .inputs = {doubles({2, 6, 2}, 1), Tensor(), axis}, .attributes = {{"inverse", int64_t{1}}}});
  check_gradients({.op_type = "STFT", .inputs = {doubles({1, 12, 1}, 1), Tensor::scalar<int64_t>(3), doubles({6}, 2)}});
}

TEST(NetworkGradients, TransposedConvolutionsWithComputedPadsFollowFiniteDifferences) {
  const Tensor x = doubles({1, 2, 3, 4}, 1), w = doubles({2, 2, 3, 2}, 2);
  for (const char* pad : {"SAME_UPPER", "SAME_LOWER", "VALID"})
    check_gradients(
        {.op_type = "ConvTranspose", .inputs = {x, w}, .attributes = {{"auto_pad", std::string(pad)}, {"strides", Ints{2, 3}}}});
  check_gradients({.op_type = "ConvTranspose", .inputs = {x, w}, .attributes = {{"output_shape", Ints{6, 9}}, {"strides", Ints{2, 2}}}});
}

// The gradient passes as if there were no rounding, and is 0 where a value was cut off at a limit of the integer type.
TEST(NetworkGradients, QuantizedValuesPassGradientsStraightThrough) {
  auto graph = std::make_unique<Graph>(std::make_shared<SymbolTable>());
  const ValueId x = graph->add_input("x", Type::tensor(DType::float32, Shape{4}));
  const ValueId scale = graph->add_constant("scale", Tensor::scalar(0.5F));
  const ValueId zero = graph->add_constant("zero", Tensor::scalar<int8_t>(3));
  auto op = [&](const char* type, std::vector<ValueId> inputs) {
    const NodeId id = graph->add_node({.op_type = type, .inputs = std::move(inputs)});
    infer_node(*graph, id);
    return graph->node(id).outputs[0];
  };
  const ValueId shape = graph->add_constant("shape", Tensor::vector<int64_t>(std::vector<int64_t>{2, 2}));
  const ValueId y = op("DequantizeLinear", {op("Reshape", {op("QuantizeLinear", {x, scale, zero}), shape}), scale, zero});
  const ValueId dy = graph->add_constant("dy", Tensor::of<float>(Shape{2, 2}, std::vector<float>{1, 2, 3, 4}));
  const std::vector<ValueId> grads = autodiff::add_gradients(*graph, std::vector{y}, std::vector{dy}, std::vector{x});
  ASSERT_NE(grads[0], kNoValue);
  graph->outputs = {grads[0]}, graph->output_names = {"dx"};
  std::vector<Datum> outputs(1);
  const std::vector<Datum> feeds{Datum(Tensor::vector<float>(std::vector<float>{0.6F, 80, -3.2F, -70}))};
  testing::HostProgram(std::shared_ptr<const Graph>(graph->clone())).run(feeds, outputs, {.run_id = 3});
  const float* dx = outputs[0].tensor().data<float>();
  EXPECT_EQ(std::vector<float>(dx, dx + 4), (std::vector<float>{1, 0, 3, 0}));
}

TEST(Autodiff, EveryNodeWithoutARuleIsNamed) {
  auto graph = std::make_unique<Graph>(std::make_shared<SymbolTable>());
  const ValueId x = graph->add_input("x", Type::tensor(DType::float64, Shape{2}));
  auto op = [&](const char* type, const char* name, ValueId input) {
    NodeId id = graph->add_node({.op_type = type, .inputs = {input}, .domain = "ai.onnx.ml", .name = name});
    infer_node(*graph, id);
    return graph->node(id).outputs[0];
  };
  const ValueId y = op("Normalizer", "second", op("Normalizer", "first", x));
  const ValueId ones = graph->add_constant("ones", Tensor::vector<double>(std::vector<double>{1, 1}));
  try {
    autodiff::add_gradients(*graph, std::vector{y}, std::vector{ones}, std::vector{x});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_implemented);
    EXPECT_NE(std::string(error.what()).find("\"first\""), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("\"second\""), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace treadle::testing
