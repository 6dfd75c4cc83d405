// Tests the graphs that passes make for devices with kernels of their own.
#include <set>

#include "graph/op_def.h"
#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using passes::DeviceForms;
using testing::GraphBuilder;

DeviceForms device_with(std::vector<std::string> operators) {
  return {std::move(operators), [](const Graph&, const Node&) { return true; }};
}

std::string fused(std::unique_ptr<Graph> graph, const DeviceForms& device, int64_t count) {
  passes::PipelineOptions options;
  options.device = &device;
  EXPECT_EQ(testing::pass(passes::fuse_epilogue, options)(*graph), count);
  verify(*graph);
  const std::string text = print(*graph);
  infer(*graph);
  EXPECT_EQ(print(*graph), text) << "inference finds other types";
  return text;
}

TEST(FuseEpilogue, AConvolutionTakesItsResidualAndActivation) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n"), 3, 8, 8}), r = b.input("r", {b.symbol("n"), 4, 8, 8});
  ValueId conv = b.node("conv", "Conv", {x, b.weights("w", {4, 3, 3, 3})}, {{"pads", std::vector<int64_t>{1, 1, 1, 1}}})[0];
  b.output(b.node("y", "FusedElementwise", {r, conv}, {{"steps", std::vector<std::string>{"Add 0 1", "Relu 2"}}}, 1, "treadle")[0]);
  const std::string text = fused(b.take(), device_with({"ChainedConv"}), 1);
  EXPECT_NE(text.find(R"(%y f32[n,4,8,8] = treadle.ChainedConv(%x, %w, -, %r) {pads=[1,1,1,1], steps=["Add 1 0","Relu 2"]})"),
            std::string::npos)
      << text;
}

TEST(FuseEpilogue, AProductTakesTheOperatorBehindItWhichNeedsNoOtherOperand) {
  GraphBuilder b;
  ValueId x = b.input("x", {b.symbol("n"), 5, 8});
  b.output(b.op("y", "Gelu", {b.op("product", "MatMul", {x, b.weights("w", {8, 6})})}));
  const std::string text = fused(b.take(), device_with({"ChainedMatMul"}), 1);
  EXPECT_NE(text.find(R"(%y f32[n,5,6] = treadle.ChainedMatMul(%x, %w) {steps=["Gelu 0"]})"), std::string::npos) << text;
}

// The pass must leave nodes alone if the product's result has another reader, if the chain is larger than the product, or if the device
// declines or does not have the operator.
TEST(FuseEpilogue, LeavesOtherNodesAlone) {
  auto read_twice = [] {
    GraphBuilder b;
    ValueId product = b.op("product", "MatMul", {b.input("x", {4, 8}), b.weights("w", {8, 6})});
    b.output(b.op("y", "Relu", {product}));
    b.output(b.op("z", "Softmax", {product}));
    return b.take();
  };
  auto larger = [] {
    GraphBuilder b;
    ValueId product = b.op("product", "MatMul", {b.input("x", {1, 8}), b.weights("w", {8, 6})});
    b.output(b.op("y", "Add", {product, b.input("r", {4, 6})}));
    return b.take();
  };
  auto plain = [] {
    GraphBuilder b;
    b.output(b.op("y", "Relu", {b.op("product", "MatMul", {b.input("x", {4, 8}), b.weights("w", {8, 6})})}));
    return b.take();
  };
  const DeviceForms device = device_with({"ChainedMatMul"});
  for (auto graph : {+read_twice, +larger}) EXPECT_EQ(fused(graph(), device, 0), print(*graph()));
  EXPECT_EQ(fused(plain(), device_with({"ChainedConv"}), 0), print(*plain()));
  const DeviceForms refusing{{"ChainedMatMul"}, [](const Graph&, const Node&) { return false; }};
  EXPECT_EQ(fused(plain(), refusing, 0), print(*plain()));
}

std::set<std::string> domains_and_types(const DeviceForms* device, passes::Level level) {
  GraphBuilder b;
  ValueId x = b.input("x", {1, 3, 8, 8});
  ValueId conv = b.op("conv", "Conv", {x, b.weights("w", {4, 3, 3, 3})});
  ValueId dense = b.op("dense", "MatMul", {b.input("rows", {4, 9}), b.weights("v", {9, 5})});
  b.output(b.op("relu", "Relu", {conv}));
  b.output(b.op("biased", "Add", {dense, b.weights("bias", {5})}));
  b.output(b.op("gate", "Sigmoid", {b.op("e", "Exp", {b.input("z", {5})})}));
  auto graph = b.take();
  passes::PipelineOptions options{.level = level, .verify = true};
  options.device = device;
  passes::optimize(*graph, options);
  std::set<std::string> types;
  for (NodeId id : graph->order()) types.insert(graph->node(id).op_type);
  return types;
}

TEST(DeviceForms, PassesMakeOnlyWhatADeviceHas) {
  const DeviceForms none = device_with({}), chains = device_with({"FusedElementwise"}),
                    all = device_with({"FusedElementwise", "ChainedConv", "ChainedMatMul", "ChainedGemm"});
  using Types = std::set<std::string>;
  for (passes::Level level : {passes::Level::extended, passes::Level::layout}) {
    EXPECT_EQ(domains_and_types(&none, level), (Types{"Add", "Conv", "Exp", "MatMul", "Relu", "Sigmoid"}));
    EXPECT_EQ(domains_and_types(&chains, level), (Types{"Add", "Conv", "FusedElementwise", "MatMul", "Relu"}));
    EXPECT_EQ(domains_and_types(&all, level), (Types{"ChainedConv", "ChainedMatMul", "FusedElementwise"}));
  }
  EXPECT_TRUE(domains_and_types(nullptr, passes::Level::layout).contains("NhwcConv"));
}

// A pass that does not know for which device it makes nodes would make them for every device.
TEST(DeviceForms, PassesNameWhatTheyMake) {
  for (const passes::PassInfo& pass : passes::list_passes()) {
    std::string_view rest = pass.conditions.makes;
    while (!rest.empty()) {
      const std::string_view op_type = rest.substr(0, rest.find(' '));
      EXPECT_TRUE(find_op("treadle", op_type)) << pass.name << " makes " << op_type;
      rest.remove_prefix(std::min(op_type.size() + 1, rest.size()));
    }
  }
}

TEST(TypedSteps, KeepTheTypesOfOperands) {
  GraphBuilder b;
  ValueId x = b.input("x", {4}, DType::float16), n = b.input("n", {4}, DType::int64);
  b.output(b.op("product", "Mul", {x, x}));
  b.output(b.op("sum", "Add", {n, n}));
  b.output(b.op("gelu", "Gelu", {x}));
  b.output(b.node("cast", "Cast", {n}, {{"to", int64_t{10}}})[0]);
  auto graph = b.take();
  const DeviceForms device = device_with({"FusedElementwise"});
  EXPECT_EQ(passes::fuse_elementwise(*graph, INT64_MAX, false, &device), 0) << "chains of one operator";
}

}  // namespace
}  // namespace treadle
