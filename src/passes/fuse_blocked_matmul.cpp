// MatMul(x, DequantizeLinear(codes)), possibly with a Transpose of the weights -> BlockedMatMul(x, codes). Weights stay in 4 or 8 bits;
// folding would expand them to floats. Blocks lie along the inner dimension; without blocks there is one scale, or one per column. The sum
// of each block is scaled once, which rounds differently from a product with dequantized weights.
#include <fmt/format.h>

#include <algorithm>

#include "ops/microsoft/microsoft.h"
#include "passes/list.h"
#include "passes/matching.h"
#include "passes/trace.h"

namespace treadle::passes {
namespace {

class FuseBlockedMatMul final : public Rule {
 public:
  explicit FuseBlockedMatMul(const PipelineOptions& options) : device_(options.device) {}
  std::string_view name() const override { return "fuse-blocked-matmul"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    if (!node.is("MatMul")) return std::nullopt;
    const Type& a = graph.type(node.inputs[0]);
    // If both operands are dequantized, fuse_quantized_matmul handles the node.
    const Node* left = producer_of(graph, node.inputs[0]);
    if (left && left->is("DequantizeLinear")) return std::nullopt;
    const Node* weights = producer_of(graph, node.inputs[1]);
    const bool transposed = has_perm(weights, {1, 0});
    if (transposed) weights = producer_of(graph, weights->inputs[0]);
    if (!weights || !weights->is("DequantizeLinear")) return std::nullopt;
    const DType dtype = graph.type(node.outputs[0]).dtype;
    // Only devices have such products of 16-bit floats; on the host, these are converted to float32 first.
    const bool is_taken = dtype == DType::float32 || (device_ && (dtype == DType::float16 || dtype == DType::bfloat16));
    if (!is_taken || !a.has_rank() || a.rank() < 2 || graph.constant_tensor(node.inputs[0]))
      return no_patch(node, [&] {
        return fmt::format("it multiplies {}; a computed float32 of rank 2 or more is needed", found(graph, node.inputs[0]));
      });
    const Type &codes = graph.type(weights->inputs[0]), &scales = graph.type(weights->inputs[1]);
    const bool is_code =
        codes.dtype == DType::int4 || codes.dtype == DType::uint4 || codes.dtype == DType::int8 || codes.dtype == DType::uint8;
    if (!is_code || !codes.is_static() || codes.rank() != 2 || !scales.is_static() || scales.dtype != dtype)
      return no_patch(node, [&] {
        return fmt::format("the weights are {} with scales {}; a matrix of 4 or 8 bits with {} scales is needed",
                           found(graph, weights->inputs[0]), found(graph, weights->inputs[1]), name_of(dtype));
      });
    for (ValueId input : weights->inputs)
      if (input != kNoValue && !graph.constant_tensor(input))
        return no_patch(node, "weights, scales and zero points are not all constant, at", weights);
    const int64_t inner = transposed ? 1 : 0, block = weights->attributes.get_int("block_size");
    int64_t axis = weights->attributes.get_int("axis", 1);
    if (axis < 0) axis += 2;
    const Shape extents = codes.static_shape(), have = scales.static_shape();
    if (block > 0) {
      // Declines longer blocks, because computations of extents could overflow.
      if (block > (int64_t{1} << 30)) return no_patch(node, "a block is longer than 2^30, at", weights);
      Shape wanted = extents;
      wanted[static_cast<int>(inner)] = (extents[static_cast<int>(inner)] + block - 1) / block;
      if (axis != inner || block % 8 != 0 || have != wanted)
        return no_patch(node, [&] {
          return fmt::format("blocks of {} along axis {} have scales {}; blocks of a multiple of 8 along axis {} are needed", block, axis,
                             to_string(have), inner);
        });
    } else if (have.num_elements() != 1 && (axis == inner || have != Shape{extents[static_cast<int>(axis)]})) {
      return no_patch(node, [&] {
        return fmt::format("scales {} along axis {}; one scale, or one for each column, is needed", to_string(have), axis);
      });
    }
    if (extents.num_elements() == 0) return std::nullopt;
    if (weights->has_input(2)) {
      const Type& zeros = graph.type(weights->inputs[2]);
      if (!zeros.is_static() || zeros.static_shape() != have || zeros.dtype != codes.dtype)
        return no_patch(node, [&] {
          return fmt::format("the zero points are {}; {} of the weights' type is needed", found(graph, weights->inputs[2]),
                             to_string(have));
        });
    }
    std::vector<ValueId> inputs{node.inputs[0], weights->inputs[0], weights->inputs[1]};
    if (weights->has_input(2)) inputs.push_back(weights->inputs[2]);
    const bool rounds = std::find(node.metadata.begin(), node.metadata.end(), ops::kInt8Activations) != node.metadata.end();
    NodeSpec spec{.op_type = "BlockedMatMul",
                  .inputs = std::move(inputs),
                  .attributes = {{"axis", inner}, {"block_size", block}, {"int8_activations", rounds ? int64_t{1} : int64_t{0}}},
                  .domain = "treadle",
                  .name = node.name};
    // If the device has no such kernel, the host would have to compute the node, and the host has a kernel for float32 only.
    if (dtype != DType::float32 && !device_->takes(graph, as_node(spec, node)))
      return no_patch(node, [&] { return fmt::format("the device has no such products of {}", name_of(dtype)); });
    Patch patch;
    patch.replace(node.outputs[0], patch.add(std::move(spec)));
    return patch;
  }

 private:
  const DeviceForms* device_;
};

}  // namespace

Pass fuse_blocked_matmul() {
  return rule_pass<FuseBlockedMatMul>(
      kExtended, {.frozen_weights = true, .not_before_autodiff = true, .removes_quantization = true, .makes = "BlockedMatMul"},
      "products with dequantised weights -> BlockedMatMul, outside of training");
}

}  // namespace treadle::passes
