// Tests the reasons that passes give for leaving a node unchanged: each reason says what the pass found and what it needs. The tests of
// each pass say which graphs it leaves unchanged.
#include "kernels/gemm/gemm_bytes.h"
#include "passes/layout.h"
#include "passes/trace.h"
#include "passes/whole_graph.h"
#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::GraphBuilder;
using Ints = std::vector<int64_t>;

// Applies the pass, which must not change the node. @return the reason that the pass gives
std::string refused(Graph& graph, const std::function<int64_t(Graph&)>& change, const std::string& node) {
  passes::PassTrace trace;
  const passes::PassTrace::Scope scope(trace);
  trace.begin("the pass", graph);
  EXPECT_EQ(change(graph), 0);
  const std::vector<passes::Refusal> refusals = trace.refusals(node);
  EXPECT_EQ(refusals.size(), 1U) << node;
  return refusals.empty() ? "" : refusals[0].reason;
}

struct AttentionSpelling {
  Ints perm{0, 1, 3, 2};
  int64_t axis = -1, batch = 2;
  bool reads_scores = false, reads_probabilities = false;
  DType dtype = DType::float32;
};

std::unique_ptr<Graph> attention(const AttentionSpelling& s) {
  GraphBuilder b;
  const ValueId q = b.input("q", {2, 3, 5, 8}, s.dtype), k = b.input("k", {s.batch, 3, 8, 8}, s.dtype),
                v = b.input("v", {2, 3, 8, 8}, s.dtype);
  const ValueId scores = b.op("scores", "MatMul", {q, b.op("kt", "Transpose", {k}, {{"perm", s.perm}})});
  const ValueId probabilities = b.op("p", "Softmax", {scores}, {{"axis", s.axis}});
  b.output(b.op("y", "MatMul", {probabilities, v}));
  if (s.reads_scores) b.output(scores, "scores_out");
  if (s.reads_probabilities) b.output(probabilities, "p_out");
  return b.take();
}

std::string attention_refusal(const AttentionSpelling& s, const std::string& node = "y_node") {
  return refused(*attention(s), testing::pass(passes::fuse_attention), node);
}

TEST(Refusals, OfAttention) {
  EXPECT_EQ(attention_refusal({.axis = 2}), "the Softmax before it goes along axis 2; the last one is needed");
  EXPECT_EQ(attention_refusal({.perm = {0, 1, 2, 3}}), "no Transpose of the last two axes makes the second operand of MatMul scores_node");
  EXPECT_EQ(attention_refusal({.reads_scores = true}),
            "several nodes read the scores before the Softmax, or they are an output of the model");
  EXPECT_EQ(attention_refusal({.reads_probabilities = true}, "p_node"),
            "several nodes read the probabilities, or they are an output of the model");
  EXPECT_EQ(attention_refusal({.dtype = DType::float64}), "its operand is f64[2,3,5,8]; attention is fused for float32 of rank 4");
  EXPECT_NE(attention_refusal({.batch = 1}).find("are not known to have the same batch and heads"), std::string::npos);
}

TEST(Refusals, OfNormalizations) {
  auto norm = [](const Ints& axes, const std::vector<float>& scale) {
    GraphBuilder b;
    const ValueId x = b.input("x", {2, 4, 6});
    const ValueId mean = b.op("mean", "ReduceMean", {b.op("square", "Mul", {x, x}), b.ints("axes", axes)});
    const ValueId root = b.op("root", "Sqrt", {b.op("shifted", "Add", {mean, b.scalar("epsilon", 1e-5F)})});
    const ValueId scaled = b.op("scaled", "Div", {x, root});
    b.output(scale.empty() ? scaled : b.op("y", "Mul", {scaled, b.floats("scale", scale)}));
    return b.take();
  };
  const auto pass = testing::pass(passes::fuse_normalization);
  EXPECT_EQ(refused(*norm({1}, {}), pass, "mean_node"),
            "it takes the mean of f32[2,4,6] over axes that are not the last one alone, or drops them; a normalisation keeps its axis");
  GraphBuilder b;
  const ValueId x = b.input("x", {2, b.symbol("n")});
  const ValueId mean = b.op("mean", "ReduceMean", {b.op("square", "Mul", {x, x}), b.ints("axes", {-1})});
  b.output(b.op("y", "Div", {x, b.op("root", "Sqrt", {b.op("shifted", "Add", {mean, b.scalar("epsilon", 1e-5F)})})}));
  EXPECT_EQ(refused(*b.take(), pass, "y_node"),
            "it normalises f32[2,n] and makes f32[2,n]; float32 of one shape whose last extent is known is needed");
}

