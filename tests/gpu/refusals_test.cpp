// Tests that kernels of GPUs refuse operands of operators of training that do not fit together, with the words of the host's kernels.
// Models do not have these operators, and binding them needs no GPU.
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "core/devices/device_registry.h"
#include "gpu/gpu_type.h"
#include "graph/kernel_table.h"
#include "graph/op_def.h"
#include "tests/graph/graph_builder.h"
#include "treadle/error.h"

namespace treadle::gpu {
namespace {

struct Refusal {
  std::string op_type;
  std::vector<Shape> inputs;
  std::string says;
  std::vector<int64_t> whole = {};  // the last input, if it is the shape of the result
  Attributes attributes = {};
  std::vector<int> indices = {};  // inputs of int64
  int num_outputs = 1;
};

/// Returns the message with which a kernel refuses the node; empty if it does not.
std::string refusal_of(const KernelDef& kernel, const PackedState* state, const Refusal& of, const Graph& graph, const Node& node) {
  const Shape scalar, result(of.whole.empty() ? of.inputs[0] : Shape(of.whole));
  std::vector<const Shape*> shapes;
  std::vector<DType> dtypes;
  std::vector<const Tensor*> values;
  const Shape length{static_cast<int64_t>(of.whole.size())};
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    shapes.push_back(i < of.inputs.size() ? &of.inputs[i] : &length);
    dtypes.push_back(graph.type(node.inputs[i]).dtype);
    values.push_back(graph.constant_tensor(node.inputs[i]));
  }
  for (const ValueId output : node.outputs) shapes.push_back(&result), dtypes.push_back(graph.type(output).dtype);
  BindContext context(node);
  context.shapes_ = shapes, context.dtypes_ = dtypes, context.values_ = values, context.packed_ = state;
  std::vector<std::max_align_t> bound(kernel.state_bytes / sizeof(std::max_align_t) + 1);
  try {
    kernel.bind(bound.data(), context);
  } catch (const Error& error) {
    return error.message();
  }
  return {};
}

class GpuRefusals : public ::testing::TestWithParam<Refusal> {};

TEST_P(GpuRefusals, HaveTheWordsOfTheHost) {
  const Refusal& of = GetParam();
  testing::GraphBuilder g;
  std::vector<ValueId> inputs;
  for (const Shape& shape : of.inputs) {
    SymbolicShape unknown;
    for (int axis = 0; axis < shape.rank(); ++axis) unknown.push_back(g.symbol("n" + std::to_string(10 * inputs.size() + axis)));
    const bool is_index = std::ranges::find(of.indices, static_cast<int>(inputs.size())) != of.indices.end();
    inputs.push_back(g.input("x" + std::to_string(inputs.size()), unknown, is_index ? DType::int64 : DType::float32));
  }
  if (!of.whole.empty()) inputs.push_back(g.ints("shape", of.whole));
  g.node("y", of.op_type, inputs, of.attributes, of.num_outputs, "treadle");
  const Node& node = g.graph().node(g.last_node());
  register_gpu_type();
  const auto kernels = find_device_type("gpu")->kernels;
  if (!kernels) GTEST_SKIP() << "this build has no GPUs";
  const DeviceKernel on_gpu = kernels->find(g.graph(), node);
  ASSERT_NE(on_gpu.kernel, nullptr);
  const KernelDef& host = select_kernel(g.graph(), node);
  const std::unique_ptr<PackedState> state = host.create ? host.create(CreateContext(g.graph(), node)) : nullptr;
  const std::string words = refusal_of(host, state.get(), of, g.graph(), node);
  EXPECT_NE(words.find(of.says), std::string::npos) << words;
  EXPECT_EQ(refusal_of(*on_gpu.kernel, on_gpu.state.get(), of, g.graph(), node), words);
}

const std::vector<int64_t> kTwo{2, 2};

INSTANTIATE_TEST_SUITE_P(
    All, GpuRefusals,
    ::testing::Values(
        Refusal{"MaxPoolGrad", {{1, 1, 2, 2}, {1, 1, 4, 1}}, "indices [1,1,4,1] of a gradient [1,1,2,2]", {1, 1, 4, 4}, {}, {1}},
        Refusal{"MaxPoolGrad", {{1, 2, 2, 2}, {1, 2, 2, 2}}, "is of no pool over", {1, 1, 4, 4}, {}, {1}},
        Refusal{"AveragePoolGrad",
                {{1, 1, 3, 3}},
                "does not have the pool's extents [2,2]",
                {1, 1, 4, 4},
                {{"kernel_shape", kTwo}, {"strides", kTwo}}},
        Refusal{"ConvGradInput", {{1, 2, 3, 3}, {2, 1, 2, 2}}, "does not have the convolution's extents [4,4]", {1, 1, 5, 5}},
        Refusal{"NegativeLogLikelihoodLossGrad", {{}, {3}}, "are of no loss over [2,3]", {2, 3}, {}, {1}},
        Refusal{"NegativeLogLikelihoodLossGrad", {{2}, {2}}, "are of no loss over [2,3]", {2, 3}, {}, {1}},
        Refusal{"LayerNormalizationGrad", {{3, 2}, {2, 3}, {3}}, "are of no normalisation from axis 1 on", {}, {}, {}, 3},
        Refusal{"RMSNormalizationGrad", {{2, 3}, {2, 3}, {2}}, "are of no normalisation from axis 1 on", {}, {}, {}, 2},
        Refusal{"SoftmaxGrad", {{2, 3}, {3, 2}}, "Y [2,3] and dY [3,2] are of no softmax"},
        Refusal{"BatchNormalizationGrad", {{3, 2}, {2, 3}, {3}}, "are of no batch normalisation", {}, {}, {}, 3},
        Refusal{"GatherGrad", {{2, 3}, {3}}, "is of no Gather of [3] from [4,3]", {4, 3}, {}, {1}},
        Refusal{"GatherGradRows", {{2, 3}, {3}}, "is of no Gather of rows", {4, 3}, {}, {1}, 2},
        Refusal{"AccumulateGradient", {{2, 3}, {3, 2}}, "the sum [2,3] and the gradient [3,2]"},
        Refusal{"AverageParameter", {{2, 3}, {3, 2}}, "the average [2,3] and the parameter [3,2]", {}, {{"decay", 0.5F}}},
        Refusal{"Assign", {{2, 3}, {3, 2}}, "the state [2,3] and the value [3,2]"},
        Refusal{"UnscaleGradient", {{2, 3}, {2}, {1}}, "scale is [2]; one number is expected"}),
    [](const auto& info) { return info.param.op_type + std::to_string(info.index); });

}  // namespace
}  // namespace treadle::gpu