TEST(Refusals, OfActivations) {
  auto gelu = [](float inner, float factor, DType dtype = DType::float32) {
    GraphBuilder b;
    const ValueId x = b.input("x", {3, 4}, dtype);
    auto number = [&](std::string_view name, float value) {
      return dtype == DType::float32 ? b.scalar(name, value) : b.constant<double>(name, Shape{}, {double{value}});
    };
    const ValueId erf = b.op("erf", "Erf", {b.op("quotient", "Div", {x, number("root", inner)})});
    const ValueId gate = b.op("gate", "Add", {erf, number("one", 1)});
    b.output(b.op("y", "Mul", {b.op("product", "Mul", {x, gate}), number("factor", factor)}));
    return b.take();
  };
  const auto pass = testing::pass(passes::fuse_gelu);
  EXPECT_EQ(refused(*gelu(1.5F, 0.5F), pass, "y_node"), "what it multiplies with is not sqrt(2) times the argument of Erf erf_node");
  EXPECT_EQ(refused(*gelu(1.4142135F, 0.25F), pass, "y_node"), "the factor is 0.25; a Gelu has 0.5");
  EXPECT_EQ(refused(*gelu(1.4142135F, 0.5F, DType::float64), pass, "product_node"), "it makes f64[3,4]; activations are fused in float32");
}

TEST(Refusals, OfRotaryEmbeddings) {
  auto rotary = [](int64_t half, int64_t angles) {
    GraphBuilder b;
    const ValueId x = b.input("x", {2, 3, 5, 8}), cos = b.input("cos", {5, angles}), sin = b.input("sin", {5, angles});
    auto slice = [&](const std::string& name, int64_t start, int64_t end) {
      return b.op(name, "Slice", {x, b.ints(name + "_start", {start}), b.ints(name + "_end", {end}), b.ints(name + "_axis", {3})});
    };
    const ValueId turned =
        b.op("rotated", "Concat", {b.op("minus", "Neg", {slice("second", half, 8)}), slice("first", 0, half)}, {{"axis", int64_t{3}}});
    b.output(b.op("y", "Add", {b.op("straight", "Mul", {x, cos}), b.op("turned", "Mul", {turned, sin})}));
    return b.take();
  };
  const auto pass = testing::pass(passes::fuse_rotary);
  EXPECT_EQ(refused(*rotary(3, 8), pass, "y_node"),
            "neither the halves of the last axis nor neighbours on it are exchanged with one sign turned, by Concat rotated_node");
  EXPECT_EQ(refused(*rotary(4, 1), pass, "y_node"),
            "cosines f32[5,1] and sines f32[5,1] do not fit f32[2,3,5,8]: each needs the last extent, and others of 1 or the same");
}

TEST(Refusals, OfPointwiseGroups) {
  GraphBuilder b;
  const ValueId x = b.input("x", {3, 4}), row = b.op("row", "Exp", {b.input("r", {4})});
  const ValueId shared = b.op("shared", "Neg", {x});
  b.output(shared);
  b.output(b.op("y", "Add", {b.op("product", "Mul", {shared, row}), x}));
  auto graph = b.take();
  passes::PassTrace trace;
  const passes::PassTrace::Scope scope(trace);
  trace.begin("fuse-elementwise", *graph);
  EXPECT_EQ(passes::fuse_elementwise(*graph, INT64_MAX), 1);
  ASSERT_EQ(trace.refusals("row_node").size(), 1U);
  EXPECT_EQ(trace.refusals("row_node")[0].reason, "it makes f32[4], and Add y_node behind it f32[3,4]; a group has one shape");
  ASSERT_EQ(trace.refusals("shared_node").size(), 1U);
  EXPECT_EQ(trace.refusals("shared_node")[0].reason, "its result is an output of the model; it does not join Add y_node");
}

TEST(Refusals, OfProductsWithQuantizedWeights) {
  auto product = [](const Ints& scales, int64_t axis) {
    GraphBuilder b;
    const Shape shape{scales[0], scales[1]};
    const ValueId codes = b.constant<int8_t>("codes", Shape{48, 16}, std::vector<int8_t>(48 * 16, 3));
    Attributes attributes{{"axis", axis}, {"block_size", int64_t{12}}};
    b.output(b.op("y", "MatMul", {b.input("x", {3, 48}), b.op("w", "DequantizeLinear", {codes, b.weights("scale", shape)}, attributes)}));
    return b.take();
  };
  EXPECT_EQ(refused(*product({4, 16}, 0), testing::pass(passes::fuse_blocked_matmul), "y_node"),
            "blocks of 12 along axis 0 have scales [4,16]; blocks of a multiple of 8 along axis 0 are needed");
  if (!kernels::has_fast_byte_products()) return;
  GraphBuilder b;
  const ValueId codes = b.constant<int8_t>("codes", Shape{8, 4}, std::vector<int8_t>(32, 3));
  b.output(
      b.op("y", "MatMul", {b.op("left", "Relu", {b.input("x", {3, 8})}), b.op("w", "DequantizeLinear", {codes, b.scalar("s", 0.1F)})}));
  EXPECT_EQ(refused(*b.take(), testing::pass(passes::fuse_quantized_matmul), "y_node"),
            "the left operand is f32[3,8] of Relu left_node; bytes with one float32 scale are needed");
}

TEST(Refusals, OfQuantizedConvolutions) {
  GraphBuilder b;
  const ValueId x = b.input("x", {1, 16, 5, 5}, DType::uint8);
  auto byte = [&](std::string_view name, uint8_t zero) { return b.constant<uint8_t>(name, Shape{}, {zero}); };
  const ValueId floats = b.op("floats", "DequantizeLinear", {x, b.scalar("xs", 0.1F), byte("xz", 5)});
  const ValueId y = b.op("conv", "Conv", {floats, b.weights("w", Shape{16, 16, 3, 3})});
  b.output(b.op("q", "QuantizeLinear", {y, b.scalar("ys", 0.2F), byte("yz", 7)}));
  const bool fast = kernels::has_fast_byte_products();
  EXPECT_EQ(refused(*b.take(), testing::pass(passes::fuse_quantized_conv), fast ? "conv_node" : "q_node"),
            fast ? "its weights are not dequantised by one scale, or one for each filter"
                 : "this machine has no instructions for sums of products of bytes");
}

TEST(Refusals, OfConvolutionsBehindOneAnother) {
  auto chain = [](int64_t size, bool output) {
    GraphBuilder b;
    const ValueId x = b.input("x", {1, 8, size, size});
    const ValueId wide = b.op("wide", "Conv", {x, b.weights("w1", Shape{32, 8, 1, 1})});
    if (output) b.output(wide);
    b.output(b.op("deep", "Conv", {wide, b.weights("w2", Shape{32, 1, 3, 3})}, {{"group", int64_t{32}}}));
    auto graph = b.take();
    EXPECT_EQ(passes::assign_layout(*graph, INT64_MAX), 2);
    return graph;
  };
  auto deep = [](const Graph& graph) {
    for (NodeId id : graph.order())
      if (graph.node(id).is("NhwcConv", "treadle") && graph.node(id).attributes.get_int("group", 1) == 32) return graph.node(id).name;
    return std::string();
  };
  const auto pass = [](Graph& graph) { return testing::pass(passes::fuse_depthwise)(graph); };
  auto small = chain(8, false);
  EXPECT_EQ(refused(*small, pass, deep(*small)),
            "the image before it is f32[1,8,8,32]: up to 131072 floats stay in the caches, and two convolutions are as fast");
  auto read = chain(100, true);
  EXPECT_NE(refused(*read, pass, deep(*read)).find("other nodes read the image, too"), std::string::npos);
}

TEST(Refusals, OfWhatMergesNodes) {
  auto casts = [](DType through, DType to) {
    GraphBuilder b;
    const ValueId x = b.input("x", {4});
    const ValueId inner = b.op("a", "Cast", {x}, {{"to", static_cast<int64_t>(through)}});
    b.output(b.op("y", "Cast", {inner}, {{"to", static_cast<int64_t>(to)}}));
    return refused(*b.take(), testing::pass(passes::merge_casts), "y_node");
  };
  EXPECT_EQ(casts(DType::float16, DType::float32), "the Cast before it goes through float16, which does not hold every value of float32");

  auto products = [](float inner, float outer, bool read) {
    GraphBuilder b;
    const ValueId a = b.op("a", "Mul", {b.input("x", {4}), b.scalar("c", inner)});
    b.output(b.op("y", "Mul", {a, b.scalar("d", outer)}));
    if (read) b.output(a, "a_out");
    return refused(*b.take(), testing::pass(passes::merge_constant_operands), "y_node");
  };
  EXPECT_EQ(products(3, 0.1F, false),
            "its constant and that of Mul a_node are not merged: only single integers, and factors that are powers of two of at least 1, "
            "give the same bits");
  EXPECT_EQ(products(2, 4, true), "several nodes read the result of Mul a_node before it, or it is an output of the model");
}

TEST(Refusals, OfWhatMovesTransposesAndPads) {
  GraphBuilder b;
  const ValueId product = b.op("p", "Gemm", {b.input("x", {3, 4}), b.input("w", {4, 5}), b.input("bias", {5})});
  b.output(b.op("y", "Transpose", {product}, {{"perm", Ints{1, 0}}}));
  EXPECT_EQ(refused(*b.take(), testing::pass(passes::absorb_transposes), "y_node"),
            "it would have to turn the bias of Gemm p_node before it, too");

  GraphBuilder pads;
  const ValueId padded = pads.op("p", "Pad", {pads.input("x", {1, 2, 6, 6}), pads.ints("pads", {0, 0, 1, 1, 0, 0, 1, 1})});
  pads.output(pads.op("y", "MaxPool", {padded}, {{"kernel_shape", Ints{2, 2}}}));
  EXPECT_NE(refused(*pads.take(), testing::pass(passes::absorb_pad), "y_node").find("the Pad before it writes 0"), std::string::npos);

  GraphBuilder read;
  const ValueId image = read.op("p", "Pad", {read.input("x", {1, 2, 6, 6}), read.ints("pads", {0, 0, 1, 1, 0, 0, 1, 1})});
  read.output(read.op("y", "Conv", {image, read.input("w", {2, 2, 3, 3})}));
  read.output(read.op("z", "Relu", {image}));
  EXPECT_EQ(refused(*read.take(), testing::pass(passes::absorb_pad), "y_node"),
            "the padded image before it is made all the same, for Relu z_node");
}

TEST(Refusals, OfCommonNodes) {
  const auto pass = [](Graph& graph) { return testing::pass(passes::merge_common_nodes)(graph); };
  auto two = [](const char* op, const Attributes& first, const Attributes& second) {
    GraphBuilder b;
    const ValueId x = b.input("x", {3, 4});
    b.output(b.op("a", op, {x}, first));
    b.output(b.op("b", op, {x}, second));
    return b.take();
  };
  EXPECT_EQ(refused(*two("Transpose", {{"perm", Ints{1, 0}}}, {{"perm", Ints{0, 1}}}), pass, "b_node"),
            "it reads the same as Transpose a_node, but its attributes differ");
  EXPECT_EQ(refused(*two("RandomUniformLike", {}, {}), pass, "b_node"),
            "it reads the same as RandomUniformLike a_node, but the operator draws random numbers");
}

TEST(Refusals, OfLayouts) {
  const auto pass = [](Graph& graph) { return passes::assign_layout(graph, INT64_MAX); };
  GraphBuilder wide;
  const ValueId double_weights = wide.constant("w", {4, 2, 3, 3}, std::vector<double>(72));
  wide.output(wide.op("y", "Conv", {wide.input("x", {1, 2, 8, 8}, DType::float64), double_weights}));
  EXPECT_EQ(refused(*wide.take(), pass, "y_node"), "it reads f64[1,2,8,8]; float32 of rank 3 or 4 goes with channels innermost");

  // After a convolution comes either a node whose other operands have channels first, or a node whose operator supports only that layout.
  auto behind = [](const std::function<ValueId(GraphBuilder&, ValueId)>& add) {
    GraphBuilder b;
    b.output(add(b, b.op("c", "Conv", {b.input("x", {1, 2, 8, 8}), b.constant("w", {2, 2, 1, 1}, std::vector<float>(4))})));
    auto graph = b.take();
    passes::PassTrace trace;
    const passes::PassTrace::Scope scope(trace);
    trace.begin("the pass", *graph);
    EXPECT_EQ(passes::assign_layout(*graph, INT64_MAX), 1);
    const auto refusals = trace.refusals("y_node");
    return refusals.empty() ? std::string() : refusals[0].reason;
  };
  EXPECT_EQ(behind([](GraphBuilder& b, ValueId image) {
              return b.op("y", "Max", {image, b.input("first", {1, 2, 8, 8}), b.input("second", {1, 2, 8, 8})});
            }),
            "1 of its operands have channels innermost and 2 have not: it stays with the most");
  EXPECT_EQ(behind([](GraphBuilder& b, ValueId image) {
              return b.op("y", "MatMul", {image, b.input("right", {8, 8})});
            }),
            "an operand has its channels innermost; for its operands or attributes it has no form that reads them so");
}

TEST(Refusals, NothingIsSaidOfWhatIsFused) {
  auto graph = attention({});
  passes::PassTrace trace;
  const passes::PassTrace::Scope scope(trace);
  trace.begin("fuse-attention", *graph);
  EXPECT_EQ(testing::pass(passes::fuse_attention)(*graph), 1);
  EXPECT_TRUE(trace.refusals("y_node").empty());
}

}  // namespace
}  // namespace treadle
